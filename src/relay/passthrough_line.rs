//! [`check_passthrough_line`]: rejects lines that a server might join with the next line, which would then be lost silently.
//! InfluxDB joins lines if the line feed follows a backslash or is inside an open quote. Lines without the form of a
//! point are also rejected, because they would delay other lines in the same request until they are found.

use crate::event::Rejection;

/// Returns an error if no server would accept this line, or if a server might join it with the next line.
pub fn check_passthrough_line(line: &[u8]) -> Result<(), Rejection> {
    let text = str::from_utf8(line).map_err(|_| Rejection::NotUtf8)?;
    check_end(line)?;
    check_form(text)
}

/// Returns an error if a server might join this line with the next one.
pub(super) fn check_end(line: &[u8]) -> Result<(), Rejection> {
    if memchr::memchr2(b'\\', b'"', line).is_none() {
        return Ok(());
    }
    // Equals signs minus commas since the first space; `None` before that. Quotes are significant only if this is above 0.
    let mut open_values: Option<i64> = None;
    let mut is_quoted = false;
    let mut bytes = line.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => {
                bytes.next().ok_or(Rejection::TrailingBackslash)?;
            }
            b'"' if open_values > Some(0) => is_quoted = !is_quoted,
            b' ' => open_values = open_values.or(Some(0)),
            // The relay may consider this line feed quoted, while a server ends the line here.
            b'\n' if !is_quoted => open_values = None,
            b'=' if !is_quoted => open_values = open_values.map(|values| values + 1),
            b',' if !is_quoted => open_values = open_values.map(|values| values - 1),
            _ => {}
        }
    }
    if is_quoted { Err(Rejection::QuoteUnclosed) } else { Ok(()) }
}

/// Returns an error if a line does not have the form of a point. The key and the range of numbers are not checked.
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
        let value = rest[equals..].strip_prefix('=').filter(|_| equals > 0);
        let value = value.ok_or(Rejection::FieldMalformed)?;
        let (is_known, behind) = if let Some(quoted) = value.strip_prefix('"') {
            (true, quoted.get(until(quoted, &['"']) + 1..))
        } else {
            let end = until(value, &[',', ' ']);
            (is_number(&value[..end]), value.get(end..))
        };
        let behind = behind.ok_or(Rejection::QuoteUnclosed)?;
        match behind.strip_prefix(',') {
            Some(next) if is_known => rest = next,
            None if is_known && !behind.starts_with(|c| c != ' ') => {
                let time = behind.trim_start_matches(BLANK);
                let mut digits = time.strip_prefix('-').unwrap_or(time).bytes();
                let is_time = digits.all(|byte| byte.is_ascii_digit());
                return if is_time { Ok(()) } else { Err(Rejection::TimestampInvalid) };
            }
            _ => return Err(Rejection::FieldMalformed),
        }
    }
}

/// The characters that servers skip around a line and between its parts. Servers skip `\r` only at the end of a line.
const BLANK: [char; 3] = [' ', '\t', '\0'];

/// Returns the index of the first unescaped character that is in `ends`, or the length of the text if there is none.
fn until(text: &str, ends: &[char]) -> usize {
    let mut is_escaped = false;
    let found = text.find(|c| {
        let is_end = !is_escaped && ends.contains(&c);
        is_escaped = !is_escaped && c == '\\';
        is_end
    });
    found.unwrap_or(text.len())
}

fn is_number(value: &str) -> bool {
    const WORDS: [&str; 10] =
        ["t", "T", "true", "True", "TRUE", "f", "F", "false", "False", "FALSE"];
    let number = value.strip_suffix(['i', 'u']).unwrap_or(value);
    number.parse::<f64>().is_ok() || WORDS.contains(&value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_line_is_rejected() {
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
            // The server ends the line at the line feed, and the remainder opens a quote.
            (b"cpu note=1\ncpu note=\"", Err(quote)),
            (b"\xff", Err(Rejection::NotUtf8)),
        ] {
            assert_eq!(check_passthrough_line(line), expected, "{}", line.escape_ascii());
        }
    }

    #[test]
    fn invalid_point_is_rejected() {
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
