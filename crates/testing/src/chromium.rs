//! A headless Chromium with one page, which is controlled through the `DevTools` protocol over a pipe. It records the
//! errors, warnings and requests of the page. When [`Chromium`] is dropped, the browser is stopped and its profile removed.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::eventually::{SOON, eventually, when};
use crate::process;

/// The messages received from the browser.
#[derive(Debug, Default)]
struct Inbox {
    /// The responses and events in order of arrival.
    messages: Vec<Value>,
    ended: bool,
}

#[derive(Debug)]
pub struct Chromium {
    child: Child,
    commands: Mutex<(ChildStdin, u64)>,
    inbox: Arc<(Mutex<Inbox>, Condvar)>,
    session: Option<String>,
    directory: TempDir,
}

/// The color scheme of the system, as reported to the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Theme {
    Light,
    Dark,
}

impl Chromium {
    /// Starts a browser with an empty page.
    pub fn start() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let log = File::create(directory.path().join("log")).expect("a log file can be created");
        // Chromium reads commands from file descriptor 3 and writes responses to 4. A shell sets these up without `unsafe`
        // code here.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null", "sh", "chromium"])
            // The sandbox does not work for root, and is not needed because the tests open only their own pages.
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
            .expect("the shell is installed");
        let commands = child.stdin.take().expect("its input is a pipe");
        let answers = child.stdout.take().expect("its output is a pipe");
        let inbox = Arc::new((Mutex::new(Inbox::default()), Condvar::new()));
        let listener = Arc::clone(&inbox);
        thread::spawn(move || listen(answers, &listener));
        let mut browser =
            Self { child, commands: Mutex::new((commands, 0)), inbox, session: None, directory };
        let page = browser.call("Target.createTarget", &json!({"url": "about:blank"}));
        let attach = json!({"targetId": page["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", &attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network", "Accessibility"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        browser
    }

    /// Runs a command of the protocol and returns its result. Panics if the command fails.
    #[track_caller]
    pub fn call(&self, method: &str, parameters: &Value) -> Value {
        let id = {
            let mut commands = self.commands.lock().expect("lock is not poisoned");
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
        let is_answer = |message: &&Value| message["id"] == id;
        let (inbox, news) = &*self.inbox;
        let inbox = inbox.lock().expect("lock is not poisoned");
        let waits = |inbox: &mut Inbox| {
            !inbox.ended && !inbox.messages.iter().any(|message| message["id"] == id)
        };
        let (inbox, _) = news.wait_timeout_while(inbox, SOON, waits).expect("lock is not poisoned");
        let answer = inbox.messages.iter().find(is_answer).cloned();
        let answer = answer.unwrap_or_else(|| panic!("{method} got no response: {}", self.log()));
        assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
        answer["result"].clone()
    }

    /// Returns the log of the browser process.
    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Returns the parameters of all events with this name so far.
    pub fn events(&self, method: &str) -> Vec<Value> {
        let inbox = self.inbox.0.lock().expect("lock is not poisoned");
        let events = inbox.messages.iter().filter(|message| message["method"] == method);
        events.map(|event| event["params"].clone()).collect()
    }

    /// Opens this URL, and waits until the page has loaded.
    #[track_caller]
    pub fn open(&self, url: &str) {
        let opened = self.call("Page.navigate", &json!({"url": url}));
        assert!(opened["errorText"].is_null(), "{url}: {opened}");
        let state = "document.readyState";
        self.wait("the page has loaded", &format!("{state} === 'complete'"), state);
    }

    /// Evaluates a JavaScript expression and returns its value. If the value is a promise, waits for its result.
    #[track_caller]
    pub fn evaluate(&self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", &asked);
        let thrown = &answer["exceptionDetails"];
        assert!(thrown.is_null(), "{expression}: {thrown}");
        answer["result"]["value"].clone()
    }

    /// Waits until a JavaScript expression is true. If it does not become true in time, panics with the value of the
    /// expression `seen`.
    #[track_caller]
    pub fn wait(&self, condition: &str, expression: &str, seen: &str) {
        eventually(condition, SOON, || {
            let holds = self.evaluate(expression) == true;
            when(holds, if holds { Value::Null } else { self.evaluate(seen) })
        });
    }

    /// Returns the text of the first element that matches a selector, or an empty string if there is none.
    #[track_caller]
    pub fn text(&self, selector: &str) -> String {
        let text = self
            .evaluate(&format!("document.querySelector({})?.textContent ?? ''", json!(selector)));
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Sets the size of the page, in CSS pixels.
    pub fn resize(&self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Sets the color scheme of the system that is reported to the page.
    pub fn prefer(&self, theme: Theme) {
        let value = match theme {
            Theme::Light => "light",
            Theme::Dark => "dark",
        };
        let features = json!([{"name": "prefers-color-scheme", "value": value}]);
        self.call("Emulation.setEmulatedMedia", &json!({"features": features}));
    }

    /// Presses and releases a key, for example `Tab` or `Enter`.
    pub fn press(&self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            other => panic!("key {other} is not supported yet"),
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

    /// Returns the roles and names of all elements that a screen reader finds on the page.
    pub fn accessible(&self) -> Vec<(String, String)> {
        let tree = self.call("Accessibility.getFullAXTree", &json!({}));
        let text = |value: &Value| value["value"].as_str().unwrap_or_default().to_owned();
        let nodes = tree["nodes"].as_array().expect("a list").iter();
        let nodes = nodes.filter(|node| node["ignored"] != true);
        nodes.map(|node| (text(&node["role"]), text(&node["name"]))).collect()
    }

    /// Returns the errors and warnings in the console, uncaught exceptions, and violations of the content security policy.
    pub fn complaints(&self) -> Vec<String> {
        let mut all = self.events("Runtime.exceptionThrown");
        all.extend(self.events("Runtime.consoleAPICalled"));
        all.extend(self.events("Log.entryAdded"));
        all.iter().map(ToString::to_string).collect()
    }

    /// Returns the URLs that the page has requested.
    pub fn requests(&self) -> Vec<String> {
        let sent = self.events("Network.requestWillBeSent");
        let url = |event: &Value| event["request"]["url"].as_str().unwrap_or_default().to_owned();
        sent.iter().map(url).collect()
    }

    /// Returns a screenshot of the visible part of the page, as a PNG file in base64.
    pub fn picture(&self) -> String {
        let answer = self.call("Page.captureScreenshot", &json!({"format": "png"}));
        answer["data"].as_str().expect("a screenshot").to_owned()
    }
}

/// Stores the messages from the browser until the browser exits.
fn listen(answers: ChildStdout, inbox: &(Mutex<Inbox>, Condvar)) {
    let mut answers = BufReader::new(answers);
    loop {
        let mut message = Vec::new();
        let read = answers.read_until(0, &mut message);
        message.pop();
        let mut kept = inbox.0.lock().expect("lock is not poisoned");
        match serde_json::from_slice(&message) {
            Ok(message) if read.is_ok() => kept.messages.push(message),
            _ => kept.ended = true,
        }
        inbox.1.notify_all();
        if kept.ended {
            return;
        }
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        // Close the browser with a command first, because its processes use files in the profile until they have exited.
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
