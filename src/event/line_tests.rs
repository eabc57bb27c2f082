//! Tests the grammar and the cache of the parser.

use proptest::prelude::*;

use super::*;

/// Returns the default rules, except that measurements are left out of the series.
fn rules() -> LineRules {
    LineRules { measurement_tag: None, ..LineRules::default() }
}

#[track_caller]
fn accept(line: &str, series: &str, user: &str, timestamp: impl Into<Option<i64>>) {
    let mut parser = Parser::new(&rules());
    let timestamp = timestamp.into();
    let expected = Line { series, user, timestamp };
    // The second time, the tags are cached.
    for _ in 0..2 {
        assert_eq!(parser.parse(line.as_bytes()), Ok(expected), "{line}");
    }
}

#[track_caller]
fn refuse(line: impl AsRef<[u8]>, reason: Rejection) {
    let mut parser = Parser::new(&rules());
    assert_eq!(parser.parse(line.as_ref()), Err(reason));
}

#[test]
fn tags_are_cached_once_with_any_leading_spaces() {
    let mut parser = Parser::new(&rules());
    for line in ["  a=1 value=u", "a=1 value=u", " a=1 value=u", "  a=1  value=u"] {
        assert!(parser.parse(line.as_bytes()).is_ok(), "{line:?}");
    }
    assert_eq!(parser.heads.known.len(), 1);
}

#[test]
fn both_line_forms_are_the_same_event() {
    const SERIES: &str = "event_type=http-5xx,product=productA";
    const AT: i64 = 1_480_876_707_352_348_928;
    accept(
        "event_type=http-5xx,product=productA value=testusername1 1480876707352348928",
        SERIES,
        "testusername1",
        AT,
    );
    accept(
        "events,event_type=http-5xx,product=productA value=\"testusername1\" 1480876707352348928",
        SERIES,
        "testusername1",
        AT,
    );
}

#[test]
fn tags_are_sorted_by_key() {
    accept("b=1,a=2 value=u", "a=2,b=1", "u", None);
    accept("a=2,b=1 value=u", "a=2,b=1", "u", None);
    accept("m,c=3,b=1,a=2 value=u", "a=2,b=1,c=3", "u", None);
}

#[test]
fn escapes_in_tags_are_decoded() {
    accept(r"a=1\,2,b=x\=y\ z value=u 1", r"a=1\,2,b=x\=y\ z", "u", 1);
    accept(r"a=back\slash value=u 1", r"a=back\slash", "u", 1);
    accept(r"a=two\\b value=u 1", r"a=two\\b", "u", 1);
    for tags in [r"a=two\\,b", r"a=two\\ b", r"a\\=b=c", r"a=b\\\=c"] {
        refuse(format!("{tags} value=u 1"), Rejection::AmbiguousBackslash);
    }
    refuse(r"m\=1,a= value=u", Rejection::TagMalformed);
    accept(r"m\=1,a=2 value=u", "a=2", "u", None);
}

#[test]
fn user_is_text_and_never_a_number() {
    for user in ["007", "1e400", "1i", "true", "-0.0", "a=b", "ü", "a\"b", r"DOMAIN\user", "x\\"] {
        accept(&format!("a=1 value={user}"), "a=1", user, None);
    }
}

