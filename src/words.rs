//! What others say - servers, libraries, the kernel - made fit for one line of a log. Pure.

use std::error::Error;

pub use redis_link::on_one_line;

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
}
