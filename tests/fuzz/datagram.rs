//! Compares the splitting of random datagrams with a simple implementation of the rules.

use event_data_service::event::datagram::{Piece, pieces};

use crate::spelling::spelled;

const PIECES: &[&str] = &[
    "\n",
    "\n",
    "\r",
    "#",
    " ",
    " ",
    "\t",
    "a",
    "a=b value=u",
    "\0",
    "ü",
    "\"",
    "\"",
    "\"",
    "\\",
    "\\",
    "=",
    ",",
    "a=b v=\"",
    ",w=\"",
    "\u{feff}",
];

#[derive(Clone, Copy, PartialEq)]
enum At {
    Indent,
    Tags,
    Gap,
    Key,
    ValueStart,
    Value,
    Closed,
    /// A part of a line in which quotes have no special meaning.
    Rest,
}

fn line_end(bytes: &[u8], cut: bool) -> usize {
    let mut at = At::Indent;
    let mut place = 0;
    if bytes.starts_with("\u{feff}".as_bytes()) {
        place = 3;
    }
    if bytes[place..].trim_ascii_start().starts_with(b"#") {
        at = At::Rest;
    }
    while let Some(&byte) = bytes.get(place) {
        let next = bytes.get(place + 1);
        let escapes = byte == b'\\' && matches!(next, Some(b',' | b'=' | b' '));
        at = match (at, byte) {
            (_, b'\n') => return place,
            (At::ValueStart, b'"') => match close(&bytes[place + 1..]) {
                Some((length, true)) => {
                    place += 1 + length;
                    At::Closed
                }
                None if cut => return bytes.len(),
                _ => At::Rest,
            },
            (At::Closed, b'\r') => {
                assert!(matches!(next, None | Some(b'\n')), "no field ends here");
                At::Rest
            }
            (At::Indent, b' ') => At::Indent,
            (At::Gap | At::Tags, b' ') => At::Gap,
            (At::Key | At::Gap, b'=') => At::ValueStart,
            (At::Rest, _)
            | (At::Closed | At::Key | At::Value | At::ValueStart, b' ')
            | (At::Key | At::Gap, b',') => At::Rest,
            (At::Indent | At::Tags, _) => At::Tags,
            (At::Closed | At::Value | At::ValueStart, b',') | (At::Gap | At::Key, _) => At::Key,
            (At::ValueStart | At::Value, _) => At::Value,
            (At::Closed, _) => {
                unreachable!("only a quote at the end of a field is a closing quote")
            }
        };
        place += 1 + usize::from(escapes && at != At::Rest);
    }
    bytes.len()
}

/// Returns the position of the next closing quote, and whether the field ends there.
fn close(text: &[u8]) -> Option<(usize, bool)> {
    let mut escaped = false;
    for (place, &byte) in text.iter().enumerate() {
        match byte {
            b'"' if !escaped => {
                let rest = &text[place + 1..];
                let ends = rest.is_empty()
                    || [",", " ", "\n", "\r\n"].iter().any(|end| rest.starts_with(end.as_bytes()))
                    || rest == b"\r";
                return Some((place, ends));
            }
            b'\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    None
}

fn expected(datagram: &[u8], cut: bool) -> Vec<Piece<'_>> {
    let mut lines = Vec::new();
    let mut rest = Some(datagram);
    while let Some(bytes) = rest {
        let end = line_end(bytes, cut);
        rest = bytes.get(end + 1..);
        let line = &bytes[..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line);
        if cut && rest.is_none() {
            lines.push(Piece::Truncated);
        } else if !matches!(line.trim_ascii_start(), [] | [b'#', ..]) {
            lines.push(Piece::Line(line));
        }
    }
    lines
}

/// Checks a complete datagram, and that truncation affects only the last line.
fn check(datagram: &[u8]) {
    for cut in [false, true] {
        assert_eq!(pieces(datagram, cut).collect::<Vec<_>>(), expected(datagram, cut));
    }
}

#[test]
fn any_bytes_as_a_datagram() {
    bolero::check!().with_test_time(crate::RANDOM_INPUTS_FOR).for_each(|input: &[u8]| {
        check(input);
        check(&spelled(input, PIECES));
    });
}
