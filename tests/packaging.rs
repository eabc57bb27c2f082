//! Checks the systemd units and the container files against the binary and the table of configuration keys.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use event_data_service::config::{KEYS, Key, LOG_VARIABLE, Program, VARIABLE_PREFIX};
use testing::prelude::*;

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

fn help(command: &str) -> String {
    let output =
        Command::new(env!("CARGO_BIN_EXE_eds")).args([command, "--help"]).output().unwrap();
    assert!(output.status.success(), "eds {command} is not a command");
    String::from_utf8(output.stdout).unwrap()
}

fn directive<'a>(unit: &'a str, name: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('=')).collect()
}

fn default(path: &str) -> Duration {
    humantime::parse_duration(Key::find(path).unwrap().default).unwrap()
}

fn variables(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'));
    words
        .filter(|word| word.starts_with(VARIABLE_PREFIX) && word.len() > VARIABLE_PREFIX.len())
        .collect()
}

/// The name of the units for each program.
const UNITS: [(&str, Program); 2] = [("eds", Program::Node), ("eds-relay", Program::Relay)];

#[test]
fn units_start_existing_commands() {
    for (unit, name, command) in [
        ("eds", "ExecStartPre", "check"),
        ("eds", "ExecStart", "run"),
        ("eds-relay", "ExecStartPre", "relay"),
        ("eds-relay", "ExecStart", "relay"),
    ] {
        let unit = read(&format!("systemd/{unit}.service"));
        let lines = directive(&unit, name);
        let [line] = lines.as_slice() else { panic!("{name} occurs {} times", lines.len()) };
        let mut words = line.split_whitespace();
        assert_eq!((words.next(), words.next()), (Some("/usr/bin/eds"), Some(command)));
        let help = help(command);
        for flag in words.filter(|word| word.starts_with("--")) {
            assert!(help.contains(flag), "eds {command} has no {flag}");
        }
    }
}

#[test]
fn units_wait_longer_than_a_drain() {
    let mut longest = Duration::ZERO;
    for (unit, _) in UNITS {
        let unit = read(&format!("systemd/{unit}.service"));
        let [stop] = directive(&unit, "TimeoutStopSec")[..] else { panic!("no TimeoutStopSec") };
        let stop = humantime::parse_duration(stop).unwrap();
        assert!(stop >= default("input.drain_timeout") + default("output.timeout"));
        longest = longest.max(stop);
    }
    let compose = read("docker-compose.yml");
    let grace = compose.split("stop_grace_period: ").nth(1).unwrap().lines().next().unwrap();
    assert!(humantime::parse_duration(grace).unwrap() >= longest);
}

#[test]
fn every_shipped_variable_is_a_key() {
    for file in [
        "docker-compose.yml",
        "Dockerfile",
        "systemd/eds.service",
        "systemd/eds.service.d/credentials.conf",
        "systemd/eds.socket",
        "systemd/eds-relay.service",
        "systemd/eds-relay.socket",
        "deploy/kubernetes/node.yaml",
        "deploy/kubernetes/relay.yaml",
        "config/eds.toml",
        "config/relay.toml",
    ] {
        let text = read(file);
        for name in variables(&text) {
            let known = KEYS.iter().any(|key| key.variable() == name)
                || ["EDS_SECTION__KEY", LOG_VARIABLE].contains(&name);
            assert!(known, "{file} sets {name}, which is not a key");
        }
    }
    assert!(variables(&read("docker-compose.yml")).len() > 6);
}

#[test]
fn no_secret_is_in_the_image() {
    for name in variables(&read("Dockerfile")) {
        assert!(!name.contains("PASSWORD") && !name.contains("TOKEN"), "{name}");
    }
}

/// The installed binary must be small, whereas the profiling build needs debug info.
#[test]
fn release_is_stripped_and_profiling_is_not() {
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let setting = |profile: &str, key: &str| {
        let value = manifest["profile"].get(profile)?.get(key)?;
        Some(value.as_str()?.to_owned())
    };
    assert!(["symbols", "debuginfo"].contains(&&*setting("release", "strip").unwrap()));
    assert_eq!(setting("release", "debug"), None);
    assert_eq!(setting("profiling", "inherits").unwrap(), "release");
    for profile in ["profiling", "bench"] {
        assert_eq!(setting(profile, "strip").unwrap(), "none");
        assert_eq!(setting(profile, "debug").unwrap(), "line-tables-only");
    }
    // The image contains only the release binary.
    let image = read("Dockerfile");
    let built: Vec<_> = image.lines().filter(|line| line.contains("cargo build")).collect();
    assert!(matches!(built[..], [line] if line.contains("--release ")), "{built:?}");
    assert!(image.contains("/release/eds\" /image/usr/bin/eds "));
    assert!(image.contains("\nUSER 10001\n"));
}

