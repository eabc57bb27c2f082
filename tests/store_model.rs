//! The memory store is the model of the one in Redis: random sequences of all calls, by several nodes, with a clock that
//! is stopped and moved, have the same answers and leave the same behind.
//!
//! A seed makes a sequence. `STORE_MODEL_SEED` is the first, `STORE_MODEL_SEQUENCES` says how many. After every few steps all that
//! is in Redis is held against the model, key by key. One that fails is made as short as may be and shown.
//!
//! Not compared, because they differ on purpose: what a store says of itself (`describe`), the memory that the
//! model takes, the orders in which Redis gives what has none, and its forgetting of the stamps of more than a hundred nodes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

#[path = "store_model"]
mod model {
    pub(crate) mod answers;
    #[path = "../simulation/dice.rs"]
    #[allow(dead_code, reason = "a part of it is used here")]
    pub(crate) mod dice;
    pub(crate) mod draw;
    pub(crate) mod filling;
    pub(crate) mod ground;
    pub(crate) mod keys;
    pub(crate) mod operator;
    pub(crate) mod step;
    pub(crate) mod witness;
    pub(crate) mod working;
    pub(crate) mod world;
}

use std::time::{Duration, Instant};

use event_data_service::store::redis::Layout;
use model::answers::Both;
use model::draw::draw;
use model::ground::Ground;
use model::step::Step;
use model::world::World;

/// The sequences of a run, unless `STORE_MODEL_SEQUENCES` says otherwise.
const SEQUENCES: u64 = 60;
/// All that is in Redis is held against the model after so many steps.
const LOOK_EVERY: usize = 8;
/// The last steps that are shown of a sequence that fails.
const STEPS_SHOWN: usize = 25;
/// How long a sequence that fails is tried without some of its steps.
const SHORTENING: Duration = Duration::from_secs(30);

/// What must happen in a run, as a step and a part of the answer to it.
const REACHED: [(&str, &str); 27] = [
    ("Claim ", "taken_over: true"),
    ("Claim ", "back to what it was"),
    ("Claim ", "another generation"),
    ("CheckIn ", "back to what it was"),
    ("CheckIn ", "closed: [Minute"),
    ("CheckIn ", "announced: [Minute"),
    ("CheckIn ", "since: Some(Minute"),
    ("Announce ", "[Unheard]"),
    ("Announce ", "[Heard]"),
    ("Claim ", "output: Some(OutputName(\"two\"))"),
    ("Compact ", "late: 2"),
    ("Compact ", "output: Some(OutputName(\"two\"))"),
    ("Compact ", "left: 0, sending: []"),
    ("Compact ", "taken over by another"),
    ("Compact ", "another generation"),
    ("Record ", "Refused"),
    ("Record ", "another generation"),
    ("Attest ", "epoch: 3"),
    ("Acknowledge ", "true"),
    ("Acknowledge ", "taken over by another"),
    ("Unsent ", "(2, 2)"),
    ("Quarantine ", "true"),
    ("Quarantine ", "false"),
    ("Extend ", "2"),
    ("Requeue ", "1"),
    ("Discard ", "1"),
    ("DropOutput ", "minutes: 1"),
];

/// How a sequence went.
struct Played {
    /// Each step with the answer to it, and what is wrong after the last.
    log: Vec<String>,
    /// How many steps there were before the stores differed, that one included.
    failed_after: Option<usize>,
}

/// Plays a sequence, and looks at all that is there after each so many steps.
async fn play(ground: &mut Ground, steps: &[Step], every: usize) -> Played {
    let mut world = World::new(ground);
    let mut log = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let both = world.play(step).await;
        let mut wrong = Vec::new();
        if both.redis == both.memory {
            log.push(format!("{step:?}\n    {}", both.redis));
        } else {
            let Both { redis, memory } = both;
            log.push(format!("{step:?}"));
            wrong.push(format!(
                "answers\n    redis:  {redis}\n    memory: {memory}"
            ));
        }
        let after = number + 1;
        if !wrong.is_empty() || after.is_multiple_of(every) || after == steps.len() {
            wrong.extend(world.different().await);
        }
        if !wrong.is_empty() {
            log.push(format!("differ:\n  {}", wrong.join("\n  ")));
            return Played {
                log,
                failed_after: Some(after),
            };
        }
    }
    Played {
        log,
        failed_after: None,
    }
}

/// Leaves out steps as long as it fails. Gives what is left, and how it went.
async fn shorten(ground: &mut Ground, mut steps: Vec<Step>, mut log: Vec<String>) -> Vec<String> {
    let began = Instant::now();
    let mut size = steps.len() / 2;
    while size > 0 {
        let mut from = 0;
        while from < steps.len() && began.elapsed() < SHORTENING {
            let mut fewer = steps.clone();
            fewer.drain(from..(from + size).min(steps.len()));
            let played = play(ground, &fewer, 1).await;
            if let Some(after) = played.failed_after {
                fewer.truncate(after);
                (steps, log) = (fewer, played.log);
            } else {
                from += size;
            }
        }
        size /= 2;
    }
    log
}

fn number_from(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    let number = value.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable} is {value:?}, which is no number")))
}

#[tokio::test]
async fn redis_does_as_the_model() {
    do_as_the_model(Layout::Sets).await;
}

#[tokio::test]
async fn logs_do_as_the_model() {
    do_as_the_model(Layout::Log).await;
}

async fn do_as_the_model(layout: Layout) {
    let first = number_from("STORE_MODEL_SEED").unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let sequences = number_from("STORE_MODEL_SEQUENCES").unwrap_or(SEQUENCES);
    println!("STORE_MODEL_SEED={first} STORE_MODEL_SEQUENCES={sequences}");
    let mut ground = Ground::start(layout).await;
    let mut steps_before = 0;
    let mut reached = [0; REACHED.len()];
    for seed in first..first + sequences {
        let mut steps = draw(seed);
        let Played { log, failed_after } = play(&mut ground, &steps, LOOK_EVERY).await;
        let Some(after) = failed_after else {
            steps_before += steps.len();
            for (reached, (step, answer)) in reached.iter_mut().zip(REACHED) {
                let lines = log.iter().filter_map(|line| line.split_once('\n'));
                let is_it = |of: &(&str, &str)| of.0.starts_with(step) && of.1.contains(answer);
                *reached += lines.filter(is_it).count();
            }
            continue;
        };
        steps.truncate(after);
        let log = shorten(&mut ground, steps, log).await;
        let hidden = log.len().saturating_sub(STEPS_SHOWN);
        panic!(
            "seed {seed}: the stores differ, noticed after {} steps of this run; {} are enough:\n{}\nagain: \
             STORE_MODEL_SEED={seed} STORE_MODEL_SEQUENCES=1 cargo test --test store_model\n",
            steps_before + after,
            log.len() - 1,
            log[hidden..].join("\n"),
        );
    }
    println!("{steps_before} steps");
    for ((step, answer), times) in REACHED.iter().zip(reached) {
        println!("{times:6} {step}: {answer}");
        let is_enough = times > 0 || sequences < SEQUENCES;
        assert!(is_enough, "no {step} was answered with {answer}");
    }
}
