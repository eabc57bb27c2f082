//! Translates `statsd` sets to line protocol: `name:user|s`, with the tags of `DogStatsD`, `|#key:value,…`.

use std::borrow::Cow;

use memchr::memmem;

use super::datagram::{Piece, pieces};
use super::escape;

/// The value of a tag without a value.
const NO_VALUE: &str = "true";

/// Returns the datagram with each `statsd` set as a line with the name as measurement and the user in a field. `user_field`
/// is the text between them, such as ` value=`. All other lines, and an incomplete last line, are unchanged.
pub(super) fn translated<'a>(
    datagram: &'a [u8],
    truncated: bool,
    user_field: &[u8],
) -> Cow<'a, [u8]> {
    if memmem::find(datagram, b"|s").is_none() {
        return Cow::Borrowed(datagram);
    }
    let (mut text, mut copied) = (Vec::new(), 0);
    for piece in pieces(datagram, truncated) {
        let Piece::Line(line) = piece else { continue };
        let start = line.as_ptr().addr() - datagram.as_ptr().addr();
        if let Some(translated) = translated_line(line, user_field) {
            text.extend_from_slice(&datagram[copied..start]);
            text.extend_from_slice(&translated);
            copied = start + line.len();
        }
    }
    text.extend_from_slice(&datagram[copied..]);
    Cow::Owned(text)
}

/// Returns the line protocol for a set; `None` for any other line.
fn translated_line(line: &[u8], user_field: &[u8]) -> Option<Vec<u8>> {
    let line = std::str::from_utf8(line).ok()?;
    let (metric, rest) = line.trim_ascii().split_once('|')?;
    let mut rest = rest.split('|');
    let (name, user) = metric.split_once(':').filter(|(name, _)| !name.is_empty())?;
    if rest.next() != Some("s") {
        return None;
    }
    let mut text = escape(name);
    let tags = rest.filter_map(|part| part.strip_prefix('#')).flat_map(|tags| tags.split(','));
    for tag in tags.filter(|tag| !tag.is_empty()) {
        let (key, value) = tag.split_once(':').unwrap_or((tag, NO_VALUE));
        text.extend([&b","[..], &escape(key), b"=", &escape(value)].concat());
    }
    text.extend_from_slice(user_field);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@:+/".contains(&byte);
    if !user.is_empty() && user.bytes().all(is_plain) {
        text.extend_from_slice(user.as_bytes());
    } else {
        let user = user.replace('\\', r"\\").replace('"', r#"\""#);
        text.extend([b"\"", user.as_bytes(), b"\""].concat());
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::{LineRules, Parser};

    #[track_caller]
    fn check(datagram: &str, expected: &str) {
        let translated = translated(datagram.as_bytes(), false, b" value=");
        assert_eq!(String::from_utf8_lossy(&translated), expected);
    }

    #[test]
    fn sets_become_line_protocol() {
        check("logins:ann|s", "logins value=ann");
        check(
            "logins:ann|s|#region:eu,host:web 1,canary\n",
            "logins,region=eu,host=web\\ 1,canary=true value=ann\n",
        );
        check("a:1|s|@0.1|#x:y:z|c:abc", "a,x=y:z value=1");
        check("a b:c,\"d\\|s", r#"a\ b value="c,\"d\\""#);
        check("a:|s", "a value=\"\"");
    }

    #[test]
    fn other_lines_are_unchanged() {
        for text in [
            "hits:1|c",
            "hits:1|ms|#a:b",
            ":ann|s",
            "a:b|set",
            "ann|s",
            "a=b value=u 5",
            "a=b value=\"x|s\" 5",
            // The second line is inside a quoted field.
            "a=b value=\"u\",note=\"x\nb:c|s\" 5",
        ] {
            check(text, text);
        }
        check(
            "hits:1|c\nus:ann|s\r\n# x:y|s\na=b value=u",
            "hits:1|c\nus value=ann\r\n# x:y|s\na=b value=u",
        );
        let cut = translated(b"a:b|s\na:c|s", true, b" value=");
        assert_eq!(&*cut, b"a value=b\na:c|s");
    }

    proptest! {
        #[test]
        fn the_parser_reads_the_same_name_and_user(name in "[^:|\\p{Cc}\\\\\"#]{1,20}", user in "[^|\\p{Cc}]{1,20}") {
            prop_assume!(!name.starts_with([' ', '\u{feff}']) && name.trim() == name && user.trim() == user);
            let line = format!("{name}:{user}|s");
            let translated = translated(line.as_bytes(), false, b" value=");
            let mut parser = Parser::new(&LineRules::default());
            let parsed = parser.parse(&translated).unwrap();
            prop_assert_eq!(parsed.user, user);
            let series = [&b"measurement="[..], &escape(&name)].concat();
            prop_assert_eq!(parsed.series.as_bytes(), &series[..]);
        }
    }
}