#[test]
fn files_of_the_image_are_in_the_build_context() {
    let ignored = read(".dockerignore");
    let image = read("Dockerfile");
    let copies = image.lines().filter_map(|line| line.strip_prefix("COPY "));
    let mut paths = 0;
    for line in copies.filter(|line| !line.starts_with("--from=")) {
        let words: Vec<_> = line.split_whitespace().collect();
        for path in &words[..words.len() - 1] {
            paths += 1;
            let is_let_in = ignored.lines().any(|line| line == format!("!{path}"));
            assert!(is_let_in, "{path} is not in .dockerignore");
        }
    }
    assert!(paths > 6, "{paths}");
}

/// Returns a file in a tar archive, or a list of its members if `member` is None.
fn untar(archive: &Path, member: Option<&str>) -> Vec<u8> {
    let mut command = Command::new("tar");
    command.arg(if member.is_some() { "-xOf" } else { "-tf" }).arg(archive).args(member);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn image_without_docker_is_that_of_the_dockerfile_and_reproducible() {
    let directory = tempfile::tempdir().unwrap();
    let [first, second, layer] =
        ["first", "second", "layer"].map(|name| directory.path().join(name));
    for image in [&first, &second] {
        let arguments = ["packaging/image", "Cargo.toml", "1.2.3", "0123abc", "1480876707"];
        let built = Command::new("python3").args(arguments).arg(image).status().unwrap();
        assert!(built.success());
    }
    assert_eq!(std::fs::read(&first).unwrap(), std::fs::read(second).unwrap());

    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap().replace(':', "/");
        untar(&first, Some(&format!("blobs/{digest}")))
    };
    let json = |bytes: Vec<u8>| serde_json::from_slice::<Value>(&bytes).unwrap();
    // containerd and podman read the first name, and Docker the second.
    let index = json(untar(&first, Some("index.json")));
    let descriptor = &index["manifests"][0];
    let name = "event-data-service:1.2.3";
    let long = &descriptor["annotations"]["io.containerd.image.name"];
    assert_eq!(long, &format!("docker.io/library/{name}"));
    assert_eq!(json(untar(&first, Some("manifest.json")))[0]["RepoTags"][0], name);
    let manifest = json(blob(descriptor));
    let config = &json(blob(&manifest["config"]))["config"];
    assert_eq!(config["Labels"]["org.opencontainers.image.version"], "1.2.3");
    let dockerfile = read("Dockerfile");
    let entry = config["Entrypoint"][0].as_str().unwrap();
    assert!(dockerfile.contains(&format!("ENTRYPOINT [\"{entry}\"]")));
    let user = config["User"].as_str().unwrap();
    assert!(dockerfile.contains(&format!("\nUSER {user}\n")));
    let environment: BTreeSet<_> = config["Env"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|text| text.as_str()?.split('=').next())
        .collect();
    assert_eq!(environment, variables(&dockerfile).into_iter().collect());
    std::fs::write(&layer, blob(&manifest["layers"][0])).unwrap();
    let members = String::from_utf8(untar(&layer, None)).unwrap();
    for path in [entry, "/etc/ssl/certs/ca-certificates.crt", "/var/lib/eds/"] {
        assert!(members.lines().any(|member| member == &path[1..]), "{path} is not in {members}");
    }
    assert_eq!(String::from_utf8(untar(&layer, Some(&entry[1..]))).unwrap(), read("Cargo.toml"));
}

