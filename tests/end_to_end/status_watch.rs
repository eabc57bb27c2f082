//! `eds status --watch` in a real 80 × 24 terminal drawn by tmux: screen, keys, signals, sizes, colours, and cleanup.

use tempfile::NamedTempFile;

use crate::prelude::*;

/// A terminal in which a command runs until this is dropped.
struct Terminal {
    name: String,
    written: NamedTempFile,
}

impl Terminal {
    /// Runs `eds status --watch` with a node's configuration and these variables, and then prints its exit code.
    fn watching(node: &Node, variables: &str) -> Self {
        node.write_config();
        let terminal = Self {
            name: format!("eds-{}-{}", std::process::id(), free_port()),
            written: NamedTempFile::new().unwrap(),
        };
        let (program, config) = (eds().get_program().to_owned(), node.config_path());
        let watch = format!("{} status --watch --config {}", program.display(), config.display());
        let after = "echo \"ended $?\"; stty -a | grep -o -- '-*icanon'; exec cat";
        // Ctrl-C must end the command, but not the shell, which starts the command once the output is being captured.
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

    /// Returns all bytes written to the terminal, including escape sequences.
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
        numbers.any(|number| matches!(number.parse(), Ok(30..=38 | 40..=48 | 90..=107)))
    }

    fn pid(&self) -> u32 {
        let shell = self.run(&["list-panes", "-F", "#{pane_pid}"]);
        let mut pgrep = Command::new("pgrep");
        let children = pgrep.args(["-P", shell.trim()]).output().unwrap();
        String::from_utf8(children.stdout).unwrap().trim().parse().unwrap()
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

/// Part of the last line of the screen, which must be gone afterwards.
const FOOT: &str = "q: quit";

#[test]
fn watch_shows_findings_on_80_by_24_and_obeys_its_keys() {
    let redis = RedisServer::start(&[]);
    let node = Node::start("one", &[("store.url", &redis.url())]);
    let terminal = Terminal::watching(&node, "");
    let screen =
        terminal.wait(&["Has anything been lost? No", "WARNING", "no append-only file", FOOT]);
    let widest = screen.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(widest <= 80 && screen.lines().count() == 24, "{screen}");
    eventually("the output is coloured", SOON, || when(terminal.is_coloured(), terminal.screen()));
    terminal.wait(&["one  "]);
    // A window that is too small for anything does no harm.
    terminal.run(&["resize-window", "-x", "3", "-y", "1"]);
    wait_for("it fits the smallest window", || terminal.screen(), |screen| screen.trim() == "q:");
    terminal.run(&["resize-window", "-x", "100", "-y", "12"]);
    eventually("it fits the smaller window", SOON, || {
        let screen = terminal.screen();
        let is_last = screen.lines().last().is_some_and(|line| line.contains("more lines below"));
        when(screen.lines().count() == 12 && is_last, screen)
    });
    terminal.press("PageDown");
    wait_for(
        "the screen is scrolled",
        || terminal.screen(),
        |screen| !screen.contains("Has anything been lost?") && screen.contains(FOOT),
    );
    terminal.press("q");
    // Exit code 1 reports the finding, and the previous screen is restored.
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
        let screen = terminal.wait(&["CRITICAL", "redis-down", "do:  start Redis", FOOT]);
        assert!(!terminal.is_coloured(), "{screen}");
        signal(terminal.pid(), name);
        let screen = terminal.wait(&["ended 1", "icanon"]);
        assert!(!screen.contains("-icanon") && !screen.contains(FOOT), "{name}: {screen}");
        // The file gets the output later than the screen.
        let written = || terminal.written();
        wait_for("the cursor is shown", written, |written| written.contains("\u{1b}[?25h"));
        assert!(!terminal.is_coloured(), "{:?}", terminal.written());
    }
    // In its own session, it gets no SIGHUP.
    let terminal = Terminal::watching(&node, "setsid");
    terminal.wait(&[FOOT]);
    let stat = format!("/proc/{}/stat", terminal.pid());
    drop(terminal);
    let state = || fs::read_to_string(&stat).unwrap_or_default();
    let has_exited = |state: &String| state.is_empty() || state.contains(") Z ");
    wait_for("it exits when its terminal is closed", state, has_exited);
    // A terminal without cursor movement gets plain text without escape sequences.
    let terminal = Terminal::watching(&node, "TERM=dumb");
    let screen = terminal.wait(&["CRITICAL", "redis-down", "do:  start Redis"]);
    assert!(!screen.contains(FOOT), "{screen}");
    let written = terminal.written();
    assert!(!written.contains('\u{1b}'), "{written:?}");
    terminal.press("C-c");
    terminal.wait(&["ended 130"]);
}
