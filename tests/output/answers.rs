//! Tests responses that real servers rarely send, with both ways of sending requests.

use std::time::Duration;

use event_data_service::output::{Output, WriteError};
use testing::scripted::{Deed, Scripted};
use tokio::time::timeout;

use super::{
    Settings, check_misconfigured, check_unavailable, many_counts, output, v1_settings, v2_settings,
};

/// Returns settings for requests by the client crate (v1), and by `eds` itself (v2).
fn both_ways(server: &Scripted) -> [Settings; 2] {
    [v2_settings(&server.url()), v1_settings(&server.url(), "eds")]
}

/// Writes counts in both ways, and returns the error and the number of requests of each write.
async fn errors(deed: Deed, limit: Duration, number: usize) -> [(WriteError, usize); 2] {
    let server = Scripted::start(move |_| deed.clone()).await;
    let [v2, v1] = both_ways(&server).map(|settings| Settings { timeout: limit, ..settings });
    let v2 = output(&v2).write(&many_counts(number)).await.unwrap_err();
    let v2_requests = server.requests().len();
    let v1 = output(&v1).write(&many_counts(number)).await.unwrap_err();
    [(v2, v2_requests), (v1, server.requests().len() - v2_requests)]
}

#[tokio::test]
async fn retry_after_delays_the_next_write() {
    for status in [429, 503] {
        let deed = Deed::Answer(status, "retry-after: 120\r\n", "{\"error\":\"busy\"}");
        let found = errors(deed, super::TIMEOUT, 100).await;
        for (error, requests) in &found {
            check_unavailable(error);
            assert_eq!(error.to_string(), format!("output is unavailable: status {status}: busy"));
            assert_eq!(*requests, 1);
        }
        let waits = found.map(|(error, _)| match error {
            WriteError::Unavailable { retry_after, .. } => retry_after,
            _ => unreachable!(),
        });
        // The client crate drops the headers.
        assert_eq!(waits, [None, Some(Duration::from_secs(120))]);
    }
}

#[tokio::test]
async fn silent_slow_and_closing_servers_time_out() {
    for deed in
        [Deed::Silence, Deed::Trickle(500), Deed::Trickle(400), Deed::Trickle(200), Deed::Hangup]
    {
        let errors = errors(deed.clone(), Duration::from_millis(300), 10);
        // If a write never ends, the test must fail instead of hanging.
        for (error, _) in timeout(Duration::from_secs(5), errors).await.unwrap() {
            assert!(matches!(error, WriteError::Failed(_)), "{error:?}");
            let hangs_up = matches!(deed, Deed::Hangup);
            assert_eq!(error.found().remedy.contains("https://"), hangs_up, "{error}");
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
async fn web_server_without_post_is_a_misconfiguration() {
    for (error, _) in errors(Deed::status(501), super::TIMEOUT, 10).await {
        check_misconfigured(&error, "output.url");
    }
}

#[tokio::test]
async fn html_page_is_not_a_confirmation() {
    for (error, _) in errors(Deed::Answer(200, "", "<html>It works!"), super::TIMEOUT, 10).await {
        check_misconfigured(&error, "output.url");
    }
}

#[tokio::test]
async fn each_body_is_one_request() {
    for (status, retry_after) in [(400, ""), (413, ""), (422, "retry-after: 9\r\n"), (500, "")] {
        let deed = Deed::Answer(status, retry_after, "no");
        for (error, requests) in errors(deed, super::TIMEOUT, 5000).await {
            let is_right = match status {
                500 => matches!(error, WriteError::Failed(_)),
                _ => matches!(error, WriteError::Rejected(_)),
            };
            assert!(is_right, "{status}: {error:?}");
            assert_eq!(requests, 1);
        }
    }
}
