//! `eds count` counts files as nodes count events.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use testing::http::{answer, get, post};
use testing::influxdb::{InfluxServer2, TOKEN};
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
    count_with(&[], arguments, input)
}

/// Like [`count`], with these environment variables.
fn count_with(
    variables: &[(&str, &str)],
    arguments: &[&str],
    input: &[u8],
) -> (Option<i32>, String, String) {
    let mut command = eds();
    command.arg("count").args(arguments).envs(variables.iter().copied());
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
    let datagrams: Vec<_> = load(0..90, 60_000, 50, 2000).datagrams().collect();
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
    for (memory, threads) in [("1GiB", "2"), ("256KiB", "3"), ("1B", "1")] {
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

/// A series whose name needs escapes.
const SERIES: &str = r"event_type=a\ b\,c\=d,product=p";
const ALL_EQUAL: &str = "0 missing, 0 different, 0 not counted; 0 filled";

/// Returns events in each of these minutes, counted from the minute of the seed.
fn archive(minutes: impl IntoIterator<Item = i64>) -> String {
    let user = |(minute, user): (i64, i64)| {
        let at = SEED_MINUTE_NS + minute * MINUTE_NS;
        let own = format!("event_type=e{},product=q value=v{user} {}", user % 3, at + user);
        format!("{SERIES} value=u{user} {at}\n{own}\n")
    };
    minutes
        .into_iter()
        .flat_map(|minute| (0..4).map(move |user| (minute, user)))
        .map(user)
        .collect()
}

/// Returns whether a line is a point of this minute, counted from the minute of the seed.
fn is_in(minute: i64, line: &str) -> bool {
    let is_window = line.contains("_event_1h,") || line.contains("_event_products,");
    !is_window && line.ends_with(&format!(" {}", SEED_MINUTE_NS + minute * MINUTE_NS))
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Api {
    V1,
    V2,
}

/// A database for `--compare`.
struct Database {
    address: SocketAddr,
    api: Api,
    directory: TempDir,
    _server: Box<dyn std::any::Any>,
}

impl Database {
    fn influxdb_1() -> Self {
        let server = InfluxServer::start();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()));
        let create = [("q", "CREATE DATABASE eds")];
        assert_eq!(answer(post(address, "/query").query(&create)).unwrap().status, 200);
        Self::of(server, address, Api::V1)
    }

    /// The writes are small, so that a comparison has many slices and writes.
    fn of(server: impl std::any::Any, address: SocketAddr, api: Api) -> Self {
        let directory = TempDir::new().unwrap();
        let keys = match api {
            Api::V1 => "api = \"v1\"\ndatabase = \"eds\"",
            Api::V2 => "org = \"eds\"\nbucket = \"eds\"",
        };
        let url = format!("url = \"http://{address}\"\nbatch_lines = 10");
        fs::write(directory.path().join("eds.toml"), format!("[output]\n{url}\n{keys}\n{ROLLUPS}"))
            .unwrap();
        Self { address, api, directory, _server: Box::new(server) }
    }

    fn config(&self) -> String {
        self.directory.path().join("eds.toml").display().to_string()
    }

    /// Returns the points that are counted, as line protocol.
    fn counted(&self, events: &str) -> String {
        count(&["--config", &self.config(), "-"], events.as_bytes()).1
    }

    #[track_caller]
    fn write(&self, lines: &str) {
        let path = match self.api {
            Api::V1 => "/write?db=eds&precision=ns",
            Api::V2 => "/api/v2/write?org=eds&bucket=eds&precision=ns",
        };
        let write = post(self.address, path).header("Authorization", format!("Token {TOKEN}"));
        let done = answer(write.body(lines.to_owned())).unwrap();
        assert_eq!(done.status, 204, "{}", done.body);
    }

    /// Runs `eds count --compare` with further arguments. Returns its exit code, its output, and its last message.
    fn compare(&self, arguments: &[&str], events: &str) -> (Option<i32>, String, String) {
        // Only VictoriaMetrics has this path, and shows points after a second otherwise.
        answer(get(self.address, "/internal/force_flush")).unwrap();
        let config = self.config();
        let all = [&["--config", &config, "--compare", "default", "-"], arguments].concat();
        let token = [("EDS_OUTPUT__TOKEN", TOKEN)];
        let variables = if self.api == Api::V2 { &token[..] } else { &[] };
        let (code, out, messages) = count_with(variables, &all, events.as_bytes());
        (code, out, messages.lines().last().unwrap_or_default().to_owned())
    }
}

/// A database lacks some minutes, the users of another one, an hour and the day. It also has a wrong number, a number that
/// was not counted, and a zero.
fn check_gap_is_filled(database: &Database) {
    // From 17:28 to 19:57. Only the hour from 18:00 is complete.
    let events = archive(-70..80);
    let points = database.counted(&events);
    let hour = format!(" {}", SEED_MINUTE_NS - 38 * MINUTE_NS);
    let is_of_day = |line: &&str| line.contains("_event_products,");
    let is_lost = |line: &&str| {
        is_in(1, line)
            || is_in(2, line)
            || is_in(5, line) && line.starts_with("unique_")
            || line.contains("_event_1h,") && line.ends_with(&hour)
            || is_of_day(line)
    };
    let is_wrong = |line: &&str| {
        is_in(9, line) && line.starts_with(&format!("cumulative_user_event,{SERIES} "))
    };
    let kept = points.lines().filter(|line| !is_lost(line) && !is_wrong(line));
    let at = |minute: i64| SEED_MINUTE_NS + minute * MINUTE_NS;
    let others = [
        format!("cumulative_user_event,{SERIES} value=77 {}", at(9)),
        format!("unique_user_event,event_type=silent value=0 {}", at(10)),
        format!("unique_user_event,event_type=extra value=3 {}", at(11)),
        // In the first minute, the files may have only some of the events.
        format!("unique_user_event,event_type=extra value=3 {}", at(-70)),
        // Outside the time of the files.
        format!("unique_user_event,event_type=extra value=3 {}", at(81)),
    ];
    database.write(&kept.map(str::to_owned).chain(others).collect::<Vec<_>>().join("\n"));
    let all = points.lines().count();
    let [lost, of_day] =
        [points.lines().filter(is_lost).count(), points.lines().filter(is_of_day).count()];
    let summary = |missing: usize, filled: usize| {
        format!(
            "{all} points compared: {missing} missing, 1 different, 1 not counted; {filled} filled"
        )
    };

    let (code, out, found) = database.compare(&[], &events);
    assert_eq!((code, found), (Some(1), summary(lost, 0)), "{out}");
    let different =
        format!("different 20161204:1127 cumulative_user_event,{SERIES}: counted 4, found 77\n");
    for line in [
        &different,
        "uncounted 20161204:1129 unique_user_event,event_type=extra: found 3\n",
        &format!("missing   20161204:1119 unique_user_event,{SERIES}: counted 4\n"),
        "missing   20161204:1080 unique_user_event_1h,event_type=e1,product=q: counted 1\n",
    ] {
        assert!(out.contains(line), "{line}: {out}");
    }
    let (code, out, found) = database.compare(&["--fill"], &events);
    assert_eq!((code, found), (Some(1), summary(of_day, lost - of_day)), "{out}");
    assert!(
        out.contains(": counted 4; not filled, because the files may have only a part"),
        "{out}"
    );
    assert!(out.contains("filled    20161204:1080 unique_user_event_1h,"), "{out}");
    let (code, out, found) = database.compare(&["--fill"], &events);
    assert_eq!((code, found), (Some(1), summary(of_day, 0)), "{out}");
    assert!(out.contains(&different), "{out}");
}

#[test]
fn gap_in_influxdb_1_is_filled_without_changing_a_point() {
    check_gap_is_filled(&Database::influxdb_1());
}

#[test]
fn gap_in_victoria_metrics_is_filled_without_changing_a_point() {
    for api in [Api::V1, Api::V2] {
        let server = VictoriaMetrics::start();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()));
        check_gap_is_filled(&Database::of(server, address, api));
    }
}

