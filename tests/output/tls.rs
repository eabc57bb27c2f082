//! Tests which certificates an `https://` output trusts.

use event_data_service::output::Output;
use testing::influxdb::{ADMIN, ADMIN_PASSWORD, InfluxServer};
use testing::scripted::{Deed, Scripted};
use testing::tls::TlsForwarder;

use super::{check_misconfigured, many_counts, output, v1_settings, v1_settings_as, v2_settings};

#[tokio::test]
async fn only_the_configured_certificate_is_trusted() {
    let server = InfluxServer::start_with_auth().await;
    server.query("", "CREATE DATABASE eds").await;
    let tls = TlsForwarder::start(server.port(), &["127.0.0.1"]).await;
    let stranger = TlsForwarder::start(server.port(), &["127.0.0.1"]).await;
    let mut settings = v1_settings_as(&tls.url(), "eds", ADMIN, ADMIN_PASSWORD);

    let error = output(&settings).write(&many_counts(3)).await.unwrap_err();
    check_misconfigured(&error, "output.ca_file");
    settings.ca = std::fs::read(stranger.ca_file()).ok();
    let error = output(&settings).write(&many_counts(3)).await.unwrap_err();
    check_misconfigured(&error, "output.ca_file");
    assert!(server.query("eds", "SHOW SERIES").await.is_empty());

    settings.ca = std::fs::read(tls.ca_file()).ok();
    output(&settings).write(&many_counts(3)).await.unwrap();
    let found = server.query("eds", "SELECT count(value) FROM unique_user_event").await;
    assert_eq!(found[0]["values"][0][1], 3);
}

#[tokio::test]
async fn a_certificate_of_another_host_is_not_trusted() {
    let server = Scripted::start(|_| Deed::status(204)).await;
    let tls = TlsForwarder::start(server.port(), &["influx.example"]).await;
    for mut settings in [v1_settings(&tls.url(), "eds"), v2_settings(&tls.url())] {
        settings.ca = std::fs::read(tls.ca_file()).ok();
        let error = output(&settings).write(&many_counts(1)).await.unwrap_err();
        check_misconfigured(&error, "output.url");
    }
    assert_eq!(server.requests().len(), 0);
}

#[tokio::test]
async fn https_to_a_server_without_tls_is_a_misconfiguration() {
    let server = InfluxServer::start();
    let url = server.url().replace("http://", "https://");
    let error = output(&v1_settings(&url, "eds")).write(&many_counts(1)).await.unwrap_err();
    check_misconfigured(&error, "output.url");
}
