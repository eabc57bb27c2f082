//! Multiple `[[output]]` sections.

use super::*;

const TWO: &str = "[[output]]\nname = \"here\"\nurl = \"http://localhost:8086\"\napi = \"v1\"\ndatabase = \"d\"\n\
                   [[output]]\nname = \"there\"\nurl = \"http://localhost:9086\"\norg = \"o\"\nbucket = \"b\"\n\
                   batch_lines = 10\n";

fn names(config: &Config) -> Vec<&str> {
    config.outputs.iter().map(|output| output.name.as_str()).collect()
}

#[test]
fn each_output_has_separate_keys() {
    let (config, effective) = load_with(TWO, &[], Flags::default()).unwrap();
    assert_eq!(names(&config), ["here", "there"]);
    let url = |output: &Output| match &output.target {
        Target::Server(settings) => settings.url.to_string(),
        Target::Stdout => panic!("no URL"),
    };
    let urls: Vec<_> = config.outputs.iter().map(url).collect();
    assert_eq!(urls, ["http://localhost:8086/", "http://localhost:9086/"]);
    let most: Vec<_> = config.outputs.iter().map(|output| output.write_counts_max).collect();
    assert_eq!(most, [2500, 5]);
    // Loading the output as a file results in the same configuration.
    let shown = effective.to_toml(true);
    assert_eq!(shown.matches("[[output]]").count(), 2, "{shown}");
    let again = load_file(&shown).unwrap();
    let again = Config { file: config.file.clone(), ..again };
    assert_eq!(format!("{again:?}"), format!("{config:?}"));
    let default = load_file("").unwrap();
    assert_eq!(names(&default), ["default"]);
}

#[test]
fn a_mistake_in_one_of_several_outputs_names_it() {
    check_refused(
        r#"
[[output]]
name = "here"
url = "http://h"
org = "o"
bucket = "b"
database = "d"
[[output]]
name = "there"
url = "ftp://h"
tokn = "x"
=> FILE:6: output.database of "here": requires output.api = "v1", but it is "v2"; remove this key, or set output.api to "v1"
=> FILE:9: output.url of "there": "ftp://h" is not an output URL; use stdout:, http://host:8086 or https://host:8086
=> FILE:10: unknown key output.tokn; did you mean output.token?
=> output.token_file of "here": is not set, but output.api = "v2" requires a token unless output.url is http:// with an address of this host; set it, or set EDS_OUTPUT__TOKEN
[[output]]
[[output]]
=> output.name of "default": is also the name of a different output; use unique names
[[output]]
name = "Me"
=> FILE:2: output.name: "Me" is not a valid name; use 1 to 32 of a-z 0-9 _ -
[output]
self_metrics = "1m"
=> FILE:2: output.self_metrics: requires a database, but output.url is stdout:; remove this key, or change output.url
[output]
url = "http://localhost:8086"
api = "v1"
database = "d"
self_metrics = "999ms"
=> FILE:5: output.self_metrics: is shorter than a second; use 1s or more, or 0s to disable it
[output]
probe_measurement = "unique_user_event"
=> FILE:2: output.probe_measurement: is a measurement that contains counts; choose a measurement that is not used for anything else
[output]
probe_measurement = "a b"
=> FILE:2: output.probe_measurement: "a b" is not a valid name; use 1 to 64 of A-Z a-z 0-9 . _ -
output = [1]
=> FILE:1: output: is not a section; put [[output]] above the keys of each output
output = []
=> FILE:1: output: is a section; put [output] on a separate line, with its keys below
[[output]]
name = "a"
[[output]]
name = "b"
EDS_OUTPUT__TIMEOUT=1s
=> environment EDS_OUTPUT__TIMEOUT: applies to a single output, but the file has several; set the key in the [[output]] sections that need it (for a secret, its _file key)
"#,
    );
}

#[test]
fn variable_sets_the_only_output_and_flag_replaces_all() {
    let text = "[[output]]\nname = \"here\"\nurl = \"https://h\"\norg = \"o\"\nbucket = \"b\"";
    let token = [("EDS_OUTPUT__TOKEN", "t")];
    let (config, _) = load_with(text, &token, Flags::default()).unwrap();
    assert_eq!(names(&config), ["here"]);
    let flags = Flags { output: Some("stdout:".to_owned()), ..Flags::default() };
    let (config, _) = load_with(TWO, &[], flags).unwrap();
    assert_eq!(names(&config), ["default"]);
    assert!(matches!(config.outputs[0].target, Target::Stdout));
}

#[test]
fn outputs_are_compared_in_any_order() {
    let outputs = |text: &str| {
        let alike = load_file(text).unwrap().alike;
        alike.into_iter().find(|(key, _)| *key == OUTPUTS).unwrap().1
    };
    let written = "here http://localhost:8086 api=v1 database=d; \
                   there http://localhost:9086 api=v2 org=o bucket=b";
    assert_eq!(outputs(TWO), written);
    let (first, second) = TWO.split_at(TWO.rfind("[[output]]").unwrap());
    assert_eq!(outputs(&format!("{second}{first}")), written);
    assert_eq!(outputs(""), "default stdout:");
    let slower = TWO.replace("batch_lines = 10", "timeout = \"1m\"");
    assert_eq!(outputs(&slower), written, "timeouts and batch sizes may differ between nodes");
}
