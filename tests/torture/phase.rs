//! Runs phases with a constant load and planned faults.
//!
//! Every datagram is sent to all nodes. One node, the anchor of the phase, is never killed, suspended or cut off alone, and
//! receives every datagram, so nothing may be lost. The next phase has a different anchor.

use testing::prelude::*;

use crate::fault::{
    Fault, HARMLESS_EVERY, NodeFault, Planned, RedisFault, by_chance, is_harmless, plan,
};
use crate::store::Kind;
use crate::verdict::{Rollback, Straggler, Verdict, Windows, windows_with};
use crate::world::{GRACE, World};

/// A low rate that even a slow machine sustains, because the subject is faults, not speed.
const DATAGRAMS_PER_SECOND: u32 = 120;
const LINES_PER_DATAGRAM: usize = 12;
/// The maximum number of datagrams that the sender is ahead of the anchor.
const AHEAD_MAX: u64 = 32;
/// The time for which events of a minute are sent, except for a few late ones, which are sent during the next minute.
const MINUTE_LASTS: Duration = Duration::from_secs(5);
/// After a pause of this length, previous minutes may have been closed, so no more events are sent for them.
const REST_MAX: Duration = Duration::from_secs(2);
/// `flush.max_hold` in seconds, which is longer than it takes to send a minute and to record its events despite faults.
const MAX_HOLD_SECS: std::ops::Range<u64> = 40..60;
const STRAGGLES: Duration = Duration::from_millis(500);
/// The maximum time from `flush.max_hold` to the publication of a straggler's minute, even during other faults.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(60);
/// A run that is shorter than this must not have a phase that is longer than `flush.max_hold`.
const LONG_FROM: Duration = Duration::from_secs(60);
/// The number of minutes of an archive, with one event each, and how many minutes before all other events it begins.
const ARCHIVE_MINUTES: i64 = 10_000;
const ARCHIVE_IS_OLDER_BY: i64 = 20_000;
/// The maximum time from the end of the grace period to the publication of the current minute without faults.
const LATE_MAX: Duration = Duration::from_secs(15);
/// The minimum time during which events of the current minute are sent.
const CURRENT_LASTS_NS: i64 = 20_000_000_000;
const CURRENT_IS_LATE_NS: std::ops::Range<i64> = 0..3_000_000_000;
/// The time limit for the last points, which covers windows, leases, pauses and grace periods.
const EXACT_WITHIN: Duration = Duration::from_secs(240);

struct Load {
    socket: UdpSocket,
    random: SmallRng,
    minute: i64,
    minute_began: Instant,
    last_sent: Instant,
    /// The index of the anchor, how many datagrams it had received before, and how many have been sent since.
    anchor: usize,
    received_before: u64,
    sent: u64,
    expected: Expected,
    windows: Windows,
    /// Until when events have current timestamps, by the clock of Redis, in nanoseconds since the epoch.
    current_until: i64,
    /// For each current minute, when it ended, or when its last event was sent if that was later.
    over: BTreeMap<i64, Instant>,
    archive: std::ops::Range<i64>,
    straggler: Option<Straggler>,
    stragglers: Vec<Straggler>,
}

