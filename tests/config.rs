//! Checks the sample configurations, and the output and exit codes of commands, with the real binary.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use event_data_service::config::{Form, KEYS, Key, Program};
use testing::prelude::*;

const PEM: &str = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
const SECRET: &str = "open-sesame";

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(repository(path)).unwrap()
}

fn eds(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_eds"));
    command.args(arguments).env_clear().envs(variables.iter().copied());
    command.output().unwrap()
}

fn out(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn err(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn file_of_an_earlier_version_is_migrated_once() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("relay.toml");
    let old = "[relay]\nto = [\"127.0.0.1:8094\"]\n\n# To a database.\n[rest]\nurl = \"none:\"\n";
    std::fs::write(&file, old).unwrap();
    let path = file.to_str().unwrap();
    let refused = eds(&["relay", "--check", "--config", path], &[]);
    assert_contains(err(&refused), [":5: [rest] is now [passthrough]", "eds config migrate"]);

    let migrated = eds(&["config", "migrate", path], &[]);
    assert!(migrated.status.success(), "{migrated:?}");
    assert_contains(out(&migrated), ["renamed [rest] to [passthrough]"]);
    assert!(eds(&["relay", "--check", "--config", path], &[]).status.success());
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text, old.replace("[rest]", "[passthrough]"));
    assert_eq!(std::fs::read_to_string(directory.path().join("relay.toml.old")).unwrap(), old);
    let variable = eds(&["relay", "--check", "--config", path], &[("EDS_REST__URL", "none:")]);
    assert_contains(
        err(&variable),
        ["EDS_REST__URL: unknown key; did you mean EDS_PASSTHROUGH__URL?"],
    );
    let again = eds(&["config", "migrate", path], &[]);
    assert_contains(out(&again), ["no section of an earlier version"]);
}

/// Runs `eds check` on a file after replacing the secret and certificate files that it names with temporary files.
fn check_sample(path: &Path, directory: &Path) -> Output {
    let sample = std::fs::read_to_string(path).unwrap();
    let mut variables = Vec::new();
    for key in KEYS.iter().filter(|key| key.name() != "spool_dir") {
        let text = match key.form {
            Form::Path => PEM,
            Form::SecretFile => SECRET,
            _ => continue,
        };
        let file = directory.join(key.path);
        std::fs::write(&file, text).unwrap();
        let section = sample.split(&format!("\n[{}]\n", key.section())).nth(1).unwrap_or_default();
        let section = section.split("\n[").next().unwrap();
        if section.lines().any(|line| line.starts_with(&format!("{} = \"/", key.name()))) {
            variables.push((key.variable(), file.to_str().unwrap().to_owned()));
        }
    }
    let variables: Vec<_> =
        variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    eds(&check(program_of(path), path), &variables)
}

fn program_of(path: &Path) -> Program {
    if path.ends_with("relay.toml") { Program::Relay } else { Program::Node }
}

fn check(program: Program, path: &Path) -> Vec<&str> {
    let path = path.to_str().unwrap();
    match program {
        Program::Node => vec!["check", "--config", path],
        Program::Relay => vec!["relay", "--check", "--config", path],
    }
}

#[test]
fn samples_and_output_of_check_are_configurations() {
    let directory = tempfile::tempdir().unwrap();
    let mut count = 0;
    for entry in std::fs::read_dir(repository("config")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        count += 1;
        let checked = check_sample(&path, directory.path());
        assert!(checked.status.success(), "{}: {}", path.display(), err(&checked));
        assert!(!out(&checked).contains(SECRET));
        let printed = directory.path().join("printed.toml");
        std::fs::write(&printed, out(&checked)).unwrap();
        let again = eds(&check(program_of(&path), &printed), &[]);
        assert!(again.status.success(), "{}", err(&again));
    }
    assert!(count >= 5, "only {count} samples");
}

/// The file that documents the keys of each program.
const EXPLAINED: [(&str, Program); 2] =
    [("config/eds.toml", Program::Node), ("config/relay.toml", Program::Relay)];

