//! The proposals of the four documents, replayed step by step on a real Redis up to their failure, and the same steps
//! with this crate. Each client has its own connection.

use std::thread::sleep;
use std::time::Duration;

use coordination::{AtomicReplace, Name};
use redis::Commands;
use testing::redis::RedisServer;

use crate::site::{Place, Site, begin, lock};

fn server(site: &Site) -> &RedisServer {
    match &site.place {
        Place::Redis(server) => server,
        _ => panic!("not on a single Redis"),
    }
}

fn clients<const N: usize>(site: &Site) -> [redis::Connection; N] {
    [(); N].map(|()| server(site).connection())
}

/// The lock's time in the documents' manner: the instant when it lapses, in seconds, by the client's clock.
const LAPSED: i64 = 1_000;
const NOW: i64 = 2_000;
const TIMEOUT: i64 = 10;

/// SETNX: C3 has crashed; C1 and C2 both see the lock lapsed, delete it and take it. Both have it.
#[test]
fn setnx_after_del_grants_the_lock_twice() {
    let site = Site::redis();
    let lock = format!("{}:lock.foo", site.prefix);
    let [mut c1, mut c2, mut c3] = clients(&site);
    assert!(c3.set_nx::<_, _, bool>(&lock, LAPSED).unwrap());
    for client in [&mut c1, &mut c2] {
        assert!(!client.set_nx::<_, _, bool>(&lock, NOW + TIMEOUT).unwrap());
        assert!(client.get::<_, i64>(&lock).unwrap() < NOW);
    }
    c1.del::<_, ()>(&lock).unwrap();
    let c1_has_it: bool = c1.set_nx(&lock, NOW + TIMEOUT).unwrap();
    c2.del::<_, ()>(&lock).unwrap();
    let c2_has_it: bool = c2.set_nx(&lock, NOW + TIMEOUT).unwrap();
    assert!(c1_has_it && c2_has_it, "the race of the document");
}

/// GETSET: C5 is faster than C4, which sees it and backs off. But it has written its own time over that of C5, and
/// nothing tells C3, when it awakes and deletes "its" lock, that it is C5's.
#[test]
fn getset_has_one_winner_but_a_late_release_frees_the_lock() {
    let site = Site::redis();
    let lock = format!("{}:lock.foo", site.prefix);
    let [mut c3, mut c4, mut c5, mut c6] = clients(&site);
    assert!(c3.set_nx::<_, _, bool>(&lock, LAPSED).unwrap());
    for client in [&mut c4, &mut c5] {
        assert!(!client.set_nx::<_, _, bool>(&lock, NOW + TIMEOUT).unwrap());
        assert!(client.get::<_, i64>(&lock).unwrap() < NOW);
    }
    let c5_saw: i64 = c5.getset(&lock, NOW + TIMEOUT).unwrap();
    let c4_saw: i64 = c4.getset(&lock, NOW + TIMEOUT + 3).unwrap();
    assert!(c5_saw < NOW && c4_saw >= NOW, "C5 has it, C4 has not");
    let until: i64 = c4.get(&lock).unwrap();
    assert_eq!(until, NOW + TIMEOUT + 3, "C4 has changed the lock of C5");
    // C3 was only slow.
    c3.del::<_, ()>(&lock).unwrap();
    assert!(c6.set_nx::<_, _, bool>(&lock, NOW + TIMEOUT).unwrap(), "C5 and C6 have it");
}

/// The same steps with `Mutex`: C3 crashed, and the lock lapsed. One of the others acquires it; C3 cannot release it.
#[tokio::test]
async fn mutex_has_one_winner_and_ignores_a_late_release() {
    let site = Site::redis();
    let [c1, c2, c3, c4] = [(); 4].map(|()| site.arbiter());
    let name = Name::of_mutex("lock.foo").unwrap();
    let (short, long) = (Duration::from_millis(50), Duration::from_secs(60));
    let (stale, stale_token) = lock(&*c3, &name, short).await.expect("C3 has it");
    assert_eq!(lock(&*c1, &name, long).await, None);
    assert_eq!(lock(&*c2, &name, long).await, None);
    tokio::time::sleep(short * 2).await;
    let (newer, token) = lock(&*c1, &name, long).await.expect("C1 has it");
    assert_eq!(lock(&*c2, &name, long).await, None);
    assert_eq!(lock(&*c4, &name, long).await, None);
    assert!(!c3.release(&stale).await.unwrap());
    assert_eq!(lock(&*c2, &name, long).await, None);
    assert!(token > stale_token);
    assert!(c1.renew(&newer).await.unwrap());
}

/// SADD: a holder that crashes leaves the handle in the set permanently.
#[test]
fn a_crashed_holder_keeps_a_lock_by_sadd() {
    let site = Site::redis();
    let locks = format!("{}:named_locks", site.prefix);
    let [mut crashed, mut other] = clients(&site);
    assert_eq!(crashed.sadd::<_, _, u32>(&locks, "foo").unwrap(), 1);
    drop(crashed);
    for _ in 0..5 {
        assert_eq!(other.sadd::<_, _, u32>(&locks, "foo").unwrap(), 0);
        sleep(Duration::from_millis(10));
    }
    // Nothing will ever take it out: the set has no time to live, and one for all handles would be none for each.
    assert_eq!(other.ttl::<_, i64>(&locks).unwrap(), -1);
    // The set does not know its owner: any client's SREM frees it.
    assert_eq!(other.srem::<_, _, u32>(&locks, "foo").unwrap(), 1);
}

