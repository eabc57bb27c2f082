//! Parsers for the kinds of values. Each function takes the text of a value and the allowed values from the table in
//! `sections.rs`. It returns the value, or an error message that is shown after the key and says how to fix the value.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::net::{Ipv6Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use chrono::DateTime;
use chrono_tz::Tz;
use redis_link::Secret;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IntoDeserializer as _};
use tracing::Level;

use crate::event::{Minute, TagFilter};
use crate::http::Tokens;
use crate::ingest::ListenAddress;
use crate::output::server;
use crate::relay::EventRule;
use crate::store::OutputName;

/// Maximum size of a secret or PEM file. These files are small, so a larger file is probably the wrong file.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
    Journald,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ApiName {
    V1,
    #[default]
    V2,
    RemoteWriteV1,
    RemoteWriteV2,
    Otlp,
}

fn found<T>(text: &str, value: Option<T>, otherwise: &str) -> Result<T, String> {
    value.ok_or_else(|| format!("{text:?} {otherwise}"))
}

/// Parses a value and checks that it is within `allowed` (`MIN to MAX`, inclusive). `otherwise` describes a parse error.
fn between<T: PartialOrd>(
    text: &str,
    allowed: &str,
    parse: impl Fn(&str) -> Option<T>,
    otherwise: &str,
) -> Result<T, String> {
    let value = found(text, parse(text), otherwise)?;
    let ends: Vec<T> = allowed.split(" to ").filter_map(parse).collect();
    let is_between = matches!(&ends[..], [min, max] if (min..=max).contains(&&value));
    found(text, is_between.then_some(value), &format!("is out of range; use {allowed}"))
}

pub(super) fn count<T: TryFrom<i128>>(text: &str, allowed: &str) -> Result<T, String> {
    let parse = |text: &str| text.parse().ok();
    let otherwise = format!("is not a whole number; use {allowed}");
    let number: i128 = between(text, allowed, parse, &otherwise)?;
    found(text, T::try_from(number).ok(), &otherwise)
}

pub(super) fn span(text: &str, allowed: &str) -> Result<Duration, String> {
    let parse = |text: &str| humantime::parse_duration(text).ok();
    let otherwise =
        "is not a duration; use a number with a unit, such as \"100ms\", \"30s\" or \"1h\"";
    between(text, allowed, parse, otherwise)
}

pub(super) fn size<T: TryFrom<u64>>(text: &str, allowed: &str) -> Result<T, String> {
    // Reject a number without a unit, because it would not be obvious that the unit is bytes.
    let has_unit = |text: &&str| text.ends_with(|c: char| c.is_ascii_alphabetic());
    let parse = |text: &str| Some(text).filter(has_unit)?.parse().ok().map(|ByteSize(size)| size);
    let otherwise =
        "is not a size; use a number with a unit, such as \"512B\", \"64KiB\" or \"8MiB\"";
    let size = between(text, allowed, parse, otherwise)?;
    found(text, T::try_from(size).ok(), otherwise)
}

/// Parses file permissions, written as four octal digits, such as `0660`.
pub(super) fn mode(text: &str, allowed: &str) -> Result<u32, String> {
    let is_octal = |text: &&str| text.len() == 4 && text.starts_with('0');
    let parse = |text: &str| u32::from_str_radix(Some(text).filter(is_octal)?, 8).ok();
    between(text, allowed, parse, "is not a file mode; use four digits, such as \"0660\"")
}

pub(super) fn word<T: DeserializeOwned>(text: &str, allowed: &str) -> Result<T, String> {
    let word: Result<T, serde::de::value::Error> = T::deserialize(text.into_deserializer());
    found(text, word.ok(), &format!("is unknown; use {allowed}"))
}

/// Parses a log level. The result is always `Some`; it is an `Option` because `Level` has no default value.
pub(super) fn level(text: &str, allowed: &str) -> Result<Option<Level>, String> {
    let is_level = |level: &Level| level.as_str().eq_ignore_ascii_case(text);
    let level = text.parse().ok().filter(is_level).map(Some);
    found(text, level, &format!("is unknown; use {allowed}"))
}

fn is_of_a_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

/// Parses a name. `allowed` has the form `1 to MAX of …`, where MAX is the maximum length in bytes.
pub(super) fn name(text: &str, allowed: &str) -> Result<String, String> {
    let max = allowed.split(' ').nth(2).and_then(|max| max.parse().ok()).unwrap_or(0);
    let is_name = (1..=max).contains(&text.len()) && text.bytes().all(is_of_a_name);
    found(text, is_name.then(|| text.to_owned()), &format!("is not a valid name; use {allowed}"))
}

pub(super) fn output_name(text: &str, allowed: &str) -> Result<OutputName, String> {
    found(text, text.parse().ok(), &format!("is not a valid name; use {allowed}"))
}

