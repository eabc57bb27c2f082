//! Tests that recording is idempotent, no matter how many nodes record an event.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use crate::contract::prelude::*;

pub(crate) async fn recording_a_batch_twice_has_no_effect(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let mut events = vec![
        event(SEED_MINUTE, "s=1", "x", 1),
        event(SEED_MINUTE, "s=1", "x", 2),
        event(SEED_MINUTE, "s=1", "y", 2),
        event(SEED_MINUTE, "s=2", "x", 2),
    ];
    let told = |repeated| if ground.counts_at_once() { repeated } else { 0 };
    assert_eq!(a.record(&events).await, 0);
    assert_eq!(a.record(&events).await, told(4));
    events.reverse();
    events.extend_from_within(..2);
    events.push(event(SEED_MINUTE, "s=2", "new", 2));
    assert_eq!(b.record(&events).await, told(6));
    assert_eq!(a.finish_all().await, model(&events));
}

/// Each copy is reported once, either when it is recorded or when the minute is sealed, even after a takeover.
pub(crate) async fn duplicates_are_reported(ground: &Ground) {
    let nodes = ["a", "b"].map(|name| ground.node(name));
    let series = series_of_one_partition(9);
    let events = series.iter().zip(0..);
    let events: Vec<_> = events
        .flat_map(|(series, at)| (0..=at).map(move |user| (series, user, at)))
        .map(|(series, user, at)| event(SEED_MINUTE, series, &format!("user_{user}"), at))
        .collect();
    let mut told = 0;
    for node in &nodes {
        told += node.record(&events).await;
        told += node.record(&events[..7]).await;
    }
    let mut claim = nodes[0].claim_one(&AT_ONCE).await;
    told += nodes[0].try_compact(&claim, 4).await.unwrap().repeated;
    let lapsing = [&claim];
    let lapsed = nodes[0].0.extend(&lapsing, Duration::ZERO);
    assert_eq!(lapsed.await.unwrap(), 1);
    claim = nodes[1].claim_one(&AT_ONCE).await;
    loop {
        let done = nodes[1].try_compact(&claim, 2).await.unwrap();
        told += done.repeated;
        if done.left == 0 {
            break;
        }
    }
    assert_eq!(told, events.len() as u64 + 7 + 7);
}

/// Two nodes record random events, which have been copied, shuffled and divided into batches.
pub(crate) async fn counts_match_a_naive_model(ground: &Ground) {
    let nodes = [ground.node("a"), ground.node("b")];
    let first: u64 = rand::random();
    for seed in (0..24).map(|round| first.wrapping_add(round)) {
        let mut rng = StdRng::seed_from_u64(seed);
        // Each round uses new minutes, because the previous minutes are closed.
        let minute = SEED_MINUTE + 10 * i64::try_from(seed.wrapping_sub(first)).unwrap();
        let events = random_events(&mut rng, minute);
        let expected = model(&events);

        let mut copies = events.clone();
        for _ in 0..rng.random_range(0..=events.len()) {
            copies.push(events[rng.random_range(0..events.len())].clone());
        }
        copies.shuffle(&mut rng);
        let batch = rng.random_range(1..=copies.len());
        for batch in copies.chunks(batch) {
            nodes[rng.random_range(0..2)].record(batch).await;
        }
        let counts = nodes[rng.random_range(0..2)].finish_all().await;
        assert_eq!(counts, expected, "seed {seed}: {events:?}");
    }
}

fn random_events(rng: &mut StdRng, minute: i64) -> Vec<Event> {
    let users = rng.random_range(1..20);
    let count = rng.random_range(1..120);
    let random_event = |rng: &mut StdRng| {
        let series = format!("s={}", rng.random_range(0..6));
        let user = format!("user{}", rng.random_range(0..users));
        // With few timestamps, users coincide and the same user repeats.
        let at = minute + rng.random_range(0..3);
        event(at, &series, &user, rng.random_range(0..5))
    };
    (0..count).map(|_| random_event(rng)).collect()
}

pub(crate) async fn nodes_can_record_concurrently(ground: &Ground) {
    let events: Vec<_> = (0..2000)
        .map(|i| event(SEED_MINUTE, &format!("s={}", i % 7), &format!("u{}", i % 90), i))
        .collect();
    let recording = ["a", "b", "c", "d"].map(|name| {
        let (node, mut events) = (ground.node(name), events.clone());
        tokio::spawn(async move {
            events.shuffle(&mut rand::rng());
            for batch in events.chunks(100) {
                node.record(batch).await;
            }
        })
    });
    for node in recording {
        node.await.unwrap();
    }
    assert_eq!(ground.node("e").finish_all().await, model(&events));
}