#[test]
fn each_spelling_of_a_number_is_a_user() {
    let users = [
        (r#""12""#, "12"),
        ("12", "12"),
        ("12i", "12i"),
        ("12u", "12u"),
        ("12.0", "12.0"),
        ("1e+06", "1e+06"),
        ("1000000", "1000000"),
        ("\u{200b}ann", "\u{200b}ann"),
        ("\u{a0}ann", "\u{a0}ann"),
        ("\u{feff}ann", "\u{feff}ann"),
    ];
    for (written, user) in users {
        accept(&format!("a=1 value={written} 1"), "a=1", user, 1);
    }
}

#[test]
fn quotes_and_escapes_of_the_user_are_removed() {
    accept(r#"a=1 value="a b, c=d" 5"#, "a=1", "a b, c=d", 5);
    accept(r#"a=1 value="say \"hi\" \\ \n" 5"#, "a=1", r#"say "hi" \ \n"#, 5);
    accept(r"a=1 value=a\ b\,c 5", "a=1", "a b,c", 5);
}

#[test]
fn other_fields_are_skipped() {
    accept(r#"a=1 note="x, value=z",value=u,n=1i 5"#, "a=1", "u", 5);
    accept("a=1 note=\"x\r\n\u{85}\",value=u 5", "a=1", "u", 5);
    refuse("a=1 n=1,m=2 5", Rejection::UserMissing);
    refuse("a=1 value=u,value=v 5", Rejection::UserRepeated);
    refuse("a=1 value=u,=1", Rejection::FieldMalformed);
    refuse("a=1 value=u,n=", Rejection::FieldMalformed);
    refuse("a=1 value=u,", Rejection::FieldMalformed);
}

#[test]
fn several_spaces_are_accepted() {
    accept("  a=1   value=u   5  ", "a=1", "u", 5);
}

/// If the escaped space were trimmed, the line would mean a different user than the same line followed by a timestamp.
#[test]
fn trailing_escaped_space_belongs_to_the_user() {
    accept(r"a=1 value=x\ 5", "a=1", "x 5", None);
    accept(r"a=1 value=x\  5", "a=1", "x ", 5);
    for end in [r"x\ ", r"x\    "] {
        accept(&format!("a=1 value={end}"), "a=1", "x ", None);
    }
}

#[test]
fn every_bad_tag_has_its_reason() {
    refuse("", Rejection::TagMalformed);
    refuse("m value=u", Rejection::TagsMissing);
    refuse("m,b value=u", Rejection::TagMalformed);
    refuse(",a=1 value=u", Rejection::TagMalformed);
    refuse("a=1, value=u", Rejection::TagMalformed);
    refuse("=1 value=u", Rejection::TagKeyEmpty);
    refuse("a=1,=2 value=u", Rejection::TagKeyEmpty);
    refuse("a=1=2 value=u", Rejection::TagMalformed);
    refuse("a=1,b=2,a=3 value=u", Rejection::TagKeyRepeated);
    refuse(r"a=1\", Rejection::TrailingBackslash);
}

#[test]
fn every_bad_user_and_timestamp_has_its_reason() {
    refuse("a=1", Rejection::UserMissing);
    refuse("a=1 value=", Rejection::UserEmpty);
    refuse(r#"a=1 value="""#, Rejection::UserEmpty);
    refuse(r#"a=1 value="u"#, Rejection::QuoteUnclosed);
    refuse(r#"a=1 value="u"x"#, Rejection::QuoteUnclosed);
    for timestamp in ["x", "1.5", "+1", "-", "1 2", "9223372036854775808", "0x1"] {
        refuse(format!("a=1 value=u {timestamp}"), Rejection::TimestampInvalid);
    }
}

#[test]
fn every_limit_has_its_reason() {
    let long = |n: usize| "x".repeat(n);
    refuse(format!("a=1 value=u,n={}", long(8192)), Rejection::LineTooLong);
    refuse(format!("a={} value=u", long(257)), Rejection::TagTooLong);
    refuse(format!("{}=1 value=u", long(257)), Rejection::TagTooLong);
    refuse(format!("{},a=1 value=u", long(257)), Rejection::TagTooLong);
    refuse(format!("a=1 value={}", long(257)), Rejection::UserTooLong);
    let tags: Vec<_> = (0..5).map(|n| format!("{n}={}", long(250))).collect();
    refuse(format!("{} value=u", tags.join(",")), Rejection::SeriesTooLong);
}

#[test]
fn parts_of_the_maximum_length_are_accepted() {
    let long = |n: usize| "x".repeat(n);
    let (tag, user) = (format!("{}={}", long(256), long(256)), long(256));
    accept(&format!("{tag} value={user}"), &tag, &user, None);
    // 1024 bytes, including the commas.
    let tags = [253, 253, 253, 254].map(long);
    let tags: Vec<_> = (0..).zip(tags).map(|(n, tag)| format!("{n}={tag}")).collect();
    let series = tags.join(",");
    accept(&format!("{series} value=u"), &series, "u", None);
}

#[test]
fn invalid_text_is_refused() {
    refuse(b"a=\xff value=u", Rejection::NotUtf8);
    refuse(b"a=1\t value=u", Rejection::ControlCharacter);
    refuse(b"a=1 value=u\x00", Rejection::ControlCharacter);
    refuse("a=1 value=u\u{85}", Rejection::ControlCharacter);
    refuse("a=1 value=\"u\nv\"", Rejection::ControlCharacter);
    refuse("a=1 value=u,n=\"\n\",m=x\ny", Rejection::ControlCharacter);
}

#[test]
fn timestamps_take_the_configured_unit() {
    for (precision, text, nanos) in [
        (Precision::Seconds, "1480876707", 1_480_876_707_000_000_000),
        (Precision::Milliseconds, "1480876707352", 1_480_876_707_352_000_000),
        (Precision::Microseconds, "-1", -1_000),
    ] {
        let mut parser = Parser::new(&LineRules { precision, ..rules() });
        let line = format!("a=1 value=u {text}");
        assert_eq!(parser.parse(line.as_bytes()).unwrap().timestamp, Some(nanos));
    }
    let mut parser = Parser::new(&LineRules { precision: Precision::Seconds, ..rules() });
    for (number, reason) in [
        ("99999999999", Rejection::TimestampInvalid),
        ("1480876707352", Rejection::TimestampInMilliseconds),
        ("1480876707352348", Rejection::TimestampInMicroseconds),
        ("1480876707352348928", Rejection::TimestampInNanoseconds),
    ] {
        let line = format!("a=1 value=u {number}");
        assert_eq!(parser.parse(line.as_bytes()), Err(reason));
    }
}

#[test]
fn measurement_distinguishes_series() {
    let mut parser = Parser::new(&LineRules::default());
    for event in ["login", "logout"] {
        let line = format!("{event},host=a value=\"x\" 1");
        let series = parser.parse(line.as_bytes()).unwrap().series;
        assert_eq!(series, format!("host=a,measurement={event}"));
    }
    assert_eq!(parser.parse(b"login,measurement=m value=u"), Err(Rejection::TagKeyRepeated));
}

#[test]
fn a_measurement_can_be_made_a_tag() {
    let rules = LineRules { measurement_tag: Some("from app".to_owned()), ..rules() };
    let mut parser = Parser::new(&rules);
    let mut series = |line: &str| parser.parse(line.as_bytes()).map(|line| line.series.to_owned());
    assert_eq!(series("m,a=1 value=u").unwrap(), r"a=1,from\ app=m");
    assert_eq!(series("m value=u").unwrap(), r"from\ app=m");
    assert_eq!(series("a=1 value=u").unwrap(), "a=1");
    assert_eq!(series(r"m,from\ app=1 value=u"), Err(Rejection::TagKeyRepeated));
}

/// Generates text that a tag can hold: not empty, no control characters, and no backslash at the end or before an escaped
/// character.
fn tag_text() -> impl Strategy<Value = String> {
    "[^\\p{Cc}]{1,12}".prop_filter("cannot be represented", |text| {
        !(text.ends_with('\\') || [r"\ ", r"\,", r"\="].iter().any(|end| text.contains(end)))
    })
}

fn escaped(text: &str) -> String {
    String::from_utf8(escape(text)).unwrap()
}

proptest! {
    #[test]
    fn no_bytes_panic(line: Vec<u8>) {
        let _ = Parser::new(&rules()).parse(&line);
    }

    #[test]
    fn no_mutation_of_a_line_panics(at in 0usize..60, byte: u8) {
        let mut line = br#"m,b=x\,y,a=1 value="u\"v",n=1i 1480876707352348928"#.to_vec();
        let at = at % line.len();
        line[at] = byte;
        let _ = Parser::new(&rules()).parse(&line);
    }

    #[test]
    fn encoded_lines_parse_back(
        tags in prop::collection::btree_map(tag_text(), tag_text(), 1..5),
        user in "[^\\p{Cc}]{1,20}",
        timestamp: i64,
        shuffle in any::<prop::sample::Index>(),
    ) {
        let mut pairs: Vec<_> =
            tags.iter().map(|(key, value)| (escaped(key), escaped(value))).collect();
        let turn = shuffle.index(pairs.len());
        pairs.rotate_left(turn);
        let tags: Vec<_> = pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
        pairs.sort();
        let series: Vec<_> = pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let quoted = user.replace('\\', "\\\\").replace('"', "\\\"");
        // Starts with a measurement, since a first tag that begins with `#` or a space would be read differently.
        let line = format!("m,{} value=\"{quoted}\" {timestamp}", tags.join(","));
        let mut parser = Parser::new(&rules());
        let expected =
            Line { series: &series.join(","), user: &user, timestamp: Some(timestamp) };
        for _ in 0..2 {
            prop_assert_eq!(parser.parse(line.as_bytes()), Ok(expected), "{}", line);
        }
    }

    /// On lines that are strict line protocol, both parsers see the same tags, user and timestamp.
    #[test]
    fn agrees_with_the_reference_parser(
        tags in prop::collection::btree_map("[a-zA-Z0-9 ,=._-]{1,8}", "[a-zA-Z0-9 ,=._-]{1,8}", 1..5),
        user in "[a-zA-Z0-9 ,=\"._-]{1,12}",
        timestamp: i64,
    ) {
        let tags: Vec<_> =
            tags.iter().map(|(k, v)| format!("{}={}", escaped(k), escaped(v))).collect();
        let quoted = user.replace('"', "\\\"");
        let line = format!("events,{} value=\"{quoted}\" {timestamp}", tags.join(","));
        let expected = influxdb_line_protocol::parse_lines(&line).next().unwrap().unwrap();
        let mut expected_tags: Vec<_> = expected
            .series
            .tag_set
            .iter()
            .flatten()
            .map(|(k, v)| format!("{}={}", escaped(k.as_str()), escaped(v.as_str())))
            .collect();
        expected_tags.sort();
        let mut parser = Parser::new(&rules());
        let parsed = parser.parse(line.as_bytes()).unwrap();
        let mut sorted_tags: Vec<_> = tags.clone();
        sorted_tags.sort();
        prop_assert_eq!(&sorted_tags, &expected_tags);
        prop_assert_eq!(parsed.series.len(), sorted_tags.join(",").len());
        prop_assert_eq!(parsed.timestamp, expected.timestamp);
        let influxdb_line_protocol::FieldValue::String(text) = &expected.field_set[0].1 else {
            panic!("not a string: {line}");
        };
        prop_assert_eq!(parsed.user, text.as_str());
    }
}

#[test]
fn the_memory_of_heads_is_bounded() {
    let mut heads = Heads::default();
    let mut most = 0;
    for number in 0..300_000 {
        let tags = format!("a={number}");
        heads.learn(Some(&tags), &tags);
        most = most.max(heads.known.len());
    }
    assert!(heads.known.len() < most && most < HEADS_BYTES_MAX / HEAD_BYTES);
    assert!(heads.find(b"a=0").is_none() && heads.find(b"a=299999").is_some());
}

proptest! {
    /// No matter which lines a parser has seen, it parses the next line like a new parser.
    #[test]
    fn known_tags_change_nothing(
        lines in prop::collection::vec(" ?(a=x|(m,)?[ab]=[xy\\\\,= ]{1,3}) (value=[u\"\\\\,= \u{80}é\u{7f}]{0,3})?( {1,2}(-?0?1|2e|9{19}|9{20})? ?)?", 1..8),
    ) {
        let limits = LineLimits { user: 2, ..LineRules::default().limits };
        let rules = LineRules { limits, ..LineRules::default() };
        let mut known = Parser::new(&rules);
        for line in lines.iter().chain(&lines) {
            let mut new = Parser::new(&rules);
            let expected = new.parse(line.as_bytes());
            prop_assert_eq!(known.parse(line.as_bytes()), expected, "{}", line);
        }
        // The same lines, looked up before the first of them is parsed.
        let mut together = Parser::new(&rules);
        let mut all = lines.iter().chain(&lines).map(|line| Piece::Line(line.as_bytes()));
        while let Some(group) = together.look_up_lines(&mut all) {
            for (piece, looked_up) in group.into_iter().flatten() {
                let Piece::Line(line) = piece else { unreachable!() };
                let mut new = Parser::new(&rules);
                let expected = new.parse(line);
                let parsed = together.parse_hinted(line, looked_up);
                let parsed = parsed.map(|line| (line.series, str::from_utf8(line.user).unwrap(), line.timestamp));
                prop_assert_eq!(parsed, expected.map(|line| (line.series, line.user, line.timestamp)));
            }
        }
        prop_assert_eq!(together.heads.known.len(), known.heads.known.len());
    }
}
