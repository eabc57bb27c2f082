//! Who may use a server: the tokens, with their quotas for writes, and TLS, which may require client certificates. All can be
//! replaced while the server runs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use redis_link::Secret;
use rustls::ServerConfig;
use subtle::ConstantTimeEq as _;
use tokio::time::Instant;

use crate::ingest::SeriesQuota;
use crate::node::lock;

/// How much of its rate a token may use at once, expressed as the time in which the rate permits it.
const BURST: Duration = Duration::from_secs(1);
/// The minimum length of a token, in bytes. Shorter ones are easily guessed.
const TOKEN_BYTES_MIN: usize = 8;

/// A token and its quotas.
#[derive(Debug)]
pub(crate) struct Token {
    pub(crate) name: String,
    secret: Secret,
    /// The maximum number of lines per second.
    rate: Option<u32>,
    /// When the lines accepted so far are within the rate again.
    free_at: Mutex<Option<Instant>>,
    pub(super) series: Option<SeriesQuota>,
}

impl Token {
    /// Takes `lines` from the rate. Returns how long to wait if earlier lines have used it up. A large request may exceed
    /// the rate, and later ones then wait for longer.
    pub(super) fn take(&self, lines: usize, now: Instant) -> Result<(), Duration> {
        let Some(rate) = self.rate else {
            return Ok(());
        };
        let mut free_at = lock(&self.free_at);
        if let Some(wait) =
            free_at.and_then(|at| at.checked_duration_since(now)).filter(|wait| !wait.is_zero())
        {
            return Err(wait);
        }
        let since = free_at.unwrap_or(now - BURST).max(now - BURST);
        let lines = u32::try_from(lines).unwrap_or(u32::MAX);
        *free_at = Some(since + Duration::from_secs(1) * lines / rate);
        Ok(())
    }
}

/// The tokens that clients may use.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tokens(Vec<Arc<Token>>);

impl Tokens {
    /// Reads a file with a token per line: `NAME TOKEN [events=NUMBER] [series=NUMBER]`, with the maximum number of events per
    /// second and of series per minute. Lines that begin with `#` are comments. The error never contains a token.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let mut tokens: Vec<Arc<Token>> = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let mut words = line.split_whitespace();
            let Some(name) = words.next().filter(|name| !name.starts_with('#')) else {
                continue;
            };
            let wrong = |why: &str| format!("line {number}: {why}");
            let is_name = name.len() <= 64
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
            if !is_name {
                return Err(wrong("the name is invalid; use 1 to 64 of A-Z a-z 0-9 . _ -"));
            }
            if tokens.iter().any(|token| token.name == name) {
                return Err(wrong(&format!("the name {name} is used twice; use each name once")));
            }
            let secret = words.next().unwrap_or_default();
            if secret.len() < TOKEN_BYTES_MIN {
                return Err(wrong(
                    "the token has less than 8 characters; write NAME TOKEN, and use for example `openssl rand -hex 16`",
                ));
            }
            let mut token = Token {
                name: name.to_owned(),
                secret: Secret::new(secret),
                rate: None,
                free_at: Mutex::default(),
                series: None,
            };
            for word in words {
                let (key, value) = word.split_once('=').unwrap_or((word, ""));
                let value = value.parse::<u32>().ok().filter(|value| *value > 0);
                match (key, value) {
                    ("events", Some(value)) => token.rate = Some(value),
                    ("series", Some(value)) => {
                        token.series = Some(SeriesQuota::new(value as usize));
                    }
                    _ => {
                        return Err(wrong(
                            "a limit is invalid; use events=NUMBER or series=NUMBER",
                        ));
                    }
                }
            }
            tokens.push(Arc::new(token));
        }
        if tokens.is_empty() {
            return Err("there is no token; write NAME TOKEN on a line".to_owned());
        }
        Ok(Self(tokens))
    }

    /// Returns the token with this secret. Takes the same time whichever token it is.
    fn find(&self, secret: &str) -> Option<&Arc<Token>> {
        let mut found = None;
        for token in &self.0 {
            if token.secret.expose().as_bytes().ct_eq(secret.as_bytes()).into() {
                found = Some(token);
            }
        }
        found
    }
}

