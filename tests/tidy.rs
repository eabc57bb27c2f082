//! Checks that the source code and the documents follow the project's rules, such as the imports allowed in ARCHITECTURE.md.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests panic on failure")]

use testing::prelude::*;

const MAY_USE: &[(&str, &[&str])] = &[
    ("event", &[]),
    ("text", &[]),
    ("diagnosis", &["event"]),
    ("config", &["event", "flush", "http", "ingest", "output", "relay", "spool", "store"]),
    ("store", &["diagnosis", "event", "text"]),
    ("output", &["diagnosis", "event", "text"]),
    ("node", &["diagnosis", "event"]),
    ("telemetry", &["diagnosis", "event", "node"]),
    ("spool", &["diagnosis", "event", "node", "telemetry"]),
    ("ingest", &["diagnosis", "event", "node", "spool", "store", "telemetry"]),
    ("flush", &["diagnosis", "event", "node", "output", "store", "telemetry"]),
    ("status", &["diagnosis", "event", "node", "store", "telemetry", "text"]),
    ("http", &["diagnosis", "event", "ingest", "node", "status", "store", "telemetry"]),
    ("count", &["event", "node", "output"]),
    ("quarantine", &["event", "store"]),
    ("relay", &["diagnosis", "event", "ingest", "node", "output", "telemetry"]),
    (
        "daemon",
        &[
            "config",
            "diagnosis",
            "event",
            "flush",
            "http",
            "ingest",
            "node",
            "output",
            "quarantine",
            "relay",
            "spool",
            "status",
            "store",
            "telemetry",
        ],
    ),
    ("cli", &["config", "count", "daemon", "event", "quarantine", "text"]),
];

/// Unidiomatic phrases from earlier comments and messages.
#[rustfmt::skip]
const PHRASES: &[&str] = &[
    "again and again", "any more", "are over", "are told", "as far as", "became of", "becomes of", "beside", "for good",
    "from then on", "gives up", "go on", "goes on", "going on", "is away", "is over", "is told", "let go of", "lets go",
    "look at", "meanwhile", "nobody", "of its own", "of their own", "so many", "somebody", "stands", "the most that", "the one that",
    "the rest", "those of", "what waits", "whoever", "by itself",
];

/// The maximum number of occurrences of `PHRASES` in comments, messages and documents.
const PHRASES_MAX: usize = 185;

/// A file that is longer than this should be split.
const LINES_MAX: usize = 600;

fn files(directory: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy();
        if path.is_dir() && !name.starts_with('.') && name != "target" {
            files(&path, extension, found);
        } else if path.extension().is_some_and(|ending| ending == extension) {
            found.push(path);
        }
    }
}

fn sources(folder: &str) -> BTreeMap<PathBuf, String> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    files(&top.join(folder), "rs", &mut found);
    found
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            (path.strip_prefix(top).unwrap().into(), text)
        })
        .collect()
}

fn all_sources() -> BTreeMap<PathBuf, String> {
    let mut all = sources("src");
    all.append(&mut sources("crates"));
    all
}

fn module(path: &Path) -> Option<String> {
    let first = path.iter().nth(1).unwrap().to_str().unwrap();
    let module = first.strip_suffix(".rs").unwrap_or(first);
    (!matches!(module, "lib" | "main")).then(|| module.to_owned())
}

fn uses(line: &str) -> Vec<&str> {
    named(line, "crate::")
}

fn named<'a>(line: &'a str, prefix: &str) -> Vec<&'a str> {
    let code = line.split("//").next().unwrap_or_default();
    let end =
        |text: &str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    code.split(prefix)
        .skip(1)
        .flat_map(|rest| {
            if let Some(list) = rest.strip_prefix('{') {
                let list = list.split('}').next().unwrap_or_default();
                list.split(',').map(str::trim).map(|item| &item[..end(item)]).collect()
            } else {
                vec![&rest[..end(rest)]]
            }
        })
        .filter(|name| !name.is_empty())
        .collect()
}

