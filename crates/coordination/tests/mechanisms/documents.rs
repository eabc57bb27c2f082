//! Shows on a real Redis server how the proposals of the four documents in `docs/guarantees.md` fail, and replays the same
//! steps with this crate. Each client has its own connection.

use std::thread::sleep;
use std::time::Duration;

use coordination::{AtomicReplace, Name};
use redis::Commands;
use testing::redis::RedisServer;

use crate::site::{Backend, Site, begin, lock};

fn server(site: &Site) -> &RedisServer {
    match &site.backend {
        Backend::Redis(server) => server,
        _ => panic!("not a single Redis server"),
    }
}

fn clients<const N: usize>(site: &Site) -> [redis::Connection; N] {
    [(); N].map(|()| server(site).connection())
}

/// The time at which a lock lapses, as stored by the documents' proposals: in seconds, by the client's clock.
const LAPSED: i64 = 1_000;
const NOW: i64 = 2_000;
const TIMEOUT: i64 = 10;

/// SETNX: After C3 has crashed, both C1 and C2 see that the lock has lapsed, delete it, and acquire it.
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
    assert!(c1_has_it && c2_has_it, "the race that the document describes");
}

/// GETSET: C5 is faster than C4, which backs off after overwriting the time of C5. When C3 resumes and deletes the lock,
/// it does not notice that the lock belongs to C5.
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
    assert!(c5_saw < NOW && c4_saw >= NOW, "C5 has the lock, C4 does not");
    let until: i64 = c4.get(&lock).unwrap();
    assert_eq!(until, NOW + TIMEOUT + 3, "C4 has overwritten the lock of C5");
    // C3 had not crashed, but was only slow.
    c3.del::<_, ()>(&lock).unwrap();
    assert!(c6.set_nx::<_, _, bool>(&lock, NOW + TIMEOUT).unwrap(), "C5 and C6 have the lock");
}

/// The same steps with `Mutex`: After the lock of C3 has lapsed, one other client acquires it, and C3 cannot release it.
#[tokio::test]
async fn mutex_has_one_winner_and_ignores_a_late_release() {
    let site = Site::redis();
    let [c1, c2, c3, c4] = [(); 4].map(|()| site.arbiter());
    let name = Name::of_mutex("lock.foo").unwrap();
    let (short, long) = (Duration::from_millis(50), Duration::from_secs(60));
    let (stale, stale_token) = lock(&*c3, &name, short).await.expect("C3 acquires the lock");
    assert_eq!(lock(&*c1, &name, long).await, None);
    assert_eq!(lock(&*c2, &name, long).await, None);
    tokio::time::sleep(short * 2).await;
    let (newer, token) = lock(&*c1, &name, long).await.expect("C1 acquires the lock");
    assert_eq!(lock(&*c2, &name, long).await, None);
    assert_eq!(lock(&*c4, &name, long).await, None);
    assert!(!c3.release(&stale).await.unwrap());
    assert_eq!(lock(&*c2, &name, long).await, None);
    assert!(token > stale_token);
    assert!(c1.renew(&newer).await.unwrap());
}

/// SADD: The handle of a crashed holder stays in the set permanently.
#[test]
fn crashed_holder_keeps_a_sadd_lock() {
    let site = Site::redis();
    let locks = format!("{}:named_locks", site.prefix);
    let [mut crashed, mut other] = clients(&site);
    assert_eq!(crashed.sadd::<_, _, u32>(&locks, "foo").unwrap(), 1);
    drop(crashed);
    for _ in 0..5 {
        assert_eq!(other.sadd::<_, _, u32>(&locks, "foo").unwrap(), 0);
        sleep(Duration::from_millis(10));
    }
    // The set has no time to live, which would apply to all handles together anyway.
    assert_eq!(other.ttl::<_, i64>(&locks).unwrap(), -1);
    // The set does not store the holder, so any client can release the lock with SREM.
    assert_eq!(other.srem::<_, _, u32>(&locks, "foo").unwrap(), 1);
}

/// INCR, then DECR in any case: Two waiting clients can keep each other out of a free lock, a repeated DECR lets a second
/// holder in, and a crash between the two commands blocks the lock permanently.
#[test]
fn incr_decr_lock_has_no_holder_or_two() {
    let site = Site::redis();
    let [mut a, mut b, mut c] = clients(&site);

    let lock = format!("{}:nobody", site.prefix);
    assert_eq!(a.incr::<_, _, i64>(&lock, 1).unwrap(), 1, "A has the lock");
    assert_eq!(b.incr::<_, _, i64>(&lock, 1).unwrap(), 2);
    assert_eq!(a.decr::<_, _, i64>(&lock, 1).unwrap(), 1, "A is done");
    for _ in 0..20 {
        assert_eq!(c.incr::<_, _, i64>(&lock, 1).unwrap(), 2, "C does not get the lock");
        b.decr::<_, _, i64>(&lock, 1).unwrap();
        assert_eq!(b.incr::<_, _, i64>(&lock, 1).unwrap(), 2, "nor does B");
        c.decr::<_, _, i64>(&lock, 1).unwrap();
    }

    let lock = format!("{}:two", site.prefix);
    assert_eq!(a.incr::<_, _, i64>(&lock, 1).unwrap(), 1, "A has the lock");
    assert_eq!(b.incr::<_, _, i64>(&lock, 1).unwrap(), 2);
    b.decr::<_, _, i64>(&lock, 1).unwrap();
    b.decr::<_, _, i64>(&lock, 1).unwrap();
    assert_eq!(c.incr::<_, _, i64>(&lock, 1).unwrap(), 1, "A and C have the lock");
}

/// HSETNX, then EXPIRE: If a client dies between the two commands, the lock never expires, and clients that use BRPOPLPUSH
/// wait for a list that is never written.
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

/// BRPOPLPUSH of a list onto itself: A second push by a slow client adds an element, so readers get both values in turn.
#[test]
fn circular_list_pushed_twice_returns_two_lists_in_turn() {
    let site = Site::redis();
    let list = format!("{}:list-a", site.prefix);
    let [mut slow, mut newer, mut reader] = clients(&site);
    // The lock of the slow client lapsed during its computation, so a different client has computed a newer value.
    newer.lpush::<_, _, ()>(&list, "new").unwrap();
    slow.lpush::<_, _, ()>(&list, "old").unwrap();
    let mut read = || -> String { reader.brpoplpush(&list, &list, 1.0).unwrap() };
    assert_eq!([read(), read(), read(), read()], ["new", "old", "new", "old"]);
}

/// With `ComputeOnce`, the late value is rejected, and all callers read the newer value.
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

/// DEL, DEL, RPUSH, RPUSH: Two writers double the list. With `AtomicReplace`, the same writers leave a single list.
#[tokio::test]
async fn two_messages_duplicate_a_list_but_not_with_atomic_replace() {
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
