//! Formats errors and messages from servers, libraries and the kernel as a single log line. Pure.

use std::error::Error;

pub use redis_link::{find_tls, on_one_line};

/// Formats an error followed by its causes, skipping each cause whose text is already included.
#[must_use]
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

/// Returns the first `chars` characters of a text on one line, without control or invisible characters; `…` marks a cut.
#[must_use]
pub fn beginning(text: &str, chars: usize) -> String {
    let is_hidden = |c: &char| matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    let line: String = on_one_line(text).chars().filter(|c| !is_hidden(c)).collect();
    match line.char_indices().nth(chars) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{message}")]
    struct Outer {
        message: &'static str,
        source: io::Error,
    }

    #[test]
    fn a_cause_is_named_once() {
        for (message, expected) in [
            ("cannot begin", "cannot begin: no room"),
            ("cannot begin: no room", "cannot begin: no room"),
            ("cannot begin: no room; make some", "cannot begin: no room; make some"),
        ] {
            let source = io::Error::other("no room");
            assert_eq!(chain(&Outer { message, source }), expected);
        }
    }
}
