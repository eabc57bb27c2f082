//! Tests of the expected counts.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn counts_of(datagrams: &[(&[&str], bool)]) -> Result<String, NotSimple> {
    let mut expected = Expected::default();
    for (lines, reached) in datagrams {
        for line in *lines {
            expected.add(line.as_bytes())?;
        }
        if *reached {
            expected.confirm();
        } else {
            expected.discard();
        }
    }
    Ok(expected.lines().unwrap())
}

#[test]
fn the_events_of_the_readme_have_the_counts_of_the_readme() {
    let counts = counts_of(&[(
        &[
            "event_type=http-5xx,product=productA value=testusername1 1480876707352348928",
            "event_type=os_error,product=productA value=testusername2 1480876707352348928",
            "event_type=browser_error,product=productB value=testusername3 1480876707352348928",
            "event_type=browser_error,product=productB value=testusername4 1480876707352348928",
            "event_type=http-5xx,product=productA value=testusername1 1480876707352348930",
        ],
        true,
    )]);
    let expected = "\
cumulative_user_event,event_type=browser_error,product=productB value=2 1480876680000000000
cumulative_user_event,event_type=http-5xx,product=productA value=2 1480876680000000000
cumulative_user_event,event_type=os_error,product=productA value=1 1480876680000000000
unique_user_event,event_type=browser_error,product=productB value=2 1480876680000000000
unique_user_event,event_type=http-5xx,product=productA value=1 1480876680000000000
unique_user_event,event_type=os_error,product=productA value=1 1480876680000000000
";
    assert_eq!(counts.unwrap(), expected);
}

#[test]
fn the_order_of_tags_and_repeats_make_no_difference() {
    let counts = counts_of(&[(
        &["b=1,a=2 value=x 5", "a=2,b=1 value=x 5\r", "# a comment", "\t # a comment"],
        true,
    )]);
    let expected = "cumulative_user_event,a=2,b=1 value=1 0\nunique_user_event,a=2,b=1 value=1 0\n";
    assert_eq!(counts.unwrap(), expected);
}

#[test]
fn events_without_a_sent_copy_do_not_count() {
    let counts = counts_of(&[
        (&["a=1 value=x 5"], true),
        (&["a=1 value=y 5", "a=1 value=x 5"], false),
        (&["a=1 value=x 6"], true),
    ]);
    let expected = "cumulative_user_event,a=1 value=2 0\nunique_user_event,a=1 value=1 0\n";
    assert_eq!(counts.unwrap(), expected);
}

fn rollup(text: &str) -> Rollup {
    text.parse().unwrap()
}

#[test]
fn windows_count_the_users_of_minutes_and_groups_once() {
    let rollups = ["hourly every=1h", "all every=1day time_zone=Asia/Kolkata by=none drop=p=2"];
    let mut expected = Expected::with_rollups(rollups.map(rollup).into());
    for (product, user, minute) in
        [(1, "x", 0), (1, "x", 0), (1, "x", 1), (1, "y", 1), (1, "x", 60), (2, "y", 0), (3, "x", 1)]
    {
        let nanos = minute * MINUTE_NANOS;
        expected.add(format!("p={product} value={user} {nanos}").as_bytes()).unwrap();
    }
    expected.confirm();
    let lines = expected.lines().unwrap();
    let windows: Vec<_> = lines.lines().filter(|line| !line.contains("user_event,")).collect();
    let of_windows = "\
cumulative_user_event_1h,p=1 value=1 3600000000000
cumulative_user_event_1h,p=1 value=3 0
cumulative_user_event_1h,p=2 value=1 0
cumulative_user_event_1h,p=3 value=1 0
cumulative_user_event_all value=5 -19800000000000
unique_user_event_1h,p=1 value=1,error=0 3600000000000
unique_user_event_1h,p=1 value=2,error=0 0
unique_user_event_1h,p=2 value=1,error=0 0
unique_user_event_1h,p=3 value=1,error=0 0
unique_user_event_all value=2,error=0 -19800000000000";
    assert_eq!(windows.join("\n"), of_windows);
}

