//! A headless Chromium with one page, driven by the `DevTools` protocol over a pipe. The page's complaints and
//! requests are kept. It stops with its owner and removes its profile.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::eventually::{SOON, eventually, when};
use crate::process;

/// The messages of the browser.
#[derive(Debug, Default)]
struct Said {
    /// Answers and events, in their order.
    messages: Vec<Value>,
    ended: bool,
}

#[derive(Debug)]
pub struct Chromium {
    child: Child,
    commands: Mutex<(ChildStdin, u64)>,
    said: Arc<(Mutex<Said>, Condvar)>,
    session: Option<String>,
    directory: TempDir,
}

/// A theme of the system, as a page sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Theme {
    Light,
    Dark,
}

impl Chromium {
    /// A browser with an empty page.
    pub fn start() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let log = File::create(directory.path().join("log")).expect("a file can be made");
        // It reads commands from descriptor 3 and answers to 4, which a shell can give it without `unsafe` here.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null", "sh", "chromium"])
            // There is no sandbox for root, and the tests open only their pages.
            .args(["--headless=new", "--no-sandbox", "--remote-debugging-pipe"])
            .args(["--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"])
            .args([
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
            ])
            .arg(format!("--user-data-dir={}", directory.path().join("profile").display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("there is a shell");
        let commands = child.stdin.take().expect("its input is a pipe");
        let answers = child.stdout.take().expect("its output is a pipe");
        let said = Arc::new((Mutex::new(Said::default()), Condvar::new()));
        let listener = Arc::clone(&said);
        thread::spawn(move || listen(answers, &listener));
        let mut browser =
            Self { child, commands: Mutex::new((commands, 0)), said, session: None, directory };
        let page = browser.call("Target.createTarget", &json!({"url": "about:blank"}));
        let attach = json!({"targetId": page["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", &attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network", "Accessibility"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        browser
    }

    /// Returns the answer of a command.
    #[track_caller]
    pub fn call(&self, method: &str, parameters: &Value) -> Value {
        let id = {
            let mut commands = self.commands.lock().expect("no one panics with it");
            commands.1 += 1;
            let mut command = json!({"id": commands.1, "method": method, "params": parameters});
            if let Some(session) = &self.session {
                command["sessionId"] = json!(session);
            }
            let bytes = format!("{command}\0");
            let written = commands.0.write_all(bytes.as_bytes());
            written.unwrap_or_else(|error| panic!("{method}: {error}; {}", self.log()));
            commands.1
        };
        let is_answer = |it: &&Value| it["id"] == id;
        let (said, news) = &*self.said;
        let said = said.lock().expect("no one panics with it");
        let waits = |said: &mut Said| !said.ended && !said.messages.iter().any(|it| it["id"] == id);
        let (said, _) = news.wait_timeout_while(said, SOON, waits).expect("no one panics with it");
        let answer = said.messages.iter().find(is_answer).cloned();
        let answer = answer.unwrap_or_else(|| panic!("{method} has no answer: {}", self.log()));
        assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
        answer["result"].clone()
    }

    /// Returns the log of the browser itself.
    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// The parameters of all events of this name so far.
    pub fn events(&self, method: &str) -> Vec<Value> {
        let said = self.said.0.lock().expect("no one panics with it");
        let of_it = said.messages.iter().filter(|it| it["method"] == method);
        of_it.map(|it| it["params"].clone()).collect()
    }

    /// Opens this address, and waits until the page is there.
    #[track_caller]
    pub fn open(&self, url: &str) {
        let opened = self.call("Page.navigate", &json!({"url": url}));
        assert!(opened["errorText"].is_null(), "{url}: {opened}");
        let state = "document.readyState";
        self.wait("the page is there", &format!("{state} === 'complete'"), state);
    }

    /// The value of an expression, once it has one if it is a promise.
    #[track_caller]
    pub fn evaluate(&self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", &asked);
        let thrown = &answer["exceptionDetails"];
        assert!(thrown.is_null(), "{expression}: {thrown}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true; `seen` is an expression for the message of a failure.
    #[track_caller]
    pub fn wait(&self, what: &str, expression: &str, seen: &str) {
        eventually(what, SOON, || {
            let holds = self.evaluate(expression) == true;
            when(holds, if holds { Value::Null } else { self.evaluate(seen) })
        });
    }

    /// The text of the first element that a selector finds; empty where there is none.
    #[track_caller]
    pub fn text(&self, selector: &str) -> String {
        let text = self
            .evaluate(&format!("document.querySelector({})?.textContent ?? ''", json!(selector)));
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Gives the page this size, in CSS pixels.
    pub fn resize(&self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Sets the theme that the page takes for the system's.
    pub fn prefer(&self, theme: Theme) {
        let value = match theme {
            Theme::Light => "light",
            Theme::Dark => "dark",
        };
        let features = json!([{"name": "prefers-color-scheme", "value": value}]);
        self.call("Emulation.setEmulatedMedia", &json!({"features": features}));
    }

    /// Presses and releases a key: `Tab`, `Enter`.
    pub fn press(&self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            other => panic!("no key {other} yet"),
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event =
                json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = json!(text);
            }
            self.call("Input.dispatchKeyEvent", &event);
        }
    }

    /// Returns the roles and names that a screen reader finds on the page.
    pub fn accessible(&self) -> Vec<(String, String)> {
        let tree = self.call("Accessibility.getFullAXTree", &json!({}));
        let text = |value: &Value| value["value"].as_str().unwrap_or_default().to_owned();
        let nodes = tree["nodes"].as_array().expect("a list").iter();
        let nodes = nodes.filter(|node| node["ignored"] != true);
        nodes.map(|node| (text(&node["role"]), text(&node["name"]))).collect()
    }

    /// Returns errors and warnings of the console, uncaught exceptions, and violations of the page's policy.
    pub fn complaints(&self) -> Vec<String> {
        let mut all = self.events("Runtime.exceptionThrown");
        all.extend(self.events("Runtime.consoleAPICalled"));
        all.extend(self.events("Log.entryAdded"));
        all.iter().map(ToString::to_string).collect()
    }

    /// The addresses that the page asked for.
    pub fn requests(&self) -> Vec<String> {
        let sent = self.events("Network.requestWillBeSent");
        let url = |it: &Value| it["request"]["url"].as_str().unwrap_or_default().to_owned();
        sent.iter().map(url).collect()
    }

    /// Returns a picture of the view, as PNG in base64.
    pub fn picture(&self) -> String {
        let answer = self.call("Page.captureScreenshot", &json!({"format": "png"}));
        answer["data"].as_str().expect("a picture").to_owned()
    }
}

/// Keeps the messages of the browser, until it ends.
fn listen(answers: ChildStdout, said: &(Mutex<Said>, Condvar)) {
    let mut answers = BufReader::new(answers);
    loop {
        let mut message = Vec::new();
        let read = answers.read_until(0, &mut message);
        message.pop();
        let mut kept = said.0.lock().expect("no one panics with it");
        match serde_json::from_slice(&message) {
            Ok(message) if read.is_ok() => kept.messages.push(message),
            _ => kept.ended = true,
        }
        said.1.notify_all();
        if kept.ended {
            return;
        }
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        // Its processes leave files open in the profile until they have ended, so it is closed by a command first.
        if let Ok(commands) = self.commands.get_mut() {
            let _ = commands.0.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        }
        if !thread::panicking() {
            process::wait(&mut self.child, SOON);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
