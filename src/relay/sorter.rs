//! [`Sorter`]: decides whether a line is an event, i.e. a line that matches a rule or, without rules, one that a node would
//! count. A matching line that a node could not parse is rejected, because an open quote could absorb the next line.

use std::borrow::Cow;
use std::str::FromStr;

use crate::event::{LineRules, Parser, Rejection, escape, head};

/// A rule that selects events by their measurement or by one of their tags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRule {
    /// The tag key as written in a line; empty for the measurement.
    key: Vec<u8>,
    /// The value of the tag, or the measurement, as written in a line. `None` selects any value.
    value: Option<Vec<u8>>,
}

impl FromStr for EventRule {
    type Err = &'static str;

    /// Parses a rule without escapes: a measurement (`login`), a tag (`event_type=`) or its value (`event_type=paid`).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.contains(char::is_control) {
            return Err("contains control characters");
        }
        let (key, value) = match text.split_once('=') {
            None if text.is_empty() => return Err("is empty"),
            Some(("", _)) => return Err("has no tag key"),
            None => ("", text),
            Some(tag) => tag,
        };
        let value = (!value.is_empty()).then(|| escape(value));
        Ok(Self { key: escape(key), value })
    }
}

/// The kind of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A line to send to every node.
    Event {
        /// Whether the line has a timestamp.
        has_time: bool,
    },
    /// A line to send to the destination in `passthrough.url`.
    Passthrough,
    /// An event that no node could count, with the reason.
    Rejected(Rejection),
}

/// Determines the kind of each line.
#[derive(Debug)]
pub struct Sorter {
    parser: Parser,
    rules: Vec<EventRule>,
}

impl Sorter {
    /// Creates a sorter. Without rules, every line that a node would count according to `grammar` is an event.
    #[must_use]
    pub fn new(grammar: &LineRules, rules: Vec<EventRule>) -> Self {
        Self { parser: Parser::new(grammar), rules }
    }

    /// Returns a line to send, and its kind. A `statsd` set that is an event is sent in line protocol, and all other lines are
    /// sent unchanged.
    pub(crate) fn sort_any<'a>(&mut self, line: &'a [u8]) -> (Cow<'a, [u8]>, Kind) {
        let kind = self.sort(line);
        if !matches!(kind, Kind::Event { .. })
            && let Some(set) = self.parser.statsd_set(line)
            && let event @ Kind::Event { .. } = self.sort(&set)
        {
            return (Cow::Owned(set), event);
        }
        (Cow::Borrowed(line), kind)
    }

    /// Returns the kind of a line. The line must not include its line ending.
    pub fn sort(&mut self, line: &[u8]) -> Kind {
        let selects = |rule: &EventRule, key: &[u8], value: &[u8]| {
            rule.key == key && rule.value.as_ref().is_none_or(|expected| expected == value)
        };
        let is_named = |(key, value)| self.rules.iter().any(|rule| selects(rule, key, value));
        if !self.rules.is_empty() && !head(line).any(is_named) {
            return Kind::Passthrough;
        }
        match self.parser.parse_hinted(line, self.parser.look_up(line)) {
            // A timestamp added after the backslash would become part of the last field.
            Ok(parsed) if parsed.timestamp.is_none() && line.ends_with(br"\") => {
                Kind::Rejected(Rejection::TrailingBackslash)
            }
            Ok(parsed) => Kind::Event { has_time: parsed.timestamp.is_some() },
            Err(reason) if !self.rules.is_empty() => Kind::Rejected(reason),
            Err(_) => Kind::Passthrough,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rules: &[&str], expected: &[(&str, Kind)]) {
        let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let mut sorter = Sorter::new(&LineRules::default(), rules);
        for (line, kind) in expected {
            assert_eq!(sorter.sort(line.as_bytes()), *kind, "{line}");
        }
    }

    const TIMED: Kind = Kind::Event { has_time: true };
    const UNTIMED: Kind = Kind::Event { has_time: false };

    #[test]
    fn without_rules_countable_lines_are_events() {
        check(
            &[],
            &[
                ("a=b value=u 5", TIMED),
                ("login,a=b value=\"u\",n=1i", UNTIMED),
                ("login value=u", UNTIMED),
                ("a=b value=u  ", UNTIMED),
                (r"a=b value=u\ ", UNTIMED),
                ("cpu,host=a usage=0.5 5", Kind::Passthrough),
                ("a=b value=\"u", Kind::Passthrough),
                ("gorets:1|c", Kind::Passthrough),
                ("a=b value=u x", Kind::Passthrough),
            ],
        );
    }

    #[test]
    fn with_rules_matching_lines_are_events() {
        let rejected = Kind::Rejected;
        check(
            &["login", "event_type=", "kind=a b", "web page"],
            &[
                ("login,a=b value=u 5", TIMED),
                ("login value=u", UNTIMED),
                (" x=y,event_type=paid value=u 5", TIMED),
                (r"kind=a\ b value=u 5", TIMED),
                (r"web\ page,x=y value=u 5", TIMED),
                (r"kind=a\ bc value=u 5", Kind::Passthrough),
                ("logins,a=b value=u 5", Kind::Passthrough),
                ("a=login value=u 5", Kind::Passthrough),
                ("a=b,event_types=paid value=u 5", Kind::Passthrough),
                ("a=b event_type=paid,value=u 5", Kind::Passthrough),
                ("login,a=b value=\"u", rejected(Rejection::QuoteUnclosed)),
                ("event_type=paid n=1", rejected(Rejection::UserMissing)),
            ],
        );
    }

    #[test]
    fn statsd_sets_that_are_events_are_translated() {
        let grammar = LineRules { statsd: true, ..LineRules::default() };
        let mut sorter = Sorter::new(&grammar, vec!["login".parse().unwrap()]);
        let (line, kind) = sorter.sort_any(b"login:ann|s|#a:b");
        assert_eq!((&*line, kind), (&b"login,a=b value=ann"[..], UNTIMED));
        for (line, kind) in [
            ("page:ann|s", Kind::Passthrough),
            ("login:ann|s|#a:", Kind::Passthrough),
            ("login:1|c", Kind::Passthrough),
            ("login value=\"a:b|s|c\" 5", TIMED),
            ("login,path=a:b|s|c value=ann 5", TIMED),
        ] {
            assert_eq!(
                sorter.sort_any(line.as_bytes()),
                (Cow::Borrowed(line.as_bytes()), kind),
                "{line}"
            );
        }
    }

    /// A trailing backslash is an ordinary character, but before a timestamp it would escape the space.
    #[test]
    fn line_that_cannot_be_stamped_is_rejected() {
        let rejected = Kind::Rejected(Rejection::TrailingBackslash);
        check(
            &[],
            &[
                (r"a=b value=u\", rejected),
                (r"a=b value=u,note=x\", rejected),
                (r#"a=b value="u\\""#, UNTIMED),
                (r"a=b value=u\ 5", UNTIMED),
            ],
        );
    }

    #[test]
    fn empty_rules_are_refused() {
        for text in ["", "=", "=x", "a\nb"] {
            text.parse::<EventRule>().unwrap_err();
        }
    }
}