/// Runs phases for about this time, and checks the result. `again` is the command that repeats the run.
pub(crate) fn torture(kind: Kind, lasts: Duration, seed: u64, again: &str) {
    eprintln!("seed {seed}; again by: {again}");
    let mut random = SmallRng::seed_from_u64(seed);
    let max_hold = Duration::from_secs(random.random_range(MAX_HOLD_SECS));
    eprintln!("{kind:?}, max_hold {max_hold:?}");
    let mut world = World::start(kind, max_hold);
    let mut load = Load::new(&world, random.random());
    let mut expected = Points::new();
    let mut rollbacks = Vec::new();
    let mut latest = None;
    let began = Instant::now();
    let mut faults = 0;
    let mut phases = 0;
    while began.elapsed() < lasts {
        let anchor = random.random_range(0..world.nodes.len());
        load.lean_on(&world, anchor);
        if lasts >= LONG_FROM && phases % HARMLESS_EVERY == 0 {
            // Minutes that the previous phase has delayed must not be measured.
            world.wait_sealed(max_hold);
        }
        let (current_ends, left) = Load::current_ends(&world);
        let plan = if lasts >= LONG_FROM {
            let harmless = left + GRACE + LATE_MAX;
            plan(&mut random, kind, world.nodes.len(), anchor, phases, harmless)
        } else {
            by_chance(&mut random, kind, world.nodes.len(), anchor, false)
        };
        let is_harmless = is_harmless(&plan);
        if is_harmless {
            load.send_current(current_ends);
        }
        faults += plan.len();
        let counted_before = world.forgotten(anchor) + world.late();
        let rollbacks_before = world.rollbacks();
        let mut rollback = phase(&mut world, &mut load, &plan, max_hold, began);
        if is_harmless {
            latest = latest.max(load.wait_published(&world));
            // If a later phase sets the clock back, it must not send more events of these minutes.
            load.current_until = 0;
        }
        world.wait_calm();
        if let Some(rollback) = &mut rollback {
            let lived = |node: &usize| {
                let ends = [NodeFault::Killed, NodeFault::Ended];
                let is_end = |planned: &Planned| {
                    ends.iter().any(|end| planned.fault == Fault::Node(*node, *end))
                };
                !plan.iter().any(is_end)
            };
            let lived = (0..world.nodes.len()).filter(lived);
            world.wait_reported(&rollbacks_before, lived);
            // Late events are only counted once their minute has been sealed.
            world.wait_sealed(max_hold);
            rollback.counted = world.forgotten(anchor) + world.late() - counted_before;
        }
        rollbacks.extend(rollback);
        eprintln!("{:7.1} s  calm", began.elapsed().as_secs_f64());
        expected.extend(std::mem::take(&mut load.expected).points());
        phases += 1;
    }
    let verdict = Verdict {
        world,
        expected,
        windows: load.windows,
        rollbacks,
        stragglers: load.stragglers,
        max_hold,
        latest,
        phases,
        faults,
        again: again.to_owned(),
    };
    verdict.give(EXACT_WITHIN);
}

/// Runs a plan. Returns the points that had been published when Redis rolled back, or `None` without a rollback.
fn phase(
    world: &mut World,
    load: &mut Load,
    plan: &[Planned],
    max_hold: Duration,
    since: Instant,
) -> Option<Rollback> {
    let mut rollback = None;
    let mut steps: Vec<(Duration, bool, Fault)> = plan
        .iter()
        .flat_map(|planned| {
            [(planned.from, true, planned.fault), (planned.to, false, planned.fault)]
        })
        .collect();
    steps.sort_by_key(|(at, _, _)| *at);
    let began = Instant::now();
    for (at, begins, fault) in steps {
        load.pump(world, at.saturating_sub(began.elapsed()));
        let change = if begins { "begins" } else { "ends" };
        eprintln!("{:7.1} s  {change:6} {fault:?}", since.elapsed().as_secs_f64());
        match (fault, begins) {
            (Fault::Straggler, true) => load.straggle(),
            (Fault::Archive, true) => load.archive = 0..ARCHIVE_MINUTES,
            (Fault::Straggler | Fault::Archive, false) => {}
            (Fault::Redis(RedisFault::WentBack), false) => {
                eprintln!(
                    "           {} writes have been accepted without a response so far",
                    world.unanswered()
                );
                rollback = Some(Rollback {
                    published: world.points(),
                    windows: world.windows(),
                    last_minute_ns: SEED_MINUTE_NS + load.minute * MINUTE_NS,
                    counted: 0,
                });
                world.end(fault);
            }
            (_, true) => world.begin(fault),
            (_, false) => world.end(fault),
        }
    }
    load.pump(world, Duration::from_secs(1));
    load.straggle_until_published(world, max_hold);
    rollback
}

