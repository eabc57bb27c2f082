//! [`Hosts`]: the host names that requests may use, as a protection against DNS rebinding: a malicious web page can make its
//! own host name resolve to this process. All IP addresses are allowed, because they cannot be rebound.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{StatusCode, Version, header};

use super::problem::Problem;

const HOST_CHARS_SHOWN: usize = 100;

#[derive(Debug, Clone)]
pub(super) struct Hosts(Arc<[String]>);

impl Hosts {
    pub(super) fn new(names: &[String]) -> Self {
        let names = names.iter().map(|name| comparable(name));
        Self(names.chain(["localhost".to_owned()]).collect())
    }

    pub(super) fn check(&self, request: &Request) -> Result<(), Problem> {
        let mut named = request.headers().get_all(header::HOST).iter();
        let host = named.next();
        if named.next().is_some() {
            return Err(malformed("the request has more than one Host header"));
        }
        if let Some(host) = host {
            let authority = Authority::try_from(host.as_bytes());
            self.allow(&authority.map_err(|_| malformed("the Host header is not a valid host"))?)?;
        } else if request.version() == Version::HTTP_11 {
            return Err(malformed("the request has no Host header"));
        }
        // The host in `GET http://host/ HTTP/1.1` takes precedence over the header.
        request.uri().authority().map_or(Ok(()), |authority| self.allow(authority))
    }

    fn allow(&self, authority: &Authority) -> Result<(), Problem> {
        let host = authority.host();
        if authority.as_str().contains('@') || host.is_empty() {
            return Err(malformed("the Host header is not a valid host"));
        }
        let v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_address = host.parse::<Ipv4Addr>().is_ok()
            || v6.is_some_and(|host| host.parse::<Ipv6Addr>().is_ok());
        if is_address || self.0.contains(&comparable(host)) {
            return Ok(());
        }
        let shown: String = host.chars().take(HOST_CHARS_SHOWN).collect();
        let detail = format!(
            "{shown:?} is not a known name of this host; use an IP address or localhost, or add the name to http.hosts"
        );
        Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, detail))
    }
}

fn malformed(fault: &str) -> Problem {
    let detail = format!("{fault}; send one Host header with the requested host, as in RFC 9112");
    Problem::new(StatusCode::BAD_REQUEST, detail)
}

/// Returns a name in the form used for comparison: lowercase and without the root dot.
fn comparable(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::response::IntoResponse;

    use super::*;

    #[track_caller]
    fn check(uri: &str, hosts: &[&str], status: Option<u16>) {
        let allowed = Hosts::new(&["Eds-1.example.org".to_owned()]);
        let mut request = Request::builder().uri(uri);
        for host in hosts {
            request = request.header(header::HOST, *host);
        }
        let request = request.body(Body::empty()).unwrap();
        let refused = allowed.check(&request).err();
        let refused = refused.map(|problem| problem.into_response().status().as_u16());
        assert_eq!(refused, status, "{uri} {hosts:?}");
    }

    #[test]
    fn addresses_and_own_names_are_allowed() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:8095",
            "10.1.2.3:1",
            "[::1]",
            "[fe80::1]:8095",
            "localhost",
            "LOCALHOST:8095",
            "localhost.:8095",
            "eds-1.example.org:8095",
            "EDS-1.EXAMPLE.ORG.",
        ] {
            check("/healthz", &[host], None);
            check(&format!("http://{host}/healthz"), &["localhost"], None);
        }
    }

    #[test]
    fn other_names_are_refused() {
        for host in [
            "rebound.example",
            "localhost.example.org",
            "127.0.0.1.example.org",
            "eds-1",
            "x.eds-1.example.org",
            "0x7f.1",
            "2130706433",
        ] {
            check("/healthz", &[host], Some(421));
            check(&format!("http://{host}/"), &["localhost"], Some(421));
        }
    }

    #[test]
    fn request_must_name_one_host() {
        check("/healthz", &[], Some(400));
        check("/healthz", &["localhost", "localhost"], Some(400));
        for host in ["", ":8095", "a b", "a@localhost", "local/host", "[::1"] {
            check("/healthz", &[host], Some(400));
        }
    }
}