#[test]
#[ignore = "needs InfluxDB 2, which is not packaged: set EDS_TEST_INFLUXDB2 to its binary"]
fn gap_in_influxdb_2_is_filled_without_changing_a_point() {
    let server = InfluxServer2::start();
    let address = server.address();
    check_gap_is_filled(&Database::of(server, address, Api::V2));
}

/// The response to a write is lost, so the command is repeated. The files have a gap of more than a day.
#[test]
fn repeated_fill_writes_each_point_with_one_value() {
    let mut site = Site::only(InfluxServer::start());
    let database = Database::of((), site.writes.address(), Api::V1);
    // With the minutes around them, all days are complete but the first and the last.
    let events = archive((-2000..-1990).chain([0, 1]).chain(3000..3010));
    let points = database.counted(&events);
    let is_lost = |line: &&str| is_in(0, line) || is_in(3000, line);
    let kept: Vec<_> = points.lines().filter(|line| !is_lost(line)).collect();
    site.write(&kept.join("\n"));
    let lost = points.lines().count() - kept.len();
    assert_eq!(lost, 16);

    site.writes.set(Mode::TakeWriteAndCut);
    let (code, out, message) = database.compare(&["--fill"], &events);
    assert_eq!(code, Some(1), "{out}");
    assert!(message.contains("0 points were written before. Run the command again"), "{message}");
    site.writes.set(Mode::Pass);
    let (code, out, message) = database.compare(&["--fill"], &events);
    assert_eq!(code, Some(0), "{out}");
    // The first write, whose response was lost, has ten points.
    assert!(message.ends_with("0 missing, 0 different, 0 not counted; 6 filled"), "{message}");
    let (code, out, message) = database.compare(&[], &events);
    assert_eq!((code, &*out), (Some(0), ""));
    assert!(message.ends_with(ALL_EQUAL), "{message}");
    let writes: Vec<_> = site.writes.writes().into_iter().map(|write| write.body).collect();
    let mut written: Vec<_> =
        writes.iter().flat_map(|body| body.split(|byte| *byte == b'\n')).collect();
    written.retain(|line| !line.is_empty());
    written.sort_unstable();
    let mut expected: Vec<_> = points.lines().filter(is_lost).map(str::as_bytes).collect();
    expected.sort_unstable();
    assert_eq!(written, expected, "each point is written once");
}