impl Load {
    fn new(world: &World, seed: u64) -> Self {
        let mut load = Self {
            socket: UdpSocket::bind("127.0.0.1:0").expect("a free port"),
            random: SmallRng::seed_from_u64(seed),
            minute: 0,
            minute_began: Instant::now(),
            last_sent: Instant::now(),
            anchor: 0,
            received_before: 0,
            sent: 0,
            expected: Expected::default(),
            windows: Windows::default(),
            current_until: 0,
            over: BTreeMap::new(),
            archive: 0..0,
            straggler: None,
            stragglers: Vec::new(),
        };
        load.lean_on(world, 0);
        load
    }

    /// Makes this node the anchor. No more events are sent for the minutes of the previous phase.
    fn lean_on(&mut self, world: &World, anchor: usize) {
        self.anchor = anchor;
        let node = &world.nodes[anchor];
        // Datagrams of the previous phase may still be in the node's socket. They have been counted once the node has
        // rejected this one.
        let rejected_before = node.metrics().count("eds_events_rejected_total");
        self.socket.send_to(b"not an event", node.udp()).expect("loopback takes a datagram");
        node.wait_count("eds_events_rejected_total", |rejected| rejected > rejected_before);
        self.received_before = node.metrics().count("eds_datagrams_received_total");
        self.sent = 0;
        self.next_minute(2);
    }

    fn next_minute(&mut self, by: i64) {
        self.minute += by;
        self.minute_began = Instant::now();
    }

    fn pump(&mut self, world: &World, lasts: Duration) {
        let began = Instant::now();
        let mut sent = 0;
        while began.elapsed() < lasts {
            if self.last_sent.elapsed() > REST_MAX {
                self.next_minute(2);
            } else if self.minute_began.elapsed() > MINUTE_LASTS {
                self.next_minute(1);
            }
            let now_ns = world.store.clock().now_ns();
            let lines: Vec<_> = (0..LINES_PER_DATAGRAM).map(|_| self.line(now_ns)).collect();
            self.send_lines(world, &lines);
            let archive: Vec<_> = self.archive.by_ref().take(LINES_PER_DATAGRAM).collect();
            if !archive.is_empty() {
                let lines: Vec<_> = archive.into_iter().map(archived).collect();
                self.send_lines(world, &lines);
            }
            self.last_sent = Instant::now();
            if let Some(straggler) = &mut self.straggler
                && straggler.sent.last().is_none_or(|at| at.elapsed() > STRAGGLES)
            {
                let line = straggler.line();
                self.send(world, line.as_bytes());
            }
            sent += 1;
            let due = Duration::from_secs(1) * sent / DATAGRAMS_PER_SECOND;
            std::thread::sleep(due.saturating_sub(began.elapsed()));
        }
        self.wait_for_anchor(world);
    }

    fn send_lines(&mut self, world: &World, lines: &[String]) {
        let datagram = lines.join("\n").into_bytes();
        self.expected.receive(&datagram);
        for line in lines {
            let (series, rest) = line.split_once(" value=").unwrap();
            let (user, time) = rest.rsplit_once(' ').unwrap();
            for window in windows_with(series, time.parse().unwrap()) {
                self.windows.entry(window).or_default().insert(user.to_owned());
            }
        }
        self.send(world, &datagram);
    }

    /// Returns the end of the current minute, or of the next minute if that is too soon, and the time until then.
    fn current_ends(world: &World) -> (i64, Duration) {
        let now_ns = world.store.clock().now_ns();
        let ends_ns = ((now_ns + CURRENT_LASTS_NS) / MINUTE_NS + 1) * MINUTE_NS;
        (ends_ns, Duration::from_nanos((ends_ns - now_ns).unsigned_abs()))
    }

    /// Sends events with current timestamps until this time.
    fn send_current(&mut self, until: i64) {
        self.current_until = until;
        self.over.clear();
    }

