//! Windows: minutes are added once, with the users that they were sealed with, and a window is sealed after its last minute.

use event_data_service::event::{Partitions, RollupLimits};
use event_data_service::store::{SeriesCounts, Testimony, Union};

use crate::contract::prelude::*;
use crate::contract::reading::open_of;

const LIMITS: RollupLimits = RollupLimits { users_max: 1000, groups_max: 1000, bytes_max: 1 << 20 };
/// The first and the last minute of the hour of the seed minute.
const HOUR: [i64; 2] = [SEED_MINUTE / 60 * 60, SEED_MINUTE / 60 * 60 + 59];

fn hour() -> [Minute; 2] {
    HOUR.map(|minute| Minute::from_epoch_minutes(minute).unwrap())
}

fn window() -> Bucket {
    let partition = partitions().rollups().next().unwrap().0;
    bucket(partition, HOUR[1])
}

fn outputs() -> [OutputName; 2] {
    [only().clone(), OutputName::rollup()]
}

/// Seals the only minute that has events. Returns the claim to add it to windows.
async fn sealed(node: &Node) -> Claim {
    let claim = node.claim_one(&AT_ONCE).await;
    let sending = node.seal_for(&claim, &outputs()).await;
    sending.into_iter().find(|claim| claim.output == Some(OutputName::rollup())).unwrap()
}

async fn users(node: &Node, claim: &Claim, series: &str) -> BTreeSet<u64> {
    let mut users = BTreeSet::new();
    let unsent = node.unsent(claim).await;
    let (unique, cumulative) = unsent.get(series).copied().unwrap_or_default();
    let counts =
        [SeriesCounts { series: series.to_owned(), unique, cumulative, ..SeriesCounts::default() }];
    let mut take = |_, found: Vec<u64>| users.extend(found);
    node.0.sealed_users(claim, &counts, &mut take).await.unwrap();
    users
}

fn frames(users: &[u64]) -> Vec<Vec<u8>> {
    let mut union = Union::new(LIMITS);
    union.add("series=0", users.len() as u64, users.to_vec());
    union.frames()
}

/// Seals the window, and returns its counts.
async fn window_counts(node: &Node) -> BTreeMap<String, (u64, u64)> {
    let claims = node.0.claim(window().partition, &AT_ONCE, &[]).await.unwrap();
    assert_eq!(claims.len(), 1, "{claims:?}");
    let sending = node.seal(&claims[0]).await;
    node.unsent(&sending).await
}

pub(crate) async fn sealed_users_are_kept_until_acknowledged(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let series = &series_of_one_partition(1)[0];
    for (node, user) in [(&a, "x"), (&a, "y"), (&b, "y"), (&b, "z")] {
        node.record(&[event(SEED_MINUTE, series, user, 1)]).await;
    }
    let claim = sealed(&a).await;
    // This event is late, and its user is not one of those that were sealed.
    a.record(&[event(SEED_MINUTE, series, "late", 2)]).await;
    assert_eq!(users(&a, &claim, series).await.len(), 3);
    assert_eq!(users(&a, &claim, "series=none").await.len(), 0);
    let late = a.claim_one(&AT_ONCE).await;
    assert_eq!(a.try_compact(&late, 9).await.unwrap().late, 1);
    assert_eq!(users(&a, &claim, series).await.len(), 3);
    assert!(a.0.acknowledge(&claim, &[series.as_str()], AT_ONCE.lease).await.unwrap());
    let left = a.0.sealed_users(&claim, &[], &mut |_, _| {}).await;
    assert!(!matches!(left, Err(StoreError::Forgot)));
}

/// Even if another node has recorded as many users, some of them too late.
pub(crate) async fn sealed_users_do_not_depend_on_the_node(ground: &Ground) {
    let [a, b, other] = ["a", "b", "other"].map(|name| ground.node(name));
    let [series, before] = &series_of_one_partition(2)[..] else { unreachable!() };
    // A node knows the generation of a server once it has connected.
    a.record(&[event(SEED_MINUTE, before, "x", 1)]).await;
    sealed(&a).await;
    for (node, user) in [(&a, "x"), (&b, "x"), (&b, "y")] {
        node.record(&[event(SEED_MINUTE + 1, series, user, 1)]).await;
    }
    let claim = sealed(&b).await;
    let expected = users(&other, &claim, series).await;
    assert_eq!(expected.len(), 2);
    assert_eq!(users(&b, &claim, series).await, expected);
    a.record(&[event(SEED_MINUTE + 1, series, "late", 2)]).await;
    let late = a.claim_one(&AT_ONCE).await;
    assert!(a.seal_for(&late, &outputs()).await.is_empty());
    assert_eq!(users(&a, &claim, series).await, expected);
}

