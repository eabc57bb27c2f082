//! [`Fault`]: what an error of Redis means, and what to do about it.

use std::fmt;

use redis::{Client, ConnectionAddr, ErrorKind, RedisError};

use crate::hint::{Hint, Names, of_tls};

/// What scripts answer whose user lacks a right, of Redis before 7.2 and since, and of Valkey. It has no code of its own.
const NO_PERMISSION_IN_SCRIPT: [&str; 2] = [
    "The user executing the script can't",
    "ACL failure in script",
];

/// What servers say that are not what the address says they are. It only helps whoever reads it: nothing is decided by it.
const STRANGERS: [(&str, Hint); 5] = [
    ("cluster support disabled", Hint::NoCluster),
    ("unknown command 'SENTINEL'", Hint::NoSentinel),
    ("refused to switch database", Hint::Database),
    ("Moved: ", Hint::IsCluster),
    ("unknown command 'HGETALL'", Hint::IsSentinel),
];

/// Why Redis did not do what it was asked. Every text is one line, of 512 bytes of a server's at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Away, slow or not ready. What was asked may have been done.
    Unavailable {
        /// What is wrong, and of whom.
        reason: String,
        /// What may help.
        hint: Option<Hint>,
    },
    /// Out of memory: nothing that needs room is done.
    Full(
        /// Of whom, and what it says.
        String,
    ),
    /// It will not serve until somebody changes something.
    Refused {
        /// What is wrong, and of whom.
        reason: String,
        /// How to fix it.
        hint: Hint,
    },
}

impl Fault {
    /// Away, for now.
    #[must_use]
    pub fn unavailable(reason: impl Into<String>) -> Self {
        Self::Unavailable {
            reason: reason.into(),
            hint: None,
        }
    }

    /// What an error means, without of whom it is. All that Redis says comes in here, and it may be anything.
    #[must_use]
    pub fn of(error: &RedisError) -> Self {
        let said = on_one_line(&said(error));
        let codes = codes(error);
        let is = |code: &str| codes.iter().any(|of| of == code);
        let refused = |reason: &str, hint| Self::Refused {
            reason: format!("{reason} ({said})"),
            hint,
        };
        if is("OOM") {
            return Self::Full(said);
        }
        if is("NOAUTH") || is("WRONGPASS") || error.kind() == ErrorKind::AuthenticationFailed {
            return refused("Redis does not accept the credentials", Hint::Credentials);
        }
        if is("NOPERM") || NO_PERMISSION_IN_SCRIPT.iter().any(|it| said.contains(it)) {
            return refused("the Redis user may not do what is needed", Hint::Permission);
        }
        if let Some(hint) = of_tls(error) {
            return refused("there is no trust between this node and Redis", hint);
        }
        let stranger = STRANGERS.iter().find(|(answer, _)| said.contains(answer));
        Self::Unavailable {
            hint: stranger.map(|(_, hint)| hint.clone()),
            reason: said,
        }
    }

    /// The same for a server that could not be greeted, and what may be the matter with one that is there.
    pub(crate) fn of_greeting(error: &RedisError, client: &Client) -> Self {
        let fault = Self::of(error);
        let Self::Unavailable { reason, hint } = fault else {
            return fault;
        };
        let address = client.get_connection_info().addr();
        let encrypted = matches!(address, ConnectionAddr::TcpTls { .. });
        let ended = error.is_connection_dropped() && !error.is_connection_refusal();
        let (reason, hint) = match error.kind() {
            // Nobody is helped by which byte was not expected.
            ErrorKind::Parse => {
                let reason = "this does not answer like Redis".to_owned();
                (reason, Some(Hint::NotRedis))
            }
            _ if ended && encrypted => (reason, Some(Hint::ClientCertificateMissing)),
            _ if ended => (reason, Some(Hint::IsTls)),
            _ if error.is_timeout() && encrypted => (reason, Some(Hint::NoTls)),
            _ if error.is_timeout() => (reason, Some(Hint::Unreachable)),
            _ => (reason, hint),
        };
        Self::Unavailable { reason, hint }
    }

    /// The same, and of whom it is.
    #[must_use]
    pub fn at(mut self, whom: &impl fmt::Display) -> Self {
        let (Self::Unavailable { reason, .. } | Self::Full(reason) | Self::Refused { reason, .. }) =
            &mut self;
        *reason = format!("{whom}: {reason}");
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (reason, hint) = match self {
            Self::Unavailable { reason, hint } => (reason, hint.as_ref()),
            Self::Full(reason) => (reason, None),
            Self::Refused { reason, hint } => (reason, Some(hint)),
        };
        f.write_str(reason)?;
        hint.map_or(Ok(()), |hint| write!(f, "; {}", hint.by(&Names::default())))
    }
}

impl std::error::Error for Fault {}

/// The code of an error; of a transaction that was not carried out, those of the commands that prevented it.
fn codes(error: &RedisError) -> Vec<String> {
    if let Some(causes) = error.clone().into_server_errors() {
        let code = |(_, cause): &(usize, redis::ServerError)| cause.code().to_owned();
        return causes.iter().map(code).collect();
    }
    error.code().map(ToOwned::to_owned).into_iter().collect()
}

/// What the server says; of a transaction that was not carried out, what it says of the first command that prevented it.
fn said(error: &RedisError) -> String {
    let causes = error.clone().into_server_errors().unwrap_or_default();
    let first = causes.first().map(|(_, cause)| cause.to_string());
    first.unwrap_or_else(|| error.to_string())
}

/// Whether the connection is gone, late with an answer, or leads to a server that cannot take writes.
pub(crate) fn ends_connection(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_timeout()
        || error.is_connection_dropped()
        || error.is_unrecoverable_error()
        || matches!(
            error.kind(),
            ErrorKind::AuthenticationFailed | ErrorKind::Parse
        )
        || codes(error)
            .iter()
            .any(|code| matches!(&**code, "READONLY" | "MASTERDOWN" | "NOAUTH"))
}

/// Whether another server may have become responsible. A transaction says so in its message only.
pub(crate) fn may_have_moved(error: &RedisError) -> bool {
    const CODES: [&str; 6] = [
        "MOVED",
        "ASK",
        "TRYAGAIN",
        "CLUSTERDOWN",
        "READONLY",
        "MASTERDOWN",
    ];
    if ends_connection(error) || error.code().is_some_and(|code| CODES.contains(&code)) {
        return true;
    }
    let message = error.to_string();
    CODES.iter().any(|code| message.contains(code))
}

/// The longest piece of what another says that is kept, in bytes.
const BYTES_MAX: usize = 512;

/// At most 512 bytes, each run of blanks and control characters one space.
#[must_use]
pub fn on_one_line(text: &str) -> String {
    let mut line = String::new();
    for word in text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|w| !w.is_empty())
    {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if line.len() > BYTES_MAX {
            let end = (0..=BYTES_MAX)
                .rev()
                .find(|end| line.is_char_boundary(*end));
            line.truncate(end.unwrap_or(0));
            break;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_is_one_short_line() {
        assert_eq!(on_one_line(" a\r\n\u{1b}b\tc "), "a b c");
        let long = on_one_line(&"é ".repeat(BYTES_MAX));
        assert!(long.len() <= BYTES_MAX && long.starts_with("é é"));
        let long = on_one_line(&"é".repeat(BYTES_MAX));
        assert_eq!(long.len(), BYTES_MAX);
    }
}
