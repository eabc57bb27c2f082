//! The sender: owns the sockets, the open datagram and the expected counts. It waits for its
//! source and for the pace, and stops when the source ends.

use std::io::Read;
use std::time::{Duration, Instant};

use super::datagram::Datagram;
use super::draw::{Draw, Purpose, Share};
use super::expected::ExpectedFile;
use super::lines::Next;
use super::pacer::Pacer;
use super::progress::Progress;
use super::source::Source;
use super::stop::{LOOK_INTERVAL, Stop};
use super::targets::{Failed, Target, wait_for_refusals};

use super::{Options, SendError, Summary, ages, now_nanos};

/// How often an address at which nobody listens yet is tried again.
const WAIT_INTERVAL: Duration = Duration::from_millis(20);

/// Sends the lines of a source.
#[derive(Debug)]
pub(super) struct Sender {
    targets: Vec<Target>,
    datagram: Datagram,
    expected: Option<ExpectedFile>,
    drop_rate: Share,
    drop_draw: Draw,
    pacer: Pacer,
    quiet: bool,
    /// How long addresses of this host may refuse the first datagram, and since when they are tried.
    wait: Duration,
    tried_since: Option<Instant>,
    stop: Stop,
    summary: Summary,
}

impl Sender {
    pub(super) fn open(options: &Options, seed: u64, stop: Stop) -> Result<Self, SendError> {
        let targets: Vec<Target> =
            options.to.iter().map(|to| Target::open(to)).collect::<Result<_, _>>()?;
        if targets.is_empty() {
            return Err(SendError::NoAddress);
        }
        let expected = options.expected.as_deref();
        Ok(Self {
            targets,
            datagram: Datagram::new(options.lines_per_datagram),
            expected: expected.map(ExpectedFile::create).transpose()?,
            drop_rate: options.drop_rate,
            drop_draw: Draw::new(seed, Purpose::Drop),
            pacer: Pacer::new(options.rate, Instant::now()),
            quiet: options.quiet,
            wait: options.wait,
            tried_since: None,
            stop,
            summary: Summary { seed, ..Summary::default() },
        })
    }

    /// The addresses, separated by commas.
    pub(super) fn addresses(&self) -> String {
        let addresses: Vec<String> =
            self.targets.iter().map(|target| target.address().to_owned()).collect();
        addresses.join(", ")
    }

    /// Sends every line of the source, or until it is stopped, and then writes the expected counts. Shows no progress bar
    /// while somebody types.
    pub(super) fn send_all<R: Read>(
        mut self,
        mut source: Source<R>,
        is_typed: bool,
    ) -> Result<Summary, SendError> {
        let progress = Progress::new(source.count(), self.quiet || is_typed);
        let start = Instant::now();
        let mut line = Vec::new();
        loop {
            if self.datagram.is_empty() {
                self.wait_for_the_pace();
            }
            let next = source.next(&mut line).inspect_err(|_| self.dispatch(&progress))?;
            self.summary.stopped = self.stop.code();
            if self.summary.stopped.is_some() {
                break;
            }
            match next {
                Next::Line => self.take(&line, source.line_number(), &progress)?,
                Next::Pause => self.dispatch(&progress),
                Next::End => break,
            }
        }
        self.dispatch(&progress);
        self.summary.elapsed = start.elapsed();
        drop(progress);
        wait_for_refusals(&mut self.targets);
        let refusing = self.targets.iter().filter(|target| target.refused > 0);
        self.summary.copies_refused =
            refusing.map(|target| (target.address().to_owned(), target.refused)).collect();
        if let Some(file) = self.expected {
            file.write()?;
        }
        Ok(self.summary)
    }