/// Returns the text, or `None` if it is empty. Rejects control characters, without quoting the text, which may be a secret.
pub(super) fn text(text: &str, _: &str) -> Result<Option<String>, String> {
    if text.contains(char::is_control) {
        return Err("contains control characters; remove them".to_owned());
    }
    Ok(Some(text.to_owned()).filter(|text| !text.is_empty()))
}

pub(super) fn secret(secret: &str, allowed: &str) -> Result<Option<Secret>, String> {
    Ok(text(secret, allowed)?.as_deref().map(Secret::new))
}

/// Parses a tag or field key that needs no escaping in line protocol.
pub(super) fn tag(text: &str, _: &str) -> Result<String, String> {
    let is_refused = |c: char| c.is_control() || matches!(c, ' ' | ',' | '=' | '"' | '\\');
    let is_key = !text.is_empty() && !text.contains(is_refused);
    let otherwise = "is not a valid field or tag key; it must not be empty and must not contain spaces, commas, =, \" or \\";
    found(text, is_key.then(|| text.to_owned()), otherwise)
}

pub(super) fn optional_tag(text: &str, allowed: &str) -> Result<Option<String>, String> {
    if text.is_empty() { Ok(None) } else { tag(text, allowed).map(Some) }
}

pub(super) fn secret_file(file: &str, _: &str) -> Result<Option<Secret>, String> {
    let Some(bytes) = bytes_in(file)? else { return Ok(None) };
    let text = String::from_utf8(bytes).unwrap_or_default();
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.is_empty() || line.contains(char::is_control) {
        return Err(format!(
            "{file} is not a single line of text; it must contain only the secret"
        ));
    }
    Ok(Some(Secret::new(line)))
}

/// Reads the tokens of clients from a file. Returns `None` if no file is given.
pub(super) fn tokens(file: &str, _: &str) -> Result<Option<Tokens>, String> {
    let Some(bytes) = bytes_in(file)? else { return Ok(None) };
    let text = String::from_utf8(bytes).map_err(|_| format!("{file} is not UTF-8"))?;
    let tokens = Tokens::read(&text).map_err(|error| format!("{file}, {error}"))?;
    Ok(Some(tokens))
}

pub(super) fn switch(text: &str, allowed: &str) -> Result<bool, String> {
    found(text, text.parse().ok(), &format!("is unknown; use {allowed}"))
}

pub(super) fn pem(file: &str, _: &str) -> Result<Option<Vec<u8>>, String> {
    const BEGIN: &[u8] = b"-----BEGIN ";
    let bytes = bytes_in(file)?;
    let is_pem = |bytes: &Vec<u8>| bytes.windows(BEGIN.len()).any(|window| window == BEGIN);
    if bytes.as_ref().is_none_or(is_pem) {
        return Ok(bytes);
    }
    Err(format!(
        "{file} is not a PEM file, because it has no -----BEGIN …----- line; use a different file"
    ))
}

pub(super) fn certificates(file: &str, allowed: &str) -> Result<Option<Vec<u8>>, String> {
    let pem = pem(file, allowed)?;
    if let Some(Err(reason)) = pem.as_deref().map(server::certificates) {
        return Err(format!("{file} cannot be used: {reason}; use a file with PEM certificates"));
    }
    Ok(pem)
}

fn bytes_in(file: &str) -> Result<Option<Vec<u8>>, String> {
    if file.is_empty() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    let opened = File::open(file);
    match opened.and_then(|opened| opened.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)) {
        Ok(count) if count as u64 <= FILE_BYTES_MAX => Ok(Some(bytes)),
        Ok(_) => Err(format!("{file} is larger than 1MiB; use a different file")),
        Err(error) => Err(format!(
            "{file} cannot be read: {error}; use a file that the service's user can read"
        )),
    }
}

/// Parses the path of a directory, and checks that this process can write to it. Returns `None` if the path is empty.
pub(super) fn directory(text: &str, _: &str) -> Result<Option<PathBuf>, String> {
    let directory = Path::new(text);
    if text.is_empty() {
        return Ok(None);
    }
    if !directory.is_absolute() {
        return Err("is not an absolute path; it must begin with a slash".to_owned());
    }
    let hint = "use a directory that the service's user can write to";
    let existing = directory.ancestors().find(|place| place.exists()).unwrap_or(directory);
    if !existing.is_dir() {
        return Err(format!("{} is not a directory; {hint}", existing.display()));
    }
    if existing != directory {
        // The directory does not exist yet, but systemd or a different user may still create it.
        return Ok(Some(directory.into()));
    }
    // O_TMPFILE creates an unnamed file. Report only missing permissions, as some file systems do not support this flag.
    let made = OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(directory);
    match made.map_err(|error| (error.kind(), error)) {
        Err((ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem, error)) => Err(format!(
            "{text} cannot be written to: {error}; {hint}, and run this check as that user"
        )),
        _ => Ok(Some(directory.into())),
    }
}