#[test]
fn imports_run_downwards_only() {
    let mut wrong = Vec::new();
    for (path, text) in sources("src") {
        let Some(module) = module(&path) else {
            continue;
        };
        let (_, allowed) = MAY_USE
            .iter()
            .find(|(name, _)| *name == module)
            .unwrap_or_else(|| panic!("{module} is missing from MAY_USE in {}", file!()));
        for (number, line) in text.lines().enumerate() {
            for used in uses(line) {
                let is_module = MAY_USE.iter().any(|(name, _)| *name == used);
                if is_module && used != module && !allowed.contains(&used) {
                    wrong.push(format!("{}:{}: {used}", path.display(), number + 1));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "imports that the architecture does not allow:\n{}",
        wrong.join("\n")
    );
}

/// Metrics are only read for `/metrics` and the status. The state on which decisions depend is in `node`.
#[test]
fn no_decision_depends_on_a_metric() {
    let reads = |code: &str| {
        let code: String = code.split_whitespace().collect();
        let mut fields = code.split("metrics.").skip(1);
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        fields.any(|rest| rest.trim_start_matches(is_name).starts_with(".get()"))
    };
    assert!(
        reads("self\n    .metrics\n    .store_up\n    .get()") && !reads("metrics.claims.inc()")
    );
    for (path, text) in sources("src") {
        let may = matches!(module(&path).as_deref(), Some("telemetry" | "status"))
            || path.to_string_lossy().ends_with("tests.rs");
        assert!(may || !reads(&text), "{} reads a metric", path.display());
    }
}

#[test]
fn imports_within_a_folder_form_no_cycle() {
    let mut folders: BTreeMap<PathBuf, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for (path, text) in all_sources() {
        let name = path.file_stem().unwrap().to_string_lossy();
        // Skip tests, which may import anything, and files that re-export from the files of their folder.
        if matches!(&*name, "mod" | "lib" | "main") || name.ends_with("tests") {
            continue;
        }
        let code = text.split("#[cfg(test)]").next().unwrap();
        for folder in path.ancestors().skip(1) {
            let below = path.strip_prefix(folder).unwrap().with_extension("");
            let mut below = below.iter().map(|part| part.to_string_lossy().into_owned());
            let (here, is_file) = (below.next().unwrap(), below.next().is_none());
            let names = folder.iter().map(|part| part.to_string_lossy());
            let names: Vec<_> = names.skip_while(|part| part != "src").skip(1).collect();
            let absolute =
                ["crate".into()].into_iter().chain(names).collect::<Vec<_>>().join("::") + "::";
            let mut used: BTreeSet<_> =
                code.lines().flat_map(|line| named(line, &absolute)).collect();
            if is_file {
                used.extend(code.lines().flat_map(|line| named(line, "super::")));
            }
            let used = used.into_iter().filter(|import| **import != here).map(str::to_owned);
            let imports = folders.entry(folder.to_owned()).or_default();
            imports.entry(here.clone()).or_default().extend(used);
            if folder.ends_with("src") {
                break;
            }
        }
    }
    assert!(folders[Path::new("src/config")]["sources"].contains("sections"));
    for (folder, mut files) in folders {
        // Repeatedly remove files that import no remaining file. The files of a cycle cannot be removed.
        while !files.is_empty() {
            let left = files.clone();
            files.retain(|_, uses| uses.iter().any(|used| left.contains_key(used)));
            assert!(files.len() < left.len(), "{}: cyclic imports: {files:?}", folder.display());
        }
    }
}

#[test]
fn every_module_is_in_the_code_map() {
    let map = include_str!("../ARCHITECTURE.md");
    for path in sources("src").keys() {
        if let Some(module) = module(path) {
            assert!(map.contains(&format!("`{module}`")), "{module} is not in ARCHITECTURE.md");
        }
    }
}

#[test]
fn every_file_has_a_module_comment_and_one_subject() {
    for (path, text) in all_sources() {
        assert!(
            text.starts_with("//! ") || text.starts_with("#![doc"),
            "{} has no module comment",
            path.display()
        );
        let path_text = path.to_string_lossy();
        let is_test =
            ["/tests/", "tests.rs", "crates/testing/"].iter().any(|part| path_text.contains(part));
        let lines = text.lines().count();
        assert!(is_test || lines <= LINES_MAX, "{} has {lines} lines", path.display());
    }
}

#[test]
fn no_todo_is_left() {
    for (path, text) in all_sources() {
        for mark in ["TODO", "FIXME", "XXX", "todo!", "unimplemented!", "dbg!"] {
            assert!(!text.contains(mark), "{} has a {mark}", path.display());
        }
    }
}

/// Operators read the log, so it must contain `127.0.0.1:8095` instead of `Some("127.0.0.1:8095")`.
#[test]
fn no_log_field_uses_debug_formatting() {
    let is_debug = |line: &str| {
        let names = |(_, rest): (usize, &str)| rest[1..].starts_with(|c: char| c.is_alphabetic());
        let fields = line.match_indices('?').map(|(at, _)| (at, &line[at..]));
        fields.filter(|field| names(*field)).any(|(at, _)| {
            let before = line[..at].trim_end();
            before.is_empty() || before.ends_with(['=', ',']) || before.ends_with("!(")
        })
    };
    assert!(is_debug("    ?level,") && is_debug("error!(workers = ?stalled, "));
    assert!(!is_debug("    .find(x)?.next();"));
    for (path, text) in all_sources() {
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let place = format!("{}:{}", path.display(), number + 1);
            assert!(!is_debug(code), "{place} logs a field with `?`");
        }
    }
}

#[test]
fn unusual_phrases_stay_rare() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for extension in ["rs", "lua", "md", "toml"] {
        files(top, extension, &mut found);
    }
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let mut by_phrase = BTreeMap::new();
    for path in found.iter().filter(|path| !path.ends_with("tests/tidy.rs")) {
        let text = fs::read_to_string(path).unwrap().to_lowercase();
        for phrase in PHRASES {
            let whole = |(at, _): &(usize, &str)| {
                let after = text[at + phrase.len()..].chars().next();
                !is_word(text[..*at].chars().next_back()) && !is_word(after)
            };
            *by_phrase.entry(phrase).or_insert(0) +=
                text.match_indices(phrase).filter(whole).count();
        }
    }
    let total: usize = by_phrase.values().sum();
    assert!(total <= PHRASES_MAX, "{total} unusual phrases, at most {PHRASES_MAX}: {by_phrase:?}");
}

/// Checks that every relative link leads to an existing file, and every anchor to a heading.
#[test]
fn every_link_in_the_documents_resolves() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let anchors = |text: &str| -> Vec<String> {
        let headings = text.lines().filter(|line| line.starts_with('#'));
        let is_kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let anchor = |heading: &str| {
            let kept = heading.trim_matches(['#', ' ']).chars().filter(is_kept);
            kept.collect::<String>().to_lowercase().replace(' ', "-")
        };
        headings.map(anchor).collect()
    };
    let mut found = Vec::new();
    files(top, "md", &mut found);
    let mut links = 0;
    for document in found {
        let text = fs::read_to_string(&document).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") || link.contains(' ') {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => document.clone(),
                path => document.parent().unwrap().join(path),
            };
            let from = document.display();
            assert!(target.exists(), "{from}: the file of {link} does not exist");
            let leads = anchor.is_empty()
                || anchors(&fs::read_to_string(&target).unwrap()).contains(&anchor.to_owned());
            assert!(leads, "{from}: the heading of {link} does not exist");
            links += 1;
        }
    }
    assert!(links > 40, "only {links} links");
}

