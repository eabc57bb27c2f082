//! [`check_passthrough_line`]: whether a passthrough line is a line for a server of line protocol.
//!
//! A server cuts a request into lines before it parses them. InfluxDB reads on after a line feed behind a backslash, and
//! inside a quote of a field value that it counts as open, also where the line can be no point at all. The line of another
//! sender after such a line would be lost silently, so a relay rejects it. It also rejects a line that does not have the form of a point:
//! a server refuses the request for it, or fails, and the lines of other senders wait while the request is divided.

use crate::event::Rejection;

/// A server's counts of a line. Quotes matter after the first space, in the value of a field.
#[derive(Debug, Clone, Copy, Default)]
struct Fields {
    has_begun: bool,
    equals: usize,
    commas: usize,
}

/// Returns why no server accepts this line, or why it might read on after its end.
pub fn check_passthrough_line(line: &[u8]) -> Result<(), Rejection> {
    let text = str::from_utf8(line).map_err(|_| Rejection::NotUtf8)?;
    check_end(line)?;
    check_form(text)
}

/// Returns why a server might read on after the end of this line.
pub(super) fn check_end(line: &[u8]) -> Result<(), Rejection> {
    if memchr::memchr2(b'\\', b'"', line).is_none() {
        return Ok(());
    }
    let mut fields = Fields::default();
    let mut is_quoted = false;
    let mut bytes = line.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => {
                bytes.next().ok_or(Rejection::TrailingBackslash)?;
            }
            b'"' if fields.has_begun && fields.equals > fields.commas => is_quoted = !is_quoted,
            b' ' => fields.has_begun = true,
            // A line feed in a quote of the relay's grammar may be the end of a line for a server.
            b'\n' if !is_quoted => fields = Fields::default(),
            b'=' if fields.has_begun && !is_quoted => fields.equals += 1,
            b',' if fields.has_begun && !is_quoted => fields.commas += 1,
            _ => {}
        }
    }
    if is_quoted {
        return Err(Rejection::QuoteUnclosed);
    }
    Ok(())
}

/// Returns why a line does not have the form of a point: a key, fields, and perhaps a timestamp. What the key says, and how large numbers are,
/// is for the server to judge.
fn check_form(line: &str) -> Result<(), Rejection> {
    let line = line.trim_start_matches(BLANK);
    let line = line.trim_end_matches(|c| c == '\r' || BLANK.contains(&c));
    let key = until(line, &[' ']);
    let mut rest = line[key..].trim_start_matches(BLANK);
    if key == 0 || rest.is_empty() {
        return Err(Rejection::FieldMalformed);
    }
    loop {
        let equals = until(rest, &['=', ' ']);
        let value = rest[equals..].strip_prefix('=');
        let value = value.filter(|_| equals > 0);
        let value = value.ok_or(Rejection::FieldMalformed)?;
        let end = match value.strip_prefix('"') {
            Some(quoted) => until(quoted, &['"']) + 2,
            None => until(value, &[',', ' ']),
        };
        let is_known = value.starts_with('"') || is_number(value.get(..end).unwrap_or_default());
        let behind = value.get(end..).ok_or(Rejection::QuoteUnclosed)?;
        match behind.strip_prefix(',') {
            Some(next) if is_known => rest = next,
            None if is_known && !behind.starts_with(|c| c != ' ') => {
                return check_timestamp(behind.trim_start_matches(BLANK));
            }
            _ => return Err(Rejection::FieldMalformed),
        }
    }
}

/// What servers skip around a line and between its parts. A carriage return is skipped at the end of a line only: elsewhere it is
/// part of a name.
const BLANK: [char; 3] = [' ', '\t', '\0'];

/// Returns where the first of these is that no backslash is before, or where the text ends.
fn until(text: &str, ends: &[char]) -> usize {
    let mut is_escaped = false;
    let found = text.find(|c| {
        let is_end = !is_escaped && ends.contains(&c);
        is_escaped = !is_escaped && c == '\\';
        is_end
    });
    found.unwrap_or(text.len())
}

/// Returns whether this is a number or a truth value, in the spelling of any server.
fn is_number(value: &str) -> bool {
    const WORDS: [&str; 10] =
        ["t", "T", "true", "True", "TRUE", "f", "F", "false", "False", "FALSE"];
    let number = value.strip_suffix(['i', 'u']).unwrap_or(value);
    number.parse::<f64>().is_ok() || WORDS.contains(&value)
}

fn check_timestamp(text: &str) -> Result<(), Rejection> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.bytes().all(|byte| byte.is_ascii_digit()) {
        Ok(())
    } else {
        Err(Rejection::TimestampInvalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_that_a_server_reads_on_from_is_rejected() {
        let [backslash, quote] = [Rejection::TrailingBackslash, Rejection::QuoteUnclosed];
        for (line, expected) in [
            (&b"cpu,host=a usage=1 5"[..], Ok(())),
            (br#"cpu,host="a usage=1 5"#, Ok(())),
            (br#"cpu note="x y",usage=1 5"#, Ok(())),
            (br#"cpu note="\"",usage=1"#, Ok(())),
            (b"cpu note=\"a\nb\" 5", Ok(())),
            (br"cpu usage=1 5\", Err(backslash)),
            (br"cpu\", Err(backslash)),
            (br#"cpu note="x"#, Err(quote)),
            (br#"cpu note="x\""#, Err(quote)),
            (br#"cpu note=x"y"#, Err(quote)),
            (br#"cpu note=x"y""#, Err(Rejection::FieldMalformed)),
            (br#"cpu,host=a\ b note="x"#, Err(quote)),
            (br"cpu usage=1 5\\", Err(Rejection::TimestampInvalid)),
            // The server ends the line at the line feed, and the rest of it opens a quote.
            (b"cpu note=1\ncpu note=\"", Err(quote)),
            (b"\xff", Err(Rejection::NotUtf8)),
        ] {
            assert_eq!(check_passthrough_line(line), expected, "{}", line.escape_ascii());
        }
    }

    #[test]
    fn line_that_is_no_point_is_rejected() {
        let [field, time] = [Rejection::FieldMalformed, Rejection::TimestampInvalid];
        for (line, expected) in [
            ("cpu,host=a usage=1 5", Ok(())),
            ("  cpu  usage=1,n=2i,m=3u  5 \t\r", Ok(())),
            ("cpu a=t,b=FALSE,c=\"x, y\",d=-1.5e-3", Ok(())),
            ("cpu\\ x,host=a\\,b us\\ age=1 -5", Ok(())),
            ("cpu a=99999999999999999999i", Ok(())),
            ("größe,ort=köln wert=1", Ok(())),
            ("\r a=1", Ok(())),
            ("cpu \r=1", Ok(())),
            ("gorets:1|c", Err(field)),
            ("servers.cpu 0.5 1480876680", Err(field)),
            ("cpu", Err(field)),
            ("cpu =1", Err(field)),
            ("cpu a=", Err(field)),
            ("cpu a=x", Err(field)),
            ("cpu a=1,", Err(field)),
            ("cpu a=1.2.3", Err(field)),
            ("cpu a=\"x\"y", Err(field)),
            ("cpu a=1 x", Err(time)),
            ("cpu a=1 5 6", Err(time)),
        ] {
            assert_eq!(check_passthrough_line(line.as_bytes()), expected, "{line}");
        }
    }
}
