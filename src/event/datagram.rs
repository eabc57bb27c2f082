//! Datagrams: one or more lines, as they came from the socket.

/// A piece of a datagram that counts as one event, whether or not it can be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A whole line, without its end.
    Line(&'a [u8]),
    /// The last line of a datagram that did not fit the buffer.
    Truncated,
}

/// Splits a datagram at `\n`, so that one bad line costs one line. A trailing `\r` is dropped; empty lines and
/// those that begin with `#` are no events and are passed over. `truncated` says that the datagram went on:
/// its last line is lost, and only that.
pub fn pieces(datagram: &[u8], truncated: bool) -> impl Iterator<Item = Piece<'_>> {
    let whole = if truncated {
        memchr::memrchr(b'\n', datagram).map_or(&[][..], |end| &datagram[..end])
    } else {
        datagram
    };
    let mut rest = Some(whole);
    let lines = std::iter::from_fn(move || {
        let bytes = rest?;
        if let Some(end) = memchr::memchr(b'\n', bytes) {
            rest = Some(&bytes[end + 1..]);
            Some(&bytes[..end])
        } else {
            rest = None;
            Some(bytes)
        }
    });
    lines
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .filter(|line| !matches!(line.first(), None | Some(b'#')))
        .map(Piece::Line)
        .chain(truncated.then_some(Piece::Truncated))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(datagram: &[u8], truncated: bool, expected: &[Piece<'_>]) {
        assert_eq!(pieces(datagram, truncated).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn splits_at_line_ends_and_passes_over_what_is_no_event() {
        use Piece::Line;
        check(b"", false, &[]);
        check(b"a", false, &[Line(b"a")]);
        check(b"a\nb\n", false, &[Line(b"a"), Line(b"b")]);
        check(b"a\r\n\r\n# note\n\nb", false, &[Line(b"a"), Line(b"b")]);
    }

    #[test]
    fn a_truncated_datagram_loses_its_last_line_only() {
        use Piece::{Line, Truncated};
        check(b"a\nb\nc", true, &[Line(b"a"), Line(b"b"), Truncated]);
        check(b"a\n", true, &[Line(b"a"), Truncated]);
        check(b"abc", true, &[Truncated]);
    }
}