pub(crate) async fn minute_is_added_to_a_window_once(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let series = &series_of_one_partition(1)[0];
    let mut claims = Vec::new();
    for minute in [SEED_MINUTE, SEED_MINUTE + 1] {
        a.record(&[event(minute, series, "x", 1)]).await;
        claims.push(sealed(&a).await);
    }
    for (node, claim, users) in [(&a, 0, [1, 2]), (&b, 0, [1, 2]), (&a, 1, [2, 3]), (&b, 1, [2, 3])]
    {
        let source = bucket(claims[claim].partition, claims[claim].minute.epoch_minutes());
        assert!(node.0.contribute(window(), source, &frames(&users)).await.unwrap());
    }
    let counts = window_counts(&b).await;
    assert_eq!(counts, BTreeMap::from([("series=0".to_owned(), (3, 4))]));
}

pub(crate) async fn open_window_is_read_with_all_its_minutes(ground: &Ground) {
    let (a, reading) = (ground.node("a"), ground.reading());
    let series = &series_of_one_partition(1)[0];
    let mut expected = Vec::new();
    for (minute, users, counts) in [(0, [1, 2], (2, 2)), (1, [2, 3], (3, 4))] {
        a.record(&[event(SEED_MINUTE + minute, series, "x", 1)]).await;
        let Claim { partition, minute, .. } = sealed(&a).await;
        let source = bucket(partition, minute.epoch_minutes());
        assert!(a.0.contribute(window(), source, &frames(&users)).await.unwrap());
        let open = open_of(&*reading, window().partition, 9).await;
        expected = vec![((HOUR[1], "series=0".to_owned()), counts)];
        assert_eq!(open.into_iter().collect::<Vec<_>>(), expected);
    }
    assert_eq!(window_counts(&a).await.into_values().collect::<Vec<_>>(), [expected[0].1]);
    assert_eq!(open_of(&*reading, window().partition, 9).await.len(), 0);
}

pub(crate) async fn sealed_window_accepts_no_more_minutes(ground: &Ground) {
    let a = ground.node("a");
    let series = &series_of_one_partition(1)[0];
    a.record(&[event(SEED_MINUTE, series, "x", 1)]).await;
    let first = sealed(&a).await;
    let source = |claim: &Claim| bucket(claim.partition, claim.minute.epoch_minutes());
    assert!(a.0.contribute(window(), source(&first), &frames(&[1])).await.unwrap());
    let claims = a.0.claim(window().partition, &AT_ONCE, &[]).await.unwrap();
    let sending = a.seal(&claims[0]).await;
    let states = a.0.announce(&AT_ONCE.known, &[&sending]).await.unwrap();
    assert_eq!(states, [Announced::Heard]);
    a.record(&[event(SEED_MINUTE + 1, series, "x", 1)]).await;
    let second = sealed(&a).await;
    assert!(!a.0.contribute(window(), source(&second), &frames(&[2])).await.unwrap());
    assert_eq!(a.unsent(&sending).await, BTreeMap::from([("series=0".to_owned(), (1, 1))]));
}

