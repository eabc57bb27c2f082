//! Interleaves the commands of concurrent nodes with the log layout. The counts must be exact for every order of commands.
//!
//! `STORE_INTERLEAVED_SEED` sets the seed of the first schedule, and `STORE_INTERLEAVED_SCHEDULES` the number of schedules.

mod node;
mod oracle;
mod world;

use std::sync::atomic::AtomicI64;

use testing::lua_redis::LuaRedis;
use testing::prelude::*;

use self::world::{Reached, World};
use crate::number_from;

const SCHEDULES: u64 = 200;

const REACHED: [&str; 10] = [
    "Redis rolls back",
    "a call is dropped",
    "a claim is refused",
    "a command is executed without a waiting caller",
    "a log is refused",
    "a node is killed",
    "a part is sealed",
    "a series is sealed",
    "events are late",
    "logs are left",
];

const LINES_SHOWN: usize = 80;

#[tokio::test(start_paused = true)]
async fn logs_count_every_event_once_in_any_command_order() {
    let first = number_from("STORE_INTERLEAVED_SEED", u64::from(rand::random::<u32>()));
    let schedules = number_from("STORE_INTERLEAVED_SCHEDULES", SCHEDULES);
    println!("STORE_INTERLEAVED_SEED={first} STORE_INTERLEAVED_SCHEDULES={schedules}");
    let micros = Arc::<AtomicI64>::default();
    let clock = Arc::clone(&micros);
    let clock = Box::new(move || clock.load(Ordering::Relaxed));
    let redis = Arc::new(LuaRedis::new(clock, None));
    world::prepare(&redis, &micros).await;
    let mut reached = Reached::new();
    for seed in first..first + schedules {
        let mut world = World::new(&redis, &micros, seed).await;
        if let Err(wrong) = world.play().await {
            let hidden = world.log.len().saturating_sub(LINES_SHOWN);
            panic!(
                "seed {seed}: {wrong}\n{}\n{wrong}\nagain: STORE_INTERLEAVED_SEED={seed} STORE_INTERLEAVED_SCHEDULES=1 cargo test \
                 --test simulation interleaved\n",
                world.log[hidden..].join("\n"),
            );
        }
        for (situation, times) in &world.reached {
            *reached.entry(situation).or_default() += times;
        }
        world.end();
    }
    println!("{reached:#?}");
    for situation in REACHED {
        let is_enough = reached.contains_key(situation) || schedules < SCHEDULES;
        assert!(is_enough, "{situation}: never");
    }
}
