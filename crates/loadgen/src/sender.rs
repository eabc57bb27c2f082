//! [`Sender`] packs lines into datagrams, sends a copy of each datagram to every address, and collects the expected counts.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use indicatif::{
    HumanFloatCount, ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressState, ProgressStyle,
};

use super::datagram::{BYTES_MAX, Datagram};
use super::draw::{Draw, Purpose};
use super::expected::Expected;
use super::pacer::Pacer;
use super::requests::{Requests, Unrecorded};
use super::source::{LOOK_INTERVAL, Next, Source, Stop};
use super::targets::{Target, wait_for_refusals};
use super::{Options, SendError, Summary, ages, now_nanos};

/// How long to wait between retries while no process is listening on an address yet.
const WAIT_INTERVAL: Duration = Duration::from_millis(20);
const TICK_INTERVAL: Duration = Duration::from_millis(100);
const KNOWN_END: &str = "{wide_bar} {human_pos}/{human_len} events  {rate}  ETA {eta}";
const UNKNOWN_END: &str = "{spinner} {human_pos} events  {rate}  {elapsed}";

#[derive(Debug)]
pub(super) struct Sender<'a> {
    options: &'a Options,
    targets: Vec<Target>,
    /// The servers to send to instead of the targets, if any.
    requests: Option<Requests>,
    datagram: Datagram,
    /// The expected counts and their file, which is created at startup to report errors before anything is sent.
    expected: Option<(Expected, File)>,
    drop_draw: Draw,
    pacer: Pacer,
    /// When the first datagram was sent. Refused copies are resent until [`Options::wait`] has passed since then.
    tried_since: Option<Instant>,
    stop: Stop,
    progress: ProgressBar,
    summary: Summary,
}

impl<'a> Sender<'a> {
    pub(super) fn open(options: &'a Options, seed: u64, stop: Stop) -> Result<Self, SendError> {
        let is_http = !options.http.is_empty();
        let to = options.to.iter().filter(|_| !is_http);
        let targets = to.map(|to| Target::open(to)).collect::<Result<_, _>>()?;
        let token = options.token_file.as_ref().map(|file| {
            let token = fs::read_to_string(file);
            token.map_err(|error| SendError::Token(file.clone(), error))
        });
        let token = token.transpose()?.map(|token| token.trim().to_owned());
        let requests = is_http.then(|| Requests::open(&options.http, token)).transpose()?;
        let datagram = if is_http {
            Datagram::new(options.lines_per_request, usize::MAX)
        } else {
            Datagram::new(options.lines_per_datagram, BYTES_MAX)
        };
        let expected = options.expected.as_ref();
        let rollups = || options.rollup.clone();
        let expected =
            expected.map(|path| Ok((Expected::with_rollups(rollups()), File::create(path)?)));
        Ok(Self {
            options,
            targets,
            requests,
            datagram,
            expected: expected.transpose().map_err(|error| unwritable(options, error))?,
            drop_draw: Draw::new(seed, Purpose::Drop),
            pacer: Pacer::new(options.rate, Instant::now()),
            tried_since: None,
            stop,
            progress: ProgressBar::hidden(),
            summary: Summary { seed, ..Summary::default() },
        })
    }

    pub(super) fn addresses(&self) -> String {
        if self.requests.is_some() {
            return self.options.http.join(", ");
        }
        let addresses: Vec<&str> = self.targets.iter().map(|target| &*target.name).collect();
        addresses.join(", ")
    }

    /// Sends all lines until the source ends or a signal arrives, then writes the expected counts and returns the summary.
    pub(super) fn send_all(
        mut self,
        mut source: Source,
        is_typed: bool,
    ) -> Result<Summary, SendError> {
        if !self.options.quiet && !is_typed && stderr().is_terminal() {
            self.progress = progress_bar(self.options.events);
        }
        let start = Instant::now();
        let mut line = Vec::new();
        loop {
            if self.datagram.is_empty() {
                self.wait_for_the_pace();
            }
            let next = source.next(&mut line).inspect_err(|_| self.dispatch())?;
            self.summary.stopped = self.stop.code();
            if self.summary.stopped.is_some() {
                break;
            }
            match next {
                Next::Line => self.take(&line, source.line_number())?,
                Next::Pause => self.dispatch(),
                Next::End => break,
            }
        }
        self.dispatch();
        self.summary.elapsed = start.elapsed();
        self.progress.finish_and_clear();
        wait_for_refusals(&mut self.targets);
        if let Some(requests) = &mut self.requests {
            self.summary.requests_repeated = requests.repeated;
            let quantiles = [0.5, 0.99].map(|share| requests.quantile(share));
            self.summary.latencies_ms = quantiles[0].zip(quantiles[1]);
        }
        self.summary.retries = self.targets.iter().map(|target| target.retries).sum();
        let refusing = self.targets.iter().filter(|target| target.refused > 0);
        self.summary.copies_refused =
            refusing.map(|target| (target.name.clone(), target.refused)).collect();
        if let Some((expected, mut file)) = self.expected {
            let written = file.write_all(expected.lines()?.as_bytes());
            let written = written.and_then(|()| file.sync_all());
            written.map_err(|error| unwritable(self.options, error))?;
        }
        Ok(self.summary)
    }

