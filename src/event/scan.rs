//! Finds where the keys and values of a line end, and decodes their escapes. `line` builds on this to parse tags and fields.

use std::ops::Range;

use super::{Precision, Rejection};

/// Escapes a measurement, a tag key or value, or a field key, for line protocol.
pub(crate) fn escape(text: &str) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(text.len());
    for byte in text.bytes() {
        if is_special(byte) {
            escaped.push(b'\\');
        }
        escaped.push(byte);
    }
    escaped
}

pub(super) const fn is_special(byte: u8) -> bool {
    matches!(byte, b',' | b'=' | b' ')
}

/// Returns whether a tag has a backslash directly before an escaping backslash.
pub(super) fn is_ambiguous(tag: &[u8]) -> bool {
    memchr::memchr(b'\\', tag).is_some_and(|first| {
        let mut triples = tag[first..].windows(3);
        triples.any(|triple| triple.starts_with(br"\\") && is_special(triple[2]))
    })
}

/// Where the user of a line is: in the input as is, or in the parser's buffer.
pub(super) enum User {
    Literal(Range<usize>),
    Decoded,
}

/// The bytes at which a scan stops, as a table indexed by byte, because a lookup is cheaper than four comparisons.
pub(super) type Stops = [bool; 256];

pub(super) static NAME_ENDS: Stops = stops(b"\\=, ");
static VALUE_ENDS: Stops = stops(b"\\, ");

static USUAL: [bool; 256] = usual();

const fn usual() -> [bool; 256] {
    let mut usual = [false; 256];
    let mut byte = b'!';
    while byte <= b'~' {
        usual[byte as usize] = !matches!(byte, b'"' | b'\\' | b',');
        byte += 1;
    }
    usual
}

pub(super) const fn stops(bytes: &[u8]) -> Stops {
    let mut stops = [false; 256];
    let mut index = 0;
    while index < bytes.len() {
        stops[bytes[index] as usize] = true;
        index += 1;
    }
    stops
}

/// Returns the position of the first unescaped byte in `ends`, or the line's end. Fails if the line ends in a backslash.
pub(super) fn scan_until(line: &[u8], at: usize, ends: &Stops) -> Result<usize, Rejection> {
    let mut at = at;
    loop {
        match line.get(at) {
            Some(&byte) if !ends[usize::from(byte)] => at += 1,
            Some(b'\\') => match line.get(at + 1) {
                Some(&next) if is_special(next) => at += 2,
                Some(_) => at += 1,
                None => return Err(Rejection::TrailingBackslash),
            },
            Some(_) | None => return Ok(at),
        }
    }
}

/// Returns a line's measurement (with an empty key) and tags, without unescaping them. Stops at the first malformed tag.
pub(crate) fn head(line: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let start = skip_spaces(line, 0);
    let mut next = Some(start);
    std::iter::from_fn(move || {
        let at = next.take()?;
        let key_end = scan_until(line, at, &NAME_ENDS).ok()?;
        let has_value = line.get(key_end) == Some(&b'=');
        if !has_value && at != start {
            return None;
        }
        let (key, value) =
            if has_value { (&line[at..key_end], key_end + 1) } else { (&line[..0], at) };
        let end = scan_until(line, value, &NAME_ENDS).ok()?;
        if line.get(end) == Some(&b',') {
            next = Some(end + 1);
        }
        Some((key, &line[value..end]))
    })
}

/// Fast path for a common line, from the space after its tags: one field with an ASCII user, perhaps in
/// quotes, without escapes, spaces and commas, and perhaps an all-digit timestamp. `before` precedes the user. Returns `None`
/// if the full parser is needed.
pub(super) fn usual_end<'a>(
    end: &'a [u8],
    before: &[u8],
    precision: Precision,
) -> Option<(&'a [u8], Option<i64>)> {
    let value = end.strip_prefix(before)?;
    let quoted = value.strip_prefix(b"\"");
    let value = quoted.unwrap_or(value);
    let user_end = value.iter().position(|&byte| !USUAL[usize::from(byte)]);
    let (user, rest) = value.split_at(user_end.unwrap_or(value.len()));
    let rest = if quoted.is_some() { rest.strip_prefix(b"\"")? } else { rest };
    let timestamp = match rest {
        [] => None,
        [b' ', digits @ ..] => Some(precision.read_digits(digits)?),
        _ => return None,
    };
    (!user.is_empty()).then_some((user, timestamp))
}

