//! The kinds of values: what may be written for a key, and how it is read.
//!
//! Each answers with the value, or with what is wrong and what to write, as the end of a sentence about the key.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use chrono::{DateTime, SecondsFormat, Utc};
use redis_link::{URL_FORMS, UrlError};

use super::url::{self, OutputUrlParts};
use crate::event::Minute;
use crate::ingest::ListenAddress;
use crate::store::OutputName;

/// What the sources and messages need to know of a kind.
pub trait Kind: Debug + Sync {
    /// How a value stands in the file.
    fn form(&self) -> Form;

    /// What may be written, such as `10ms to 1h`; empty: anything.
    fn allowed(&self) -> String;
}

impl<K: Read> Kind for K {
    fn form(&self) -> Form {
        self.in_file()
    }

    fn allowed(&self) -> String {
        self.range()
    }
}

/// How a value stands in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A text.
    Text,
    /// A text, or a date and time.
    Time,
    /// A whole number.
    Integer,
    /// A list of texts; separated by commas elsewhere.
    List,
    /// A text that may hold a password.
    Url,
    /// The path of a file or directory.
    Path,
    /// The path of a file that holds a secret.
    SecretFile,
    /// Not at all: a secret, which only the environment may hold. The key of the file has `_file` at its end.
    Secret,
}

/// How values of a kind are read.
pub(super) trait Read: Debug + Sync {
    /// Its default stands for a value that is wrong.
    type Value: Default;

    fn in_file(&self) -> Form {
        Form::Text
    }

    fn range(&self) -> String {
        String::new()
    }

    fn read(&self, text: &str) -> Result<Self::Value, String>;

    /// The same for all texts that mean the same. For texts that can be read.
    fn canonical(&self, text: &str) -> String {
        text.to_owned()
    }
}

/// 1 to so many of `[A-Za-z0-9._-]`.
#[derive(Debug)]
pub(super) struct Name(pub(super) usize);

impl Read for Name {
    type Value = String;

    fn range(&self) -> String {
        format!("1 to {} of A-Z a-z 0-9 . _ -", self.0)
    }

    fn read(&self, text: &str) -> Result<String, String> {
        let is_allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if (1..=self.0).contains(&text.len()) && text.bytes().all(is_allowed) {
            return Ok(text.to_owned());
        }
        Err(format!("{text:?} is not a name; write {}", self.range()))
    }
}

/// Any text without control characters.
#[derive(Debug)]
pub(super) struct Text;

impl Read for Text {
    type Value = String;

    fn read(&self, text: &str) -> Result<String, String> {
        if text.contains(char::is_control) {
            return Err(format!("{text:?} holds control characters; leave them out"));
        }
        Ok(text.to_owned())
    }
}

/// A tag or field key that needs no escapes in line protocol; whether it may be empty.
#[derive(Debug)]
pub(super) struct Tag {
    pub(super) optional: bool,
}

impl Read for Tag {
    type Value = String;

    fn read(&self, text: &str) -> Result<String, String> {
        let is_refused = |c: char| c.is_control() || matches!(c, ' ' | ',' | '=' | '"' | '\\');
        if text.contains(is_refused) || text.is_empty() && !self.optional {
            return Err(format!(
                "{text:?} is not a field or tag key; write one without spaces, , = \" and \\"
            ));
        }
        Ok(text.to_owned())
    }
}

/// One or more addresses where events come in.
#[derive(Debug)]
pub(super) struct Addresses;

impl Read for Addresses {
    type Value = Vec<ListenAddress>;

    fn in_file(&self) -> Form {
        Form::List
    }

    fn read(&self, text: &str) -> Result<Vec<ListenAddress>, String> {
        let mut addresses: Vec<ListenAddress> = Vec::new();
        for item in items(text) {
            let address: ListenAddress =
                item.parse().map_err(|error| format!("{item:?} {error}"))?;
            // Port 0 is a new port each time.
            let is_new = matches!(&address, ListenAddress::Udp(at) if at.port() == 0);
            if !is_new && addresses.contains(&address) {
                return Err(format!("{item:?} is there twice; leave one out"));
            }
            addresses.push(address);
        }
        if addresses.is_empty() {
            let hint = "give at least one address, such as \"127.0.0.1:8094\"";
            return Err(format!("the list is empty; {hint}"));
        }
        Ok(addresses)
    }
}

/// The items of a list.
pub(super) fn items(text: &str) -> impl Iterator<Item = &str> {
    let items = text.split(',').map(str::trim);
    items.filter(|item| !item.is_empty())
}

/// A socket address; empty means none.
#[derive(Debug)]
pub(super) struct Address;

impl Read for Address {
    type Value = Option<SocketAddr>;

    fn read(&self, text: &str) -> Result<Option<SocketAddr>, String> {
        if text.is_empty() {
            return Ok(None);
        }
        let hint = "write an IP address and a port, such as \"127.0.0.1:8094\" or \"[::1]:8094\"";
        let address = text.parse().map(Some);
        address.map_err(|_| format!("{text:?} is not an address; {hint}"))
    }
}

/// Names of hosts, without ports.
#[derive(Debug)]
pub(super) struct HostNames;

impl Read for HostNames {
    type Value = Vec<String>;