#[test]
fn the_units_are_hardened() {
    for (unit, _) in UNITS {
        let file = format!("{unit}.service");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd").join(&file);
        // Copy the unit, because systemd-analyze would also read the sample drop-ins next to it.
        let directory = tempfile::tempdir().unwrap();
        let alone = directory.path().join(file);
        std::fs::copy(path, &alone).unwrap();
        let output = Command::new("systemd-analyze")
            .args(["security", "--offline=true", "--no-pager", "--threshold=15"])
            .arg(&alone)
            .output()
            .expect("systemd-analyze from the Debian package systemd");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

const UNIT_FILES: [&str; 4] =
    ["eds.service", "eds.socket", "eds-relay.service", "eds-relay.socket"];

/// Returns a directory with the units, changed to run the binary of this build.
fn installed() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for name in UNIT_FILES {
        let unit = read(&format!("systemd/{name}"));
        let unit = unit.replace("/usr/bin/eds", env!("CARGO_BIN_EXE_eds"));
        std::fs::write(directory.path().join(name), unit).unwrap();
    }
    directory
}

#[test]
fn systemd_understands_the_units() {
    let directory = installed();
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .args(UNIT_FILES.map(|name| directory.path().join(name)))
        .output()
        .expect("systemd-analyze from the Debian package systemd");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let is_ours = |line: &&str| line.contains("eds.") || line.contains("eds-relay.");
    let ours: Vec<_> = stderr.lines().filter(is_ours).collect();
    assert!(output.status.success() && ours.is_empty(), "{stderr}");
}

#[test]
fn socket_units_match_the_listen_addresses() {
    for (name, program) in UNITS {
        let unit = read(&format!("systemd/{name}.socket"));
        let addresses = Key::find("input.listen").unwrap().default_in(program);
        let addresses: Vec<_> = addresses.split(',').collect();
        assert_eq!(directive(&unit, "ListenDatagram"), addresses);
        // In systemd, M means 1024 × 1024.
        let [buffer] = directive(&unit, "ReceiveBuffer")[..] else { panic!("no ReceiveBuffer") };
        let default = Key::find("input.receive_buffer").unwrap().default;
        assert_eq!(buffer.replace('M', "MiB"), default);
    }
}

#[test]
fn services_work_without_socket_units() {
    for (name, _) in UNITS {
        let [service, socket] =
            ["service", "socket"].map(|kind| read(&format!("systemd/{name}.{kind}")));
        let (service_unit, socket_unit) = (format!("{name}.service"), format!("{name}.socket"));
        assert_eq!(directive(&socket, "RequiredBy"), [service_unit]);
        let after = directive(&service, "After").join(" ");
        assert!(after.split(' ').any(|unit| unit == socket_unit), "{after}");
        for strong in ["Requires", "Wants", "BindsTo", "Sockets"] {
            let units = directive(&service, strong).join(" ");
            assert!(!units.contains(&socket_unit), "{strong}={units}");
        }
        // The socket is started before the network, so its addresses may not exist yet.
        assert_eq!(directive(&socket, "FreeBind"), ["yes"]);
        // A service that cannot start or that restarts too often must not stop the socket.
        assert_eq!(directive(&socket, "TriggerLimitIntervalSec"), ["0"]);
        assert_eq!(directive(&service, "StartLimitIntervalSec"), ["0"]);
    }
}

#[test]
fn kubernetes_manifests_have_this_version_and_a_valid_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "secret").unwrap();
    let node = read("deploy/kubernetes/node.yaml");
    let (_, rest) = node.split_once("  eds.toml: |\n").unwrap();
    let (text, _) = rest.split_once("\n---").unwrap();
    let text = text.replace("\n    ", "\n");
    let text = text.replace("/run/secrets/eds/influxdb-token", &token.display().to_string());
    let config = directory.path().join("eds.toml");
    std::fs::write(&config, text.trim_start()).unwrap();
    let checked = Command::new(env!("CARGO_BIN_EXE_eds"))
        .args(["check", "--config"])
        .arg(&config)
        .output()
        .unwrap();
    assert!(checked.status.success(), "{checked:?}");

    let base = read("deploy/kustomization.yaml");
    let all = "resources:\n  - kubernetes/node.yaml\n  - kubernetes/relay.yaml\n";
    assert!(base.ends_with(all), "{base}");
    let relay = read("deploy/kubernetes/relay.yaml");
    let image = concat!("image: event-data-service:", env!("CARGO_PKG_VERSION"), "\n");
    for manifest in [node, relay] {
        assert!(manifest.contains(image), "the manifest does not contain {image}");
    }
}
