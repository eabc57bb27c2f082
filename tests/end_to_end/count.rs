//! `eds count` counts files as nodes count events.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use testing::points::written;

use crate::prelude::*;
use crate::support::node::eds;

const ROLLUPS: &str = "
[[rollup]]
name = \"hourly\"
every = \"1h\"

[[rollup]]
name = \"products\"
every = \"1day\"
by = [\"product\"]
";

/// Runs `eds count` with these arguments and this input. Returns its exit code, output and messages.
fn count(arguments: &[&str], input: &[u8]) -> (Option<i32>, String, String) {
    let mut command = eds();
    command.arg("count").args(arguments);
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = thread::spawn(move || stdin.write_all(&input));
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    // The program may end before it has read everything.
    let _ = writer.join().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// The files overlap, are compressed in different ways, and do not fit in memory.
#[test]
fn counts_are_those_of_a_cluster() {
    let directory = TempDir::new().unwrap();
    let config = directory.path().join("eds.toml");
    fs::write(&config, ROLLUPS).unwrap();
    let datagrams: Vec<_> = load(0..90, 300_000, 50, 2000).datagrams().collect();
    let mut expected = Expected::with_rollups(["hourly", "products every=1day by=product"]);
    for datagram in &datagrams {
        expected.receive(datagram);
    }
    let text = |datagrams: &[Vec<u8>]| datagrams.join(&b'\n');
    let third = datagrams.len() / 3;
    let files = [("a", text(&datagrams[..2 * third])), ("b.gz", gzip(&text(&datagrams[third..])))];
    for (name, bytes) in &files {
        fs::write(directory.path().join(name), bytes).unwrap();
    }
    let paths = files.map(|(name, _)| directory.path().join(name).display().to_string());
    let config = config.display().to_string();
    for (memory, threads) in [("1GiB", "2"), ("1MiB", "3"), ("1B", "1")] {
        let arguments =
            ["--config", &config, "--memory", memory, "--threads", threads, &paths[0], &paths[1]];
        let (code, lines, messages) = count(&arguments, b"");
        assert_eq!(code, Some(0), "{messages}");
        compare(&expected.points(), &written(lines.as_bytes())).unwrap();
        assert_eq!(
            messages.contains(" 0 bytes in temporary files"),
            memory == "1GiB",
            "{messages}"
        );
    }
    let nowhere = ["--config", &config, "--memory", "1B", "--temp-dir", "/no/such", &paths[0]];
    let (code, _, messages) = count(&nowhere, b"");
    assert_eq!(code, Some(1));
    assert!(messages.contains("cannot use a temporary file (--temp-dir)"), "{messages}");
    let piped = count(&["--config", &config, "-"], &gzip(&text(&datagrams)));
    compare(&expected.points(), &written(piped.1.as_bytes())).unwrap();
}

#[test]
fn lines_that_are_not_counted_are_reported() {
    let input = b"a=1 value=\"x\ny\" 60000000000\n# comment\na=1 value=x\nnonsense\na=1 value=x 60000000001";
    let (code, table, messages) = count(&["--table", "-"], input);
    assert_eq!(code, Some(0));
    let rows: Vec<Vec<&str>> = table.lines().map(|row| row.split_whitespace().collect()).collect();
    assert_eq!(
        rows,
        [vec!["start", "users", "events", "series"], vec!["19700101:0001", "1", "1", "a=1"]]
    );
    for words in
        ["1 lines (timestamp_missing)", "1 lines (control_character)", "1 events, 1 different"]
    {
        assert!(messages.contains(words), "{words}: {messages}");
    }
    let (code, _, messages) = count(&["/no/such/file"], b"");
    assert_eq!(code, Some(1));
    assert!(messages.contains("cannot open /no/such/file"), "{messages}");
}