/// Returns the field value at `start` and where it ends. If the value is the user, `keep` is the buffer for decoding it.
pub(super) fn scan_value(
    line: &[u8],
    start: usize,
    keep: Option<&mut Vec<u8>>,
) -> Result<(User, usize), Rejection> {
    let is_quoted = line.get(start) == Some(&b'"');
    let (raw, end) = if is_quoted {
        let close = closing_quote(line, start + 1).ok_or(Rejection::QuoteUnclosed)?;
        (start + 1..close, close + 1)
    } else {
        // A backslash at the very end is literal, because there is nothing to escape.
        let end = scan_until(line, start, &VALUE_ENDS).unwrap_or(line.len());
        (start..end, end)
    };
    if raw.is_empty() && !is_quoted {
        return Err(if keep.is_some() { Rejection::UserEmpty } else { Rejection::FieldMalformed });
    }
    match keep {
        Some(user) if line[raw.clone()].contains(&b'\\') => {
            user.clear();
            let escapable = if is_quoted { br#""\"#.as_slice() } else { b",= " };
            decode(&line[raw], user, |byte| escapable.contains(&byte));
            Ok((User::Decoded, end))
        }
        _ => Ok((User::Literal(raw), end)),
    }
}

/// Returns the position of the quote that closes the quoted text starting at `from`, or `None` if there is none.
pub(super) fn closing_quote(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        at += memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes[at] == b'"' {
            return Some(at);
        }
        at += 1 + usize::from(matches!(bytes.get(at + 1), Some(b'"' | b'\\')));
    }
}

/// Appends `raw` to `text`, dropping the escaping backslashes.
fn decode(raw: &[u8], text: &mut Vec<u8>, escapable: impl Fn(u8) -> bool) {
    let mut bytes = raw.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match (byte, bytes.peek()) {
            (b'\\', Some(&next)) if escapable(next) => {
                text.push(next);
                bytes.next();
            }
            _ => text.push(byte),
        }
    }
}

/// Trims the spaces around a line, but keeps an escaped space at its end.
pub(super) fn without_outer_spaces(text: &str) -> &str {
    let text = text.trim_start_matches(' ');
    let trimmed = text.trim_end_matches(' ');
    if trimmed.ends_with('\\') { text.get(..=trimmed.len()).unwrap_or(trimmed) } else { trimmed }
}

pub(super) fn skip_spaces(line: &[u8], at: usize) -> usize {
    line[at..].iter().position(|&byte| byte != b' ').map_or(line.len(), |spaces| at + spaces)
}

pub(super) fn control_characters(text: &str) -> usize {
    // Checks for the common case first, in a form that the compiler can vectorize.
    let (ascii, beyond) = text.bytes().fold((0_u8, 0_u8), |(ascii, beyond), byte| {
        let control = u8::from(byte < 0x20) | u8::from(byte == 0x7f);
        (ascii | control, beyond | u8::from(byte >= 0x80))
    });
    if ascii | beyond == 0 {
        return 0;
    }
    text.chars().filter(|character| character.is_control()).count()
}

/// Returns the decoded tags of a canonical series, in order. A part without an equals sign is a key with an empty value.
#[must_use]
pub fn tags(series: &str) -> Vec<(String, String)> {
    let decoded = |raw: Option<&[u8]>| {
        let mut text = Vec::new();
        decode(raw.unwrap_or_default(), &mut text, is_special);
        String::from_utf8_lossy(&text).into_owned()
    };
    let all = escaped_tags(series).map(|tag| {
        let mut parts = tag.as_bytes().splitn(2, is_unescaped(b'='));
        (decoded(parts.next()), decoded(parts.next()))
    });
    all.collect()
}

/// Returns the tags of a canonical series as they are written in it, in order.
pub(super) fn escaped_tags(series: &str) -> impl Iterator<Item = &str> {
    let mut is_end = is_unescaped(b',');
    let all = series.split(move |character| is_end(&u8::try_from(character).unwrap_or_default()));
    all.filter(|_| !series.is_empty())
}

/// Returns a predicate over successive bytes that matches `end` unless a backslash precedes it.
fn is_unescaped(end: u8) -> impl FnMut(&u8) -> bool {
    let mut before = 0;
    move |&byte| std::mem::replace(&mut before, byte) != b'\\' && byte == end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_decoded() {
        let check = |series: &str, expected: &[(&str, &str)]| {
            let expected: Vec<_> =
                expected.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
            assert_eq!(tags(series), expected, "{series}");
        };
        check("", &[]);
        check("a=1,b=2", &[("a", "1"), ("b", "2")]);
        check(r"a\=b=c\,d\ e,x=\y\", &[("a=b", "c,d e"), ("x", r"\y\")]);
        check("a=", &[("a", "")]);
        check("a=\\\u{2028},b=1", &[("a", "\\\u{2028}"), ("b", "1")]);
    }

    #[test]
    fn control_characters_are_counted_in_any_text() {
        for (text, count) in
            [("", 0), ("aé~", 0), ("\u{7f}", 1), ("\u{85}", 1), ("\n\0", 2), ("a\u{1f} \u{9f}é", 2)]
        {
            assert_eq!(control_characters(text), count, "{text:?}");
        }
    }
}
