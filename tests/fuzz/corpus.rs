//! Checks that every corpus is replayed and covers its subject.

use event_data_service::event::{Parser, Rejection};
use testing::prelude::*;

use crate::line::all_rules;

/// The names of all corpora, in the form `<file>__<function>`.
const TARGETS: &[&str] = &[
    "config__any_text_as_a_file",
    "config__any_text_as_variables",
    "datagram__any_bytes_as_a_datagram",
    "line__any_bytes_as_a_line",
    "points__any_series_as_points",
    "relay__any_bytes_through_a_relay",
    "spool__any_bytes_as_a_segment",
];

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/__fuzz__")
}

/// A corpus without a target would never be replayed.
#[test]
fn every_target_has_a_corpus_and_every_corpus_a_target() {
    let found: BTreeSet<_> = fs::read_dir(directory())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(found, TARGETS.iter().map(|&name| name.to_owned()).collect());
    let main = fs::read_to_string(directory().join("../main.rs")).unwrap();
    for target in TARGETS {
        let (file, function) = target.split_once("__").unwrap();
        assert!(main.contains(&format!("mod {file};")), "{target}");
        let source = fs::read_to_string(directory().join(format!("../{file}.rs"))).unwrap();
        assert!(source.contains(&format!("fn {function}()")), "{target}");
        let seeds = fs::read_dir(directory().join(target).join("corpus")).unwrap();
        assert!(seeds.count() > 0, "{target}");
    }
}

/// The corpus for lines covers accepted lines and every reason for which the parser rejects a line.
#[test]
fn the_seeds_of_lines_reach_every_verdict() {
    let mut verdicts = BTreeSet::new();
    for entry in fs::read_dir(directory().join("line__any_bytes_as_a_line/corpus")).unwrap() {
        let seed = fs::read(entry.unwrap().path()).unwrap();
        for rules in all_rules() {
            let verdict = Parser::new(&rules).parse(&seed).map(|_| ());
            verdicts.insert(verdict.map_or_else(Rejection::label, |()| "taken"));
        }
    }
    // These reasons depend on the datagram or request, the clock, the source or the recorder, not on the line.
    let others = [
        Rejection::Truncated,
        Rejection::TimestampInSeconds,
        Rejection::TooOld,
        Rejection::TooFarAhead,
        Rejection::TooManyUsers,
        Rejection::TimestampMissing,
        Rejection::TooManySeries,
        Rejection::RateLimited,
    ];
    let reasons = Rejection::ALL.iter().filter(|reason| !others.contains(reason));
    let expected: BTreeSet<_> = reasons.map(|reason| reason.label()).chain(["taken"]).collect();
    assert_eq!(verdicts, expected);
}