    /// Waits until the current minutes are published. Returns the longest time from the end of a minute to its publication.
    fn wait_published(&self, world: &World) -> Option<Duration> {
        let within = GRACE + LATE_MAX;
        let mut late = BTreeMap::new();
        eventually("the minutes are published", within + SOON, || {
            late = world.lateness(&self.over);
            let (published, all) = (late.len(), self.over.len());
            when(published == all, format!("{published} of {all}"))
        });
        eprintln!("           published after {late:?}");
        assert!(late.values().all(|late| *late <= within), "too late");
        late.into_values().max()
    }

    fn send(&mut self, world: &World, datagram: &[u8]) {
        for node in &world.nodes {
            // Ignore errors, because the port is closed while the node is down.
            let _ = self.socket.send_to(datagram, node.udp());
        }
        self.sent += 1;
        if self.sent.is_multiple_of(AHEAD_MAX) {
            self.wait_for_anchor(world);
        }
    }

    /// Starts a straggler in a minute that has no other events.
    fn straggle(&mut self) {
        let minute_ns = SEED_MINUTE_NS + (self.minute + 1) * MINUTE_NS;
        self.straggler = Some(Straggler::new(minute_ns));
        self.next_minute(3);
    }

    /// If there is a straggler, continues to send its events until its minute is published.
    fn straggle_until_published(&mut self, world: &World, max_hold: Duration) {
        let Some(began) = self.straggler.as_ref().map(|straggler| straggler.sent[0]) else {
            return;
        };
        let is_published = |load: &Self| {
            let straggler = load.straggler.as_ref().expect("there is a straggler");
            let point = &straggler.points()[0];
            world.points().iter().all(|found| found.contains_key(point))
        };
        while !is_published(self) {
            assert!(
                began.elapsed() < max_hold + PUBLISHED_WITHIN,
                "a minute that is never idle is not published {:?} after its first event, with max_hold {max_hold:?}",
                began.elapsed()
            );
            self.pump(world, Duration::from_secs(1));
        }
        eprintln!(
            "           the straggler's minute was published {:.1} s after its first event",
            began.elapsed().as_secs_f64()
        );
        // Later events are late.
        self.pump(world, Duration::from_secs(2));
        self.stragglers.extend(self.straggler.take());
    }

    fn wait_for_anchor(&self, world: &World) {
        eventually("the anchor has received all datagrams", SOON, || {
            let metrics = world.nodes[self.anchor].metrics();
            assert_eq!(metrics.count("eds_events_dropped_total"), 0, "the anchor dropped events");
            let received = metrics.count("eds_datagrams_received_total") - self.received_before;
            when(received == self.sent, format!("{received} of {}", self.sent))
        });
    }

    fn line(&mut self, now_ns: i64) -> String {
        let series: u32 = self.random.random_range(0..40);
        let user: u32 = self.random.random_range(0..400);
        let at = if now_ns < self.current_until {
            let at = now_ns - self.random.random_range(CURRENT_IS_LATE_NS);
            let minute = at - at % MINUTE_NS;
            let left_ns = (minute + MINUTE_NS - now_ns).max(0);
            let over = Instant::now() + Duration::from_nanos(left_ns.unsigned_abs());
            self.over.insert(minute, over);
            at
        } else {
            // Some events are from the previous minute.
            let late = i64::from(self.random.random_bool(0.15));
            let minute = SEED_MINUTE_NS + (self.minute - late) * MINUTE_NS;
            minute + self.random.random_range(0..60_000) * 1_000_000
        };
        format!("event_type=type{series},product=product{} value=user{user} {at}", series % 7)
    }
}

fn archived(minute: i64) -> String {
    let at = SEED_MINUTE_NS - (ARCHIVE_IS_OLDER_BY - minute) * MINUTE_NS;
    let product = minute % 7;
    format!("event_type=archived,product=product{product} value=user{minute} {at}")
}