    fn in_file(&self) -> Form {
        Form::List
    }

    fn read(&self, text: &str) -> Result<Vec<String>, String> {
        let name = |item: &str| {
            let is_allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
            if item.bytes().all(is_allowed) {
                Ok(item.to_owned())
            } else {
                let hint =
                    "write a name alone, without scheme and port, such as \"eds-1.example.org\"";
                Err(format!("{item:?} is not a host's name; {hint}"))
            }
        };
        items(text).map(name).collect()
    }
}

/// The beginning of a minute; empty means none.
#[derive(Debug)]
pub(super) struct Instant;

impl Read for Instant {
    type Value = Option<Minute>;

    fn in_file(&self) -> Form {
        Form::Time
    }

    fn read(&self, text: &str) -> Result<Option<Minute>, String> {
        if text.is_empty() {
            return Ok(None);
        }
        let wrong = |what: &str| Err(format!("{text:?} is {what}"));
        let Ok(time) = DateTime::parse_from_rfc3339(text) else {
            return wrong("not a time; write one such as \"2026-11-22T02:10:00Z\"");
        };
        let micros = time.timestamp_micros();
        if micros % 60_000_000 != 0 {
            return wrong("within a minute; write its beginning, with :00 for the seconds");
        }
        match Minute::from_epoch_minutes(micros / 60_000_000) {
            Some(minute) => Ok(Some(minute)),
            None => wrong("out of range; write a time of these centuries"),
        }
    }

    fn canonical(&self, text: &str) -> String {
        DateTime::parse_from_rfc3339(text).map_or(String::new(), |time| {
            time.with_timezone(&Utc).to_rfc3339_opts(SecondsFormat::Secs, true)
        })
    }
}

/// One of some words, as what it stands for.
#[derive(Debug)]
pub(super) struct Choice<T: 'static>(pub(super) &'static [(&'static str, T)]);

impl<T: Copy + Default + Debug + Sync> Read for Choice<T> {
    type Value = T;

    fn range(&self) -> String {
        let words: Vec<_> = self.0.iter().map(|(word, _)| *word).collect();
        format!("one of: {}", words.join(", "))
    }

    fn read(&self, text: &str) -> Result<T, String> {
        let meant = self.0.iter().find(|(word, _)| *word == text);
        meant
            .map(|(_, meaning)| *meaning)
            .ok_or_else(|| format!("{text:?} is not known; write {}", self.range()))
    }
}

/// A file or directory, which may hold a secret; empty means none.
#[derive(Debug)]
pub(super) struct File(pub(super) Form);

impl Read for File {
    type Value = Option<PathBuf>;

    fn in_file(&self) -> Form {
        self.0
    }

    fn read(&self, text: &str) -> Result<Option<PathBuf>, String> {
        match text {
            "" => Ok(None),
            text if text.contains('\0') => Err(format!("{text:?} is not a path")),
            text => Ok(Some(PathBuf::from(text))),
        }
    }
}

/// A secret.
#[derive(Debug)]
pub(super) struct SecretText;

impl Read for SecretText {
    type Value = String;

    fn in_file(&self) -> Form {
        Form::Secret
    }

    fn read(&self, text: &str) -> Result<String, String> {
        if text.contains(char::is_control) {
            return Err("holds control characters; leave them out".to_owned());
        }
        Ok(text.to_owned())
    }
}

/// Where the store is; `None`: in memory.
#[derive(Debug)]
pub(super) struct StoreUrl;

impl Read for StoreUrl {
    type Value = Option<redis_link::Settings>;

    fn in_file(&self) -> Form {
        Form::Url
    }

    fn range(&self) -> String {
        format!("memory:, {URL_FORMS}")
    }

    fn read(&self, text: &str) -> Result<Self::Value, String> {
        if text == "memory:" {
            return Ok(None);
        }
        match redis_link::Settings::from_str(text) {
            Ok(settings) => Ok(Some(settings)),
            Err(UrlError::Scheme(url)) => {
                Err(format!("{url:?} is not a store; write {}", self.range()))
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

/// What an output is called.
#[derive(Debug)]
pub(super) struct OutputLabel;

impl Read for OutputLabel {
    type Value = OutputName;

    fn range(&self) -> String {
        format!("1 to {} of a-z 0-9 _ -", OutputName::BYTES_MAX)
    }

    fn read(&self, text: &str) -> Result<OutputName, String> {
        let name = text.parse();
        name.map_err(|_| format!("{text:?} is not a name; write {}", self.range()))
    }
}

/// Where the output is; `None`: standard output.
#[derive(Debug)]
pub(super) struct OutputUrl;

impl Read for OutputUrl {
    type Value = Option<OutputUrlParts>;

    fn in_file(&self) -> Form {
        Form::Url
    }

    fn range(&self) -> String {
        "stdout:, http://host:8086 or https://host:8086".to_owned()
    }

    fn read(&self, text: &str) -> Result<Self::Value, String> {
        match text {
            "stdout:" => Ok(None),
            text => url::output(text, &self.range()).map(Some),
        }
    }

    fn canonical(&self, text: &str) -> String {
        let parts = self.read(text).ok().flatten();
        parts.map_or(text.to_owned(), |parts| parts.base.as_str().trim_end_matches('/').to_owned())
    }
}
