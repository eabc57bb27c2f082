//! Simulates several nodes in virtual time, with faults at every step. No event may be lost, and every point must be exact.
//!
//! A seed determines the events, faults, clocks, settings and layout of a schedule. The real batcher, recorders, workers and
//! Redis stores use a simulated Redis server that executes the shipped scripts. An independent model checks each step.
//! `SIMULATION_SCHEDULES` sets the number of schedules, and `SIMULATION_SEED` the first seed.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

#[path = "simulation"]
mod simulation {
    pub(crate) mod call;
    pub(crate) mod dice;
    pub(crate) mod event;
    pub(crate) mod faulty_store;
    pub(crate) mod hasty_output;
    pub(crate) mod interleaved;
    pub(crate) mod life;
    pub(crate) mod listener;
    pub(crate) mod mutants;
    pub(crate) mod node;
    pub(crate) mod oracle;
    pub(crate) mod plan;
    pub(crate) mod prelude;
    pub(crate) mod rollup;
    pub(crate) mod schedule;
    pub(crate) mod script;
    pub(crate) mod script_mutants;
    pub(crate) mod scripted_output;
    pub(crate) mod state;
    pub(crate) mod world;
}

use simulation::event::SECOND;
use simulation::mutants::Mutant;
use simulation::plan::Plan;
use simulation::schedule::{play, play_plan};
use simulation::script::Outage;
use testing::prelude::*;

const SCHEDULES: u64 = 1000;
/// The default of `SIMULATION_STEPS`, the number of steps that are printed if a schedule fails.
const STEPS_SHOWN: u64 = 60;

fn number_from(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(value) => value
            .parse()
            .unwrap_or_else(|_| panic!("{variable} is {value:?}, which is not a number")),
        Err(_) => default,
    }
}

fn report(seed: u64, violation: &str) -> String {
    let trace = play(seed, None, true).trace;
    let steps = number_from("SIMULATION_STEPS", STEPS_SHOWN);
    let shown = trace.len().saturating_sub(usize::try_from(steps).unwrap());
    format!(
        "seed {seed}: {violation}\n{}\nagain: SIMULATION_SEED={seed} SIMULATION_SCHEDULES=1 cargo test --test \
         simulation every_schedule\n",
        trace[shown..].join("\n")
    )
}

#[test]
fn every_schedule_is_exact() {
    let first = number_from("SIMULATION_SEED", 1);
    let schedules = number_from("SIMULATION_SCHEDULES", SCHEDULES);
    println!("schedules: {schedules}, seeds from {first} on");
    let next = AtomicU64::new(first);
    let failed = Mutex::new(None::<(u64, String)>);
    let began = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while failed.lock().unwrap().is_none() {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + schedules {
                        break;
                    }
                    if let Err(violation) = play(seed, None, false).verdict {
                        *failed.lock().unwrap() = Some((seed, violation));
                    }
                }
            });
        }
    });
    if let Some((seed, violation)) = failed.into_inner().unwrap() {
        panic!("{}", report(seed, &violation));
    }
    let millis = u64::try_from(began.elapsed().as_millis()).unwrap();
    println!("{} schedules a second", 1000 * schedules / millis.max(1));
}

/// Returns a step without the numbers of processes and epochs, which are random in every run.
fn known(step: &str) -> String {
    let mut parts = step.split('#');
    let mut known = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        known.push_str(part.split_once('|').map_or(part, |(_, rest)| rest));
    }
    let mut parts = known.split("epoch: ");
    let mut without = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        without.push_str(part.trim_start_matches(|character: char| character.is_ascii_digit()));
    }
    without
}

#[test]
fn seed_reproduces_the_steps() {
    for seed in 1..=20 {
        let [first, second] = [(); 2].map(|()| play(seed, None, true).trace);
        assert!(first.len() > 30, "seed {seed} has too few steps");
        for (step, (played, replayed)) in first.iter().zip(&second).enumerate() {
            assert_eq!(known(played), known(replayed), "step {step} of seed {seed}");
        }
        assert_eq!(first.len(), second.len(), "seed {seed}");
    }
}

