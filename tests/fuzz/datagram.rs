//! Any bytes as a datagram: split as a simple reading of the rules splits it.

use event_data_service::event::datagram::{Piece, pieces};

use crate::spelling::spelled;

const PIECES: &[&str] = &["\n", "\n", "\r", "#", " ", "a", "a=b value=u", "\0", "ü"];

/// What stands in README.md, word by word.
fn lines(datagram: &[u8]) -> Vec<&[u8]> {
    datagram
        .split(|&byte| byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .filter(|line| !line.is_empty() && !line.starts_with(b"#"))
        .collect()
}

fn check(datagram: &[u8]) {
    let whole: Vec<_> = pieces(datagram, false).collect();
    let expected: Vec<_> = lines(datagram).into_iter().map(Piece::Line).collect();
    assert_eq!(whole, expected);

    // One that was cut loses what follows its last line end, and nothing else.
    let cut: Vec<_> = pieces(datagram, true).collect();
    let end = datagram.iter().rposition(|&byte| byte == b'\n');
    let kept = end.map_or(&[][..], |end| &datagram[..end]);
    let mut expected: Vec<_> = lines(kept).into_iter().map(Piece::Line).collect();
    expected.push(Piece::Truncated);
    assert_eq!(cut, expected);
}

#[test]
fn any_bytes_as_a_datagram() {
    bolero::check!()
        .with_test_time(crate::RANDOM_INPUTS_FOR)
        .for_each(|input: &[u8]| {
            check(input);
            check(&spelled(input, PIECES));
        });
}
