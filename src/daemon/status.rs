//! `eds status`. With `--watch`, a separate thread surveys the store, because this may take seconds, while the main thread
//! draws the screen and handles keys and signals without delay. The terminal is restored on exit, even after a panic.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, TryRecvError};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use ratatui::{DefaultTerminal, Frame};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use super::{Misused, build, runtime};
use crate::config::Config;
use crate::status::{Observer, Status, lines};
use crate::store::redis::RedisStore;

/// The width of the output in columns if `COLUMNS` is not set.
const WIDTH: usize = 100;
const SURVEY_INTERVAL: Duration = Duration::from_secs(2);
/// How long to wait for a key before checking signals and redrawing the screen.
const KEY_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

/// Prints the status, repeatedly with `watch`. Returns whether the last status was healthy.
pub(crate) fn status(config: &Config, json: bool, watch: bool) -> anyhow::Result<bool> {
    let observer = observer_of(build::operated(config)?.0, config)?;
    if watch {
        if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
            let text = "--watch requires standard input and output to be a terminal; omit --watch, or use --json instead";
            return Err(Misused(text.to_owned()).into());
        }
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        if !is_dumb {
            return Screen::watch(observer);
        }
    }
    let runtime = runtime()?;
    loop {
        let status = runtime.block_on(observer.status());
        let mut out = io::stdout();
        if json {
            writeln!(out, "{}", status.to_json())?;
        } else {
            let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
            for line in lines(&status, columns.unwrap_or(WIDTH).max(40)) {
                writeln!(out, "{line}")?;
            }
        }
        out.flush()?;
        if !watch {
            return Ok(status.healthy);
        }
        // This terminal cannot move its cursor, so the next status is printed below this one.
        writeln!(out)?;
        std::thread::sleep(SURVEY_INTERVAL);
    }
}

pub(super) fn observer_of(store: RedisStore, config: &Config) -> anyhow::Result<Observer> {
    let expected = build::expected(config, &build::outputs(config)?);
    Ok(Observer::new(Arc::new(store.alike_in(&config.alike)), expected, None))
}

struct Screen {
    status: Option<(Instant, Arc<Status>)>,
    scrolled: u16,
    coloured: bool,
}

