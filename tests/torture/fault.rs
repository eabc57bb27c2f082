//! Faults, their victims and durations, drawn from a seed.

use testing::prelude::*;

use crate::store::Kind;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeFault {
    /// SIGKILL; restarted at the end.
    Killed,
    /// SIGTERM; restarted at the end.
    Ended,
    /// SIGSTOP; SIGCONT at the end.
    Asleep,
    Redis(Traffic),
}

/// A fault of Redis for all nodes; of several masters, one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RedisFault {
    /// SIGSTOP; SIGCONT at the end.
    Asleep,
    /// SIGTERM; restarted with its append-only file at the end.
    Ended,
    /// SIGKILL; restarted with its append-only file at the end.
    Killed,
    /// SIGKILL; replaced by its replica at the end.
    Replaced,
    /// `maxmemory` below the used memory.
    Full,
    /// SIGKILL at the end; restarted with the append-only file of the beginning.
    WentBack,
    /// A slot with counts is on two masters of a Cluster until the end.
    SlotMoved,
    /// The connections of every node to it.
    Traffic(Traffic),
    /// The clock of all servers is set ahead or back by this many seconds.
    ClockSet(i64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Node(usize, NodeFault),
    Redis(RedisFault),
    Output(usize, Mode),
    /// A sender that keeps a minute from becoming idle.
    Straggler,
    /// An archive of very many old minutes is sent.
    Archive,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Planned {
    pub(crate) fault: Fault,
    pub(crate) from: Duration,
    pub(crate) to: Duration,
}

/// The shortest and longest fault in ms: from a moment to well beyond the lease.
const LASTS_MS: std::ops::Range<u64> = 300..14_000;
/// The latest begin of a fault in a phase, in ms.
const BEGINS_MS: std::ops::Range<u64> = 500..6_000;

/// How long before its death a Redis that rolls back is copied, in ms: less and more than `store.replay_window`.
const GOES_BACK_MS: std::ops::Range<u64> = 2_000..25_000;

/// One in this many phases of a long torture is harmless.
pub(crate) const HARMLESS_EVERY: usize = 5;
/// The speeds of a slow link, in bytes a second.
const RATES: [u32; 2] = [1_000_000, 8_000_000];
/// The seconds by which Redis' clock is set: less and more than any grace, lease or hold.
const CLOCK_SET_SECS: [i64; 4] = [-3600, -90, 90, 3600];

impl RedisFault {
    /// Returns whether a slow link is the only fault.
    fn is_slow_link(self) -> bool {
        matches!(self, Self::Traffic(Traffic::Rate(_)))
    }
}

/// Returns whether minutes are published as early as without faults.
pub(crate) fn is_harmless(plan: &[Planned]) -> bool {
    plan.iter().all(|it| match it.fault {
        Fault::Redis(fault) => fault.is_slow_link(),
        fault => fault == Fault::Archive,
    })
}

/// Returns the plan of a phase in a long torture. Every fifth phase has a slow link, the first of these with an
/// archive, and checks that the current minute is published in time; every fifth has a Redis that rolls back after
/// unacknowledged writes; all others are random.
pub(crate) fn plan(
    random: &mut SmallRng,
    kind: Kind,
    nodes: usize,
    anchor: usize,
    number: usize,
    harmless: Duration,
) -> Vec<Planned> {
    match number % HARMLESS_EVERY {
        0 => slow_link(kind, number / HARMLESS_EVERY, harmless),
        2 if has_ways(kind) => written_and_forgotten(nodes, anchor),
        _ => by_chance(random, kind, nodes, anchor, true),
    }
}

fn slow_link(kind: Kind, number: usize, to: Duration) -> Vec<Planned> {
    let rate = RATES[number % RATES.len()];
    let slow = Fault::Redis(RedisFault::Traffic(Traffic::Rate(rate)));
    let slow = has_ways(kind).then_some(slow);
    // Where the link cannot be slow, there is no fault.
    let archive = (number == 0 || slow.is_none()).then_some(Fault::Archive);
    let planned = |fault| Planned { fault, from: Duration::ZERO, to };
    slow.into_iter().chain(archive).map(planned).collect()
}

/// Both databases accept writes without an answer. Redis is copied in the middle of the first minute, whose counts are
/// written about 18 s after the phase began; then all nodes but the anchor die, and Redis rolls back.
fn written_and_forgotten(nodes: usize, anchor: usize) -> Vec<Planned> {
    let planned = |fault, [from, to]: [u64; 2]| Planned {
        fault,
        from: Duration::from_secs(from),
        to: Duration::from_secs(to),
    };
    let silent = |output| planned(Fault::Output(output, Mode::TakeAndHang), [12, 30]);
    let killed = |node| planned(Fault::Node(node, NodeFault::Killed), [22, 28]);
    let mut plan = vec![planned(Fault::Redis(RedisFault::WentBack), [3, 24])];
    plan.extend((0..2).map(silent));
    plan.extend((0..nodes).filter(|node| *node != anchor).map(killed));
    plan
}

/// One to six faults with different victims, none of the anchor alone. A straggler occurs only while Redis is well, so
/// that its events arrive when sent. Stragglers and clocks that are set take long and occur only in a long torture.
pub(crate) fn by_chance(
    random: &mut SmallRng,
    kind: Kind,
    nodes: usize,
    anchor: usize,
    is_long: bool,
) -> Vec<Planned> {
    let mut planned = Vec::new();
    while planned.is_empty() {
        for node in (0..nodes).filter(|node| *node != anchor) {
            if random.random_bool(0.6) {
                planned.push(Fault::Node(node, node_fault(random, kind)));
            }
        }
        if random.random_bool(0.6) {
            planned.push(Fault::Redis(redis_fault(random, kind)));
        } else if is_long && random.random_bool(0.2) {
            planned.push(Fault::Straggler);
        }
        if is_long && !planned.contains(&Fault::Straggler) && random.random_bool(0.3) {
            let by = CLOCK_SET_SECS[random.random_range(0..CLOCK_SET_SECS.len())];
            planned.push(Fault::Redis(RedisFault::ClockSet(by)));
        }
        for output in 0..2 {
            if random.random_bool(0.45) {
                planned.push(Fault::Output(output, output_fault(random)));
            }
        }
    }
    let mut timed = |fault| {
        let from = Duration::from_millis(random.random_range(BEGINS_MS));
        let lasts = match fault {
            Fault::Redis(RedisFault::WentBack) => GOES_BACK_MS,
            _ => LASTS_MS,
        };
        let lasts = Duration::from_millis(random.random_range(lasts));
        Planned { fault, from, to: from + lasts }
    };
    planned.into_iter().map(&mut timed).collect()
}

fn traffic(random: &mut SmallRng) -> Traffic {
    let ms = Duration::from_millis;
    match random.random_range(0..6) {
        0 => Traffic::Cut,
        1 | 2 => Traffic::Stall,
        3 => Traffic::Delay(ms(random.random_range(10..400))),
        4 => Traffic::Rate(RATES[random.random_range(0..RATES.len())]),
        _ => Traffic::Trickle(random.random_range(1..64), ms(random.random_range(1..20))),
    }
}

/// Connections to a Cluster or to Sentinel have no proxy, because the servers name each other.
fn has_ways(kind: Kind) -> bool {
    matches!(kind, Kind::Server | Kind::Forgetful)
}

fn node_fault(random: &mut SmallRng, kind: Kind) -> NodeFault {
    let faults = if has_ways(kind) { 8 } else { 6 };
    match random.random_range(0..faults) {
        0..3 => NodeFault::Killed,
        3 => NodeFault::Ended,
        4 | 5 => NodeFault::Asleep,
        _ => NodeFault::Redis(traffic(random)),
    }
}

fn redis_fault(random: &mut SmallRng, kind: Kind) -> RedisFault {
    match (random.random_range(0..10), kind) {
        (_, Kind::Forgetful) | (6 | 7, Kind::Server) => RedisFault::WentBack,
        (0, _) => RedisFault::Asleep,
        (1, _) => RedisFault::Ended,
        (2, _) => RedisFault::Killed,
        (3, _) => RedisFault::Full,
        (4 | 5, Kind::Server) => RedisFault::Replaced,
        (_, Kind::Server) => RedisFault::Traffic(traffic(random)),
        (4..7, _) => RedisFault::Killed,
        (7.., Kind::Cluster) => RedisFault::SlotMoved,
        _ => RedisFault::Asleep,
    }
}

fn output_fault(random: &mut SmallRng) -> Mode {
    match random.random_range(0..9) {
        0 => Mode::Refuse,
        1 => Mode::Hang,
        2 => Mode::Answer(503),
        3 => Mode::AnswerLater(429, 2),
        4 => Mode::TakeAndCut,
        5 => Mode::TakeAndHang,
        6 => Mode::TakeAndAnswer(503),
        7 => Mode::Trickle,
        _ => Mode::Storm(random.random()),
    }
}
