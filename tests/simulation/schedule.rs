//! Runs one schedule, from its seed to the verdict.

use std::panic::AssertUnwindSafe;

use tokio::task::JoinSet;

use super::node::Node;
use super::script::{Forget, Part};
use super::state::{PREFIX, SETTINGS};
use crate::simulation::prelude::*;

/// How long after the end of the faults everything in flight has arrived.
const SETTLE: Duration = Duration::from_secs(31);
/// The time limit for finishing after the faults. If a node's clock is ahead, its events may be minutes in the future.
const PATIENCE: Duration = Duration::from_secs(900);

#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) verdict: Verdict,
    pub(crate) trace: Vec<String>,
}

pub(crate) fn play(seed: u64, mutant: Option<Mutant>, traced: bool) -> Outcome {
    let mut plan = Plan::of(seed);
    if let Some(Mutant::Script(script)) = mutant {
        plan.expose(script.file, seed);
    }
    play_plan(plan, seed, mutant, traced)
}

pub(crate) fn play_plan(plan: Plan, seed: u64, mutant: Option<Mutant>, traced: bool) -> Outcome {
    let mut trace = Vec::new();
    let verdict = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let world = Arc::new(World::new(plan, seed, mutant, traced));
            world.note(|| format!("{:?}", world.plan));
            tokio::select! {
                biased;
                () = world.failed.notified() => {}
                () = run(&world, mutant) => {}
            }
            trace = world.take_trace();
            world.verdict()
        })
    }));
    let verdict = verdict.unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().cloned();
        Err(format!("panic: {}", words.unwrap_or_default()))
    });
    Outcome { verdict, trace }
}

async fn run(world: &Arc<World>, mutant: Option<Mutant>) {
    let node = |number| Arc::new(Node::new(world, number, mutant));
    let nodes: Vec<Arc<Node>> = (0..world.plan.nodes).map(node).collect();
    let mut lives = JoinSet::new();
    for node in &nodes {
        let node = Arc::clone(node);
        lives.spawn(async move { node.run().await });
    }
    let blows = async {
        for &(after, node, blow) in &world.plan.blows {
            tokio::time::sleep_until(world.time.instant(after)).await;
            nodes[node].suffer(blow);
        }
        std::future::pending::<()>().await;
    };
    let forgets = async {
        for forget in &world.plan.forgets {
            forget_at(world, &nodes, forget).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        () = direct(world, &nodes) => {}
        () = blows => {}
        () = forgets => {}
        Some(ended) = lives.join_next() => std::panic::resume_unwind(ended.unwrap_err().into_panic()),
    }
}

async fn forget_at(world: &World, nodes: &[Arc<Node>], forget: &Forget) {
    tokio::time::sleep_until(world.time.instant(forget.saved)).await;
    let saved_ms = world.time.now_ms();
    let saved = world.redis.keyspace().clone();
    let places = world.oracle().places();
    tokio::time::sleep_until(world.time.instant(forget.at)).await;
    world.note(|| format!("the store forgets: {forget:?}"));
    {
        // Keep the settings, which include the fingerprint key, because a new key is not the subject here.
        let mut now = world.redis.keyspace();
        let is_lost = |key: &[u8]| {
            let is_window = key.starts_with(format!("{{{PREFIX}:rollup:").as_bytes());
            let part = if is_window { Part::Windows } else { Part::Series };
            key != SETTINGS.as_bytes() && (forget.part == Part::All || forget.part == part)
        };
        let kept = now.0.iter().filter(|(key, _)| !is_lost(key));
        let kept: Vec<_> = kept.map(|(key, entry)| (key.clone(), entry.clone())).collect();
        *now = saved;
        now.0.retain(|key, _| is_lost(key));
        now.0.extend(kept);
    }
    // Leave time for the next check-in, and for recording everything again.
    let kept_ms = world.plan.replay_window.as_millis();
    let margin_ms = 2 * world.plan.flush.interval.as_millis() + 1000;
    let has_lost_events = forget.part != Part::Windows;
    let owed_from_ms = if has_lost_events && world.plan.is_owed() && kept_ms > margin_ms {
        world.time.now_ms() - i64::try_from(kept_ms - margin_ms).unwrap()
    } else {
        i64::MAX
    };
    world.oracle().forget(places, forget.part, saved_ms, owed_from_ms);
    for node in nodes {
        node.meet_another_store(forget.is_noticed);
    }
}

async fn direct(world: &World, nodes: &[Arc<Node>]) {
    tokio::time::sleep_until(world.time.instant(world.plan.calm)).await;
    world.calm.store(true, Ordering::Relaxed);
    world.note(|| "calm".to_owned());
    tokio::time::sleep(SETTLE).await;
    let done =
        || nodes.iter().all(|node| node.is_idle()) && world.look(|state| state.undone().is_none());
    let waiting = async {
        while !done() {
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    };
    let in_time = tokio::time::timeout(PATIENCE, waiting).await;
    if in_time.is_err() {
        world.note(|| "still not done".to_owned());
    }
    for node in nodes {
        node.settle_last();
    }
    let now_ms = world.time.now_ms();
    let verdict = world.look(|state| world.oracle().finish(now_ms, state));
    world.judge(verdict);
}