/// Returns a sample file with the keys and sections that it has commented out, which follow the `#` without a space.
fn uncommented(file: &str) -> String {
    let text = read(file);
    let lines = text.lines().map(|line| match line.strip_prefix('#') {
        Some(rest) if rest.starts_with(|letter: char| letter == '[' || letter.is_lowercase()) => {
            rest
        }
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn sample_files_have_every_key_with_its_default() {
    for (file, program) in EXPLAINED {
        let text = uncommented(file);
        // `node` is commented out because its default depends on the host.
        let text = text.replace("\nnode = \"eds-1\"", "\nnode = \"\"");
        // `to` has no default, so the sample contains an example.
        let text = text.replace("\nto = [\"127.0.0.1:8094\"]", "\nto = []");
        let documented: toml::Table = text.parse().unwrap();
        let mut found = BTreeMap::new();
        let mut values: Vec<_> =
            documented.iter().map(|(name, value)| (name.clone(), value)).collect();
        while let Some((name, value)) = values.pop() {
            match value.as_table() {
                Some(section) => {
                    values.extend(
                        section.iter().map(|(key, value)| (format!("{name}.{key}"), value)),
                    );
                }
                None => drop(found.insert(name, shown(value))),
            }
        }
        // Secrets are not in the sample; the comment of the corresponding `_file` key documents them.
        let is_secret = |key: &&Key| key.form == Form::Secret;
        let plain = program.keys().filter(|key| !is_secret(key));
        let expected: BTreeMap<_, _> =
            plain.map(|key| (key.path.to_owned(), key.default_in(program).to_owned())).collect();
        assert_eq!(found, expected, "left: {file}; right: the table of keys");
        for key in program.keys().filter(is_secret) {
            assert!(text.contains(&key.variable()), "{}", key.variable());
        }
    }
}

fn shown(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(","),
        value => value.to_string(),
    }
}

#[test]
fn every_key_of_the_sample_files_has_a_comment() {
    for (file, _) in EXPLAINED {
        let text = read(file);
        let mut commented = false;
        for line in text.lines() {
            if line.starts_with('#') {
                commented = true;
            } else if line.is_empty() {
                commented = false;
            } else if !line.starts_with('[') {
                assert!(commented, "{file}: no comment above {line}");
            }
        }
    }
}

/// A comment applies to all keys up to the next blank line.
#[test]
fn keys_marked_cluster_wide_are_compared() {
    let text = uncommented("config/eds.toml");
    let (mut section, mut is_marked) = ("", false);
    let mut marked = BTreeSet::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
        } else if line.is_empty() {
            is_marked = false;
        } else if line.starts_with('#') {
            is_marked |= line.contains("Same on every node") && !section.is_empty();
        } else if is_marked {
            let (key, _) = line.split_once(" = ").unwrap();
            marked.insert(format!("{section}.{key}"));
        }
    }
    let alike = KEYS.iter().filter(|key| key.alike);
    let alike = alike.map(|key| key.path.to_owned());
    // Nodes that differ in these keys use different Redis data, so they cannot compare their settings.
    let names = ["store.url", "store.prefix"].map(str::to_owned);
    let compared: BTreeSet<_> = alike.chain(names).collect();
    assert_eq!(marked, compared, "left: config/eds.toml; right: the table of keys");
}

#[test]
fn exit_codes_tell_success_from_failure_and_misuse() {
    for (arguments, variables, code) in [
        (vec!["--help"], vec![], 0),
        (vec!["--version"], vec![], 0),
        (vec!["-V", "--json"], vec![], 0),
        (vec!["--json"], vec![], 2),
        (vec!["--version", "demo"], vec![], 2),
        (vec!["completions", "elvish"], vec![], 0),
        (vec!["completions", "csh"], vec![], 2),
        (vec!["check", "--config", "/dev/null"], vec![], 0),
        (vec![], vec![], 2),
        (vec!["chekc"], vec![], 2),
        (vec!["check", "--prot", "1"], vec![], 2),
        (vec!["check", "--config", "/nowhere"], vec![], 2),
        (vec!["relay", "--check", "--to", "a:1"], vec![], 0),
        (vec!["relay", "--config", "/dev/null"], vec![], 2),
        (vec!["relay", "--to", "a:1", "--explain"], vec![], 2),
        (vec!["check", "--config", "/dev/null", "--http", "x"], vec![], 2),
        (vec!["run", "--config", "/dev/null"], vec![("EDS_LOG__LEVEL", "loud")], 2),
    ] {
        let output = eds(&arguments, &variables);
        assert_eq!(output.status.code(), Some(code), "eds {arguments:?}: {}", err(&output));
        assert_eq!(code == 0, output.stderr.is_empty(), "eds {arguments:?}: {}", err(&output));
        assert_eq!(code == 0, !output.stdout.is_empty(), "eds {arguments:?}: {}", out(&output));
    }
}