    fn take(&mut self, line: &[u8], number: u64) -> Result<(), SendError> {
        if !self.datagram.has_room_for(line.len()) {
            self.dispatch();
            self.wait_for_the_pace();
        }
        if let Some(problem) = ages::rejected(line, now_nanos()) {
            if self.summary.events_untimely == 0 && !self.options.quiet {
                self.progress.suspend(|| eprintln!("warning: line {number} {problem}"));
            }
            self.summary.events_untimely += 1;
        }
        if let Some((expected, _)) = &mut self.expected {
            expected.add(line).map_err(|source| SendError::NotSimple(number, source))?;
        }
        self.datagram.push(line);
        if self.datagram.is_full() {
            self.dispatch();
        }
        Ok(())
    }

    fn wait_for_the_pace(&self) {
        while self.stop.code().is_none()
            && let Some(sleep) = self.pacer.sleep_before_sending(Instant::now())
        {
            std::thread::sleep(sleep.min(LOOK_INTERVAL));
        }
    }

    fn dispatch(&mut self) {
        if self.datagram.is_empty() {
            return;
        }
        if self.requests.is_some() {
            return self.dispatch_request();
        }
        let Options { wait, drop_rate, quiet, .. } = *self.options;
        let mut is_sent = false;
        let tried_since = *self.tried_since.get_or_insert_with(Instant::now);
        let first_copy = self.summary.datagrams * self.targets.len() as u64;
        for (copy, target) in (first_copy..).zip(&mut self.targets) {
            if self.drop_draw.falls_into(copy, drop_rate) {
                self.summary.copies_dropped += 1;
                continue;
            }
            let refused_before = target.refused;
            let mut is_reported = quiet;
            let is_stopped = || self.stop.code().is_some();
            let mut sent = target.send(&self.datagram.bytes, is_stopped);
            // The node may still be starting. Resend the copy, because a refused copy has not reached any node.
            while sent.as_ref().is_err_and(|failed| failed.is_refused)
                && !target.has_taken
                && tried_since.elapsed() < wait
                && !is_stopped()
            {
                if !is_reported {
                    is_reported = true;
                    let (address, seconds) = (&target.name, wait.as_secs_f64());
                    self.progress.suspend(|| {
                        eprintln!(
                            "no process is listening on {address} yet; waiting up to {seconds} s"
                        );
                    });
                }
                std::thread::sleep(WAIT_INTERVAL);
                sent = target.send(&self.datagram.bytes, is_stopped);
            }
            match sent {
                Ok(()) => {
                    is_sent = true;
                    self.summary.copies_sent += 1;
                    self.summary.bytes += self.datagram.bytes.len() as u64;
                }
                Err(failed) if failed.is_refused => target.refused += 1,
                Err(failed) => {
                    self.summary.copies_failed += 1;
                    self.summary.last_failure = Some(format!("{}: {}", target.name, failed.source));
                }
            }
            if refused_before == 0 && target.refused > 0 && !quiet {
                let address = &target.name;
                self.progress.suspend(|| {
                    eprintln!("warning: no process is listening on {address}; continuing");
                });
            }
        }
        self.dispatched(is_sent);
    }

    fn dispatch_request(&mut self) {
        let Some(requests) = &mut self.requests else { return };
        let (is_stopped, progress) = (|| self.stop.code().is_some(), &self.progress);
        let mut is_reported = self.options.quiet;
        let failed = |why: &str| {
            if !std::mem::replace(&mut is_reported, true) {
                progress.suspend(|| eprintln!("warning: {why}; repeating the request"));
            }
        };
        let sent = requests.send(&self.datagram.bytes, is_stopped, failed);
        let is_sent = sent.is_ok();
        match sent {
            Ok(()) => {
                self.summary.copies_sent += 1;
                self.summary.bytes += self.datagram.bytes.len() as u64;
            }
            Err(Unrecorded::Rejected(why)) => {
                self.summary.copies_failed += 1;
                self.summary.last_failure = Some(why);
            }
            Err(Unrecorded::Stopped) => {}
        }
        self.dispatched(is_sent);
    }

    fn dispatched(&mut self, is_sent: bool) {
        let lines = self.datagram.lines;
        self.summary.datagrams += 1;
        self.summary.events += lines as u64;
        if !is_sent {
            self.summary.events_unsent += lines as u64;
        }
        match &mut self.expected {
            Some((expected, _)) if is_sent => expected.confirm(),
            Some((expected, _)) => expected.discard(),
            None => {}
        }
        self.progress.inc(lines as u64);
        self.pacer.sent(lines, Instant::now());
        self.datagram.clear();
    }
}

fn unwritable(options: &Options, error: io::Error) -> SendError {
    SendError::Expected(options.expected.clone().unwrap_or_default(), error)
}

fn progress_bar(events: Option<u64>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(events, ProgressDrawTarget::stderr())
        .with_finish(ProgressFinish::AndClear);
    let template = if events.is_some() { KNOWN_END } else { UNKNOWN_END };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.with_key("rate", |state: &ProgressState, out: &mut dyn fmt::Write| {
            // Ignore the error, because it affects only the progress bar.
            let _ = write!(out, "{}/s", HumanFloatCount(state.per_sec().round()));
        }));
    }
    bar.enable_steady_tick(TICK_INTERVAL);
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_of_the_progress_bar_are_valid() {
        for template in [KNOWN_END, UNKNOWN_END] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
        assert_eq!(HumanFloatCount(12_345.0).to_string(), "12,345");
    }
}
