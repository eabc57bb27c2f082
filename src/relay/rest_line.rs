//! [`check_rest_line`]: whether a server of line protocol ends a line of the rest where the line ends.
//!
//! A server cuts a request into lines before it parses them. InfluxDB takes a line feed for a part of the line behind a backslash, and
//! inside a quote of a field value that it counts as open, also where the line can be no point at all. The line of another
//! sender behind such a line would be lost in silence, so a relay rejects it.

use crate::event::Rejection;

/// What a server has counted of a line so far. Quotes matter behind the first space, in the value of a field.
#[derive(Debug, Clone, Copy, Default)]
struct Fields {
    has_begun: bool,
    equals: usize,
    commas: usize,
}

/// Returns why a server might read on behind the end of this line, or cannot read the line as text.
pub fn check_rest_line(line: &[u8]) -> Result<(), Rejection> {
    if str::from_utf8(line).is_err() {
        return Err(Rejection::NotUtf8);
    }
    check_end(line)
}

/// The same of a line that may hold any bytes.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_that_a_server_reads_on_from_is_rejected() {
        let [backslash, quote] = [Rejection::TrailingBackslash, Rejection::QuoteUnclosed];
        for (line, expected) in [
            (&b"cpu,host=a usage=1 5"[..], Ok(())),
            (b"gorets:1|c", Ok(())),
            (br#"cpu,host="a usage=1 5"#, Ok(())),
            (br#"cpu note="x y",usage=1 5"#, Ok(())),
            (br#"cpu note="\"",usage=1"#, Ok(())),
            (b"cpu note=\"a\nb\" 5", Ok(())),
            (br"cpu usage=1 5\", Err(backslash)),
            (br"cpu\", Err(backslash)),
            (br#"cpu note="x"#, Err(quote)),
            (br#"cpu note="x\""#, Err(quote)),
            (br#"cpu note=x"y"#, Err(quote)),
            (br#"cpu,host=a\ b note="x"#, Err(quote)),
            (br"cpu usage=1 5\\", Ok(())),
            // The server ends the line at the line feed, and the rest of it opens a quote.
            (b"cpu note=1\ncpu note=\"", Err(quote)),
            (b"\xff", Err(Rejection::NotUtf8)),
        ] {
            assert_eq!(check_rest_line(line), expected, "{}", line.escape_ascii());
        }
    }
}