/// A node is cut off for longer than counts are kept. If it recorded its event, the new count would replace the correct one.
#[test]
fn expired_event_is_not_counted_again() {
    let mut plan = Plan::quiet(190 * SECOND);
    plan.store_outages.push(Outage { node: Some(1), from: 60 * SECOND, to: 180 * SECOND });
    plan.deliver(0, 19, 1, 19);
    plan.deliver(1, 75, 2, 81);
    plan.deliver(1, 78, 3, 19);
    let outcome = play_plan(plan, 1, None, true);
    let trace = outcome.trace.join("\n");
    assert_eq!(outcome.verdict, Ok(()), "{trace}");
}

/// Although the second output is unreachable, the first output gets its points as soon as if it were the only output.
#[test]
fn unreachable_output_delays_neither_sealing_nor_others() {
    const AWAY: i64 = 400 * SECOND;
    let writes = |outputs: usize| {
        let mut plan = Plan::quiet(AWAY);
        plan.outputs = outputs;
        plan.poison[0] = 3;
        plan.output_outages[1].push(Outage { node: None, from: 0, to: AWAY });
        // A minute ends every four seconds, whereas a write to the other output hangs for ten seconds.
        plan.max_age = Duration::from_secs(86_400);
        for number in 0..90 {
            let user = u8::try_from(number % 7).unwrap();
            let node = usize::from(number % 2 == 1);
            plan.deliver(node, 4 * number + 10, user, -60 * number - 120);
        }
        let outcome = play_plan(plan, 1, None, true);
        assert_eq!(outcome.verdict, Ok(()), "{}", outcome.trace.join("\n"));
        let writes = outcome.trace.iter();
        let writes = writes.filter(|line| line.contains(" to 0 Fine"));
        let second = |line: &String| line.trim().split('.').next().unwrap().parse::<i64>().unwrap();
        let seconds: Vec<i64> = writes.map(second).filter(|at| *at < AWAY / SECOND).collect();
        seconds
    };
    let (alone, beside) = (writes(1), writes(2));
    println!("written at {alone:?} alone, at {beside:?} with an unreachable second output");
    assert!(alone.len() >= 60, "{alone:?}");
    let late = beside.iter().zip(&alone).map(|(beside, alone)| beside - alone);
    assert!(late.max() <= Some(1), "{alone:?} {beside:?}");
}

/// The maximum number of schedules in which a mutant must be caught.
const MUTANT_SCHEDULES: u64 = 400;

/// Runs schedules with a mutant, beginning with the given seed, and asserts that one fails for one of these reasons.
fn caught(mutant: Mutant, seed: u64, reasons: &[&str]) {
    let fails = |seed| Some((seed, play(seed, Some(mutant), false).verdict.err()?));
    let found = std::iter::once(seed).chain(1..=MUTANT_SCHEDULES).find_map(fails);
    let (seed, violation) = found.unwrap_or_else(|| panic!("{mutant:?} is not caught"));
    println!("{mutant:?} is caught by seed {seed}: {violation}");
    assert!(
        reasons.iter().any(|reason| violation.contains(reason)),
        "{mutant:?} failed for a different reason: {violation}"
    );
}

macro_rules! mutants {
    ($($name:ident: $mutant:ident by seed $seed:literal, $($reason:literal)|+;)*) => {
        $(
            #[test]
            fn $name() {
                caught(Mutant::$mutant, $seed, &[$($reason),+]);
            }
        )*
    };
}

