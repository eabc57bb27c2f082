//! Generates the manual pages and shell completions from the commands and the table of keys. This is a separate program, so
//! that the service does not contain the generators.
//!
//! `cargo run --example manual -- DIRECTORY` writes `man/eds.1`, a page for each command, `man/eds.toml.5`,
//! `man/eds-relay.toml.5`, and `completions/`.

use std::path::Path;
use std::{env, fs, io};

use clap_complete::{Shell, generate_to};
use clap_mangen::roff::{Roff, bold, italic, roman};
use event_data_service::config::{Form, Key, Program};
use event_data_service::{VERSION, cli};

fn main() -> io::Result<()> {
    let Some(directory) = env::args_os().nth(1) else {
        return Err(io::Error::other("usage: manual DIRECTORY"));
    };
    write(Path::new(&directory))
}

fn write(directory: &Path) -> io::Result<()> {
    let [pages, completions] = ["man", "completions"].map(|name| directory.join(name));
    fs::create_dir_all(&pages)?;
    fs::create_dir_all(&completions)?;
    // Set the version without the commit.
    let command = cli::command().version(VERSION);
    clap_mangen::generate_to(command.clone(), &pages)?;
    for program in [Program::Node, Program::Relay] {
        let name = format!("{}.5", page(program));
        fs::write(pages.join(name), keys(program).render())?;
    }
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        generate_to(shell, &mut command.clone(), "eds", &completions)?;
    }
    Ok(())
}

/// Returns the name of the manual page for a program's configuration file.
fn page(program: Program) -> &'static str {
    match program {
        Program::Node => "eds.toml",
        Program::Relay => "eds-relay.toml",
    }
}

/// Returns the manual page for a program's configuration file.
fn keys(program: Program) -> Roff {
    let (name, file) = (page(program), program.default_file());
    let (what, command, sample) = match program {
        Program::Node => ("configuration of the Event Data Service", "eds-check(1)", "eds.toml"),
        Program::Relay => ("configuration of its relay", "eds-relay(1)", "relay.toml"),
    };
    let mut roff = Roff::new();
    let release = format!("eds {VERSION}");
    roff.control("TH", [name, "5", "", &release]);
    // Do not hyphenate variable names.
    roff.control("nh", []);
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{name} - {what}"))]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([
        bold(file),
        roman(format!(
            " is a TOML file. Every key can also be set by an environment variable, and some by a flag. Flags override \
             variables, which override the file. An unknown key is an error. Durations have a unit, such as 100ms, 30s, 5m \
             or 1h, and so do sizes, such as 512B, 64KiB or 8MiB. {command} checks the file and prints the effective values. \
             /usr/share/doc/eds/config/{sample} describes each key in more detail, and when to change it."
        )),
    ]);
    if program == Program::Node {
        let alike = "Keys that must be the same on every node are stored in Redis, and a node whose values differ does not start. \
                     eds-settings-apply(1) changes them in a running cluster.";
        roff.control("PP", []);
        roff.text([roman(alike)]);
    }
    let mut section = None;
    for key in program.keys() {
        if section.replace(key.section()) != Some(key.section()) {
            let heading = match key.section() {
                "" => "TOP LEVEL".to_owned(),
                section => format!("[{section}]"),
            };
            roff.control("SH", [heading.as_str()]);
        }
        describe(&mut roff, program, key);
    }
    roff.control("SH", ["SEE ALSO"]);
    let other = match program {
        Program::Node => "eds-run(1), eds-check(1), eds-settings(1), eds-relay.toml(5)",
        Program::Relay => "eds-relay(1), eds.toml(5)",
    };
    roff.text([roman(other)]);
    roff
}

fn describe(roff: &mut Roff, program: Program, key: &Key) {
    let form = match key.form {
        Form::Text | Form::Span | Form::Url => "string",
        Form::Time => "time",
        Form::Switch => "true or false",
        Form::Integer => "number",
        Form::List => "list of strings",
        Form::Path | Form::SecretFile => "path",
        Form::Secret => "not in the file",
    };
    roff.control("TP", []);
    roff.text([bold(key.name()), roman(format!(" ({form})"))]);
    roff.text([roman(sentence(key.doc))]);
    if key.alike {
        roff.text([roman("Same on every node.")]);
    }
    let mut values = Vec::new();
    let default = key.default_in(program);
    if !default.is_empty() {
        values.extend([roman("Default: "), italic(default), roman(". ")]);
    }
    if !key.allowed.is_empty() {
        values.push(roman(format!("Allowed: {}. ", key.allowed)));
    }
    values.extend([roman("Variable: "), bold(key.variable()), roman(".")]);
    roff.text(values);
}

/// Returns the documentation of a key as a sentence, with a capital letter and a period.
fn sentence(doc: &str) -> String {
    let mut letters = doc.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    format!("{}{}.", first.unwrap_or_default(), letters.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a page without its roff escapes.
    fn read(path: &Path) -> String {
        let text = fs::read_to_string(path).unwrap();
        [("\\*(Aq", "'"), ("\\-", "-"), ("\\fB", ""), ("\\fI", ""), ("\\fR", "")]
            .iter()
            .fold(text, |text, (escape, plain)| text.replace(escape, plain))
    }

    /// Calls `seen` for each command, with its full name, such as `eds quarantine list`.
    fn each(command: &clap::Command, path: &str, seen: &mut impl FnMut(&clap::Command, &str)) {
        seen(command, path);
        for inner in command.get_subcommands() {
            each(inner, &format!("{path} {}", inner.get_name()), seen);
        }
    }

    #[test]
    fn every_command_and_flag_has_its_page_and_completions() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path()).unwrap();
        let shells = ["eds.bash", "_eds", "eds.fish"]
            .map(|name| read(&directory.path().join("completions").join(name)));
        let mut flags = 0;
        each(&cli::command(), "eds", &mut |command, path| {
            let page = read(&directory.path().join(format!("man/{}.1", path.replace(' ', "-"))));
            for flag in command.get_arguments().filter_map(clap::Arg::get_long) {
                flags += 1;
                assert!(page.contains(&format!("--{flag}")), "{path} --{flag}");
                for shell in &shells {
                    assert!(shell.contains(flag), "{path} --{flag}");
                }
            }
            for inner in command.get_subcommands() {
                let inner = inner.get_name();
                assert!(
                    page.contains(&format!("{}-{inner}(1)", path.replace(' ', "-"))),
                    "{path} {inner}"
                );
                assert!(shells.iter().all(|shell| shell.contains(inner)), "{path} {inner}");
            }
        });
        assert!(flags > 30, "{flags}");
    }

    #[test]
    fn the_page_lists_the_exit_codes() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path()).unwrap();
        assert!(read(&directory.path().join("man/eds.1")).contains("2, wrong arguments"));
    }

    #[test]
    fn every_key_is_in_the_page_of_its_program() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path()).unwrap();
        for program in [Program::Node, Program::Relay] {
            let page = read(&directory.path().join(format!("man/{}.5", page(program))));
            for key in program.keys() {
                for said in [
                    key.variable(),
                    sentence(key.doc),
                    key.default_in(program).to_owned(),
                    key.allowed.to_owned(),
                ] {
                    assert!(page.contains(&said), "{}: {said} is not in\n{page}", key.path);
                }
            }
        }
    }
}