#[test]
fn check_prints_what_rollups_cost() {
    let variables = [
        ("EDS_ROLLUP__NAME", "daily"),
        ("EDS_ROLLUP__EVERY", "1day"),
        ("EDS_ROLLUP__USERS_MAX", "100000"),
    ];
    for (users, words) in [
        ("100000", ["rollup daily (1d): ", "about 37.6 MiB in the store", "38.2 MiB on the node"]),
        ("100001", ["rollup daily (1d): ", "about 902.2 KiB in the store", "are estimates"]),
    ] {
        let output = eds(
            &["check", "--config", "/dev/null", "--users", users, "--groups", "50"],
            &variables,
        );
        assert!(output.status.success(), "{}", err(&output));
        for word in words {
            assert!(out(&output).contains(word), "{word} is missing from {}", out(&output));
        }
    }
}

/// Kubernetes sets these variables in every pod, for each port of each Service.
#[test]
fn kubernetes_service_variables_are_ignored() {
    let service = |name: &str, address: &str| {
        let host = address.trim_matches(['[', ']']);
        let mut set = vec![
            (format!("{name}_SERVICE_HOST"), host.to_owned()),
            (format!("{name}_SERVICE_PORT"), "8094".to_owned()),
            (format!("{name}_SERVICE_PORT_EVENTS_UDP"), "8094".to_owned()),
            (format!("{name}_PORT"), format!("udp://{address}:8094")),
        ];
        for (protocol, port) in [("udp", "8094"), ("tcp", "8095"), ("sctp", "1")] {
            let link = format!("{name}_PORT_{port}_{}", protocol.to_uppercase());
            set.extend([
                (link.clone(), format!("{protocol}://{address}:{port}")),
                (format!("{link}_PROTO"), protocol.to_owned()),
                (format!("{link}_PORT"), port.to_owned()),
                (format!("{link}_ADDR"), host.to_owned()),
            ]);
        }
        set
    };
    let check = |variables: &[(&str, &str)]| eds(&["check", "--config", "/dev/null"], variables);
    for name in ["EDS", "EDS_NODE", "EDS_PORT", "EDS_SERVICE_PORT", "EDS_2"] {
        for address in ["10.96.0.12", "[fd00::1:2]"] {
            let set = service(name, address);
            let set: Vec<_> = set.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            let output = check(&set);
            assert!(output.status.success(), "{name}: {}", err(&output));
        }
    }
    for (name, value) in [
        ("EDS_PORTT", "1"),
        ("EDS_PORT", "8094"),
        ("EDS_PORT", "unix://10.96.0.12:8094"),
        ("EDS_PORT", "udp://eds:8094"),
        ("EDS_SERVICE", "10.96.0.12"),
        ("EDS_SERVICE_HOST", "eds"),
        ("EDS_SERVICE_PORT", "65536"),
        ("EDS_PORT_8094_UDP_USER", "eds"),
        ("EDS_PORT_8094_HTTP", "http://10.96.0.12:8094"),
        ("EDS_PORT_HTTP_TCP_ADDR", "10.96.0.12"),
        ("EDS_STORE__PORT", "tcp://10.96.0.12:6379"),
        ("EDS_STORE__SERVICE_HOST", "10.96.0.12"),
    ] {
        let output = check(&[(name, value)]);
        assert_eq!(output.status.code(), Some(2), "{name}={value} is accepted");
        let message = format!("environment {name}: unknown key; did you mean EDS_");
        assert!(err(&output).starts_with(&message), "{}", err(&output));
    }
}

/// `eds send` has no configuration, so it warns about lines that a node with the default settings would reject.
#[test]
fn send_knows_the_accepted_ages() {
    for (name, known) in [("max_age", loadgen::MAX_AGE), ("max_future", loadgen::MAX_FUTURE)] {
        let key = KEYS.iter().find(|key| key.name() == name).unwrap();
        assert_eq!(humantime::parse_duration(key.default).unwrap(), known);
    }
}