#[test]
fn every_test_that_reliability_names_exists() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut code = String::new();
    for directory in ["tests", "src", "crates"] {
        let mut found = Vec::new();
        files(&top.join(directory), "rs", &mut found);
        code.extend(found.iter().map(|path| fs::read_to_string(path).unwrap()));
    }
    let document = fs::read_to_string(top.join("docs/reliability.md")).unwrap();
    let is_name = |name: &&str| name.matches('_').count() > 3 && !name.contains([' ', '.', '=']);
    let named = document.split('`').skip(1).step_by(2).filter(is_name);
    let is_there = |name: &&str| code.contains(name.rsplit("::").next().unwrap());
    let missing: Vec<_> = named.filter(|name| !is_there(name)).collect();
    assert!(missing.is_empty(), "no tests are named {missing:?}");
}

/// A filter for a module without tests would silently select nothing.
#[test]
fn every_filter_of_the_test_runner_selects_tests() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let runner = fs::read_to_string(top.join(".config/nextest.toml")).unwrap();
    let groups = runner.split("test(/^").skip(1).filter_map(|rest| rest.split_once("::/)"));
    let modules = groups.flat_map(|(modules, _)| modules.trim_matches(['(', ')']).split('|'));
    let named: Vec<_> = modules.collect();
    assert!(named.len() > 20, "{named:?}");
    let mut found = Vec::new();
    files(&top.join("tests"), "rs", &mut found);
    files(&top.join("crates"), "rs", &mut found);
    for module in named {
        let has_tests = |path: &PathBuf| {
            path.file_stem().is_some_and(|stem| stem == module)
                && fs::read_to_string(path).unwrap().contains("test]")
        };
        assert!(found.iter().any(has_tests), "the module {module} has no tests");
    }
}

