//! Checks that the events of real clients are counted as documented. The test data is the table in `docs/clients.md`.

use std::fs;
use std::net::UdpSocket;
use std::num::NonZeroU16;
use std::path::Path;
use std::process::Command;

use event_data_service::event::{LineRules, Partitions, Window};
use event_data_service::ingest::{BatcherSettings, Delivery, LineBatcher, QueueLimits};
use testing::prelude::*;

/// The time of arrival, three seconds after the events.
const NOW: i64 = 1_480_876_710_000_000_000;

const DOCUMENT: &str = include_str!("../docs/clients.md");

/// Returns the events of a datagram in the notation of the table.
fn counted(datagram: &str) -> String {
    let settings = BatcherSettings {
        rules: LineRules::default(),
        // The timestamps in some rows are from the time at which the lines were captured.
        window: Window::new(Duration::from_secs(3600), Duration::MAX),
        partitions: Partitions::new(NonZeroU16::MIN),
        limits: QueueLimits { events: 100, bytes: 1 << 20 },
    };
    let (recorder, mut deliveries) = tokio::sync::mpsc::channel(1);
    let mut batcher = LineBatcher::new(&settings, Arc::default(), Arc::default(), vec![recorder]);
    batcher.add(datagram.into(), usize::MAX, NOW);
    batcher.hand_over(Duration::ZERO, tokio::time::Instant::now());
    let mut shown: Vec<String> = Vec::new();
    while let Ok(Delivery { batch, .. }) = deliveries.try_recv() {
        for group in batch.groups() {
            for event in &group.occurrences {
                let at = match event.timestamp {
                    NOW => "on arrival".to_owned(),
                    timestamp => format!("`{timestamp}`"),
                };
                shown.push(format!("`{}` `{}` {at}", group.series, batch.user(event)));
            }
        }
    }
    let rejected = batcher.take_samples();
    let rejected = rejected.keys().map(|reason| reason.label());
    shown.extend(rejected.map(|reason| format!("rejected: `{reason}`")));
    shown.join("<br>")
}

#[test]
fn documented_client_datagrams_are_counted() {
    let mut rows = 0;
    for row in DOCUMENT.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [.., datagram, expected] = cells[..] else {
            panic!("no table: {row}");
        };
        let Some(datagram) = datagram.strip_prefix('`') else {
            continue;
        };
        let datagram = datagram.strip_suffix('`').unwrap();
        let datagram = datagram.replace('␊', "\n").replace('␍', "\r").replace("⟨BOM⟩", "\u{feff}");
        assert_eq!(counted(&datagram), expected, "{row}");
        rows += 1;
    }
    assert!(rows > 30, "only {rows} rows");
}

/// Compiles a C# program with Mono, which has no top-level statements. Returns `None` if Mono is not installed.
fn compiled(program: &str, directory: &Path) -> Option<String> {
    let (usings, rest): (Vec<_>, Vec<_>) =
        program.lines().partition(|line| line.starts_with("using "));
    let (functions, statements): (Vec<_>, Vec<_>) =
        rest.into_iter().partition(|line| line.starts_with("string "));
    let source = format!(
        "{}\nclass Program {{\nstatic {}\nstatic void Main() {{\n{}\n}}\n}}\n",
        usings.join("\n"),
        functions.join("\nstatic "),
        statements.join("\n"),
    );
    let [source_path, binary] = ["program.cs", "program.exe"].map(|name| directory.join(name));
    assert!(fs::write(&source_path, source).is_ok());
    let status = Command::new("mcs").arg(&source_path).status().ok()?;
    assert!(status.success());
    Some(binary.display().to_string())
}

#[test]
fn documented_programs_without_a_library_send_an_event() {
    let programs = DOCUMENT.split_once("### Without a library").unwrap().1;
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    let port = socket.local_addr().unwrap().port().to_string();
    let mut ran = Vec::new();
    for (language, interpreter, option) in [
        ("bash", "bash", "-c"),
        ("python", "python3", "-c"),
        ("js", "node", "-e"),
        ("ruby", "ruby", "-e"),
        ("php", "php", "-r"),
        ("csharp", "mono", ""),
    ] {
        let (_, program) = programs.split_once(&format!("```{language}\n")).unwrap();
        let (program, _) = program.split_once("```").unwrap();
        let program = program.trim_start_matches("<?php");
        let program = program.replace("8094", &port).replace("'eds'", "'127.0.0.1'");
        let program =
            program.replace("\"eds\"", "\"127.0.0.1\"").replace("udp://eds", "udp://127.0.0.1");
        let program = program.replace("/dev/udp/eds", "/dev/udp/127.0.0.1");
        let directory = tempfile::tempdir().unwrap();
        let (option, program) = match language {
            "csharp" => match compiled(&program, directory.path()) {
                Some(binary) => ("--", binary),
                None => continue,
            },
            _ => (option, program),
        };
        let Ok(status) = Command::new(interpreter).args([option, &program]).status() else {
            continue;
        };
        assert!(status.success(), "{language}");
        let mut datagram = [0; 500];
        let length = socket.recv(&mut datagram).unwrap();
        let line = std::str::from_utf8(&datagram[..length]).unwrap().trim_end();
        let (event, nanos) = line.rsplit_once(' ').unwrap();
        assert_eq!(
            counted(&format!("{event} 1480876707352348928")),
            r#"`measurement=login,product=a\ b\,c\=d` `an "n"` `1480876707352348928`"#,
            "{language}"
        );
        let sent = Duration::from_nanos(nanos.parse().unwrap());
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
        assert!(now.abs_diff(sent) < SOON, "{language}: {nanos}");
        ran.push(language);
    }
    assert!(ran.contains(&"bash") && ran.contains(&"python"), "{ran:?}");
}
