//! Tests lists that collide in a slot.

use std::sync::atomic::{AtomicU32, Ordering};

use coordination::memory::MemoryArbiter;

use super::*;

fn lists() -> Lists {
    Lists::new(&(Arc::new(MemoryArbiter::default()) as _), true).unwrap()
}

/// Returns two keys that map to the same slot.
fn neighbours(lists: &Lists) -> (String, String) {
    let key = |number: u64| format!("top:unique:{number}:5:{{}}");
    let slot = |number| lists.place(&key(number), true).1;
    let second = (1..100_000).find(|number| slot(*number) == slot(0));
    (key(0), key(second.unwrap()))
}

async fn get(lists: &Lists, key: &str, list: &str) -> Result<Option<String>, Problem> {
    let list = list.as_bytes().to_vec();
    let compute = move |_| std::future::ready(Ok(list.clone()));
    let found = lists.get(key, true, compute).await?;
    Ok(found.map(|found| String::from_utf8(found.list).unwrap()))
}

#[tokio::test]
async fn lists_never_overwrite_or_impersonate_each_other() {
    let lists = lists();
    let (first, second) = neighbours(&lists);
    assert_eq!(get(&lists, &first, "1").await.unwrap().unwrap(), "1");
    for _ in 0..100 {
        assert_eq!(get(&lists, &second, "2").await.unwrap(), None);
    }
    assert!(lists.peek(&second, true).await.unwrap().is_none());
    assert_eq!(get(&lists, &first, "3").await.unwrap().unwrap(), "1");
}

#[tokio::test]
async fn failed_list_affects_only_its_requests() {
    let lists = lists();
    let (first, second) = neighbours(&lists);
    let asked = Arc::new(AtomicU32::new(0));
    for _ in 0..2 {
        let counted = Arc::clone(&asked);
        let failing = move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Err(Problem::too_much("more than there may be")))
        };
        let problem = lists.get(&first, true, failing).await.unwrap_err();
        assert_eq!(problem, Problem::too_much("more than there may be"));
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    assert_eq!(get(&lists, &second, "2").await.unwrap(), None);
}

#[tokio::test]
async fn colliding_lists_replace_the_second_slot() {
    let lists = lists();
    let mut ids = (2..10_000_000).map(|id: u64| id.to_string());
    let mut colliding = || ids.find(|id| kept_slots(id) == kept_slots("1")).unwrap();
    let [second, third] = [colliding(), colliding()];
    lists.keep("1", "key", b"first").await;
    assert!(lists.by_id("1", "key").await.unwrap().is_some());
    assert!(lists.by_id("1", "another key").await.unwrap().is_none());
    lists.keep(&second, "key", b"second").await;
    lists.keep(&third, "key", b"third").await;
    for (id, is_kept) in [("1", true), (second.as_str(), false), (third.as_str(), true)] {
        assert_eq!(lists.by_id(id, "key").await.unwrap().is_some(), is_kept, "{id}");
    }
}

#[tokio::test]
async fn two_lists_that_share_a_slot_are_both_kept() {
    let lists = lists();
    let mut ids = (2..100_000).map(|id: u64| id.to_string());
    let second = ids.find(|id| kept_slots(id)[0] == kept_slots("1")[0]);
    let second = second.unwrap();
    for id in ["1", &second] {
        lists.keep(id, "key", b"list").await;
    }
    for id in ["1", &second] {
        assert!(lists.by_id(id, "key").await.unwrap().is_some(), "{id}");
    }
}
