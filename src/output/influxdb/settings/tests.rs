//! Settings that can work and settings that cannot.

use super::*;

fn v2(token: Option<&str>) -> Api {
    let token = token.map(Secret::new);
    Api::V2 {
        org: "o".to_owned(),
        bucket: "b".to_owned(),
        token,
    }
}

fn v1(database: &str, username: Option<&str>, password: Option<&str>) -> Api {
    Api::V1 {
        database: database.to_owned(),
        username: username.map(str::to_owned),
        password: password.map(Secret::new),
    }
}

fn settings(url: &str, api: Api) -> Settings {
    let timeout = Duration::from_secs(1);
    Settings {
        url: url.to_owned(),
        api,
        timeout,
        ca_file: None,
    }
}

#[track_caller]
fn check_refused(settings: &Settings, key: &str) {
    let error = settings.check().unwrap_err().to_string();
    assert!(error.starts_with(&format!("{key}: ")), "{error}");
    for shown in [error, format!("{settings:?}")] {
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

#[test]
fn what_can_work_is_let_pass() {
    for url in ["http://localhost:8086", "https://influx.example/path/"] {
        for api in [
            v2(None),
            v2(Some("t")),
            v1("d", None, None),
            v1("d", Some("u"), Some("")),
        ] {
            settings(url, api).check().unwrap();
        }
    }
}

#[test]
fn what_cannot_work_is_named_by_its_key() {
    for url in [
        "",
        "localhost:8086",
        "ftp://h",
        "http://",
        "http://u:hunter2@h",
        "http://u:hunter2@h:port",
        "http://h/?db=x",
        "http://h/#x",
    ] {
        check_refused(&settings(url, v2(None)), "output.url");
    }
    let http = "http://h:1";
    check_refused(&settings(http, v2(Some("hunter2\n"))), "output.token_file");
    check_refused(&settings(http, v2(Some(""))), "output.token_file");
    check_refused(&settings(http, v1("", None, None)), "output.database");
    check_refused(&settings(http, v1("d", Some(""), None)), "output.username");
    check_refused(
        &settings(http, v1("d", Some("u:v"), None)),
        "output.username",
    );
    check_refused(
        &settings(http, v1("d", None, Some("hunter2"))),
        "output.password_file",
    );
    let with = |change: fn(&mut Settings)| {
        let mut settings = settings(http, v2(Some("hunter2")));
        change(&mut settings);
        settings
    };
    check_refused(&with(|s| s.timeout = Duration::ZERO), "output.timeout");
    check_refused(
        &with(|s| s.ca_file = Some("/ca.pem".into())),
        "output.ca_file",
    );
}
