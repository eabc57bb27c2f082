//! Tests that a recorder backs off while the store fails, and that its node lags until the events have been recorded.

use event_data_service::event::Batch;
use event_data_service::node::Clock;
use event_data_service::telemetry::Format;
use testing::prelude::*;

use crate::setup::{HOUR, Setup, caps, hand_over, recorder, this_minute};
use crate::store::CountingStore;

fn setup(store: &Arc<CountingStore>) -> Setup {
    Setup {
        clock: Clock::default(),
        max_age: HOUR,
        store: store.clone(),
        caps: caps(usize::MAX / 4, 0),
        replay_window: Duration::ZERO,
        dedup_users: 0,
    }
}

fn batch(nanos: i64) -> Batch {
    let (mut batch, minute) = (Batch::default(), this_minute());
    assert!(batch.push(minute, "s=1", "user", minute.start_nanos() + nanos));
    batch
}

#[tokio::test(start_paused = true)]
async fn back_off_doubles_and_resets_after_a_success() {
    const FAILING: &[u64] = &[0, 1, 2, 3, 4, 5, 6, 7, 9, 10];
    let store = Arc::new(CountingStore { failing_at: FAILING, ..CountingStore::default() });
    let (recorder, batches, node) = recorder(setup(&store));
    let sending = async {
        hand_over(batch(1), &batches, &node).await;
        hand_over(batch(2), &batches, &node).await;
        drop(batches);
    };
    tokio::join!(recorder.run(), sending);
    assert_eq!(node.ledger.totals().recorded, 2);
    let asked_at = store.asked_at.lock().unwrap();
    let pauses = asked_at.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64());
    let longest = [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0, 0.0, 0.1, 0.2];
    let pauses: Vec<f64> = pauses.collect();
    assert_eq!(pauses.len(), longest.len());
    for (pause, longest) in pauses.iter().zip(longest) {
        // A random factor from 0.5 to 1 is applied to each pause, and timers have a resolution of 1 ms.
        let expected = longest * 0.5..=longest + 0.002;
        assert!(expected.contains(pause), "{pauses:?}");
    }
}

/// A node lags from a failure or a slow response until the queue has been drained.
#[tokio::test(start_paused = true)]
async fn node_lags_until_failed_events_are_recorded() {
    const HANGS: Duration = Duration::from_secs(5);
    for (lagging_after, lags_before, lags_after) in [(1, 0.9, 1.1), (10, 4.9, 5.01)] {
        let store = CountingStore { failing_at: &[0], hangs: HANGS, ..CountingStore::default() };
        let store = Arc::new(store);
        let (mut recorder, batches, node) = recorder(setup(&store));
        recorder.settings.lagging_after = Duration::from_secs(lagging_after);
        let metrics = Arc::clone(&recorder.metrics);
        let running = tokio::spawn(recorder.run());
        hand_over(batch(1), &batches, &node).await;
        let lags = || {
            let text = metrics.encode(Format::Classic).unwrap();
            text.lines().any(|line| line == "eds_partitions_lagging 1")
        };
        let began = store.when_asked().await;
        tokio::time::sleep_until(began + Duration::from_secs_f64(lags_before)).await;
        assert!(!lags(), "{lagging_after}");
        tokio::time::sleep_until(began + Duration::from_secs_f64(lags_after)).await;
        assert!(lags(), "{lagging_after}");
        tokio::time::sleep_until(began + HANGS + Duration::from_secs(1)).await;
        assert_eq!(store.recordings.load(Ordering::SeqCst), 2);
        assert!(!lags(), "{lagging_after}");
        drop(batches);
        running.await.unwrap();
    }
}
