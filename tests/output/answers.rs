//! Answers that real servers give seldom, each by both ways to a server.

use std::collections::BTreeSet;
use std::time::Duration;

use event_data_service::output::{Output, SealedCounts, WriteError};
use tokio::time::timeout;

use super::support::scripted::{Deed, Scripted};
use super::{
    Settings, check_misconfigured, check_unavailable, counts, many_counts, output, v1_settings,
    v2_settings,
};

/// Through the crate, and by own requests.
fn both_ways(server: &Scripted) -> [Settings; 2] {
    [
        v2_settings(&server.url()),
        v1_settings(&server.url(), "eds"),
    ]
}

/// The error of a write of some counts, by each way.
async fn errors(deed: Deed, limit: Duration, number: usize) -> [(WriteError, usize); 2] {
    let server = Scripted::start(move |_| deed.clone()).await;
    let [v2, v1] = both_ways(&server).map(|settings| Settings {
        timeout: limit,
        ..settings
    });
    let v2 = output(&v2).write(&many_counts(number)).await.unwrap_err();
    let v2_requests = server.requests().len();
    let v1 = output(&v1).write(&many_counts(number)).await.unwrap_err();
    [
        (v2, v2_requests),
        (v1, server.requests().len() - v2_requests),
    ]
}

#[tokio::test]
async fn a_busy_server_is_unavailable_for_as_long_as_it_says() {
    for status in [429, 500, 503] {
        let deed = Deed::Answer(status, "retry-after: 120\r\n", "{\"error\":\"busy\"}");
        let found = errors(deed, super::TIMEOUT, 100).await;
        for (error, requests) in &found {
            check_unavailable(error);
            assert_eq!(
                error.to_string(),
                format!("output is unavailable: status {status}: busy")
            );
            assert_eq!(*requests, 1);
        }
        let waits = found.map(|(error, _)| match error {
            WriteError::Unavailable { retry_after, .. } => retry_after,
            WriteError::Misconfigured { .. } => unreachable!(),
        });
        // The crate drops the headers.
        assert_eq!(waits, [None, Some(Duration::from_secs(120))]);
    }
}

#[tokio::test]
async fn silence_a_trickle_and_a_hangup_are_unavailable_in_time() {
    for deed in [
        Deed::Silence,
        Deed::Trickle(500),
        Deed::Trickle(400),
        Deed::Trickle(200),
        Deed::Hangup,
    ] {
        let errors = errors(deed.clone(), Duration::from_millis(300), 10);
        // A write without end must fail the test, not hold it up.
        for (error, _) in timeout(Duration::from_secs(5), errors).await.unwrap() {
            check_unavailable(&error);
        }
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let deed = Deed::Answer(307, "location: /elsewhere\r\n", "");
    for (error, requests) in errors(deed, super::TIMEOUT, 10).await {
        check_misconfigured(&error, "output.url");
        assert_eq!(requests, 1);
    }
}

#[tokio::test]
async fn a_page_is_no_confirmation() {
    for (error, _) in errors(Deed::Answer(200, "", "<html>It works!"), super::TIMEOUT, 10).await {
        check_misconfigured(&error, "output.url");
    }
}

#[tokio::test]
async fn a_server_that_rejects_everything_is_left_after_a_bounded_number_of_requests() {
    for status in [400, 413, 422] {
        for (error, requests) in errors(Deed::Answer(status, "", "no"), super::TIMEOUT, 5000).await
        {
            check_misconfigured(&error, "nothing is set aside");
            assert!(requests < 80, "{requests}");
        }
    }
}

#[tokio::test]
async fn good_counts_are_not_set_aside_a_few_a_minute() {
    let server = Scripted::start(|_| Deed::Answer(400, "", "no")).await;
    for settings in both_ways(&server) {
        let output = output(&settings);
        let mut set_aside = 0;
        for _ in 0..100 {
            match output.write(&many_counts(5)).await {
                Ok(written) => set_aside += written.refused.len(),
                Err(error) => check_misconfigured(&error, "nothing is set aside"),
            }
        }
        assert!(set_aside <= 16, "{set_aside}");
    }
}

/// The series of all bodies that were answered with 204.
fn accepted(server: &Scripted, accepts: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let requests = server.requests();
    let bodies = requests
        .iter()
        .map(|request| request.body.as_str())
        .filter(|body| accepts(body));
    bodies
        .flat_map(str::lines)
        .map(|line| line.split([',', ' ']).nth(1).unwrap().to_owned())
        .collect()
}

fn all_series(counts: &[SealedCounts]) -> BTreeSet<String> {
    counts.iter().map(|counts| counts.series.clone()).collect()
}

#[tokio::test]
async fn a_body_too_large_is_halved_until_it_fits() {
    fn fits(body: &str) -> bool {
        body.len() <= 1000
    }
    for way in 0..2 {
        let server =
            Scripted::start(|request| Deed::status(if fits(&request.body) { 204 } else { 413 }))
                .await;
        let mut batch = many_counts(200);
        batch[77] = counts(super::SEED_MINUTE, &format!("n={}", "x".repeat(1000)), 1, 1);
        let refused = output(&both_ways(&server)[way])
            .write(&batch)
            .await
            .unwrap()
            .refused;
        assert_eq!(refused.len(), 1);
        assert_eq!(
            (refused[0].index, refused[0].words.as_str()),
            (77, "status 413")
        );
        batch.remove(77);
        assert_eq!(accepted(&server, fits), all_series(&batch));
    }
}

#[tokio::test]
async fn the_bad_counts_are_found_and_all_others_written() {
    fn good(body: &str) -> bool {
        !body.lines().any(|line| line.contains("9 "))
    }
    for status in [400, 422] {
        for way in 0..2 {
            let server = Scripted::start(move |request| {
                if good(&request.body) {
                    Deed::status(204)
                } else {
                    Deed::Answer(status, "", "{\"message\":\"bad\"}")
                }
            })
            .await;
            let mut batch = many_counts(300);
            // Ours to refuse: it never reaches the server, and the other indices stay right.
            batch[0].series = "n=0\nforged value=1 1".to_owned();
            let refused = output(&both_ways(&server)[way])
                .write(&batch)
                .await
                .unwrap()
                .refused;
            let indices: Vec<_> = refused.iter().map(|refused| refused.index).collect();
            let bad: Vec<_> = (0..300).filter(|n| *n == 0 || n % 10 == 9).collect();
            assert_eq!(indices, bad);
            assert!(refused[1..].iter().all(|refused| refused.words == "bad"));
            for index in bad.into_iter().rev() {
                batch.remove(index);
            }
            assert_eq!(accepted(&server, good), all_series(&batch));
        }
    }
}

#[tokio::test]
async fn an_accepted_count_renews_the_belief_in_refusals() {
    let server = Scripted::start(|request| {
        if request.body.contains("bad") {
            Deed::Answer(400, "", "no")
        } else {
            Deed::status(204)
        }
    })
    .await;
    let bad = [counts(super::SEED_MINUTE, "n=bad", 1, 1)];
    for settings in both_ways(&server) {
        let output = output(&settings);
        for _ in 0..3 {
            for _ in 0..16 {
                assert_eq!(output.write(&bad).await.unwrap().refused.len(), 1);
            }
            check_misconfigured(
                &output.write(&bad).await.unwrap_err(),
                "nothing is set aside",
            );
            assert_eq!(output.write(&many_counts(1)).await.unwrap().refused, []);
        }
    }
}
