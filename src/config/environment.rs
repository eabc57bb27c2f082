//! The environment: `EDS_SECTION__KEY`, and `EDS_NODE`.
//!
//! A variable that begins with `EDS_` and names no key of any program is an error, for it was surely meant to name one, unless
//! it is one that Kubernetes sets for a Service whose name begins with `eds`.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};

use super::keys::{KEYS, VARIABLE_PREFIX};
use super::problem::{Problem, nearest_variable};
use super::values::{Effective, Origin};

pub(super) fn read(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    values: &mut Effective,
    problems: &mut Vec<Problem>,
) {
    let ours = environment.into_iter().filter_map(|(name, value)| {
        let name = name.to_string_lossy().into_owned();
        name.starts_with(VARIABLE_PREFIX).then_some((name, value))
    });
    let mut ours: Vec<(String, OsString)> = ours.collect();
    // The system gives them in no order; the problems have one.
    ours.sort();
    for (name, value) in ours {
        let problem = |key: &str, text: String| Problem {
            origin: Some(Origin::Environment(name.clone())),
            key: key.to_owned(),
            text,
        };
        let Some(key) = values.keys().find(|key| key.variable() == name) else {
            // A node and a relay may have one environment: that of an image.
            let is_another_programs = KEYS.iter().any(|key| key.variable() == name);
            let is_of_a_service = value.to_str().map(|value| is_of_a_service(&name, value));
            if is_another_programs || is_of_a_service == Some(true) {
                continue;
            }
            let nearest = nearest_variable(values.keys(), &name);
            let text = format!("unknown key; did you mean {nearest}?");
            problems.push(problem("", text));
            continue;
        };
        if values.is_of_several(key) {
            let text = "is of one output, and the file has several; write it below the [[output]] that it is for, a \
                        secret as a file of its own";
            problems.push(problem("", text.to_owned()));
        } else if let Some(value) = value.to_str() {
            values.set(key.path, value.to_owned(), Origin::Environment(name));
        } else {
            values.refuse(key.path);
            problems.push(problem(key.path, "is not UTF-8; write it in UTF-8".to_owned()));
        }
    }
}

/// Whether Kubernetes sets such a variable, with such a value, for a Service: `EDS_SERVICE_HOST`, `EDS_PORT`,
/// `EDS_NODE_PORT_8094_UDP_ADDR`. A name with two underscores in a row is of the form of a key.
fn is_of_a_service(name: &str, value: &str) -> bool {
    let words: Vec<&str> = name.split('_').collect();
    let is_protocol = |word: &str| ["tcp", "udp", "sctp"].contains(&word);
    let is_port = |text: &str| text.parse::<u16>().is_ok();
    let is_url = || {
        value.split_once("://").is_some_and(|(protocol, address)| {
            is_protocol(protocol) && address.parse::<SocketAddr>().is_ok()
        })
    };
    // What is said of one port, after its number and protocol.
    let of_a_port = |what: &[&str]| match what {
        [] => is_url(),
        ["ADDR"] => value.parse::<IpAddr>().is_ok(),
        ["PORT"] => is_port(value),
        ["PROTO"] => is_protocol(value),
        _ => false,
    };
    if words.contains(&"") {
        return false;
    }
    // The name of the Service may hold the same words, so each place may be where it ends.
    (1..words.len()).any(|end| match &words[end..] {
        ["SERVICE", "HOST"] => value.parse::<IpAddr>().is_ok(),
        ["SERVICE", "PORT", ..] => is_port(value),
        ["PORT"] => is_url(),
        ["PORT", port, protocol, what @ ..] => {
            is_port(port) && is_protocol(&protocol.to_ascii_lowercase()) && of_a_port(what)
        }
        _ => false,
    })
}
