//! Selects faults, their victims and their durations at random from a seed.

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

/// A fault of Redis that affects all nodes. If there are several masters, only one of them fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RedisFault {
    /// SIGSTOP; SIGCONT at the end.
    Asleep,
    /// SIGTERM; restarted with its append-only file at the end.
    Ended,
    /// SIGKILL; restarted with its append-only file at the end.
    Killed,
    /// SIGKILL; the replica is promoted at the end.
    Replaced,
    /// `maxmemory` is below the used memory until the end.
    Full,
    /// SIGKILL at the end; restarted with a copy of the append-only file from the beginning.
    WentBack,
    /// A slot with counts is being moved between two masters of a Cluster until the end.
    SlotMoved,
    /// The connections of all nodes to Redis.
    Traffic(Traffic),
    /// The clock of all servers is set ahead (or back, if negative) by this many seconds.
    ClockSet(i64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Node(usize, NodeFault),
    Redis(RedisFault),
    Output(usize, Mode),
    /// A sender that keeps a minute from becoming idle.
    Straggler,
    /// A sender of events from many old minutes.
    Archive,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Planned {
    pub(crate) fault: Fault,
    pub(crate) from: Duration,
    pub(crate) to: Duration,
}

/// The duration of a fault in milliseconds, up to well beyond the lease.
const LASTS_MS: std::ops::Range<u64> = 300..14_000;
/// When a fault begins, in milliseconds from the beginning of its phase.
const BEGINS_MS: std::ops::Range<u64> = 500..6_000;

/// The time in milliseconds by which Redis rolls back, which may be shorter or longer than `store.replay_window`.
const GOES_BACK_MS: std::ops::Range<u64> = 2_000..25_000;

/// One out of this many phases of a long run is harmless.
pub(crate) const HARMLESS_EVERY: usize = 5;
/// The rates of a slow link, in bytes per second.
const RATES: [u32; 2] = [1_000_000, 8_000_000];
/// By how many seconds the clock of Redis is set, which may be more than any grace period, lease or hold.
const CLOCK_SET_SECS: [i64; 4] = [-3600, -90, 90, 3600];

impl RedisFault {
    fn is_slow_link(self) -> bool {
        matches!(self, Self::Traffic(Traffic::Rate(_)))
    }
}

/// Returns whether the faults of a plan do not delay the publication of minutes.
pub(crate) fn is_harmless(plan: &[Planned]) -> bool {
    plan.iter().all(|planned| match planned.fault {
        Fault::Redis(fault) => fault.is_slow_link(),
        fault => fault == Fault::Archive,
    })
}

/// Returns the plan of a phase in a long run: a slow link, a rollback after unacknowledged writes, or random faults.
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
    // If the link cannot be slowed down, the archive is the only fault.
    let archive = (number == 0 || slow.is_none()).then_some(Fault::Archive);
    let planned = |fault| Planned { fault, from: Duration::ZERO, to };
    slow.into_iter().chain(archive).map(planned).collect()
}

/// Both databases accept writes without responding, all nodes except the anchor are killed, and Redis rolls back.
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

/// Returns faults with different victims, none of which affects only the anchor. Stragglers and clock changes take long, so
/// only long runs have them.
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
            let by: i64 = CLOCK_SET_SECS[random.random_range(0..CLOCK_SET_SECS.len())];
            // A master that was cut off before its clock was set back remains down until the clock has caught up.
            let by = if kind == Kind::Cluster { -by.abs() } else { by };
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

/// Returns whether nodes connect to Redis through proxies. In a Cluster or with Sentinel, they learn the servers' addresses.
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
