//! Tests the results of queries.

use event_data_service::store::CountReader;

use crate::contract::prelude::*;

fn minute(number: i64) -> Minute {
    Minute::from_epoch_minutes(number).unwrap()
}

async fn sealed(reading: &dyn CountReader, minutes: &[i64]) -> Counts {
    let mut all = Counts::new();
    for partition in partitions().iter() {
        let asked: Vec<_> = minutes.iter().map(|number| minute(*number)).collect();
        let sizes = reading.sealed_sizes(partition, &asked).await.unwrap();
        assert_eq!(sizes.len(), asked.len());
        for (number, size) in minutes.iter().zip(sizes) {
            let mut found = BTreeMap::new();
            let mut cursor = Some(0);
            while let Some(at) = cursor {
                let page = reading.sealed_page(bucket(partition, *number), at).await;
                let page = page.unwrap();
                let counts = page.items.into_iter();
                found.extend(
                    counts.map(|item| ((*number, item.series), (item.unique, item.cumulative))),
                );
                cursor = page.next;
            }
            assert_eq!(found.len() as u64, size);
            all.extend(found);
        }
    }
    all
}

pub(crate) async fn open_of(
    reading: &dyn CountReader,
    partition: Partition,
    most: usize,
) -> Counts {
    let mut all = Counts::new();
    for minute in reading.open_minutes(partition, most).await.unwrap() {
        let bucket = Bucket { partition, minute };
        let mut series = BTreeSet::new();
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            let page = reading.open_page(bucket, at).await.unwrap();
            series.extend(page.items);
            cursor = page.next;
        }
        let mut asked: Vec<_> = series.iter().map(String::as_str).collect();
        asked.push("of=nobody");
        let counts = reading.open_counts(bucket, &asked).await.unwrap();
        let number = minute.epoch_minutes();
        all.extend(
            counts.into_iter().map(|item| ((number, item.series), (item.unique, item.cumulative))),
        );
    }
    all
}

async fn open(reading: &dyn CountReader) -> Counts {
    let mut all = Counts::new();
    for partition in partitions().iter() {
        all.extend(open_of(reading, partition, 100).await);
    }
    all
}

fn events() -> Vec<Event> {
    let mut events = Vec::new();
    for minute in SEED_MINUTE..SEED_MINUTE + 3 {
        for number in 0..7 {
            for user in 0..=number {
                let series = format!(r"a={number},b=x\,y:{minute}|");
                for at in [1, 2, 2] {
                    events.push(event(minute, &series, &format!("user_{user}"), at));
                }
            }
        }
    }
    events
}

pub(crate) async fn reading_open_and_sealed_counts_changes_nothing(ground: &Ground) {
    let (node, reading) = (ground.node("a"), ground.reading());
    let (events, minutes) =
        (events(), [SEED_MINUTE - 1, SEED_MINUTE, SEED_MINUTE + 1, SEED_MINUTE + 2]);
    node.record(&events).await;
    assert_eq!(open(&*reading).await, model(&events));
    assert_eq!(sealed(&*reading, &minutes).await, Counts::new());
    let claims = node.claim(&AT_ONCE).await;
    let claims = if claims.is_empty() { node.claim(&AT_ONCE).await } else { claims };
    assert_eq!(open(&*reading).await, model(&events), "claimed minutes are still open");
    node.finish(&claims).await;
    assert_eq!(sealed(&*reading, &minutes).await, model(&events));
    assert_eq!(open(&*reading).await, Counts::new());
    assert_eq!(sealed(&*reading, &[]).await, Counts::new());
}

pub(crate) async fn late_events_are_not_reported_as_open(ground: &Ground) {
    let (node, reading) = (ground.node("a"), ground.reading());
    node.record(&[event(SEED_MINUTE, "a=1", "x", 1)]).await;
    let claim = node.claim_one(&AT_ONCE).await;
    node.finish(&[claim]).await;
    node.record(&[event(SEED_MINUTE, "a=1", "y", 2)]).await;
    assert_eq!(open(&*reading).await, Counts::new());
    let counts = sealed(&*reading, &[SEED_MINUTE]).await;
    assert_eq!(counts.values().collect::<Vec<_>>(), [&(1, 1)]);
}

pub(crate) async fn long_lists_are_paged_with_the_newest_minutes_first(ground: &Ground) {
    let (node, reading) = (ground.node("a"), ground.reading());
    let series = series_of_one_partition(1234);
    let partition = partitions().of(&series[0], Minute::MIN);
    let mut events: Vec<_> =
        series.iter().map(|series| event(SEED_MINUTE, series, "x", 1)).collect();
    for minute in 1..5 {
        events.push(event(SEED_MINUTE + minute, &series[0], "x", 1));
    }
    node.record(&events).await;
    assert_eq!(open(&*reading).await, model(&events));
    let newest = reading.open_minutes(partition, 2).await.unwrap();
    assert_eq!(newest, [minute(SEED_MINUTE + 4), minute(SEED_MINUTE + 3)]);
    assert_eq!(reading.open_minutes(partition, 0).await.unwrap(), []);
}

pub(crate) async fn events_recorded_between_reads_are_seen_soon(ground: &Ground) {
    let (node, reading) = (ground.node("a"), ground.reading());
    let mut events = Vec::new();
    for at in 0..20 {
        let user = format!("user_{at}");
        events.push(event(SEED_MINUTE, "a=1", &user, at));
        node.record(&events[events.len() - 1..]).await;
        let deadline = std::time::Instant::now() + SOON;
        while open(&*reading).await != model(&events) {
            assert!(std::time::Instant::now() < deadline, "{at}");
        }
    }
}
