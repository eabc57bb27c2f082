//! The halving against a server that is a set of bad lines and a limit of size.

use std::collections::BTreeSet;
use std::sync::Mutex;

use futures_util::FutureExt;
use proptest::prelude::*;

use super::*;
use crate::event::Minute;
use crate::output::SealedCounts;

/// Rejects bodies that hold a bad count or are too long, and remembers what it was asked.
#[derive(Debug, Default)]
struct Server {
    bad: BTreeSet<usize>,
    counts_max: usize,
    /// Fails for good at this request, counted from 0.
    fails_at: Option<usize>,
    /// The counts of each body, and whether it was accepted.
    posts: Mutex<Vec<(Vec<usize>, bool)>>,
}

impl Server {
    fn with_bad(bad: impl IntoIterator<Item = usize>) -> Self {
        Self {
            bad: bad.into_iter().collect(),
            counts_max: usize::MAX,
            ..Self::default()
        }
    }

    fn requests(&self) -> usize {
        self.posts.lock().unwrap().len()
    }

    fn accepted(&self) -> BTreeSet<usize> {
        let posts = self.posts.lock().unwrap();
        posts
            .iter()
            .filter(|(_, accepted)| *accepted)
            .flat_map(|(counts, _)| counts.clone())
            .collect()
    }
}

impl Post for Server {
    async fn post(&self, body: String) -> Answer {
        let number = |line: &str| {
            line.split(['=', ' '])
                .nth(1)
                .unwrap()
                .parse::<usize>()
                .unwrap()
        };
        let counts: Vec<_> = body.lines().step_by(2).map(number).collect();
        assert_eq!(
            body.lines()
                .skip(1)
                .step_by(2)
                .map(number)
                .collect::<Vec<_>>(),
            counts
        );
        let accepted =
            counts.len() <= self.counts_max && counts.iter().all(|n| !self.bad.contains(n));
        let mut posts = self.posts.lock().unwrap();
        if self.fails_at == Some(posts.len()) {
            return Answer::Failed(WriteError::Unavailable {
                reason: "gone".into(),
                retry_after: None,
            });
        }
        posts.push((counts.clone(), accepted));
        if accepted {
            Answer::Done
        } else {
            Answer::Rejected {
                words: format!("no {counts:?}"),
            }
        }
    }
}

fn deliver_to(
    server: &Server,
    counts: usize,
    counts_per_body: usize,
    unproven: usize,
) -> Result<Delivered, WriteError> {
    let sealed: Vec<_> = (0..counts)
        .map(|n| SealedCounts {
            minute: Minute::of_nanos(0),
            series: format!("n={n}"),
            unique: 1,
            cumulative: 1,
        })
        .collect();
    let points: Vec<_> = sealed
        .iter()
        .enumerate()
        .map(|(n, counts)| (n, Points::of(counts).unwrap()))
        .collect();
    deliver(server, &points, counts_per_body, unproven)
        .now_or_never()
        .expect("the fake never waits")
}

fn refused(delivered: &Delivered) -> BTreeSet<usize> {
    delivered
        .refused
        .iter()
        .map(|refused| refused.index)
        .collect()
}

fn requests_max(counts: usize, counts_per_body: usize, bad: usize) -> usize {
    let depth = counts_per_body
        .min(counts)
        .max(1)
        .next_power_of_two()
        .ilog2() as usize;
    counts.div_ceil(counts_per_body) + 2 * bad * depth
}

#[test]
fn nothing_to_deliver_asks_nothing() {
    let server = Server::default();
    let delivered = deliver_to(&server, 0, 10, 0).unwrap();
    assert!(!delivered.accepted);
    assert_eq!(server.requests(), 0);
}

#[test]
fn good_counts_go_in_as_few_bodies_as_possible() {
    let server = Server::with_bad([]);
    assert!(deliver_to(&server, 25, 10, 0).unwrap().accepted);
    let sizes: Vec<_> = server
        .posts
        .lock()
        .unwrap()
        .iter()
        .map(|(counts, _)| counts.len())
        .collect();
    assert_eq!(sizes, [10, 10, 5]);
}

#[test]
fn a_refused_count_has_the_words_of_its_own_answer() {
    let delivered = deliver_to(&Server::with_bad([3]), 10, 10, 0).unwrap();
    assert_eq!(
        delivered.refused,
        [Refused {
            index: 3,
            words: "no [3]".to_owned()
        }]
    );
}

#[test]
fn a_failure_ends_the_delivery_at_once() {
    let server = Server {
        fails_at: Some(3),
        ..Server::with_bad([0, 50])
    };
    assert!(matches!(
        deliver_to(&server, 100, 100, 0),
        Err(WriteError::Unavailable { .. })
    ));
    assert_eq!(server.requests(), 3);
}