/// INCR, then DECR whatever the answer: two waiting clients keep each other out of a free lock; a DECR repeated after
/// a doubt lets a second one in; and a crash in between is permanent.
#[test]
fn a_lock_by_incr_and_decr_has_no_holder_or_two() {
    let site = Site::redis();
    let [mut a, mut b, mut c] = clients(&site);

    let lock = format!("{}:nobody", site.prefix);
    assert_eq!(a.incr::<_, _, i64>(&lock, 1).unwrap(), 1, "A has it");
    assert_eq!(b.incr::<_, _, i64>(&lock, 1).unwrap(), 2);
    assert_eq!(a.decr::<_, _, i64>(&lock, 1).unwrap(), 1, "A is done");
    for _ in 0..20 {
        assert_eq!(c.incr::<_, _, i64>(&lock, 1).unwrap(), 2, "C does not get it");
        b.decr::<_, _, i64>(&lock, 1).unwrap();
        assert_eq!(b.incr::<_, _, i64>(&lock, 1).unwrap(), 2, "nor does B");
        c.decr::<_, _, i64>(&lock, 1).unwrap();
    }

    let lock = format!("{}:two", site.prefix);
    assert_eq!(a.incr::<_, _, i64>(&lock, 1).unwrap(), 1, "A has it");
    assert_eq!(b.incr::<_, _, i64>(&lock, 1).unwrap(), 2);
    b.decr::<_, _, i64>(&lock, 1).unwrap();
    b.decr::<_, _, i64>(&lock, 1).unwrap();
    assert_eq!(c.incr::<_, _, i64>(&lock, 1).unwrap(), 1, "A and C have it");
}

/// HSETNX and EXPIRE are two steps. A client that dies between them leaves a lock without a time to live, and clients
/// that wait with BRPOPLPUSH wait for a list that is never written.
#[test]
fn lock_with_a_separate_expire_may_never_expire() {
    let site = Site::redis();
    let (lock, list) = (format!("{}:lock-a", site.prefix), format!("{}:list-a", site.prefix));
    let [mut crashed, mut other] = clients(&site);
    assert!(crashed.hset_nx::<_, _, _, bool>(&lock, "lock", "got it").unwrap());
    drop(crashed);
    assert_eq!(other.ttl::<_, i64>(&lock).unwrap(), -1);
    assert!(!other.hset_nx::<_, _, _, bool>(&lock, "lock", "got it").unwrap());
    let read: Option<String> = other.brpoplpush(&list, &list, 0.1).unwrap();
    assert_eq!(read, None);
}

/// BRPOPLPUSH of a list onto itself: a late winner's push makes two elements, and readers alternate.
#[test]
fn circular_list_pushed_twice_returns_two_lists_in_turn() {
    let site = Site::redis();
    let list = format!("{}:list-a", site.prefix);
    let [mut slow, mut newer, mut reader] = clients(&site);
    // The lock of the slow one has lapsed while it computed, so another has computed, too.
    newer.lpush::<_, _, ()>(&list, "new").unwrap();
    slow.lpush::<_, _, ()>(&list, "old").unwrap();
    let mut read = || -> String { reader.brpoplpush(&list, &list, 1.0).unwrap() };
    assert_eq!([read(), read(), read(), read()], ["new", "old", "new", "old"]);
}

/// With `ComputeOnce` the late value is refused, and all callers read the newer one.
#[tokio::test]
async fn compute_once_keeps_one_list() {
    let site = Site::redis();
    let arbiter = site.arbiter();
    let name = Name::of_value("a").unwrap();
    let (short, long) = (Duration::from_millis(50), Duration::from_secs(60));
    let mut claims = Vec::new();
    for ttl in [short, long] {
        claims.push(begin(&*arbiter, &name, ttl).await.0);
        tokio::time::sleep(short * 2).await;
    }
    assert!(arbiter.publish(&claims[1], Ok((b"new", short)), long).await.unwrap());
    assert!(!arbiter.publish(&claims[0], Ok((b"old", short)), long).await.unwrap());
    for _ in 0..4 {
        assert_eq!(&*arbiter.peek(&name).await.unwrap().unwrap().value, b"new");
    }
}

/// DEL, DEL, RPUSH, RPUSH: the friends are there twice. With ours the same two writers leave one list.
#[tokio::test]
async fn two_messages_double_a_list_but_not_that_of_atomic_replace() {
    let site = Site::redis();
    let key = format!("{}:friends:user1", site.prefix);
    let friends = ["user2", "user3", "user4"];
    let [mut a, mut b] = clients(&site);
    a.del::<_, ()>(&key).unwrap();
    b.del::<_, ()>(&key).unwrap();
    a.rpush::<_, _, ()>(&key, &friends).unwrap();
    b.rpush::<_, _, ()>(&key, &friends).unwrap();
    assert_eq!(a.llen::<_, usize>(&key).unwrap(), 2 * friends.len(), "doubled");

    let ttl = Duration::from_secs(60);
    let [a, b] = [(); 2].map(|()| AtomicReplace::new(site.arbiter(), ttl).unwrap());
    let (first, second) =
        tokio::join!(a.replace("user1", &friends, None), b.replace("user1", &friends, None));
    first.unwrap();
    second.unwrap();
    assert_eq!(a.read("user1").await.unwrap(), friends.map(|friend| friend.as_bytes().to_vec()));
}