/// With `pipefail`, a script occasionally fails if a reader exits early, because the writer is killed by SIGPIPE.
#[test]
fn no_script_closes_a_pipe_early() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut scripts = vec![top.join("tests/systemd/run"), top.join("packaging/stage")];
    for folder in ["scripts", ".ci"] {
        let entries = fs::read_dir(top.join(folder)).unwrap();
        scripts.extend(entries.map(|entry| entry.unwrap().path()));
    }
    assert!(scripts.len() > 10, "{scripts:?}");
    for script in scripts {
        for line in fs::read_to_string(&script).unwrap().lines() {
            let partial = line.split('|').skip(1).find(|command| {
                let words: Vec<_> = command.split_whitespace().take(2).collect();
                words.first() == Some(&"head")
                    || words.first() == Some(&"grep")
                        && words.get(1).is_some_and(|flags| {
                            flags.starts_with('-') && flags.contains(['q', 'm'])
                        })
            });
            assert!(partial.is_none(), "{}: {line}", script.display());
        }
    }
}

/// Checks that the script lists every section of the benchmarks, and that each measured table is generated by a section.
#[test]
fn benchmarks_match_their_script_and_document() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| fs::read_to_string(top.join(name)).unwrap();
    let (main, script) = (read("benches/main.rs"), read("scripts/bench"));
    let sections = main.lines().filter(|line| line.starts_with("    (\""));
    let sections: Vec<_> = sections.map(|line| line.split('"').nth(1).unwrap()).collect();
    let list = format!("available: {}\n", sections.join(" "));
    assert!(script.contains(&list), "scripts/bench does not contain {list}");
    let mut found = Vec::new();
    files(&top.join("benches"), "rs", &mut found);
    let code = found.iter().map(|path| fs::read_to_string(path).unwrap());
    let code = code.collect::<String>();
    let document = read("docs/performance.md") + &read("docs/scale.md");
    let mut tables = document.split("<!-- measured: ").skip(1).map(|rest| {
        let (id, rest) = rest.split_once(" -->").unwrap();
        assert!(rest.contains("<!-- end -->"), "{id} has no end");
        // A plot is named after its table, with a prefix.
        id.trim_start_matches("plot-")
    });
    let unknown = tables.find(|id| !code.contains(&format!("\"{id}\"")));
    assert_eq!(unknown, None, "no benchmark generates this table");
}

/// Cargo refuses to build with a toolchain that is older than a dependency requires.
#[test]
fn declared_rust_version_satisfies_every_dependency() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--locked"])
        .args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let version = |package: &serde_json::Value| -> Option<Vec<u32>> {
        let parts = package["rust_version"].as_str()?.split('.');
        Some(parts.map(|part| part.parse().unwrap()).collect())
    };
    let packages = metadata["packages"].as_array().unwrap();
    let ours = packages.iter().find(|package| package["name"] == env!("CARGO_PKG_NAME"));
    let ours = version(ours.unwrap()).unwrap();
    let is_newer =
        |package: &&serde_json::Value| version(package).is_some_and(|theirs| theirs > ours);
    let newer: Vec<_> = packages.iter().filter(is_newer).map(|package| &package["name"]).collect();
    assert!(newer.is_empty(), "{newer:?} need a newer Rust than {ours:?}");
}

/// Images must be pinned for reproducible builds.
#[test]
fn every_container_image_is_pinned_by_version() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| fs::read_to_string(top.join(name)).unwrap();
    let (build, compose) = (read("Dockerfile"), read("docker-compose.yml"));
    let bases = build.lines().filter_map(|line| line.strip_prefix("FROM "));
    let bases = bases.filter(|base| *base != "scratch");
    let images = compose.lines().filter_map(|line| line.trim().strip_prefix("image: "));
    let others = images.filter(|image| *image != "event-data-service");
    let images: Vec<_> = bases.chain(others).collect();
    assert!(images.len() > 3, "{images:?}");
    for image in images {
        let tag = image.split([':', ' ']).nth(1).unwrap_or_default();
        let version = tag.split('-').next().unwrap();
        let parts = version.split('.').filter(|part| part.parse::<u32>().is_ok());
        assert!(parts.count() >= 2, "{image} has no version");
    }
}
