//! What can happen, to whom, and for how long: drawn from a seed.

use std::time::Duration;

use rand::RngExt;
use rand::rngs::SmallRng;
use testing::http_proxy::Mode;
use testing::tcp_proxy::Traffic;

use crate::store::Kind;

/// What befalls one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeFault {
    /// SIGKILL; started again when it is over.
    Killed,
    /// SIGTERM; started again when it is over.
    Ended,
    /// SIGSTOP; SIGCONT when it is over.
    Asleep,
    /// Its connections to Redis.
    Redis(Traffic),
}

/// What befalls Redis, for all nodes; of several masters, one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RedisFault {
    /// SIGSTOP; SIGCONT when it is over.
    Asleep,
    /// SIGTERM; started again with its append-only file when it is over.
    Ended,
    /// SIGKILL; started again with its append-only file when it is over.
    Killed,
    /// SIGKILL; its replica takes its place when it is over.
    Replaced,
    /// `maxmemory` is below what is used.
    Full,
    /// SIGKILL when it is over; started again with the append-only file of when it began.
    WentBack,
    /// A slot with counts lies on two masters of a Cluster until it is over.
    SlotMoved,
    /// The connections of every node to it.
    Traffic(Traffic),
}

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Node(usize, NodeFault),
    Redis(RedisFault),
    /// Of one of the two databases.
    Output(usize, Mode),
    /// A sender whose events keep a minute from ever being idle.
    Straggler,
}

/// A fault with its begin and end within a phase.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Planned {
    pub(crate) fault: Fault,
    pub(crate) from: Duration,
    pub(crate) to: Duration,
}

/// The shortest and the longest that a fault lasts, in ms: from a blink to well beyond the lease.
const LASTS_MS: std::ops::Range<u64> = 300..14_000;
/// How late in a phase a fault may begin, in ms.
const BEGINS_MS: std::ops::Range<u64> = 500..6_000;

/// How long before it is killed a Redis that goes back is copied, in ms: less and more than `store.replay_window`.
const GOES_BACK_MS: std::ops::Range<u64> = 2_000..25_000;

/// What a phase brings: one to five faults, each to another victim. Nothing befalls the anchor alone. A straggler comes
/// only where Redis is well, so that its events come when they are sent.
pub(crate) fn plan(
    random: &mut SmallRng,
    kind: Kind,
    nodes: usize,
    anchor: usize,
    may_straggle: bool,
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
        } else if may_straggle && random.random_bool(0.2) {
            planned.push(Fault::Straggler);
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
        Planned {
            fault,
            from,
            to: from + lasts,
        }
    };
    planned.into_iter().map(&mut timed).collect()
}

fn traffic(random: &mut SmallRng) -> Traffic {
    let ms = Duration::from_millis;
    match random.random_range(0..5) {
        0 => Traffic::Cut,
        1 | 2 => Traffic::Stall,
        3 => Traffic::Delay(ms(random.random_range(10..400))),
        _ => Traffic::Trickle(random.random_range(1..64), ms(random.random_range(1..20))),
    }
}

/// The ways to a Cluster or to one of several masters have no proxy: the servers name each other.
fn node_fault(random: &mut SmallRng, kind: Kind) -> NodeFault {
    let has_ways = matches!(kind, Kind::Server | Kind::Forgetful);
    let faults = if has_ways { 8 } else { 6 };
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
