//! `eds status --watch` in a real terminal of 80 × 24, which tmux draws: the screen, keys, signals, sizes, colours; and the
//! terminal is restored afterwards.

use tempfile::NamedTempFile;

use crate::prelude::*;

/// A terminal in which a command runs; it ends with the value.
struct Terminal {
    name: String,
    /// All bytes written to the terminal.
    written: NamedTempFile,
}

impl Terminal {
    /// Watches with a node's configuration and these variables, and says at last with which code that ended.
    fn watching(node: &Node, variables: &str) -> Self {
        node.write_config();
        let terminal = Self {
            name: format!("eds-{}-{}", std::process::id(), free_port()),
            written: NamedTempFile::new().unwrap(),
        };
        let (program, config) = (eds().get_program().to_owned(), node.config_path());
        let watch = format!("{} status --watch --config {}", program.display(), config.display());
        let after = "echo \"ended $?\"; stty -a | grep -o -- '-*icanon'; exec cat";
        // What Ctrl-C ends is what watches, and not the shell. It starts once all is written down.
        let script = format!(
            "read start; trap : INT; sh -c 'exec env -u NO_COLOR {variables} {watch}'; {after}"
        );
        terminal.run(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            "80",
            "-y",
            "24",
            "sh",
            "-c",
            &script,
        ]);
        let copy = format!("cat > '{}'", terminal.written.path().display());
        terminal.run(&["pipe-pane", &copy]);
        terminal.press("Enter");
        terminal
    }

    fn run(&self, arguments: &[&str]) -> String {
        let mut tmux = Command::new("tmux");
        let output =
            tmux.args(["-L", &self.name]).args(arguments).output().expect("tmux is installed");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    fn screen(&self) -> String {
        self.run(&["capture-pane", "-p"])
    }

    #[track_caller]
    fn wait(&self, words: &[&str]) -> String {
        eventually(&format!("{words:?} is on the screen"), SOON, || {
            let screen = self.screen();
            when(words.iter().all(|word| screen.contains(word)), screen.clone()).map(|()| screen)
        })
    }

    /// Returns all bytes written to the terminal, with every sequence.
    fn written(&self) -> String {
        String::from_utf8(fs::read(self.written.path()).unwrap()).expect("UTF-8")
    }

    fn is_coloured(&self) -> bool {
        let written = self.written();
        let sequences = written.split("\u{1b}[").skip(1).filter_map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != ';')?;
            rest[end..].starts_with('m').then_some(&rest[..end])
        });
        let mut numbers = sequences.flat_map(|sequence| sequence.split(';'));
        numbers.any(|it| matches!(it.parse(), Ok(30..=38 | 40..=48 | 90..=107)))
    }

    fn signal(&self, name: &str) {
        let shell = self.run(&["list-panes", "-F", "#{pane_pid}"]);
        let mut pgrep = Command::new("pgrep");
        let children = pgrep.args(["-P", shell.trim()]).output().unwrap();
        let pid = String::from_utf8(children.stdout).unwrap();
        signal(pid.trim().parse().unwrap(), name);
    }

    fn press(&self, key: &str) {
        self.run(&["send-keys", key]);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let mut tmux = Command::new("tmux");
        let _ = tmux.args(["-L", &self.name, "kill-server"]).output();
    }
}

/// The last line of the watch, which is gone afterwards.
const FOOT: &str = "q quits";

#[test]
fn watch_shows_findings_on_80_by_24_and_obeys_its_keys() {
    let redis = RedisServer::start(&[]);
    let node = Node::start("one", &[("store.url", &redis.url())]);
    let terminal = Terminal::watching(&node, "");
    let screen = terminal.wait(&["Is anything lost? No", "WARNING", "no append-only file", FOOT]);
    let widest = screen.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(widest <= 80 && screen.lines().count() == 24, "{screen}");
    eventually("it is coloured", SOON, || when(terminal.is_coloured(), terminal.screen()));
    terminal.wait(&["one  "]);
    // One too small for anything does no harm.
    terminal.run(&["resize-window", "-x", "3", "-y", "1"]);
    wait_for("it fits the smallest window", || terminal.screen(), |screen| screen.trim() == "q q");
    terminal.run(&["resize-window", "-x", "100", "-y", "12"]);
    eventually("it fits the smaller window", SOON, || {
        let screen = terminal.screen();
        let is_last = screen.lines().last().is_some_and(|line| line.contains("more lines below"));
        when(screen.lines().count() == 12 && is_last, screen)
    });
    terminal.press("PageDown");
    wait_for(
        "it is scrolled",
        || terminal.screen(),
        |screen| !screen.contains("Is anything lost?") && screen.contains(FOOT),
    );
    terminal.press("q");
    // Something is wrong, and the screen is that of before.
    let screen = terminal.wait(&["ended 1", "icanon"]);
    assert!(!screen.contains("-icanon") && !screen.contains(FOOT), "{screen}");
    for key in ["Escape", "C-c"] {
        let terminal = Terminal::watching(&node, "");
        terminal.wait(&[FOOT]);
        terminal.press(key);
        let screen = terminal.wait(&["ended ", "icanon"]);
        assert!(!screen.contains("-icanon"), "{screen}");
    }
}

#[test]
fn watch_works_without_colours_and_restores_the_terminal() {
    let mut node = Node::new("one", &[]);
    node.set("store.url", &format!("redis://127.0.0.1:{}", free_port()));
    for name in ["TERM", "INT", "HUP"] {
        let terminal = Terminal::watching(&node, "NO_COLOR=1");
        let screen = terminal.wait(&["CRITICAL", "redis-down", "do:  start it", FOOT]);
        assert!(!terminal.is_coloured(), "{screen}");
        terminal.signal(name);
        let screen = terminal.wait(&["ended 1", "icanon"]);
        assert!(!screen.contains("-icanon") && !screen.contains(FOOT), "{name}: {screen}");
        let written = terminal.written();
        assert!(!terminal.is_coloured(), "{written:?}");
        assert!(written.contains("\u{1b}[?25h"), "the cursor is back: {written:?}");
    }
    // A terminal without cursor movement gets text without any sequence.
    let terminal = Terminal::watching(&node, "TERM=dumb");
    let screen = terminal.wait(&["CRITICAL", "redis-down", "do:  start it"]);
    assert!(!screen.contains(FOOT), "{screen}");
    let written = terminal.written();
    assert!(!written.contains('\u{1b}'), "{written:?}");
    terminal.press("C-c");
    terminal.wait(&["ended 130"]);
}