    fn take(
        &mut self,
        line: &[u8],
        number: Option<u64>,
        progress: &Progress,
    ) -> Result<(), SendError> {
        if !self.datagram.has_room_for(line.len()) {
            self.dispatch(progress);
            self.wait_for_the_pace();
        }
        let line_number = number.unwrap_or(self.events_taken() + 1);
        if let Some(problem) = ages::rejected(line, now_nanos()) {
            if self.summary.events_untimely == 0 && !self.quiet {
                progress.say(&format!("warning: line {line_number} {problem}"));
            }
            self.summary.events_untimely += 1;
        }
        if let Some(file) = &mut self.expected {
            let added = file.expected.add(line);
            added.map_err(|source| SendError::NotSimple { line: line_number, source })?;
        }
        self.datagram.push(line);
        if self.datagram.is_full() {
            self.dispatch(progress);
        }
        Ok(())
    }

    /// The events so far, those of the open datagram included.
    const fn events_taken(&self) -> u64 {
        self.summary.events + self.datagram.lines() as u64
    }

    fn wait_for_the_pace(&self) {
        while self.stop.code().is_none()
            && let Some(sleep) = self.pacer.sleep_before_sending(Instant::now())
        {
            std::thread::sleep(sleep.min(LOOK_INTERVAL));
        }
    }

    /// Sends the datagram to every address, and begins a new one.
    fn dispatch(&mut self, progress: &Progress) {
        if self.datagram.is_empty() {
            return;
        }
        let mut reached = false;
        let tried_since = *self.tried_since.get_or_insert_with(Instant::now);
        let first_copy = self.summary.datagrams * self.targets.len() as u64;
        for (copy, target) in (first_copy..).zip(&mut self.targets) {
            if self.drop_draw.falls_into(copy, self.drop_rate) {
                self.summary.copies_dropped += 1;
                continue;
            }
            let before = target.refused;
            let is_stopped = || self.stop.code().is_some();
            let mut sent = target.send(self.datagram.bytes(), is_stopped);
            // A node that was started just before may not listen yet. A refused copy reached nobody, so it is sent again.
            let is_awaited = |target: &Target, sent: &Result<u32, Failed>| {
                let is_refused = matches!(sent, Err(failed) if failed.is_refused);
                is_refused
                    && !target.has_taken
                    && tried_since.elapsed() < self.wait
                    && !is_stopped()
            };
            if is_awaited(target, &sent) && !self.quiet {
                let (address, seconds) = (target.address(), self.wait.as_secs_f64());
                progress.say(&format!(
                    "nobody listens at {address} yet; waiting for up to {seconds} s"
                ));
            }
            while is_awaited(target, &sent) {
                std::thread::sleep(WAIT_INTERVAL);
                sent = target.send(self.datagram.bytes(), is_stopped);
            }
            let is_refused = matches!(&sent, Err(failed) if failed.is_refused);
            target.refused += u64::from(is_refused);
            if before == 0 && target.refused > 0 && !self.quiet {
                progress.say(&format!("warning: nobody listens at {}; going on", target.address()));
            }
            match sent {
                Err(Failed { retries, .. }) if is_refused => {
                    self.summary.retries += u64::from(retries);
                }
                Ok(retries) => {
                    reached = true;
                    self.summary.copies_sent += 1;
                    self.summary.bytes += self.datagram.bytes().len() as u64;
                    self.summary.retries += u64::from(retries);
                }
                Err(Failed { retries, source, .. }) => {
                    self.summary.copies_failed += 1;
                    self.summary.retries += u64::from(retries);
                    self.summary.last_failure = Some(format!("{}: {source}", target.address()));
                }
            }
        }
        self.account_for(reached);
        progress.sent(self.datagram.lines());
        self.pacer.sent(self.datagram.lines(), Instant::now());
        self.datagram.clear();
    }

    fn account_for(&mut self, reached: bool) {
        let lines = self.datagram.lines() as u64;
        self.summary.datagrams += 1;
        self.summary.events += lines;
        if !reached {
            self.summary.events_unsent += lines;
        }
        match &mut self.expected {
            Some(file) if reached => file.expected.confirm(),
            Some(file) => file.expected.discard(),
            None => {}
        }
    }
}
