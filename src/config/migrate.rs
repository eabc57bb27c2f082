//! [`migrate`]: renames the sections of earlier versions in a configuration file. Comments and layout stay as they are.

use std::ops::Range;

use toml::de::DeTable;

/// The sections of earlier versions, and their names now.
pub(super) const RENAMED: [Renamed; 1] = [("rest", "passthrough")];

/// The old and the new name of a section.
pub(super) type Renamed = (&'static str, &'static str);

/// Returns a configuration file with the current names, and the renamed sections. Fails if the file is not valid TOML, or has a
/// section with both names.
pub(crate) fn migrate(text: &str) -> Result<(String, Vec<Renamed>), String> {
    let mut text = text.to_owned();
    let mut renamed = Vec::new();
    for (old, new) in RENAMED {
        while let Some(place) = find(&text, old)? {
            text.replace_range(place, new);
            renamed.push((old, new));
        }
    }
    Ok((text, renamed))
}

/// Returns the place of the first top-level key with this name.
fn find(text: &str, name: &str) -> Result<Option<Range<usize>>, String> {
    let table = DeTable::parse(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        format!("{}: {}; fix the file by hand", before.matches('\n').count() + 1, error.message())
    })?;
    let mut keys = table.get_ref().keys();
    Ok(keys.find(|key| key.get_ref() == name).map(toml::Spanned::span))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_renamed_sections_change() {
        for (text, expected) in [
            (
                "# [rest]\n[rest] # a\nurl = \"udp://rest:1\"\n",
                "# [rest]\n[passthrough] # a\nurl = \"udp://rest:1\"\n",
            ),
            (
                "rest.url = \"none:\"\nrest.timeout = \"1s\"\n",
                "passthrough.url = \"none:\"\npassthrough.timeout = \"1s\"\n",
            ),
            ("rest = { url = \"none:\" }\n", "passthrough = { url = \"none:\" }\n"),
            ("[relay]\nrest = 1\n", "[relay]\nrest = 1\n"),
        ] {
            let (migrated, renamed) = migrate(text).unwrap();
            assert_eq!(migrated, expected);
            assert_eq!(renamed.is_empty(), migrated == text);
            assert_eq!(migrate(&migrated).unwrap(), (expected.to_owned(), Vec::new()));
        }
        for invalid in ["\nrest = \"secret\" x", "[rest]\n[passthrough]\nurl = \"secret\"\n"] {
            let error = migrate(invalid).unwrap_err();
            assert!(error.starts_with("2: ") && !error.contains("secret"), "{error}");
        }
    }
}