#[test]
fn points_that_nodes_may_still_publish_are_not_filled() {
    let database = Database::influxdb_1();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let now = (i64::try_from(now).unwrap() - SEED_MINUTE_NS) / MINUTE_NS;
    // Events are accepted for an hour.
    let events = archive([now - 64, now - 63, now - 60, now - 1, now]);
    let (code, out, message) = database.compare(&["--fill"], &events);
    assert_eq!(code, Some(1));
    assert!(message.ends_with("; 8 filled"), "{message}");
    let filled = out.lines().filter(|line| line.starts_with("filled"));
    assert_eq!(filled.count(), 8, "{out}");
    let still =
        out.lines().filter(|line| line.contains("not filled, because nodes may still publish it"));
    assert!(still.count() >= 16, "{out}");

    // Events that nodes had to add a timestamp to are not counted.
    let events = format!("{events}a=1 value=x\n");
    let (code, out, message) = database.compare(&["--fill"], &events);
    assert_eq!((code, &*out), (Some(1), ""));
    assert!(
        message.contains("nothing was filled, because events without a timestamp"),
        "{message}"
    );
}

#[test]
fn database_that_cannot_be_read_is_an_error_with_a_remedy() {
    let database = Database::influxdb_1();
    let events = archive(0..3);
    let url = format!("http://{}", database.address);
    let nowhere = format!("http://127.0.0.1:{}", free_port());
    let other = HttpProxy::start(None);
    let names = [("EDS_OUTPUT__API", "v1"), ("EDS_OUTPUT__DATABASE", "eds")];
    let wrong = [("EDS_OUTPUT__API", "v1"), ("EDS_OUTPUT__DATABASE", "none")];
    let v2 = [("EDS_OUTPUT__ORG", "o"), ("EDS_OUTPUT__BUCKET", "b")];
    for (url, variables, code, words) in [
        (
            &*nowhere,
            &names[..],
            1,
            &["points of InfluxDB at", &*nowhere, "refused", "check the URL"][..],
        ),
        (&url, &wrong, 1, &["database not found: none; ", "output.database"]),
        (&url, &v2, 1, &["status 404: ", "check the URL, output.api, output.org"]),
        (&other.url(), &names, 1, &["status 204", "must be InfluxDB 1 or 2, or VictoriaMetrics"]),
        (&url, &names[..1], 2, &["output.database", "is not set"]),
        ("backup", &names, 2, &["--compare: backup is not the name", "outputs are: default"]),
        ("default", &[], 2, &["--compare: default is not the name of an output with a database"]),
        ("http://u:p@localhost:1", &names, 2, &["--compare", "contains a password"]),
    ] {
        let (found, out, messages) =
            count_with(variables, &["--compare", url, "-"], events.as_bytes());
        assert_eq!((found, &*out), (Some(code), ""), "{url}: {messages}");
        for word in words {
            assert!(messages.contains(word), "{word}: {messages}");
        }
    }
    database.write(&database.counted(&events));
    let (code, out, messages) = count_with(&names, &["--compare", &url, "-"], events.as_bytes());
    assert_eq!((code, &*out), (Some(0), ""), "{messages}");
    assert!(messages.contains(&format!("24 points compared: {ALL_EQUAL}")), "{messages}");
}
