//! Every finding of `eds status` has a working remedy: a test provokes it, follows the printed remedy, and sees it end.
//!
//! A new finding needs such a test in one of the files below, which calls [`Remedy::of`] with its id.

use event_data_service::config::{KEYS, Key};
use event_data_service::diagnosis::remedies;
use event_data_service::telemetry::{Format, Metrics};
use event_data_service::{cli, node};

use crate::prelude::*;
use crate::status::{site, status};

mod nodes;
mod outputs;
mod redis;
mod relays;
mod senders;

const TESTS: [&str; 5] = [
    include_str!("remedies/nodes.rs"),
    include_str!("remedies/outputs.rs"),
    include_str!("remedies/redis.rs"),
    include_str!("remedies/relays.rs"),
    include_str!("remedies/senders.rs"),
];

/// Findings tested elsewhere: those of `eds check --connect` in `connect.rs` and `telemetry.rs`, `leftovers` in
/// `partitions.rs`, and `windows-incomplete` in `rollups.rs`.
const OTHERS: [&str; 8] = [
    "cannot-bind",
    "spool-directory",
    "spool-disk",
    "few-descriptors",
    "small-buffer",
    "collector",
    "leftovers",
    "windows-incomplete",
];

#[derive(Debug)]
struct Remedy {
    text: String,
}

impl Remedy {
    /// Waits until `eds status` has this finding with these words. Returns its remedy after checking the names in it.
    #[track_caller]
    fn of(node: &Node, id: &str, words: &[&str]) -> Self {
        Self::seen_by(|| status(node), id, words)
    }

    /// Like [`Self::of`], but reads the status that the node itself reports.
    #[track_caller]
    fn of_the_node_itself(node: &Node, id: &str, words: &[&str]) -> Self {
        Self::seen_by(|| own_status(node), id, words)
    }

    #[track_caller]
    fn seen_by(ask: impl Fn() -> Value, id: &str, words: &[&str]) -> Self {
        let text = eventually(&format!("{id} is found with {words:?}"), SOON, || {
            let status = ask();
            let found = findings(&status, id).into_iter().find_map(|finding| {
                let texts = ["where", "what", "why", "remedy"];
                let all = texts.map(|part| finding[part].as_str().unwrap()).join(" | ");
                let remedy = finding["remedy"].as_str().unwrap().to_owned();
                words.iter().all(|word| all.contains(word)).then_some(remedy)
            });
            found.ok_or_else(|| status["findings"].to_string())
        });
        assert_names_what_exists(&text);
        Self { text }
    }

    #[track_caller]
    fn says(&self, words: &[&str]) -> &Self {
        for word in words {
            assert!(self.text.contains(word), "{word:?} is not in: {}", self.text);
        }
        self
    }

    /// Returns the words of the command in the remedy that starts with `beginning`.
    #[track_caller]
    fn command(&self, beginning: &str) -> Vec<String> {
        let mut commands = commands(&self.text);
        let found = commands.find(|command| command.starts_with(beginning));
        let found = found.unwrap_or_else(|| panic!("no {beginning:?} in: {}", self.text));
        found.split(' ').map(str::to_owned).collect()
    }

    /// Runs the `eds` command in the remedy that starts with `beginning`, with the configuration of `node`.
    #[track_caller]
    fn run(&self, beginning: &str, node: &Node) {
        let words = self.command(beginning);
        let words: Vec<_> = words[1..].iter().map(String::as_str).collect();
        node.says(&words, 0, "");
    }

    /// Runs the Redis command in the remedy that starts with `beginning`.
    #[track_caller]
    fn run_at(&self, beginning: &str, redis: &RedisServer) {
        let words = self.command(beginning);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        redis.query::<::redis::Value>(&words);
    }
}

fn own_status(node: &Node) -> Value {
    let answer = node.get("/api/v1/status");
    let body = answer.map_or("{}".to_owned(), |answer| answer.body);
    serde_json::from_str(&body).unwrap_or(Value::Null)
}

fn findings(status: &Value, id: &str) -> Vec<Value> {
    let all = status["findings"].as_array().cloned().unwrap_or_default();
    all.into_iter().filter(|finding| finding["id"] == id).collect()
}

#[track_caller]
fn wait_gone(node: &Node, id: &str) {
    wait_gone_from(|| status(node), id);
}

#[track_caller]
fn wait_gone_from(ask: impl Fn() -> Value, id: &str) {
    eventually(&format!("{id} is gone"), SOON, || {
        let status = ask();
        let is_answer = status["findings"].is_array();
        let left = findings(&status, id);
        when(is_answer && left.is_empty(), format!("{left:?}"))
    });
}

fn send(node: &Node, at_ns: i64, events: i64) {
    let lines = (0..events)
        .map(|number| format!("event_type=e{number} value=u{number} {}", at_ns + number));
    Sender::paced_by(node).send_all(lines);
}

fn commands(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn sections() -> BTreeSet<&'static str> {
    let sections = KEYS.iter().map(Key::section);
    sections.filter(|section| !section.is_empty()).collect()
}

/// Asserts that all `eds` commands, keys, variables, files, metrics and paths in a text for operators exist.
#[track_caller]
fn assert_names_what_exists(text: &str) {
    for command in commands(text).filter(|command| command.starts_with("eds ")) {
        let parsed = cli::command().try_get_matches_from(command.split(' '));
        assert!(parsed.is_ok(), "{command:?} is not an eds command; in: {text}");
    }
    let plain: String = text.split('`').step_by(2).collect::<Vec<_>>().join(" ");
    for name in cli::command().get_subcommands().map(|subcommand| subcommand.get_name().to_owned())
    {
        let bare = format!("eds {name} ");
        assert!(!plain.contains(&bare), "`{bare}…` needs backticks in: {text}");
    }
    let node = Arc::new(node::Node::default());
    let metrics = Metrics::new(node).encode(Format::Classic).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_of_a_name = |c: char| c.is_ascii_alphanumeric() || "_./-".contains(c);
    for word in plain.split(|c| !is_of_a_name(c)) {
        let word = word.trim_end_matches(['.', '/']);
        let exists = match word {
            _ if word.starts_with("docs/") || word.starts_with("config/") => {
                root.join(word).exists()
            }
            _ if word.starts_with("/api/v1/") => {
                include_str!("../../docs/openapi.json").contains(&format!("\"{word}\""))
            }
            _ if word.starts_with("EDS_") => KEYS.iter().any(|key| key.variable() == word),
            _ if word.starts_with("eds_relay_") => {
                include_str!("../../docs/relay.md").contains(&format!("`{word}"))
            }
            _ if word.starts_with("eds_") => metrics.contains(word),
            _ => {
                let section = word.split_once('.').map(|(section, _)| section);
                let is_key = section.is_some_and(|section| sections().contains(section));
                !is_key || KEYS.iter().any(|key| key.path == word)
            }
        };
        assert!(exists, "{word} does not exist; in: {text}");
    }
}

#[test]
fn every_finding_has_a_test_of_its_remedy() {
    for (id, _) in remedies().filter(|(id, _)| !OTHERS.contains(id)) {
        let is_tested = TESTS.iter().any(|file| file.contains(&format!("\"{id}\"")));
        assert!(
            is_tested,
            "the remedy of {id} has no test: add one in tests/end_to_end/remedies/ that provokes the finding, \
             gets the remedy with Remedy::of(&node, \"{id}\", …), follows it, and ends with wait_gone"
        );
    }
}

#[test]
fn remedies_name_only_what_exists() {
    for (_, remedy) in remedies() {
        assert_names_what_exists(remedy);
    }
}
