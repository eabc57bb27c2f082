//! The kinds of values that lie between two others: counts, lengths of time, sizes, permissions. The bounds are written as the
//! values are, and are allowed themselves.

use std::fmt::{Debug, Display};
use std::time::Duration;

use bytesize::ByteSize;

use super::kind::{Form, Read};

/// A value between two others, which are allowed themselves.
fn between<T: PartialOrd>(
    text: &str,
    [min, max]: [Option<T>; 2],
    value: T,
    allowed: &str,
) -> Result<T, String> {
    if min.is_some_and(|min| min <= value) && max.is_some_and(|max| value <= max) {
        Ok(value)
    } else {
        Err(format!("{text:?} is out of range; write {allowed}"))
    }
}

/// A whole number, from the first to the second.
#[derive(Debug)]
pub(super) struct Count<T>(pub(super) T, pub(super) T);

impl<T> Read for Count<T>
where
    T: Copy + Default + Display + Debug + Sync + PartialOrd + TryFrom<i128>,
{
    type Value = T;

    fn in_file(&self) -> Form {
        Form::Integer
    }

    fn range(&self) -> String {
        format!("{} to {}", self.0, self.1)
    }

    fn read(&self, text: &str) -> Result<T, String> {
        // A minus sign is a number all the same, only out of range.
        let number: i128 = text
            .parse()
            .map_err(|_| format!("{text:?} is not a whole number; write {}", self.range()))?;
        let value = T::try_from(number).ok();
        let value = value.filter(|value| (self.0..=self.1).contains(value));
        value.ok_or_else(|| format!("{text} is out of range; write {}", self.range()))
    }

    fn canonical(&self, text: &str) -> String {
        self.read(text).map_or(String::new(), |it| it.to_string())
    }
}

/// As [`Count`], and 0 means none.
#[derive(Debug)]
pub(super) struct CountOrNone(pub(super) u16);

impl Read for CountOrNone {
    type Value = Option<u16>;

    fn in_file(&self) -> Form {
        Form::Integer
    }

    fn range(&self) -> String {
        Count(0, self.0).range()
    }

    fn read(&self, text: &str) -> Result<Option<u16>, String> {
        let number = Count(0, self.0).read(text)?;
        Ok(Some(number).filter(|number| *number > 0))
    }

    fn canonical(&self, text: &str) -> String {
        let number = self.read(text).ok().flatten();
        number.map_or(String::new(), |number| number.to_string())
    }
}

/// A length of time, from the first to the second.
#[derive(Debug)]
pub(super) struct Span(pub(super) &'static str, pub(super) &'static str);

impl Read for Span {
    type Value = Duration;

    fn range(&self) -> String {
        format!("{} to {}", self.0, self.1)
    }

    fn read(&self, text: &str) -> Result<Duration, String> {
        let parse = |text: &str| humantime::parse_duration(text).ok();
        let hint = "write a number with a unit, such as \"100ms\", \"30s\" or \"1h\"";
        let span = parse(text).ok_or_else(|| format!("{text:?} is not a duration; {hint}"))?;
        between(text, [self.0, self.1].map(parse), span, &self.range())
    }

    fn canonical(&self, text: &str) -> String {
        let span = self.read(text).unwrap_or_default();
        humantime::format_duration(span).to_string()
    }
}

/// A number of bytes, from the first to the second.
#[derive(Debug)]
pub(super) struct Size(pub(super) &'static str, pub(super) &'static str);

impl Read for Size {
    type Value = u64;

    fn range(&self) -> String {
        format!("{} to {}", self.0, self.1)
    }

    fn read(&self, text: &str) -> Result<u64, String> {
        // A bare number is refused: its reader would have to know that it is bytes.
        let has_unit = |text: &str| text.ends_with(|c: char| c.is_ascii_alphabetic());
        let parse = |text: &str| {
            let size: Option<ByteSize> = text.parse().ok().filter(|_| has_unit(text));
            size.map(|size| size.as_u64())
        };
        let hint = "write a number with a unit, such as \"512B\", \"64KiB\" or \"8MiB\"";
        let size = parse(text).ok_or_else(|| format!("{text:?} is not a size; {hint}"))?;
        between(text, [self.0, self.1].map(parse), size, &self.range())
    }
}

/// The permissions of a file, as chmod has them.
#[derive(Debug)]
pub(super) struct Permissions;

impl Read for Permissions {
    type Value = u32;

    fn range(&self) -> String {
        "0000 to 0777".to_owned()
    }

    fn read(&self, text: &str) -> Result<u32, String> {
        let is_octal = text.len() == 4 && text.starts_with('0');
        let mode = u32::from_str_radix(text, 8).ok().filter(|_| is_octal);
        mode.ok_or_else(|| {
            format!("{text:?} is no permissions; write four digits, such as \"0660\"")
        })
    }
}
