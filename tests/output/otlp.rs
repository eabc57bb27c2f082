//! Tests the responses to OTLP with a scripted server.

use event_data_service::output::{WriteError, build};
use testing::prelude::*;
use testing::scripted::{Deed, Scripted};

use super::{Api, check_misconfigured, check_unavailable, many_counts, settings};

const PROTOBUF: &str = "Content-Type: application/x-protobuf\r\n";

async fn written(deed: Deed) -> Result<(), WriteError> {
    let server = Scripted::start(move |_| deed.clone()).await;
    let url = format!("{}/v1/metrics", server.url());
    let output =
        build(&settings(&url, Api::Otlp { login: None, tenant: None }), "eds_probe").unwrap();
    let result = output.write(&many_counts(2)).await;
    let request = server.requests().pop().unwrap();
    assert_contains(&request.head, ["POST /v1/metrics HTTP/1.1", "application/x-protobuf"]);
    assert_contains(&request.body, ["unique_user_event", "cumulative_user_event"]);
    result
}

#[tokio::test]
async fn success_may_be_empty_or_protobuf() {
    for deed in [
        Deed::status(200),
        Deed::Answer(200, PROTOBUF, ""),
        // A warning: no points were rejected.
        Deed::Answer(200, PROTOBUF, "\n\u{5}\u{12}\u{3}odd"),
    ] {
        written(deed).await.unwrap();
    }
}

#[tokio::test]
async fn rejected_points_are_not_acknowledged() {
    for deed in [
        // Two points were rejected, with a message.
        Deed::Answer(200, PROTOBUF, "\n\u{7}\u{8}\u{2}\u{12}\u{3}odd"),
        // A status with a message.
        Deed::Answer(400, PROTOBUF, "\u{8}\u{3}\u{12}\u{3}odd"),
    ] {
        let error = written(deed).await.unwrap_err();
        let WriteError::Rejected(found) = &error else { panic!("{error:?}") };
        assert_eq!(found.why, "odd");
    }
}

#[tokio::test]
async fn other_responses_are_not_acknowledged() {
    check_unavailable(&written(Deed::status(503)).await.unwrap_err());
    let page = "<html>Welcome to nginx!</html>";
    for deed in [Deed::Answer(200, "", page), Deed::Answer(200, PROTOBUF, page)] {
        check_misconfigured(&written(deed).await.unwrap_err(), "output.url");
    }
    check_misconfigured(&written(Deed::status(404)).await.unwrap_err(), "output.url");
    check_misconfigured(&written(Deed::status(401)).await.unwrap_err(), "output.token_file");
}
