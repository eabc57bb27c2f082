//! Nodes with logs that work concurrently, command by command: the counts are exact for every order of commands, and
//! for every lost command or answer.
//!
//! A seed determines a schedule. `STORE_INTERLEAVED_SEED` is the first, `STORE_INTERLEAVED_SCHEDULES` their number.

#[path = "../simulation/dice.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod dice;
mod node;
mod oracle;
mod outcome;
mod site;
mod turns;
mod world;

use testing::redis::RedisServer;

use self::node::settings;
use self::site::{Site, TAG};
use self::world::{Reached, World};
use super::site::{claim, compact, finish, minute, record, store};

/// Default of `STORE_INTERLEAVED_SCHEDULES`.
const SCHEDULES: u64 = 120;
/// Events that must occur in a run.
const REACHED: [&str; 10] = [
    "Redis goes back",
    "a call is dropped",
    "a claim is refused",
    "a command goes when nobody waits for it",
    "a log is refused",
    "a node is killed",
    "a part is sealed",
    "a series is sealed",
    "events are late",
    "logs are left",
];
/// The lines printed of a failed schedule.
const LINES_SHOWN: usize = 80;

fn number_from(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    let number = value.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable} is {value:?}, which is no number")))
}

#[tokio::test]
async fn logs_count_every_event_once_in_any_order_of_commands() {
    let first =
        number_from("STORE_INTERLEAVED_SEED").unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let schedules = number_from("STORE_INTERLEAVED_SCHEDULES").unwrap_or(SCHEDULES);
    println!("STORE_INTERLEAVED_SEED={first} STORE_INTERLEAVED_SCHEDULES={schedules}");
    let mut site = Site::start().await;
    let mut reached = Reached::new();
    for seed in first..first + schedules {
        let mut world = World::new(&mut site, seed).await;
        let played = world.play().await;
        if let Err(wrong) = played {
            let hidden = world.log.len().saturating_sub(LINES_SHOWN);
            panic!(
                "seed {seed}: {wrong}\n{}\n{wrong}\nagain: STORE_INTERLEAVED_SEED={seed} STORE_INTERLEAVED_SCHEDULES=1 cargo test \
                 --test store_redis interleaved\n",
                world.log[hidden..].join("\n"),
            );
        }
        for (what, times) in &world.reached {
            *reached.entry(what).or_default() += times;
        }
        world.end().await;
    }
    println!("{reached:#?}");
    for what in REACHED {
        let is_enough = reached.contains_key(what) || schedules < SCHEDULES;
        assert!(is_enough, "{what}: never");
    }
}

#[tokio::test]
async fn a_script_that_stops_while_logs_go_is_gone_on_with() {
    let server = RedisServer::start(&[]);
    let nodes = ["n1", "n2"].map(|name| store(&settings(server.address(), name)));
    for node in &nodes {
        record(node, minute(), &["s=1", "s=2"], 1).await.unwrap();
    }
    let claim = claim(&nodes[0]).await.unwrap().remove(0);
    assert_eq!(compact(&nodes[0], &claim, 1).await.unwrap().left, 1);
    // The script stops where it removes the first name. Then one log is deleted, as if it had stopped later.
    let logs = format!("{TAG}:{}:logs", minute());
    server.query::<()>(&["RENAME", &logs, "{eds:0}:kept"]);
    server.query::<()>(&["SET", &logs, "of another type"]);
    compact(&nodes[0], &claim, 1).await.unwrap_err();
    server.query::<()>(&["RENAME", "{eds:0}:kept", &logs]);
    let keys = server.keys();
    let log = keys.iter().find(|key| key.contains(":log:")).unwrap();
    server.query::<()>(&["UNLINK", log]);
    let last = compact(&nodes[0], &claim, 1).await.unwrap();
    assert_eq!((last.sealed, last.late, last.left), (0, 0, 0));
    assert_eq!(finish(&nodes[0], &last.sending[0]).await.unwrap(), 2);
    let keys = server.keys();
    assert!(!keys.iter().any(|key| key.contains("log")), "{keys:?}");
}