#[test]
fn windows_that_contradict_their_minutes_are_found() {
    let mut expected = Expected::default();
    for line in ["a=1 value=x 5", "a=1 value=y 6", "a=1 value=x 60000000000"] {
        expected.add(line.as_bytes()).unwrap();
    }
    let [minute, hour] = ["m every=1m", "h every=1h"].map(rollup);
    let [minutes, hours] = [&minute, &hour].map(|rollup| expected.count(rollup, &["a=1"]).unwrap());
    let window = ("a=1".to_owned(), 0);
    assert_eq!(hours, [(window.clone(), Counts { users: 2, events: 3 })].into());
    let with = |users, events| [(window.clone(), Counts { users, events })].into();
    let other = [(("a=2".to_owned(), 0), Counts { users: 2, events: 3 })].into();
    for (hours, is_right) in [
        (with(2, 3), true),
        (with(3, 3), true),
        (with(1, 3), false),
        (with(4, 3), false),
        (with(2, 2), false),
        (Windows::new(), false),
        (other, false),
    ] {
        assert_eq!(check(&hours, &hour, &minutes, &minute).is_ok(), is_right, "{hours:?}");
    }
    // Minutes have no part that is an hour.
    assert_eq!(check(&minutes, &minute, &with(9, 9), &hour), Ok(()));
}

#[test]
fn lines_without_a_defined_count_are_refused() {
    for (line, reason) in [
        ("a=1 value=x", PARTS),
        ("a=1  value=x 5", PARTS),
        ("a=1 value=x 5 6", PARTS),
        ("a=\\ 1 value=x 5", CHARACTER),
        ("a=1 value=\"x\" 5", CHARACTER),
        ("a=1\t value=x 5", CHARACTER),
        ("events,a=1 value=x 5", TAG),
        ("a= value=x 5", TAG),
        ("=1 value=x 5", TAG),
        ("a=1, value=x 5", TAG),
        ("a=1=2 value=x 5", TAG),
        ("a=1,a=2 value=x 5", REPEATED_TAG),
        ("a=1 user=x 5", USER),
        ("a=1 value= 5", USER),
        ("a=1 value=x,other=y 5", USER),
        ("a=1 value=x -5", TIMESTAMP),
        ("a=1 value=x 9223372036854775808", TIMESTAMP),
        ("a=1 value=x ", TIMESTAMP),
    ] {
        assert_eq!(counts_of(&[(&[line], true)]), Err(reason), "{line:?}");
    }
}

proptest! {
    #[test]
    fn sets_count_the_same(
        events in prop::collection::vec((0..3_u8, 0..4_u8, 0..180_i64, any::<bool>()), 0..200),
    ) {
        let mut sets: BTreeMap<_, (BTreeSet<_>, BTreeSet<_>)> = BTreeMap::new();
        let mut lines = Vec::new();
        for (series, user, second, turned) in events {
            let nanos = second * 1_000_000_000;
            let tags = if turned { format!("t={series},p=1") } else { format!("p=1,t={series}") };
            lines.push(format!("{tags} value=u{user} {nanos}"));
            let (users, pairs) = sets.entry((series, second / 60)).or_default();
            users.insert(user);
            pairs.insert((user, nanos));
        }
        let mut expected = BTreeSet::new();
        for ((series, minute), (users, pairs)) in sets {
            let start = minute * 60_000_000_000;
            let (unique, cumulative) = (users.len(), pairs.len());
            expected.insert(format!("cumulative_user_event,p=1,t={series} value={cumulative} {start}\n"));
            expected.insert(format!("unique_user_event,p=1,t={series} value={unique} {start}\n"));
        }
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        prop_assert_eq!(counts_of(&[(&lines, true)]).unwrap(), expected.into_iter().collect::<String>());
    }
}
