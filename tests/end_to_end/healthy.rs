//! `eds healthy`, the health check for containers.

use crate::prelude::*;

fn ask(address: SocketAddr) -> Output {
    let asked = eds().args(["healthy", &address.to_string()]).output();
    asked.unwrap()
}

#[test]
fn healthy_succeeds_while_the_node_is_ready() {
    let mut redis = RedisServer::start(&[]);
    let mut node = Node::start("one", &[("store.url", &redis.url())]);
    let asked = ask(node.http());
    assert_eq!(asked.status.code(), Some(0), "{asked:?}");
    // An image has its address in the environment, often for all interfaces.
    let listen = format!("0.0.0.0:{}", node.http().port());
    let asked = eds().env("EDS_HTTP__LISTEN", listen).arg("healthy").output().unwrap();
    assert_eq!(asked.status.code(), Some(0), "{asked:?}");

    let asked = eds().env("EDS_HTTP__LISTEN", "").arg("healthy").output().unwrap();
    assert_eq!(asked.status.code(), Some(1), "{asked:?}");
    assert!(String::from_utf8(asked.stderr).unwrap().contains("HTTP is disabled"));

    redis.kill();
    wait_for("the health check fails", || ask(node.http()), |asked| asked.status.code() == Some(1));
    let asked = ask(node.http());
    let (stdout, error) = (asked.stdout, asked.stderr);
    let stdout = String::from_utf8(stdout).unwrap();
    assert!(stdout.contains("store"), "{stdout}");
    let error = String::from_utf8(error).unwrap();
    assert!(error.contains("is not ready"), "{error}");

    node.kill();
    let asked = ask(node.http());
    assert_eq!(asked.status.code(), Some(1), "{asked:?}");
    let error = String::from_utf8(asked.stderr).unwrap();
    assert!(error.contains("is not responding: "), "{error}");
}
