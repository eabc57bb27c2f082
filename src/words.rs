//! What others say - servers, libraries, the kernel - made fit for one line of a log. Pure.

use std::error::Error;

/// The longest piece of what another says that is kept, in bytes.
pub const BYTES_MAX: usize = 512;

/// At most [`BYTES_MAX`] bytes, each run of blanks and control characters one space.
#[must_use]
pub fn on_one_line(text: &str) -> String {
    let mut line = String::new();
    for word in text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|w| !w.is_empty())
    {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if line.len() > BYTES_MAX {
            let end = (0..=BYTES_MAX)
                .rev()
                .find(|end| line.is_char_boundary(*end));
            line.truncate(end.unwrap_or(0));
            break;
        }
    }
    line
}

/// An error and all that caused it. Many errors say their cause themselves: no words are said twice.
#[must_use]
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !said.contains(&next) {
            said = format!("{said}: {next}");
        }
        cause = error.source();
    }
    said
}

#[cfg(test)]
mod tests {
    use std::io;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{words}")]
    struct Outer {
        words: &'static str,
        source: io::Error,
    }

    #[test]
    fn a_cause_is_said_once() {
        for (words, expected) in [
            ("cannot begin", "cannot begin: no room"),
            ("cannot begin: no room", "cannot begin: no room"),
            (
                "cannot begin: no room; make some",
                "cannot begin: no room; make some",
            ),
        ] {
            let source = io::Error::other("no room");
            assert_eq!(chain(&Outer { words, source }), expected);
        }
    }

    proptest! {
        #[test]
        fn any_words_are_one_short_line(text in "(?s).{0,600}") {
            let line = on_one_line(&text);
            prop_assert!(line.len() <= BYTES_MAX);
            prop_assert!(!line.contains(char::is_control));
        }
    }
}
