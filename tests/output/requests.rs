//! Tests the exact bytes of requests.

use event_data_service::output::Output;
use testing::scripted::{Deed, Scripted};

use super::{SECRET, many_counts, output, v1_settings_as, v2_settings};

async fn head_of(server: &Scripted, settings: super::Settings) -> String {
    output(&settings).write(&many_counts(1)).await.unwrap();
    let request = server.requests().pop().unwrap();
    assert_eq!(
        request.body,
        "unique_user_event,n=0 value=1 1480876680000000000\n\
         cumulative_user_event,n=0 value=2 1480876680000000000\n",
    );
    request.head
}

#[track_caller]
fn check_head(head: &str, request_line: &str, authorization: &str) {
    assert!(head.starts_with(request_line), "{head}");
    let header = head.lines().find_map(|line| {
        line.split_once(": ").filter(|(name, _)| name.eq_ignore_ascii_case("authorization"))
    });
    assert_eq!(header.map(|(_, value)| value), Some(authorization), "{head}");
    assert!(head.contains("user-agent: event-data-service/"), "{head}");
}

#[tokio::test]
async fn requests_name_database_precision_and_agent() {
    let server = Scripted::start(|_| Deed::status(204)).await;
    let url = server.url();
    let token = format!("Token {SECRET}");
    check_head(
        &head_of(&server, v2_settings(&url)).await,
        "POST /api/v2/write?bucket=b%26b&org=an+org&precision=ns HTTP/1.1\r\n",
        &token,
    );
    check_head(
        &head_of(&server, v2_settings(&format!("{url}/below/"))).await,
        "POST /below/api/v2/write?org=an+org&bucket=b%26b&precision=ns HTTP/1.1\r\n",
        &token,
    );
    check_head(
        &head_of(&server, v1_settings_as(&url, "d&b", "Aladdin", "open sesame")).await,
        "POST /write?db=d%26b&precision=ns HTTP/1.1\r\n",
        // The example from RFC 7617.
        "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==",
    );
}

#[tokio::test]
async fn large_bodies_are_compressed() {
    let server = Scripted::start(|_| Deed::status(204)).await;
    for settings in [v1_settings_as(&server.url(), "d", "u", "p"), v2_settings(&server.url())] {
        let output = output(&super::Settings { gzip: true, ..settings });
        for (counts, is_compressed) in [(1, false), (50, true)] {
            output.write(&many_counts(counts)).await.unwrap();
            let request = server.requests().pop().unwrap();
            assert_eq!(request.head.contains("content-encoding: gzip"), is_compressed);
            assert_eq!(request.body.lines().count(), 2 * counts);
        }
    }
}

#[tokio::test]
async fn bodies_share_a_connection() {
    let server = Scripted::start(|_| Deed::status(204)).await;
    let output = output(&v2_settings(&server.url()));
    for _ in 0..3 {
        output.write(&many_counts(5)).await.unwrap();
    }
    assert_eq!(server.requests().len(), 3);
    assert_eq!(server.connections(), 1);
}
