//! Output to a terminal, which is coloured unless `NO_COLOR` is set, and to the journal, with priorities but no times.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;

use testing::process::{self};

use crate::prelude::*;

/// Starts the binary in a new terminal with these variables. The output of the child is what the terminal shows.
fn on_terminal(arguments: &str, variables: &[(&str, &str)]) -> Child {
    let mut command = Command::new("script");
    let eds = env!("CARGO_BIN_EXE_eds");
    // Because of `exec`, the process id printed first is that of the binary.
    let run = format!("echo $$ && exec '{eds}' {arguments}");
    command
        .args(["--quiet", "--return", "--flush", "--command", &run])
        .arg("/dev/null")
        .env_clear()
        .envs([("PATH", "/usr/bin:/bin"), ("SHELL", "/bin/sh")])
        .env("TERM", "xterm-256color")
        .envs(variables.iter().copied());
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    child.expect("script (Debian package bsdutils) is installed")
}

/// Runs the binary in a terminal and returns its output. Stops the binary once it has printed `until`, if given.
fn written(arguments: &str, variables: &[(&str, &str)], until: Option<&str>) -> String {
    let mut child = on_terminal(arguments, variables);
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut pid = String::new();
    output.read_line(&mut pid).unwrap();
    let mut text = String::new();
    while until.is_some_and(|until| !text.contains(until)) {
        assert!(output.read_line(&mut text).unwrap() > 0, "{text}");
    }
    if until.is_some() {
        signal(pid.trim().parse().unwrap(), "TERM");
    }
    output.read_to_string(&mut text).unwrap();
    let status = child.wait().unwrap();
    assert!(status.success(), "{arguments}: {status}: {text}");
    text
}

/// Whether the text has an escape sequence that sets a colour or style: ESC [ … m.
fn is_coloured(text: &str) -> bool {
    text.split("\x1b[").skip(1).any(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != ';');
        end.is_some_and(|end| rest[end..].starts_with('m'))
    })
}

#[test]
fn no_color_applies_to_all_terminal_output() {
    let node = Node::new("one", &[]);
    node.write_config();
    let run = format!("run --config '{}'", node.config_path().display());
    let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = sink.local_addr().unwrap();
    let send = format!("send --to {to} --events 3000 --rate 10000");
    for (arguments, until, has_colours) in [
        (run.as_str(), Some("started"), true),
        ("--help", None, true),
        ("send --help", None, true),
        (&send, None, false),
        ("demo", None, false),
    ] {
        for variables in [&[][..], &[("NO_COLOR", "")]] {
            let text = written(arguments, variables, until);
            assert_eq!(is_coloured(&text), has_colours, "{arguments}: {text:?}");
        }
        let text = written(arguments, &[("NO_COLOR", "1")], until);
        assert!(!is_coloured(&text), "{arguments}: {text:?}");
        // Progress is drawn on a terminal even without colours.
        assert_eq!(text.contains("\x1b["), arguments == send, "{text:?}");
    }
}

#[test]
fn unconfigured_node_explains_itself_at_a_terminal_only() {
    let (udp, http) = (free_port(), free_port());
    let run = format!("run --listen 127.0.0.1:{udp} --http 127.0.0.1:{http}");
    let text = written(&run, &[("NO_COLOR", "1")], Some("(exit code 3)"));
    assert!(text.contains("this node uses the defaults"), "{text}");
    let send = format!("eds send --to 127.0.0.1:{udp}");
    assert!(text.contains(&send), "{text}");
    assert!(text.contains("config=\"none\""), "{text}");

    let node = Node::start("one", &[]);
    let file = format!("config=\"{}\"", node.config_path().display());
    // The node may become ready a moment before it logs this.
    let log = eventually("the log names the file", SOON, || {
        let log = node.log();
        when(log.contains(&file), log.clone()).map(|()| log)
    });
    assert!(!log.contains("this node uses the defaults"), "{log}");
}

/// Returns what `eds` writes to standard error if `JOURNAL_STREAM` names its inode plus `added`, line by line.
fn lines_for_the_journal(arguments: &[&str], added: u64, until: Option<&str>) -> Vec<String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let stderr = file.as_file().metadata().unwrap();
    let stream = format!("{}:{}", stderr.dev(), stderr.ino() + added);
    let mut child = eds()
        .args(arguments)
        .env("JOURNAL_STREAM", stream)
        .stdout(Stdio::null())
        .stderr(file.reopen().unwrap())
        .spawn()
        .unwrap();
    let written = || fs::read_to_string(file.path()).unwrap();
    if let Some(until) = until {
        eventually("the process has started", SOON, || when(written().contains(until), written()));
        signal(child.id(), "TERM");
    }
    process::wait(&mut child, SOON);
    written().lines().map(ToOwned::to_owned).collect()
}

#[test]
fn only_journal_output_has_priorities_and_no_time() {
    let run = ["relay", "--to", "127.0.0.1:9", "--listen", "127.0.0.1:0", "--http", ""];
    let lines = lines_for_the_journal(&run, 0, Some("started"));
    assert!(!lines.is_empty());
    for line in &lines {
        // On a host with small buffers, warnings are also logged.
        let has_both = ["<6> INFO ", "<4> WARN "].map(|start| line.starts_with(start));
        assert!(has_both.contains(&true), "{lines:#?}");
    }
    // Standard error is not the journal, as when the shell of a service redirects it.
    let lines = lines_for_the_journal(&run, 1, Some("started"));
    assert!(lines[0].starts_with("20"), "{lines:#?}");

    let wrong = ["relay", "--to", "nowhere", "--listen", "nothing"];
    let lines = lines_for_the_journal(&wrong, 0, None);
    assert!(lines.len() > 1, "{lines:#?}");
    assert!(lines.iter().all(|line| line.starts_with("<3>")), "{lines:#?}");
    let lines = lines_for_the_journal(&wrong, 1, None);
    assert!(!lines.iter().any(|line| line.starts_with('<')), "{lines:#?}");
}

#[test]
fn closed_pipe_causes_no_error_message() {
    for arguments in [&["check", "--store", "memory:"][..], &["demo"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = eds();
        let output = command.args(arguments).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!stderr.contains("pipe"), "{stderr}");
    }
}
