//! The kinds of values, and how their text is read.
//!
//! Each reader answers with the value, or with what is wrong and how to mend it, in words that follow the key.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use chrono::DateTime;

use super::source::Raw;

/// What values a key takes. Bounds are written as their values are, and are themselves allowed.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// 1 to `max` of `[A-Za-z0-9._-]`.
    Name {
        /// Most characters.
        max: usize,
    },
    /// Any text without control characters; empty means nothing.
    Text,
    /// A tag or field key that needs no escapes in line protocol.
    Tag {
        /// Whether it may be empty.
        optional: bool,
    },
    /// One or more socket addresses.
    Addresses,
    /// A socket address; empty means none.
    Address,
    /// A whole number.
    Integer {
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
    /// A length of time, such as `30s`.
    Duration {
        /// The shortest.
        min: &'static str,
        /// The longest.
        max: &'static str,
    },
    /// The beginning of a minute, such as `2026-11-22T02:10:00Z`; empty means none.
    Instant,
    /// A number of bytes, such as `8MiB`.
    Size {
        /// The least.
        min: &'static str,
        /// The most.
        max: &'static str,
    },
    /// One of some words.
    Choice {
        /// The words.
        words: &'static [&'static str],
        /// Words that are planned, but that this version does not know what to do with.
        later: &'static [&'static str],
    },
    /// The path of a file; empty means none.
    Path,
    /// The path of a file that holds a secret; empty means none.
    SecretFile,
    /// A secret, which only the environment may hold.
    SecretText {
        /// The key to use in the file instead.
        file: &'static str,
    },
    /// Where the store is.
    StoreUrl,
    /// Where the output is.
    OutputUrl,
}

pub(super) fn text(kind: Kind, raw: &Raw) -> Result<String, String> {
    let text = raw.one()?;
    match kind {
        Kind::Name { max } => {
            let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
            if text.is_empty() || text.len() > max || !text.bytes().all(known) {
                return Err(format!(
                    "{text:?} is no name; write 1 to {max} of A-Z a-z 0-9 . _ -"
                ));
            }
        }
        Kind::Tag { optional } => {
            let reserved = |c: char| c.is_control() || matches!(c, ' ' | ',' | '=' | '"' | '\\');
            if text.contains(reserved) || text.is_empty() && !optional {
                return Err(format!(
                    "{text:?} is no field or tag key; write one without spaces, , = \" and \\"
                ));
            }
        }
        Kind::SecretText { .. } => {
            if text.contains(char::is_control) {
                return Err("holds control characters; leave them out".to_owned());
            }
        }
        _ => {
            if text.contains(char::is_control) {
                return Err(format!("{text:?} holds control characters; leave them out"));
            }
        }
    }
    Ok(text.to_owned())
}

pub(super) fn addresses(_: Kind, raw: &Raw) -> Result<Vec<SocketAddr>, String> {
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for text in raw.list() {
        let address = parse_address(text)?;
        // Port 0 is a new port each time.
        if address.port() != 0 && addresses.contains(&address) {
            return Err(format!("{text:?} is there twice; leave one out"));
        }
        addresses.push(address);
    }
    if addresses.is_empty() {
        return Err(
            "the list is empty; give at least one address, such as \"127.0.0.1:8094\"".to_owned(),
        );
    }
    Ok(addresses)
}

pub(super) fn address(_: Kind, raw: &Raw) -> Result<Option<SocketAddr>, String> {
    match raw.one()? {
        "" => Ok(None),
        text => parse_address(text).map(Some),
    }
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!("{text:?} is no address; write an IP address and a port, such as \"127.0.0.1:8094\" or \"[::1]:8094\"")
    })
}