#[test]
fn bodies_too_large_are_halved_until_they_fit() {
    let server = Server {
        counts_max: 3,
        ..Server::default()
    };
    let delivered = deliver_to(&server, 100, 100, 0).unwrap();
    assert_eq!(delivered.refused, []);
    assert_eq!(server.accepted().len(), 100);
}

#[test]
fn a_server_that_rejects_everything_is_found_out() {
    for counts in [17, 100, 10_000] {
        let server = Server::with_bad(0..counts);
        let error = deliver_to(&server, counts, 2500, 0).unwrap_err();
        assert!(matches!(error, WriteError::Misconfigured { .. }), "{error}");
        assert!(
            server.requests() <= 1 + 2 * 12 + 2 * UNPROVEN_MAX + PROBES_MAX,
            "{}",
            server.requests()
        );
    }
}

#[test]
fn a_few_refused_are_believed_but_not_write_after_write() {
    let server = Server::with_bad(0..5);
    let delivered = deliver_to(&server, 5, 2500, 0).unwrap();
    assert_eq!(delivered.refused.len(), 5);
    assert!(!delivered.accepted);
    assert!(deliver_to(&server, 5, 2500, UNPROVEN_MAX - 5).is_ok());
    assert!(matches!(
        deliver_to(&server, 5, 2500, UNPROVEN_MAX - 4),
        Err(WriteError::Misconfigured { .. })
    ));
}

#[test]
fn one_good_count_at_the_end_proves_a_long_row_of_bad_ones() {
    let server = Server::with_bad(0..999);
    let delivered = deliver_to(&server, 1000, 2500, UNPROVEN_MAX).unwrap();
    assert!(delivered.accepted);
    assert_eq!(refused(&delivered), (0..999).collect());
}

#[test]
fn probes_are_spread_over_all_that_is_undecided() {
    let server = Server::with_bad(0..1000);
    deliver_to(&server, 1000, 1000, UNPROVEN_MAX).unwrap_err();
    let posts = server.posts.lock().unwrap();
    let probes: Vec<_> = posts[posts.len() - PROBES_MAX..]
        .iter()
        .map(|(counts, _)| counts[0])
        .collect();
    assert_eq!(probes[0], 999);
    assert!(
        probes.windows(2).all(|pair| pair[0] - pair[1] <= 63),
        "{probes:?}"
    );
    assert!(probes[PROBES_MAX - 1] <= 63, "{probes:?}");
}

/// Sets of bad counts of every density, not only sparse ones.
fn cases() -> impl Strategy<Value = (usize, usize, BTreeSet<usize>)> {
    (1_usize..400, 1_usize..120, 0.0_f64..=1.0).prop_flat_map(|(counts, per_body, density)| {
        let bad = proptest::collection::vec(proptest::bool::weighted(density), counts);
        bad.prop_map(move |bad| {
            let bad = (0..counts).filter(|n| bad[*n]).collect();
            (counts, per_body, bad)
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// The bad counts and no others are refused, in order; all others were in an accepted body; in few requests.
    /// A write fails only where nothing was accepted and more were refused than are believed.
    #[test]
    fn exactly_the_bad_counts_are_refused((counts, per_body, bad) in cases(), unproven in 0..=UNPROVEN_MAX) {
        let server = Server::with_bad(bad.clone());
        match deliver_to(&server, counts, per_body, unproven) {
            Ok(delivered) => {
                prop_assert_eq!(refused(&delivered), bad.clone());
                prop_assert!(delivered.refused.is_sorted_by_key(|refused| refused.index));
                let good: BTreeSet<_> = (0..counts).filter(|n| !bad.contains(n)).collect();
                prop_assert_eq!(delivered.accepted, !good.is_empty());
                prop_assert_eq!(server.accepted(), good);
            }
            Err(error) => {
                prop_assert!(matches!(error, WriteError::Misconfigured { .. }), "{}", error);
                prop_assert_eq!(server.accepted(), BTreeSet::new());
                prop_assert!(unproven + bad.len() > UNPROVEN_MAX);
                prop_assert!(bad.contains(&(counts - 1)));
            }
        }
        let probes = if unproven + bad.len() > UNPROVEN_MAX { PROBES_MAX } else { 0 };
        prop_assert!(server.requests() <= requests_max(counts, per_body, bad.len()) + probes);
    }

    /// A limit of size alone never gets a count refused, and bad ones are still found under it.
    #[test]
    fn a_limit_of_size_loses_nothing(
        (counts, per_body, bad) in cases(),
        counts_max in 1_usize..50,
    ) {
        let bad: BTreeSet<_> = bad.into_iter().take(UNPROVEN_MAX).collect();
        let server = Server { counts_max, ..Server::with_bad(bad.clone()) };
        let delivered = deliver_to(&server, counts, per_body, 0).unwrap();
        prop_assert_eq!(refused(&delivered), bad.clone());
        prop_assert_eq!(server.accepted().len(), counts - bad.len());
    }
}