pub(super) fn minute(text: &str, _: &str) -> Result<Option<Minute>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let time = DateTime::parse_from_rfc3339(text).ok();
    let time = found(text, time, "is not a time; use RFC 3339, such as \"2026-11-22T02:10:00Z\"")?;
    let micros = Some(time.timestamp_micros()).filter(|micros| micros % 60_000_000 == 0);
    let otherwise = "is not the start of a minute; use :00 for the seconds";
    let minute = Minute::from_epoch_minutes(found(text, micros, otherwise)? / 60_000_000);
    found(text, minute, "is out of range; use a time between 1970 and 2262").map(Some)
}

pub(super) fn address(text: &str, _: &str) -> Result<Option<SocketAddr>, String> {
    let address = if text.is_empty() { Some(None) } else { text.parse().ok().map(Some) };
    let otherwise = "is not an address; use an IP address and a port, such as \"127.0.0.1:8094\" or \"[::1]:8094\"";
    found(text, address, otherwise)
}

pub(super) fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// Parses a comma-separated list. Rejects a repeated item if `is_unique` returns true for it.
fn list<T: PartialEq>(
    text: &str,
    is_unique: impl Fn(&T) -> bool,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let mut values = Vec::new();
    for item in items(text) {
        let value = parse(item)?;
        if is_unique(&value) && values.contains(&value) {
            return Err(format!("{item:?} is listed twice; list it only once"));
        }
        values.push(value);
    }
    Ok(values)
}

pub(super) fn addresses(text: &str, _: &str) -> Result<Vec<ListenAddress>, String> {
    // Port 0 may be repeated, because the kernel picks a different port each time.
    let is_unique =
        |address: &ListenAddress| !matches!(address, ListenAddress::Udp(at) if at.port() == 0);
    let parse = |item: &str| item.parse().map_err(|error| format!("{item:?} {error}"));
    let addresses = list(text, is_unique, parse)?;
    if addresses.is_empty() {
        return Err("is empty; set at least one address, such as \"127.0.0.1:8094\"".to_owned());
    }
    Ok(addresses)
}

/// Parses a list of nodes, each given as HOST:PORT. The host is a name or an IP address.
pub(super) fn nodes(text: &str, _: &str) -> Result<Vec<String>, String> {
    list(text, |_| true, host_and_port)
}

pub(super) fn host_and_port(text: &str) -> Result<String, String> {
    let is_v6 = |host: &str| {
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        inner.is_some_and(|inner| inner.parse::<Ipv6Addr>().is_ok())
    };
    let is_one = text.rsplit_once(':').is_some_and(|(host, port)| {
        let is_name = !host.is_empty() && host.bytes().all(is_of_a_name);
        (is_name || is_v6(host)) && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    let otherwise = "is not a host and port; use for example \"node-1:8094\" or \"[::1]:8094\"";
    found(text, is_one.then(|| text.to_owned()), otherwise)
}

pub(super) fn host_names(text: &str, _: &str) -> Result<Vec<String>, String> {
    let otherwise =
        "is not a host name; use a name without a scheme or port, such as \"eds-1.example.org\"";
    let parse = |item: &str| {
        found(item, item.bytes().all(is_of_a_name).then(|| item.to_owned()), otherwise)
    };
    list(text, |_| false, parse)
}

/// Parses the rules that select which lines are events. An empty list selects every line that a node would count.
pub(super) fn tags(text: &str, allowed: &str) -> Result<Vec<String>, String> {
    list(text, |_| true, |item| tag(item, allowed))
}

pub(super) fn tag_filters(text: &str, _: &str) -> Result<Vec<TagFilter>, String> {
    let parse = |item: &str| found(item, TagFilter::new(item), "is not a tag; use TAG=VALUE");
    list(text, |_| true, parse)
}

/// Parses the name of a time zone. The result is always `Some`; it is an `Option` because `Tz` has no default value.
pub(super) fn time_zone(text: &str, _: &str) -> Result<Option<Tz>, String> {
    let otherwise =
        "is not a time zone; use a name of the IANA database, such as \"Europe/Berlin\" or \"UTC\"";
    found(text, text.parse().ok().map(Some), otherwise)
}

pub(super) fn optional_name(text: &str, allowed: &str) -> Result<Option<String>, String> {
    if text.is_empty() { Ok(None) } else { name(text, allowed).map(Some) }
}

pub(super) fn event_rules(text: &str, _: &str) -> Result<Vec<EventRule>, String> {
    let hint = "use MEASUREMENT, TAG= or TAG=VALUE";
    let parse = |item: &str| item.parse().map_err(|wrong| format!("{item:?} {wrong}; {hint}"));
    list(text, |_| false, parse)
}