impl Screen {
    /// Shows the status until the user quits. Returns whether the last status was healthy.
    fn watch(observer: Observer) -> anyhow::Result<bool> {
        let ended = Arc::<AtomicBool>::default();
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            flag::register(signal, Arc::clone(&ended))?;
        }
        let runtime = runtime()?;
        let (sender, statuses) = mpsc::sync_channel(1);
        std::thread::Builder::new().name("eds-survey".to_owned()).spawn(move || {
            while sender.send(runtime.block_on(observer.status())).is_ok() {
                std::thread::sleep(SURVEY_INTERVAL);
            }
        })?;
        let mut screen = Self {
            status: None,
            scrolled: 0,
            coloured: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
        };
        let mut terminal = ratatui::try_init()?;
        let shown = screen.show(&mut terminal, &statuses, &ended);
        ratatui::restore();
        shown?;
        Ok(screen.status.is_some_and(|(_, status)| status.healthy))
    }

    fn show(
        &mut self,
        terminal: &mut DefaultTerminal,
        statuses: &mpsc::Receiver<Arc<Status>>,
        ended: &AtomicBool,
    ) -> io::Result<()> {
        while !ended.load(Ordering::Relaxed) {
            match statuses.try_recv() {
                Ok(status) => self.status = Some((Instant::now(), status)),
                Err(TryRecvError::Empty) => {}
                // The survey thread has panicked, and the panic hook has already restored the terminal.
                Err(TryRecvError::Disconnected) => {
                    return Err(io::Error::other("the survey thread has exited"));
                }
            }
            terminal.draw(|frame| self.draw(frame))?;
            let has_input = has_input()?;
            while has_input && event::poll(Duration::ZERO)? {
                if let Event::Key(key) = event::read()?
                    && !self.handle(key)
                {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn handle(&mut self, key: KeyEvent) -> bool {
        let by =
            |lines: i32| self.scrolled.saturating_add_signed(i16::try_from(lines).unwrap_or(0));
        self.scrolled = match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Down | KeyCode::Char('j') => by(1),
            KeyCode::Up | KeyCode::Char('k') => by(-1),
            KeyCode::PageDown | KeyCode::Char(' ') => by(10),
            KeyCode::PageUp => by(-10),
            KeyCode::Home => 0,
            _ => self.scrolled,
        };
        true
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let [body, foot] =
            Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
        let text = match &self.status {
            None => vec!["connecting to Redis …".to_owned()],
            Some((_, status)) => lines(status, usize::from(body.width).max(20)),
        };
        let most = u16::try_from(text.len()).unwrap_or(u16::MAX).saturating_sub(body.height);
        self.scrolled = self.scrolled.min(most);
        let below = most - self.scrolled;
        let text: Vec<_> = text.into_iter().map(|line| self.styled(line)).collect();
        frame.render_widget(Paragraph::new(text).scroll((self.scrolled, 0)), body);
        let ago = self.status.as_ref().map_or(0, |(at, _)| at.elapsed().as_secs());
        let more = if below > 0 { format!("  {below} more lines below") } else { String::new() };
        let keys = format!("q: quit  up/down: scroll  updated {ago} s ago{more}");
        frame
            .render_widget(Line::styled(keys, Style::new().add_modifier(Modifier::REVERSED)), foot);
    }

    fn styled(&self, line: String) -> Line<'static> {
        let starts = |words: &[&str]| words.iter().any(|word| line.starts_with(word));
        let (colour, bold) = match () {
            () if starts(&["CRITICAL", "not healthy"]) => (Some(Color::Red), true),
            () if starts(&["WARNING"]) => (Some(Color::Yellow), true),
            () if starts(&["healthy"]) => (Some(Color::Green), true),
            () => (None, starts(&["node ", "Has anything been lost?"])),
        };
        let mut style = Style::new();
        if let Some(colour) = colour.filter(|_| self.coloured) {
            style = style.fg(colour);
        }
        if bold {
            style = style.add_modifier(Modifier::BOLD);
        }
        Line::styled(line, style)
    }
}

/// Waits for input from the terminal. Fails if the terminal has been closed, because crossterm would keep reading from it.
fn has_input() -> io::Result<bool> {
    let terminal = io::stdin();
    let mut ready = [PollFd::new(&terminal, PollFlags::IN)];
    match poll(&mut ready, Some(&KEY_TIMEOUT)) {
        Ok(_) if ready[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) => {
            Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the terminal has been closed"))
        }
        Ok(count) => Ok(count > 0),
        // A signal arrived.
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use async_trait::async_trait;

    use super::*;
    use crate::event::Minute;
    use crate::status::Expected;
    use crate::store::{Bucket, Registry, Store, StoreError, Survey, Surveyed};

    const PANIC: &str = "this store cannot be looked at twice";

    /// A store that panics on the second survey, when the first result is on screen.
    #[derive(Debug, Default)]
    struct Panicking(AtomicBool);

    #[async_trait]
    impl Store for Panicking {
        async fn check(&self) -> Result<(), StoreError> {
            Ok(())
        }

        fn describe(&self) -> String {
            "nowhere".to_owned()
        }
    }

    #[async_trait]
    impl Survey for Panicking {
        fn registry(&self) -> Arc<dyn Registry> {
            unreachable!("an observer reads no registry")
        }

        async fn open_windows(&self) -> Result<Vec<(Bucket, u64)>, StoreError> {
            panic!("nothing was asked")
        }

        async fn survey(&self, _: &[Minute], _: Minute) -> Surveyed {
            assert!(!self.0.swap(true, Ordering::SeqCst), "{PANIC}");
            let why = StoreError::unavailable("refused");
            Surveyed::nothing(self.describe(), &why)
        }
    }

    #[test]
    #[ignore = "needs a terminal: the test below runs it on one"]
    fn panicking_watch_on_a_terminal() {
        let observer = Observer::new(Arc::new(Panicking::default()), Expected::default(), None);
        let error = Screen::watch(observer).unwrap_err().to_string();
        assert_eq!(error, "the survey thread has exited");
    }

    #[test]
    fn panic_restores_the_terminal_and_prints_the_message() {
        let me = std::env::current_exe().unwrap();
        let inner = "daemon::status::tests::panicking_watch_on_a_terminal";
        let run = format!(
            "stty rows 24 cols 80; timeout --foreground 60 '{}' --ignored --exact --nocapture {inner}; echo \"ended $?\"; stty -a",
            me.display()
        );
        let mut script = Command::new("script");
        script.args(["--quiet", "--command", &run, "/dev/null"]);
        script.env("TERM", "xterm").stdin(Stdio::null());
        let output = script.output().expect("script from the Debian package bsdutils");
        let text = String::from_utf8(output.stdout).unwrap();
        let (entered, left) = ("\u{1b}[?1049h", "\u{1b}[?1049l");
        let (_, drawn) = text.split_once(entered).expect(&text);
        let (drawn, after) = drawn.split_once(left).expect(&text);
        assert!(drawn.contains("refused"), "{text:?}");
        let (message, modes) = after.split_once("ended 0").expect(&text);
        assert!(message.contains(PANIC), "{text:?}");
        for mode in ["icanon", "echo", "isig"] {
            let is_on = modes.split_whitespace().any(|word| word == mode);
            assert!(is_on, "{mode}: {text:?}");
        }
    }
}