pub(super) fn integer(kind: Kind, raw: &Raw) -> Result<u64, String> {
    let text = raw.one()?;
    let Kind::Integer { min, max } = kind else {
        return Err(not_of_the_kind("a number"));
    };
    let range = format!("write {min} to {max}");
    // A minus sign is a number all the same, only out of range.
    let number: i128 = text
        .parse()
        .map_err(|_| format!("{text:?} is no whole number; {range}"))?;
    match u64::try_from(number) {
        Ok(number) if (min..=max).contains(&number) => Ok(number),
        _ => Err(format!("{text} is out of range; {range}")),
    }
}

pub(super) fn duration(kind: Kind, raw: &Raw) -> Result<Duration, String> {
    let text = raw.one()?;
    let Kind::Duration { min, max } = kind else {
        return Err(not_of_the_kind("a duration"));
    };
    let parse = |text: &str| humantime::parse_duration(text);
    let duration = parse(text)
        .map_err(|_| format!("{text:?} is no duration; write a number with a unit, such as \"100ms\", \"30s\" or \"1h\""))?;
    let (Ok(least), Ok(most)) = (parse(min), parse(max)) else {
        return Err(not_of_the_kind("a range"));
    };
    if (least..=most).contains(&duration) {
        Ok(duration)
    } else {
        Err(format!("{text:?} is out of range; write {min} to {max}"))
    }
}

/// In minutes since the epoch.
pub(super) fn minute(_: Kind, raw: &Raw) -> Result<Option<i64>, String> {
    let text = raw.one()?;
    if text.is_empty() {
        return Ok(None);
    }
    match DateTime::parse_from_rfc3339(text).map(|it| it.timestamp_micros()) {
        Ok(micros) if micros % 60_000_000 == 0 => Ok(Some(micros / 60_000_000)),
        Ok(_) => Err(format!(
            "{text:?} is within a minute; write its beginning, with :00 for the seconds"
        )),
        Err(_) => Err(format!(
            "{text:?} is no time; write one such as \"2026-11-22T02:10:00Z\""
        )),
    }
}

pub(super) fn size(kind: Kind, raw: &Raw) -> Result<u64, String> {
    let text = raw.one()?;
    let Kind::Size { min, max } = kind else {
        return Err(not_of_the_kind("a size"));
    };
    let parse = |text: &str| {
        text.parse::<bytesize::ByteSize>()
            .ok()
            .map(|size| size.as_u64())
    };
    // A bare number is refused: its reader would have to know that it is bytes.
    let size = parse(text)
        .filter(|_| text.ends_with(|c: char| c.is_ascii_alphabetic()))
        .ok_or_else(|| format!("{text:?} is no size; write a number with a unit, such as \"512B\", \"64KiB\" or \"8MiB\""))?;
    let (Some(least), Some(most)) = (parse(min), parse(max)) else {
        return Err(not_of_the_kind("a range"));
    };
    if (least..=most).contains(&size) {
        Ok(size)
    } else {
        Err(format!("{text:?} is out of range; write {min} to {max}"))
    }
}

pub(super) fn choice(kind: Kind, raw: &Raw) -> Result<&'static str, String> {
    let text = raw.one()?;
    let Kind::Choice { words, later } = kind else {
        return Err(not_of_the_kind("a choice"));
    };
    let known = words.join(", ");
    match words.iter().find(|word| **word == text) {
        Some(word) => Ok(word),
        None if later.contains(&text) => Err(format!(
            "{text:?} is not there yet in this version; write one of: {known}"
        )),
        None => Err(format!("{text:?} is not known; write one of: {known}")),
    }
}

pub(super) fn path(_: Kind, raw: &Raw) -> Result<Option<PathBuf>, String> {
    match raw.one()? {
        "" => Ok(None),
        text if text.contains('\0') => Err(format!("{text:?} is no path")),
        text => Ok(Some(PathBuf::from(text))),
    }
}

/// The table of keys and the code that reads it disagree; the tests load every key, so none is left.
fn not_of_the_kind(wanted: &str) -> String {
    format!("is read as {wanted}, but is none in the table of keys; please report this")
}
