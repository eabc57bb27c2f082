//! Loads random text as a configuration file or environment variables, which results in a configuration or located errors.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use event_data_service::config::{self, Config, ConfigErrors, Effective, Flags, Origin};
use testing::prelude::*;

use crate::spelling::spelled;

const FILE_PIECES: &[&str] = &[
    "[input]\n",
    "[store]\n",
    "[flush]\n",
    "[output]\n",
    "[http]\n",
    "[log]\n",
    "[",
    "]",
    "\n",
    "\n",
    " = ",
    "=",
    ".",
    "\"",
    "'",
    "#",
    "\\",
    "\\n",
    "\\u001b",
    "listen",
    "user_field",
    "threads",
    "receive_buffer",
    "linger",
    "url",
    "grace",
    "lease",
    "interval",
    "timeout",
    "api",
    "password",
    "token",
    "node",
    "input",
    "store",
    "[\"127.0.0.1:8094\"]",
    "\"127.0.0.1:0\"",
    "\"redis://u:p@h/1\"",
    "\"redis+cluster://a:1,b\"",
    "\"redis+sentinel://a/m\"",
    "\"http://h:1/x?y\"",
    "\"stdout:\"",
    "\"v1\"",
    "\"5s\"",
    "\"8MiB\"",
    "1",
    "-1",
    "0x10",
    "1e9",
    "true",
    "1979-05-27",
    "\u{1b}",
    "ü",
    "\t",
];
const VARIABLE_PIECES: &[&str] = &[
    "EDS_",
    "EDS_NODE=",
    "EDS_INPUT__LISTEN=",
    "EDS_INPUT__THREADS=",
    "EDS_STORE__URL=",
    "EDS_STORE__PASSWORD=",
    "EDS_OUTPUT__URL=",
    "EDS_OUTPUT__TOKEN=",
    "EDS_OUTPUT__API=",
    "EDS_OUTPUT__DATABASE=",
    "EDS_FLUSH__GRACE=",
    "EDS_INPUT__RECEIVE_BUFFER=",
    "EDS_LOG__LEVEL=",
    "EDS_HTTP__LISTEN=",
    "EDS_GRASE=",
    "\n",
    "\n",
    ",",
    ":",
    "/",
    "@",
    "%",
    "redis://",
    "rediss://",
    "redis+cluster://",
    "redis+sentinel://",
    "redis+unix:///",
    "memory:",
    "http://",
    "https://",
    "stdout:",
    "v1",
    "127.0.0.1:0",
    "[::1]:1",
    "h",
    "5",
    "s",
    "ms",
    "MiB",
    "debug",
    "-",
    " ",
    "\u{1b}",
    "\r",
    "ü",
];

/// Checks that each error is a single line with a location and without control characters.
fn check_errors(errors: &ConfigErrors, file_lines: usize) {
    let shown = errors.to_string();
    assert!(!errors.problems().is_empty());
    assert_eq!(shown.lines().count(), errors.problems().len(), "{shown:?}");
    for problem in errors.problems() {
        let has_line =
            matches!(&problem.origin, Origin::File(_, line) if (1..=file_lines).contains(line));
        let has_place =
            has_line || matches!(problem.origin, Origin::Environment(_)) || !problem.key.is_empty();
        assert!(has_place && !problem.text.is_empty(), "{problem:?}");
        let line = problem.to_string();
        assert!(!line.contains(char::is_control), "{line:?}");
    }
}

/// Checks that loading the output of `eds check` results in the same configuration, except for hidden passwords.
fn check_effective(config: &Config, effective: &Effective, directory: &Path) {
    let toml = effective.to_toml(true);
    if toml.contains("hidden") {
        return;
    }
    let (again, _) = load(&toml, [], directory).unwrap();
    assert_eq!(format!("{again:?}"), format!("{config:?}"), "{toml}");
}

fn load<const N: usize>(
    text: &str,
    environment: [(OsString, OsString); N],
    directory: &Path,
) -> Result<(Config, Effective), ConfigErrors> {
    load_all(text, environment.into(), directory)
}

fn load_all(
    text: &str,
    environment: Vec<(OsString, OsString)>,
    directory: &Path,
) -> Result<(Config, Effective), ConfigErrors> {
    let file = directory.join("eds.toml");
    std::fs::write(&file, text).unwrap();
    let flags = Flags { config: Some(file), ..Flags::default() };
    config::load(&flags, environment)
}

fn check_file(text: &[u8], directory: &Path) {
    let text = String::from_utf8_lossy(text);
    match load(&text, [], directory) {
        // An error may be located at the end of the file, after the last line ending.
        Err(errors) => check_errors(&errors, 1 + text.matches('\n').count()),
        Ok((config, effective)) => check_effective(&config, &effective, directory),
    }
}

/// Loads each line as an environment variable.
fn check_variables(text: &[u8], directory: &Path) {
    let variables = text.split(|&byte| byte == b'\n').filter_map(|line| {
        let equals = line.iter().position(|&byte| byte == b'=')?;
        let (name, value) = (&line[..equals], &line[equals + 1..]);
        // Skip variables that the operating system does not allow.
        let possible = !name.is_empty() && !line.contains(&0);
        let owned = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
        possible.then(|| (owned(name), owned(value)))
    });
    match load_all("", variables.collect(), directory) {
        Err(errors) => check_errors(&errors, 0),
        Ok((config, effective)) => check_effective(&config, &effective, directory),
    }
}

#[test]
fn any_text_as_a_file() {
    let directory = TempDir::new().unwrap();
    bolero::check!().with_test_time(crate::RANDOM_INPUTS_FOR).for_each(|input: &[u8]| {
        check_file(input, directory.path());
        check_file(&spelled(input, FILE_PIECES), directory.path());
    });
}

#[test]
fn any_text_as_variables() {
    let directory = TempDir::new().unwrap();
    bolero::check!().with_test_time(crate::RANDOM_INPUTS_FOR).for_each(|input: &[u8]| {
        check_variables(input, directory.path());
        check_variables(&spelled(input, VARIABLE_PIECES), directory.path());
    });
}
