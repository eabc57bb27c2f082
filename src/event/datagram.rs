//! Splits datagrams into lines. A line ends at a `\n` outside a quoted field. In tags, a quote is an ordinary character.

use super::scan::{Stops, closing_quote, scan_until, skip_spaces, stops};

/// A piece of a datagram that counts as one event, whether or not it can be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A whole line, without its line ending.
    Line(&'a [u8]),
    /// The last line of a datagram that did not fit in the buffer.
    Truncated,
}

/// Splits a datagram into lines, dropping blank lines, comments (`#`) and byte order marks. If `truncated`, the last line is
/// incomplete and becomes a [`Piece::Truncated`].
pub fn pieces(datagram: &[u8], truncated: bool) -> impl Iterator<Item = Piece<'_>> {
    // A relay pads its datagrams with line feeds, and splitting these off one at a time would take long.
    let padding = datagram.iter().rev().take_while(|byte| !truncated && **byte == b'\n').count();
    let datagram = &datagram[..datagram.len() - padding];
    let mut rest = Some(datagram);
    let mut quotes = Quotes::of(datagram);
    let lines = std::iter::from_fn(move || {
        let bytes = rest?;
        quotes.before = datagram.len() - bytes.len();
        let end = quotes.line_end(bytes, truncated);
        rest = bytes.get(end + 1..);
        let (line, _) = bytes.split_at(end);
        Some(if rest.is_none() && truncated {
            Piece::Truncated
        } else {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            Piece::Line(line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line))
        })
    });
    lines.filter(|piece| !matches!(piece, Piece::Line(line) if is_skipped(line)))
}

fn is_skipped(line: &[u8]) -> bool {
    matches!(line.trim_ascii_start().first(), None | Some(b'#'))
}

/// Returns the length of the first line, without its line ending; `None` if more bytes are needed to determine it.
pub(crate) fn first_line(bytes: &[u8]) -> Option<usize> {
    let end = Quotes::of(bytes).line_end(bytes, true);
    (end < bytes.len()).then_some(end)
}

/// The UTF-8 byte order mark, which some editors and libraries write before text. It is dropped at the start of a line.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

static TAGS_END: Stops = stops(b"\\ \n");
static KEY_ENDS: Stops = stops(b"\\=, \n");
static VALUE_ENDS: Stops = stops(b"\\, \n");

/// Finds line endings in a datagram, taking quotes into account.
struct Quotes {
    any: bool,
    /// Number of bytes in the datagram before the current line.
    before: usize,
    /// The start and result of the last search for a closing quote. A search that starts in between has the same result.
    closing: Option<(usize, Option<usize>)>,
}

impl Quotes {
    fn of(datagram: &[u8]) -> Self {
        Self { any: memchr::memchr(b'"', datagram).is_some(), before: 0, closing: None }
    }

    /// Returns the end of the first line: the first `\n` outside quoted fields. A quote is ignored if it is not closed, or
    /// not closed at the end of its field. In a truncated datagram, an unclosed quote extends to the end.
    fn line_end(&mut self, bytes: &[u8], truncated: bool) -> usize {
        let newline_from = |at: usize| {
            let newline = memchr::memchr(b'\n', bytes.get(at..).unwrap_or_default());
            newline.map_or(bytes.len(), |newline| at + newline)
        };
        if !self.any {
            return newline_from(0);
        }
        if let Some(end) = end_of_paired_quotes(bytes) {
            return end;
        }
        let line = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
        if line.trim_ascii_start().first() == Some(&b'#') {
            return newline_from(0);
        }
        // Looks for fields in the same places as the parser. After a malformed field, quotes are ignored.
        let end_of = |at, ends| scan_until(bytes, at, ends).unwrap_or(bytes.len());
        let mut at = skip_spaces(bytes, bytes.len() - line.len());
        at = end_of(at, &TAGS_END);
        at = skip_spaces(bytes, at);
        loop {
            at = end_of(at, &KEY_ENDS);
            if bytes.get(at) != Some(&b'=') {
                return newline_from(at);
            }
            at += 1;
            if bytes.get(at) == Some(&b'"') {
                at += 1;
                match self.closing_from(bytes, at) {
                    Some(close) if ends_field(&bytes[close + 1..]) => at = close + 1,
                    None if truncated => return bytes.len(),
                    _ => return newline_from(at),
                }
            } else {
                at = end_of(at, &VALUE_ENDS);
            }
            if bytes.get(at) != Some(&b',') {
                return newline_from(at);
            }
            at += 1;
        }
    }

    fn closing_from(&mut self, bytes: &[u8], at: usize) -> Option<usize> {
        let place = self.before + at;
        let known = self
            .closing
            .filter(|&(from, close)| from <= place && close.is_none_or(|close| place <= close));
        let (_, close) = known.unwrap_or_else(|| {
            let close = closing_quote(bytes, at).map(|close| self.before + close);
            *self.closing.insert((place, close))
        });
        close.map(|close| close - self.before)
    }
}

/// Returns the end of the first line in the common case, without parsing it: all its quotes are in pairs, and the second
/// quote of each pair does not follow `=` or a backslash. Returns `None` in all other cases.
fn end_of_paired_quotes(bytes: &[u8]) -> Option<usize> {
    let mut open = false;
    let mut at = 0;
    loop {
        match memchr::memchr2(b'\n', b'"', &bytes[at..]).map(|next| at + next) {
            Some(quote) if bytes[quote] == b'"' => {
                if open && matches!(bytes[quote - 1], b'=' | b'\\') {
                    return None;
                }
                open = !open;
                at = quote + 1;
            }
            end => return (!open).then(|| end.unwrap_or(bytes.len())),
        }
    }
}

