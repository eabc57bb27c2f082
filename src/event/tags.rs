//! The tags of a series, taken apart.

/// The tags of a canonical series, in its order, without the backslashes that escape. A part without an equals
/// sign, which no parser lets in, is a key with an empty value.
#[must_use]
pub fn tags(series: &str) -> Vec<(String, String)> {
    let mut tags = Vec::new();
    if series.is_empty() {
        return tags;
    }
    let (mut key, mut value) = (String::new(), String::new());
    let mut in_value = false;
    let mut characters = series.chars().peekable();
    while let Some(character) = characters.next() {
        let escaped = character == '\\' && matches!(characters.peek(), Some(',' | '=' | ' '));
        match character {
            ',' => {
                tags.push((std::mem::take(&mut key), std::mem::take(&mut value)));
                in_value = false;
            }
            '=' if !in_value => in_value = true,
            _ => {
                let literal = if escaped { characters.next() } else { None };
                let part = if in_value { &mut value } else { &mut key };
                part.push(literal.unwrap_or(character));
            }
        }
    }
    tags.push((key, value));
    tags
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_decoded() {
        let check = |series: &str, expected: &[(&str, &str)]| {
            let expected: Vec<_> = expected
                .iter()
                .map(|&(key, value)| (key.to_owned(), value.to_owned()))
                .collect();
            assert_eq!(tags(series), expected, "{series}");
        };
        check("", &[]);
        check("a=1,b=2", &[("a", "1"), ("b", "2")]);
        check(r"a\=b=c\,d\ e,x=\y\", &[("a=b", "c,d e"), ("x", r"\y\")]);
        check("a=", &[("a", "")]);
    }
}