/// The tokens and certificates in use.
#[derive(Debug, Clone, Default)]
pub(crate) struct Access {
    /// `None` if clients need no token.
    pub(crate) tokens: Option<Tokens>,
    /// `None` without TLS.
    pub(crate) tls: Option<Arc<ServerConfig>>,
    /// Whether clients must present a certificate, which `tls` verifies.
    pub(crate) requires_certificate: bool,
}

impl Access {
    /// Returns the token of a request, or `None` if it needs none. Fails if it has no valid one.
    pub(super) fn check(
        &self,
        headers: &HeaderMap,
        password: Option<&str>,
    ) -> Result<Option<Arc<Token>>, ()> {
        let Some(tokens) = &self.tokens else {
            return Ok(None);
        };
        let secret = of_headers(headers).or_else(|| password.map(str::to_owned)).ok_or(())?;
        tokens.find(&secret).map(|token| Some(Arc::clone(token))).ok_or(())
    }
}

/// Returns the secret in `Authorization: Token …`, `Bearer …` or `Basic …`. For `Basic`, it is the password.
fn of_headers(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, rest) = value.split_once(' ')?;
    let rest = rest.trim();
    if scheme.eq_ignore_ascii_case("token") || scheme.eq_ignore_ascii_case("bearer") {
        return Some(rest.to_owned());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(BASE64_STANDARD.decode(rest).ok()?).ok()?;
    decoded.split_once(':').map(|(_, password)| password.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_with_their_limits() {
        let text = "# comment\n\nshop 0123456789 events=100 series=2\nops  abcdefghij\n";
        let tokens = Tokens::read(text).unwrap();
        let shop = tokens.find("0123456789").unwrap();
        assert_eq!((&*shop.name, shop.rate), ("shop", Some(100)));
        assert!(tokens.find("abcdefghij").unwrap().series.is_none());
        for wrong in ["", "0123456789x", "abcdefghi"] {
            assert!(tokens.find(wrong).is_none(), "{wrong}");
        }
        for (text, why) in [
            ("", "there is no token"),
            ("shop", "line 1: the token has less than 8"),
            ("a 12345678\na 87654321", "line 2: the name a is used twice"),
            ("a/b 12345678", "line 1: the name is invalid"),
            ("a 12345678 events=0", "line 1: a limit is invalid"),
            ("a 12345678 lines=5", "line 1: a limit is invalid"),
        ] {
            let error = Tokens::read(text).unwrap_err();
            assert!(error.contains(why) && !error.contains("12345678"), "{text}: {error}");
        }
    }

    #[test]
    fn a_token_is_found_in_every_form_that_clients_use() {
        let tokens = Some(Tokens::read("shop 0123456789").unwrap());
        let access = Access { tokens, ..Access::default() };
        let basic = format!("Basic {}", BASE64_STANDARD.encode("any:0123456789"));
        for value in ["Token 0123456789", "Bearer 0123456789", "bearer  0123456789", &basic] {
            let headers = [(header::AUTHORIZATION, value.parse().unwrap())].into_iter().collect();
            assert_eq!(access.check(&headers, None).unwrap().unwrap().name, "shop", "{value}");
        }
        for value in ["Token 012345678", "Digest 0123456789", "0123456789", "Basic 0123456789"] {
            let headers = [(header::AUTHORIZATION, value.parse().unwrap())].into_iter().collect();
            access.check(&headers, None).unwrap_err();
        }
        let none = HeaderMap::new();
        access.check(&none, None).unwrap_err();
        assert!(access.check(&none, Some("0123456789")).unwrap().is_some());
        assert!(Access::default().check(&none, None).unwrap().is_none());
    }

    #[tokio::test]
    async fn a_rate_holds_over_requests_of_any_size() {
        let tokens = Tokens::read("shop 0123456789 events=100").unwrap();
        let token = tokens.find("0123456789").unwrap();
        let start = Instant::now();
        // A second's worth at once, and then a request that is larger than the rate.
        token.take(100, start).unwrap();
        token.take(300, start).unwrap();
        let wait = token.take(1, start).unwrap_err();
        assert_eq!(wait, Duration::from_secs(3));
        token.take(1, start + wait).unwrap();
        assert!(token.take(1, start + wait).is_err());
    }
}
