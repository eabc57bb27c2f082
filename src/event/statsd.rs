//! Translates `statsd` sets to line protocol: `name:user|s`, with the tags of `DogStatsD`, `|#key:value,…`.

use super::escape;

/// The value of a tag without a value.
const NO_VALUE: &str = "true";

/// Returns a set with the name as measurement and the user in a field; `None` for any other line. `user_field` is the text
/// between them, such as ` value=`.
pub(super) fn line_protocol(line: &[u8], user_field: &[u8]) -> Option<Vec<u8>> {
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

    fn translated(line: &str) -> Option<String> {
        let translated = line_protocol(line.as_bytes(), b" value=")?;
        Some(String::from_utf8(translated).unwrap())
    }

    #[test]
    fn sets_become_line_protocol() {
        for (line, expected) in [
            ("logins:ann|s", "logins value=ann"),
            (
                "logins:ann|s|#region:eu,host:web 1,canary",
                r"logins,region=eu,host=web\ 1,canary=true value=ann",
            ),
            ("a:1|s|@0.1|#x:y:z|c:abc", "a,x=y:z value=1"),
            ("a b:c,\"d\\|s", r#"a\ b value="c,\"d\\""#),
            ("a:|s", "a value=\"\""),
        ] {
            assert_eq!(translated(line).as_deref(), Some(expected), "{line}");
        }
    }

    #[test]
    fn other_lines_are_no_sets() {
        for line in ["hits:1|c", "hits:1|ms|#a:b", ":ann|s", "a:b|set", "ann|s", "a=b value=u 5"] {
            assert_eq!(translated(line), None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn the_parser_reads_the_same_name_and_user(name in "[^:|\\p{Cc}\\\\\"#]{1,20}", user in "[^|\\p{Cc}]{1,20}") {
            prop_assume!(!name.starts_with([' ', '\u{feff}']) && name.trim() == name && user.trim() == user);
            let line = format!("{name}:{user}|s");
            let translated = translated(&line).unwrap();
            let mut parser = Parser::new(&LineRules::default());
            let parsed = parser.parse(translated.as_bytes()).unwrap();
            prop_assert_eq!(parsed.user, user);
            let series = [&b"measurement="[..], &escape(&name)].concat();
            prop_assert_eq!(parsed.series.as_bytes(), &series[..]);
        }
    }
}
