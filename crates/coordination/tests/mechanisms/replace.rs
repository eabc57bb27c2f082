//! Tests lists that are replaced atomically.

use std::sync::Arc;
use std::time::Duration;

use coordination::{AtomicReplace, Error, ITEMS_MAX, Token};
use futures_util::future::join_all;
use tokio::time::sleep;

use crate::site::{Site, over_each};

over_each!(
    the_list_is_that_of_one_writer,
    large_lists_are_complete,
    a_list_expires,
    an_older_writer_does_not_undo_a_newer,
    too_large_lists_are_refused,
);

fn lists(site: &Site, ttl: Duration) -> Arc<AtomicReplace> {
    Arc::new(AtomicReplace::new(site.arbiter(), ttl).unwrap())
}

const LONG: Duration = Duration::from_secs(60);

/// Two writers repeatedly replace the list. A reader never finds it doubled, partial, or missing.
async fn the_list_is_that_of_one_writer(site: Site) {
    let (a, b) = (vec!["a"; 7], vec!["b"; 11]);
    let (reader, first) = (lists(&site, LONG), lists(&site, LONG));
    first.replace("friends", &a, None).await.unwrap();
    let writers = [a.clone(), b.clone()].map(|items| {
        let lists = lists(&site, LONG);
        tokio::spawn(async move {
            for _ in 0..100 {
                lists.replace("friends", &items, None).await.unwrap();
            }
        })
    });
    let writing = join_all(writers);
    let reading = async {
        for _ in 0..300 {
            let items = reader.read("friends").await.unwrap();
            assert!(items.iter().all(|item| *item == items[0]), "{items:?}");
            assert!([7, 11].contains(&items.len()), "{} items", items.len());
        }
    };
    let (written, ()) = tokio::join!(writing, reading);
    for writer in written {
        writer.unwrap();
    }
}

/// Two writers concurrently replace a list of 12,000 items, which are sent in three pieces.
async fn large_lists_are_complete(site: Site) {
    let list = |letter: &str| (0..12_000).map(|n| format!("{letter}{n}")).collect::<Vec<_>>();
    let wanted = [list("a"), list("b")];
    let writers = wanted.clone().map(|items| {
        let lists = lists(&site, LONG);
        tokio::spawn(async move {
            for _ in 0..3 {
                lists.replace("large", &items, None).await.unwrap();
            }
        })
    });
    join_all(writers).await.into_iter().for_each(|result| result.unwrap());
    let items = lists(&site, LONG).read("large").await.unwrap();
    let items: Vec<_> = items.into_iter().map(|item| String::from_utf8(item).unwrap()).collect();
    assert!(wanted.contains(&items), "{} items", items.len());
}

async fn a_list_expires(site: Site) {
    let lists = lists(&site, Duration::from_millis(900));
    for number in [1, 12_000] {
        lists.replace("a", &vec!["x"; number], None).await.unwrap();
        assert_eq!(lists.read("a").await.unwrap().len(), number);
        sleep(Duration::from_secs(1)).await;
        assert!(lists.read("a").await.unwrap().is_empty());
    }
    // Replacing a list resets its time to live, and replacing it with no items removes it.
    lists.replace("a", &["x"], None).await.unwrap();
    lists.replace::<&str>("a", &[], None).await.unwrap();
    assert!(lists.read("a").await.unwrap().is_empty());
}

/// Tests lists that are sent in one piece or in several pieces, and lists that have been removed.
async fn an_older_writer_does_not_undo_a_newer(site: Site) {
    let lists = lists(&site, LONG);
    let [older, newer] = [7, 8].map(Token);
    for number in [1, 12_000] {
        let put = async |item, token| lists.replace("a", &vec![item; number], Some(token)).await;
        for _ in 0..2 {
            assert!(put("newer", newer).await.unwrap());
            assert!(!put("older", older).await.unwrap());
        }
        let items = lists.read("a").await.unwrap();
        assert_eq!((items.len(), &*items[0]), (number, &b"newer"[..]));
        assert!(lists.replace::<&str>("a", &[], Some(newer)).await.unwrap());
        assert!(!put("older", older).await.unwrap());
        assert!(lists.read("a").await.unwrap().is_empty());
        // A write without a token always succeeds, and does not affect which tokens are accepted.
        lists.replace("a", &["any"], None).await.unwrap();
        assert!(!put("older", older).await.unwrap());
    }
}

async fn too_large_lists_are_refused(site: Site) {
    let lists = lists(&site, LONG);
    lists.replace("a", &["old"], None).await.unwrap();
    let error = lists.replace("a", &vec![""; ITEMS_MAX + 1], None).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    assert_eq!(lists.read("a").await.unwrap(), [b"old"]);
    assert!(matches!(lists.replace("", &["x"], None).await, Err(Error::Name(_))));
}