/// Returns whether a field ends right after its closing quote, given the bytes that follow the quote.
fn ends_field(rest: &[u8]) -> bool {
    matches!(rest, [] | [b',' | b' ' | b'\n', ..] | [b'\r'] | [b'\r', b'\n', ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(datagram: &[u8], truncated: bool, expected: &[Piece<'_>]) {
        assert_eq!(pieces(datagram, truncated).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn splits_at_line_ends_and_skips_comments_and_blank_lines() {
        use Piece::Line;
        check(b"", false, &[]);
        check(b"a", false, &[Line(b"a")]);
        check(b"a\nb\n", false, &[Line(b"a"), Line(b"b")]);
        check(b"a\r\n\r\n# note\n\nb", false, &[Line(b"a"), Line(b"b")]);
        check(b"a\nb\r\n\n\n", false, &[Line(b"a"), Line(b"b")]);
        check(b"a\n  # note\n\t# note\n \t\r\n b", false, &[Line(b"a"), Line(b" b")]);
    }

    #[test]
    fn line_feed_in_a_quoted_field_belongs_to_the_line() {
        use Piece::Line;
        let forged = br#"a=1 note="x\" \\
event_type=paid value=mallory
",value="u" 1"#;
        check(forged, false, &[Line(forged)]);
        let lines = [&forged[..], b"b=1 value=u"].join(&b'\n');
        check(&lines, false, &[Line(forged), Line(b"b=1 value=u")]);
        let both = b"m,a=1 value=\"x\r\ny\",note=\"\n\n\"";
        let lines = [&both[..], b"c=1 value=u"].join(&b"\r\n"[..]);
        check(&lines, false, &[Line(both), Line(b"c=1 value=u")]);
    }

    #[test]
    fn quote_outside_a_field_start_is_a_plain_character() {
        for line in [
            &br#"a="x value=u"#[..],
            br#""m,a=1 value=u"#,
            br#"a=x\ y=" value=u"#,
            br#"a=1 value=u"v"#,
            br#"a=1 value=u=""#,
            br#"a=1 value\="=u"#,
            br#"a=1 value=u " "#,
            br#"# it's a "note"#,
            br#"  # it's value="note"#,
        ] {
            let lines = [line, b"b=1 value=\"v\""].join(&b'\n');
            let given: Vec<_> = pieces(&lines, false).collect();
            assert_eq!(given.last(), Some(&Piece::Line(b"b=1 value=\"v\"")), "{line:?}");
        }
    }

    #[test]
    fn unclosed_quote_loses_only_its_line() {
        use Piece::Line;
        for line in [&br#"a=1 value="u"#[..], br#"a=1 note="x",value="u\""#] {
            let next = &b"b=1 value=v"[..];
            check(&[line, next].join(&b'\n'), false, &[Line(line), Line(next)]);
            // The next quote belongs to a different line and does not end a field.
            let next = &b"b=1 value=\"v\""[..];
            check(&[line, next].join(&b'\n'), false, &[Line(line), Line(next)]);
        }
    }

    #[test]
    fn truncated_quote_ends_with_the_datagram() {
        use Piece::{Line, Truncated};
        let cut = b"a=1 value=u\nb=1 note=\"x\nevent_type=paid value=mallory\n";
        check(cut, true, &[Line(b"a=1 value=u"), Truncated]);
    }

    /// Searching to the end of the datagram for each unclosed quote would take minutes.
    #[test]
    fn unclosed_quotes_take_linear_time() {
        let began = std::time::Instant::now();
        for end in ["", "\"x"] {
            let datagram = r#"a=1 v="\"
"#
            .repeat(1 << 17)
                + end;
            assert!(pieces(datagram.as_bytes(), false).count() >= 1 << 17);
        }
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
    }

    #[test]
    fn a_byte_order_mark_before_a_line_is_skipped() {
        use Piece::Line;
        let lines = "\u{feff}a=1 value=u\n\u{feff}# note\n\u{feff}\n\u{feff}b=1 value=\"u\nv\"";
        let last = Line(b"b=1 value=\"u\nv\"");
        check(lines.as_bytes(), false, &[Line(b"a=1 value=u"), last]);
    }

    #[test]
    fn first_line_is_complete_with_its_end() {
        assert_eq!(first_line(b"a=1 value=u\nb"), Some(11));
        assert_eq!(first_line(b"a=1 value=\"u\nv\"\nb"), Some(15));
        assert_eq!(first_line(b"\na"), Some(0));
        assert_eq!(first_line(b"a=1 value=u"), None);
        assert_eq!(first_line(b"a=1 value=\"u\n"), None);
    }

    #[test]
    fn a_truncated_datagram_loses_its_last_line_only() {
        use Piece::{Line, Truncated};
        check(b"a\nb\nc", true, &[Line(b"a"), Line(b"b"), Truncated]);
        check(b"a\n", true, &[Line(b"a"), Truncated]);
        check(b"a\n\n", true, &[Line(b"a"), Truncated]);
        check(b"abc", true, &[Truncated]);
    }
}
