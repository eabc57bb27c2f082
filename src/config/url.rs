//! URLs of the output, and what may be shown of any URL. How the URL of a Redis is read, `redis_link` says.

use std::net::IpAddr;

use percent_encoding::percent_decode_str;
use redis_link::without_secrets;
use reqwest::Url;

/// An output's URL, taken apart.
#[derive(Debug)]
pub(super) struct OutputUrlParts {
    /// Scheme, host, port and path, without a slash at the end of that.
    pub(super) base: Url,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
}

/// Takes such a URL apart. `forms` says what may be written.
pub(super) fn output(text: &str, forms: &str) -> Result<OutputUrlParts, String> {
    let wrong = |what: &str, hint: &str| format!("{:?} {what}; {hint}", without_secrets(text));
    let forms = format!("write {forms}");
    let url =
        Url::parse(text).map_err(|error| wrong(&format!("is not a URL ({error})"), &forms))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("is not an output", &forms));
    }
    if url.path().trim_end_matches('/').ends_with("/write") {
        return Err(wrong(
            "ends in the path of a write",
            "leave /write or /api/v2/write out, and all that follows: output.api says which is added, and the keys of \
             [output] say the rest",
        ));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("has a ? or # part", "leave it out; the keys of [output] say the rest"));
    }
    without_user(&url)
        .ok_or_else(|| wrong("has a user or password that is not UTF-8", "write it in UTF-8"))
}

/// Takes user and password out of a URL of http; `None`: they are not UTF-8.
pub(super) fn without_user(url: &Url) -> Option<OutputUrlParts> {
    let decoded = |text: &str| {
        let text = percent_decode_str(text).decode_utf8().ok()?.into_owned();
        Some(Some(text).filter(|text| !text.is_empty()))
    };
    let mut base = url.clone();
    // These fail only for URLs without a host, which http always has.
    let _ = base.set_username("");
    let _ = base.set_password(None);
    base.set_path(url.path().trim_end_matches('/'));
    Some(OutputUrlParts {
        base,
        username: decoded(url.username())?,
        password: decoded(url.password().unwrap_or_default())?,
    })
}

/// The host to which an output sends in the clear; `None`: it is encrypted.
pub(super) fn host_in_the_clear(output: &Url) -> Option<&str> {
    let host = output.host_str().unwrap_or_default();
    (output.scheme() == "http").then(|| host.trim_matches(['[', ']']))
}

/// Whether what is sent to this host never leaves the node's own.
pub(super) fn is_loopback(host: &str) -> bool {
    let is_loopback = |ip: IpAddr| ip.to_canonical().is_loopback();
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(is_loopback)
}

/// A URL as it is, only without its password; whole when it has none. For URLs that were accepted.
pub(super) fn without_password(text: &str) -> (String, bool) {
    match Url::parse(text) {
        Ok(mut url) if url.password().is_some() => {
            let _ = url.set_password(None);
            (url.to_string(), true)
        }
        Ok(_) => (text.to_owned(), false),
        // As of several hosts, which are no one URL.
        Err(_) => {
            let shown = redis_link::without_secrets(text);
            let is_hidden = shown != text;
            (shown, is_hidden)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown_however_many_hosts_a_url_has() {
        for url in [
            "redis://:geheim@a:6379/1",
            "redis+cluster://:geheim@a:7000,b:7001",
            "redis+sentinel://eds:geheim@a:26379,b:26379/mymaster",
        ] {
            let (shown, is_hidden) = without_password(url);
            assert!(is_hidden && !shown.contains("geheim"), "{shown}");
        }
        for url in ["redis://a:6379", "redis+cluster://a:7000,b:7001"] {
            assert_eq!(without_password(url), (url.to_owned(), false));
        }
    }
}