mutants! {
    an_acknowledgement_before_the_write_is_caught: AcknowledgeFirst by seed 1, "before it was written";
    minutes_without_their_date_are_caught: NoDate by seed 8, "has something to do, and no claim" | "the sets of" | "is not from an event";
    a_minute_closed_by_the_clock_of_a_node_is_caught: NodeClock by seed 6, "before its end" | "although" | "is not claimed at";
    nodes_that_admit_by_themselves_are_caught: OwnAdmissions by seed 1, "although it was" | "has more series";
    a_store_that_is_not_told_what_is_closed_is_caught: NoWitness by seed 53, "although life";
    events_that_are_not_recorded_again_are_caught: NoReplay by seed 5, "nobody recorded again" | "the sets of";
    minutes_closed_right_after_trouble_are_caught: NoSettling by seed 1, "right after trouble" | "may have gone back";
    a_node_that_lags_in_silence_is_caught: NoLag by seed 23, "does not say so";
    a_refusal_without_a_proof_is_caught: NoProof by seed 2, "without a proof";
    counts_for_one_output_only_are_caught: OneOutput by seed 2, "the outputs that lack" | "is unsent";
    counts_that_are_written_without_a_word_before_are_caught: NoAnnouncement by seed 1, "before the other nodes have heard";
    counts_that_are_written_before_the_others_have_heard_are_caught: NoWait by seed 1, "before the other nodes have heard";
    minutes_that_are_not_added_to_windows_are_caught: NoContribution by seed 2, "no claim will find it";
    users_that_are_added_without_a_claim_are_caught: BlindContribution by seed 20300, "was sealed with";
    overflow_events_without_their_series_are_caught: SeriesForgotten by seed 3, "the events of" | "the sets of";
}

/// Texts that must occur in some trace, because a situation that never occurs is not tested.
const REACHED: &[(&str, &str)] = &[
    ("sets", "layout: Sets"),
    ("logs", "layout: Log"),
    ("a claim that was taken over", "taken_over: true"),
    ("a claim that was lost", "Err(ClaimLost)"),
    ("a claim to send that was taken over", "Some(OutputName(\"two\"))"),
    ("a write to the second output", " to 1 "),
    ("the death of a node before an effect", "DiesBefore"),
    ("the death of a node after an effect", "DiesAfter"),
    ("a call that is executed after its caller has timed out", ", long ago: "),
    ("a call that is executed twice", "Twice"),
    ("a lost response", "AnswerLost"),
    ("a sleep", "sleeps for"),
    ("a node that is stopped cleanly", "is stopped"),
    ("a write that hangs", "Hangs"),
    ("a write that is accepted in part", "Part("),
    ("a rejection of every write", " Rejects"),
    ("a probe", "a probe"),
    ("a write that arrives late", "a late write arrives"),
    ("counts that are quarantined", "Quarantine("),
    ("a late event", "sealed: 0, late: 1,"),
    ("a minute that is announced", "= Ok(Announced([Heard"),
    ("a node that waits until other nodes have heard", "= Ok(Announced([Unheard"),
    ("a store that rolls back", "the store forgets"),
    ("a node that learns of a rollback when it checks in", "Err(Forgot)"),
    ("a node that reports its lag", "lags: true"),
    ("a minute of the third of December", "Minute(24680159)"),
    ("the first minute of the fourth", "Minute(24680160)"),
    ("the same minute of the day before", "Minute(24678720)"),
    ("an event that a node refuses", " refuses Delivery"),
    ("a series that is admitted", "Admitted {"),
    ("a series that is refused", "Refused"),
    ("an event under an overflow series", "Some(\"eds_overflow="),
    ("a query for the users of a series", "Users("),
    ("a window that is written", "suffix: \"_r"),
    ("a minute that a further node adds to a window", " as a further node"),
    ("a minute that is added to a window again", "} again"),
    ("a window that waits", "= Ok(Settled(None))"),
    ("a window that lacks minutes", "is_incomplete: true"),
];

#[test]
fn schedules_reach_their_situations() {
    let traces: Vec<String> =
        (1..=150).map(|seed| play(seed, None, true).trace.join("\n")).collect();
    for (situation, words) in REACHED {
        let reached = traces.iter().filter(|trace| trace.contains(words)).count();
        println!("{reached:>4} of {} schedules reach {situation}", traces.len());
        assert!(reached > 0, "no schedule reaches {situation}");
    }
}