/// Without an estimate or a loss, the counts of a window have no mark.
pub(crate) async fn window_that_lacks_a_minute_is_marked(ground: &Ground) {
    let a = ground.node("a");
    let partition = partitions().iter().next().unwrap();
    let [added, noted, lost] = [0, 1, 2].map(|minute| bucket(partition, HOUR[0] + minute));
    assert!(a.0.contribute(window(), added, &frames(&[1])).await.unwrap());
    assert!(a.0.contribute(window(), noted, &[]).await.unwrap());
    let minutes = vec![added.minute, noted.minute, lost.minute];
    assert_eq!(a.0.lacks(window(), partition, &minutes).await.unwrap(), [lost.minute]);
    let other = partitions().iter().nth(1).unwrap();
    assert_eq!(a.0.lacks(window(), other, &minutes).await.unwrap(), minutes);
    let sources = [(partition, minutes)];
    let claims = a.0.claim(window().partition, &AT_ONCE, &[]).await.unwrap();
    let outputs = std::slice::from_ref(only());
    let request = SealRequest {
        series_max: 9,
        lease: AT_ONCE.lease,
        outputs,
        sources: &sources,
        ..SealRequest::default()
    };
    let done = a.0.compact(&claims[0], &request).await.unwrap();
    let counts = a.0.unsent(&done.sending[0], 0).await.unwrap().items;
    assert!(counts[0].quality.is_incomplete, "{counts:?}");
}

pub(crate) async fn window_waits_for_its_minutes(ground: &Ground) {
    let a = ground.node("a");
    let series = &series_of_one_partition(1)[0];
    let partition = partitions().of(series, Minute::MIN);
    let settle = async || a.0.settle(partition, hour(), &AT_ONCE).await.unwrap();
    // A minute of the next window does not matter.
    a.record(&[event(HOUR[1] + 1, series, "x", 1)]).await;
    a.record(&[event(SEED_MINUTE, series, "x", 1)]).await;
    assert_eq!(settle().await, None, "the minute is open");
    let claim = a.claim(&AT_ONCE).await;
    let claim = claim.iter().find(|claim| claim.minute.epoch_minutes() == SEED_MINUTE).unwrap();
    assert_eq!(settle().await, None, "the minute is being sealed");
    let sending = a.seal_for(claim, &outputs()).await;
    assert_eq!(settle().await, None, "the minute has not been added to windows");
    for claim in &sending {
        let is_rollup = claim.output == Some(OutputName::rollup());
        a.0.announce(&AT_ONCE.known, &[claim]).await.unwrap();
        if is_rollup {
            a.0.acknowledge(claim, &[series.as_str()], AT_ONCE.lease).await.unwrap();
        }
    }
    let settled = settle().await.unwrap();
    if !matches!(ground, Ground::Memory(_)) {
        // The other minutes of the window are known to have had no events.
        let expected = vec![claim.minute];
        assert_eq!(settled, expected);
        assert_eq!(settle().await, Some(expected));
        let testimony = Testimony::default();
        let epoch = a.0.attest(partition, &testimony).await.unwrap().epoch;
        let check_in = CheckIn {
            known: Known { epoch, ..Known::default() },
            lags: false,
            lease: AT_ONCE.lease,
            alive: AT_ONCE.lease,
        };
        let news = a.0.check_in(partition, &check_in).await.unwrap();
        assert_eq!((news.closed, news.empty.len()), (vec![claim.minute], 59));
    }
    // Neither this minute nor another minute of the window can get counts any more.
    for minute in [SEED_MINUTE, HOUR[0]] {
        a.record(&[event(minute, series, "y", 5)]).await;
        let claim = a.claim_one(&AT_ONCE).await;
        assert_eq!(a.try_compact(&claim, 9).await.unwrap().sealed, 0);
    }
}

pub(crate) async fn lagging_node_holds_a_window(ground: &Ground) {
    let a = ground.node("a");
    let partition = partitions().iter().next().unwrap();
    let settle = async |max_hold| {
        let request = ClaimRequest { max_hold, ..AT_ONCE };
        a.0.settle(partition, hour(), &request).await.unwrap()
    };
    let ages = Duration::from_secs(1 << 32);
    a.report_lag(true, AT_ONCE.lease).await;
    assert_eq!(settle(ages).await, None);
    a.report_lag(false, AT_ONCE.lease).await;
    assert!(settle(ages).await.is_some());
}

/// The partitions of the tests have one rollup.
pub(crate) fn with_hours(partitions: Partitions) -> Partitions {
    use event_data_service::event::{Every, Rollup, Tags};

    partitions.with_rollups(vec![Rollup {
        name: "hours".to_owned(),
        every: Every::Minutes(60),
        tags: Tags::All,
        keep: Vec::new(),
        drop: Vec::new(),
        limits: LIMITS,
        suffix: "_1h".into(),
    }])
}
