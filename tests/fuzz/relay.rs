//! Sends random datagrams through a relay, and checks that nodes receive each event exactly once.

use event_data_service::event::datagram::{Piece, pieces};
use event_data_service::event::{LineLimits, LineRules, Parser, Precision};
use event_data_service::relay::{EventRule, Kind, Pack, Sorter, check_passthrough_line, hops};
use influxdb_line_protocol::parse_lines;

use crate::line::Event;
use crate::spelling::{self, spelled};

/// Separates the datagrams in an input. This byte cannot occur in an accepted line because it is invalid in UTF-8.
const DATAGRAM_END: u8 = 0xff;
/// The maximum datagram size, small enough that packs fill up.
const DATAGRAM_MAX: usize = 64;

fn read(pack: &Pack, parser: &mut Parser) -> Vec<Event> {
    let mut events = Vec::new();
    for (datagram, lines) in pack.datagrams() {
        assert_eq!(hops(datagram), 1);
        let before = events.len();
        for piece in pieces(datagram, false) {
            let Piece::Line(line) = piece else { unreachable!("the datagram is not truncated") };
            let event = parser.parse(line).expect("a relay sends only valid lines");
            events.push(Event::from(event));
        }
        assert_eq!((events.len() - before) as u64, lines);
    }
    events
}

fn check(input: &[u8], grammar: &LineRules, rules: &[EventRule]) {
    let mut parser = Parser::new(grammar);
    let mut sorter = Sorter::new(grammar, rules.to_vec());
    let mut pack = Pack::new(DATAGRAM_MAX);
    let (mut expected, mut found) = (Vec::new(), Vec::new());
    for datagram in input.split(|&byte| byte == DATAGRAM_END) {
        for piece in pieces(datagram, false) {
            let Piece::Line(line) = piece else { unreachable!("the datagram is not truncated") };
            let parsed = parser.parse(line).map(Event::from);
            match sorter.sort(line) {
                Kind::Event { has_time } => {
                    let mut event = parsed.unwrap();
                    assert_eq!(has_time, event.timestamp.is_some());
                    let stamp = (!has_time).then(|| i64::try_from(expected.len()).unwrap());
                    event.timestamp = event.timestamp.or(stamp);
                    if !pack.add(line, stamp, 0) {
                        found.extend(read(&pack, &mut parser));
                        pack.clear();
                        assert!(pack.add(line, stamp, 0), "an empty pack has room");
                    }
                    expected.push(event);
                }
                Kind::Passthrough => assert!(!rules.is_empty() || parsed.is_err()),
                Kind::Rejected(_) => {
                    let is_unstampable = parsed.is_ok_and(|event| event.timestamp.is_none());
                    assert!(!rules.is_empty() || is_unstampable && line.ends_with(b"\\"));
                }
            }
        }
    }
    found.extend(read(&pack, &mut parser));
    assert_eq!(found, expected);
}

fn check_all(input: &[u8]) {
    let usual = LineRules { limits: LineLimits::NONE, ..LineRules::default() };
    // The expected timestamps are in nanoseconds.
    assert_eq!(usual.precision, Precision::Nanoseconds);
    let bare = LineRules { measurement_tag: None, ..usual.clone() };
    let rules = ["m", "a=", "b=a"].map(|rule| rule.parse().unwrap());
    for grammar in [&usual, &bare] {
        check(input, grammar, &[]);
        check(input, grammar, &rules);
    }
}

/// Checks that InfluxDB does not join an accepted passthrough line with the next line, and that no valid point is rejected.
fn check_rest(line: &[u8]) {
    const NEXT: &str = "next,a=b value=1 5";
    let Ok(line) = str::from_utf8(line) else {
        return;
    };
    let points: Vec<_> = parse_lines(line).collect();
    let checked = check_passthrough_line(line.as_bytes());
    // InfluxDB treats NUL as a space, but the parser used here treats it as a part of a name.
    if let [Ok(point)] = &points[..]
        && point.to_string() == line
        && !line.contains('\0')
    {
        assert_eq!(checked, Ok(()), "{line:?}");
    }
    if checked.is_ok() {
        let body = format!("{line}\n{NEXT}");
        let last = parse_lines(&body).last().unwrap();
        let last = last.unwrap_or_else(|error| panic!("{error}: {line:?}"));
        assert_eq!(last.to_string(), NEXT, "{line:?}");
    }
}

#[test]
fn any_bytes_through_a_relay() {
    bolero::check!().with_test_time(crate::RANDOM_INPUTS_FOR).for_each(|input: &[u8]| {
        check_all(input);
        check_rest(input);
        check_rest(&spelled(input, spelling::LINE));
        // Combine pieces of lines to several datagrams.
        let mut datagrams = Vec::new();
        for part in input.chunks(6) {
            datagrams.extend(spelled(part, spelling::LINE));
            datagrams.push(DATAGRAM_END);
        }
        check_all(&datagrams);
    });
}
