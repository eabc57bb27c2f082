//! The sources of values: the file, the environment and flags, each overriding the previous one. The file is parsed into a
//! tree that keeps the span of each value, rather than into a struct with serde, so that all mistakes are reported at once,
//! each with its line. Messages never quote lines from the file, because they may contain secrets.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};

use strsim::damerau_levenshtein;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::migrate::RENAMED;
use super::sections::KEYS;
use super::values::{
    Effective, Form, Key, LOG_VARIABLE, OUTPUT, Origin, Program, REPEATED, VARIABLE_PREFIX,
};

/// The flags of commands that use a node's configuration. `Debug` is not implemented, because a URL may contain a password.
#[derive(Clone, Default, clap::Args)]
pub struct Flags {
    /// Configuration file [default: /etc/eds/eds.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Name of this node, unique in the cluster [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Addresses to receive events on, comma-separated or repeated
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub listen: Vec<String>,
    /// URL of the store: memory:, redis://…, rediss://…, redis+unix://…, redis+cluster://… or redis+sentinel://…
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// Destination of the counts: stdout:, http://… or https://…; replaces all configured outputs
    #[arg(long, value_name = "URL")]
    pub output: Option<String>,
    /// Like `output`, for `eds count --compare`
    #[arg(skip)]
    pub compare: Option<String>,
    /// TCP address of the HTTP server; an empty address disables it
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<String>,
}

/// The flags of `eds relay`, as typed.
#[derive(Clone, Default, clap::Args)]
pub struct RelayFlags {
    /// Configuration file [default: /etc/eds/relay.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Addresses to receive lines on, comma-separated or repeated
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub listen: Vec<String>,
    /// Nodes to send every event to, comma-separated or repeated
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    pub to: Vec<String>,
    /// Destination of all other lines: none:, udp://HOST:PORT, http://HOST:PORT?db=… or
    /// http://HOST:PORT?org=…&bucket=…
    #[arg(long, value_name = "URL")]
    pub passthrough: Option<String>,
    /// TCP address of the HTTP server; an empty address disables it
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<String>,
}

/// A program, the file given by `--config`, and for each other flag its name, its key, and its value if it is set.
pub(super) type Typed<'a> =
    (Program, Option<&'a Path>, Vec<(&'static str, &'static str, Option<String>)>);

/// Joins the values of a flag with commas, as in the environment. Returns `None` if there are no values.
fn joined(values: &[String]) -> Option<String> {
    (!values.is_empty()).then(|| values.join(","))
}

impl Flags {
    pub(super) fn typed(&self) -> Typed<'_> {
        let flags = vec![
            ("--node", "node", self.node.clone()),
            ("--listen", "input.listen", joined(&self.listen)),
            ("--store", "store.url", self.store.clone()),
            ("--output", "output.url", self.output.clone()),
            ("--compare", "output.url", self.compare.clone()),
            ("--http", "http.listen", self.http.clone()),
        ];
        (Program::Node, self.config.as_deref(), flags)
    }
}

impl RelayFlags {
    pub(super) fn typed(&self) -> Typed<'_> {
        let flags = vec![
            ("--listen", "input.listen", joined(&self.listen)),
            ("--to", "relay.to", joined(&self.to)),
            ("--passthrough", "passthrough.url", self.passthrough.clone()),
            ("--http", "http.listen", self.http.clone()),
        ];
        (Program::Relay, self.config.as_deref(), flags)
    }
}

/// Returns the values from all sources, and whether they are complete, i.e. whether the file was readable and valid TOML.
pub(super) fn gather(
    (program, file, flags): Typed<'_>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> (Effective, bool) {
    let mut values = Effective::new(program, KEYS);
    if let Some(name) = host_name() {
        values.set("node", name, Origin::HostName);
    }
    let is_readable = read_file(&mut values, file);
    read_environment(&mut values, environment);
    for (flag, path, value) in flags {
        if let Some(value) = value {
            // `--output` replaces all outputs, for testing a configuration without writing to them.
            if values.is_of_several(path) {
                values.begin(OUTPUT, 0);
            }
            values.set(path, value, Origin::Flag(flag));
        }
    }
    (values, is_readable)
}

/// Returns the host name, or `None` if it cannot be read. Also tries `/etc`, because some containers restrict `/proc`.
pub(super) fn host_name() -> Option<String> {
    let read = |path| std::fs::read_to_string(path).ok().map(|name| name.trim().to_owned());
    ["/proc/sys/kernel/hostname", "/etc/hostname"]
        .into_iter()
        .find_map(|path| read(path).filter(|name| !name.is_empty()))
}

/// Reads the values of keys from the environment. Reports unknown `EDS_` variables unless Kubernetes set them.
fn read_environment(
    values: &mut Effective,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) {
    let owned = |(name, value): (OsString, _)| (name.to_string_lossy().into_owned(), value);
    let mut variables: Vec<(String, OsString)> = environment.into_iter().map(owned).collect();
    variables.retain(|(name, _)| name.starts_with(VARIABLE_PREFIX) && name != LOG_VARIABLE);
    variables.sort();
    for (name, value) in variables {
        let origin = Origin::Environment(name.clone());
        let Some(key) = values.program.keys().find(|key| key.variable() == name) else {
            // A node and a relay may run with the same environment, so ignore the other program's keys.
            let is_of_another = KEYS.iter().any(|key| key.variable() == name);
            if !is_of_another && !value.to_str().is_some_and(|value| is_of_a_service(&name, value))
            {
                let renamed = RENAMED.iter().find_map(|(old, new)| {
                    let [old, new] = [old, new]
                        .map(|section| format!("{VARIABLE_PREFIX}{}__", section.to_uppercase()));
                    Some(new + name.strip_prefix(&old)?)
                });
                let nearest = nearest(
                    renamed.as_ref().unwrap_or(&name),
                    values.program.keys().map(Key::variable),
                );
                values.refuse(origin, "", format!("unknown key; did you mean {nearest}?"));
            }
            continue;
        };
        if values.is_of_several(key.path) {
            let section = key.section();
            let text = format!(
                "applies to a single {section}, but the file has several; set the key in the [[{section}]] sections that need it (for \
                 a secret, its _file key)"
            );
            values.refuse(origin, "", text);
        } else if let Ok(value) = value.into_string() {
            values.set(key.path, value, origin);
        } else {
            values.refuse(origin, key.path, "is not UTF-8; encode it as UTF-8".to_owned());
        }
    }
}

/// Returns whether Kubernetes has set this variable for a Service, such as `EDS_SERVICE_HOST`, `EDS_PORT` or
/// `EDS_NODE_PORT_8094_UDP_ADDR`. Unlike the variables of most keys, these never contain two consecutive underscores.
fn is_of_a_service(name: &str, value: &str) -> bool {
    let words: Vec<&str> = name.split('_').skip(1).collect();
    let is_protocol = |word: &str| ["tcp", "udp", "sctp"].contains(&word);
    let is_port = |text: &str| text.parse::<u16>().is_ok();
    let is_ip = || value.parse::<IpAddr>().is_ok();
    let is_url = || {
        value.split_once("://").is_some_and(|(protocol, address)| {
            is_protocol(protocol) && address.parse::<SocketAddr>().is_ok()
        })
    };
    let is_link =
        |port: &str, protocol: &str| is_port(port) && is_protocol(&protocol.to_ascii_lowercase());
    let is_named = match words[..] {
        [.., "SERVICE", "HOST"] => is_ip(),
        [.., "PORT", port, protocol, "ADDR"] if is_link(port, protocol) => is_ip(),
        [.., "PORT", port, protocol, "PORT"] if is_link(port, protocol) => is_port(value),
        [.., "PORT", port, protocol, "PROTO"] if is_link(port, protocol) => is_protocol(value),
        [.., "PORT", port, protocol] if is_link(port, protocol) => is_url(),
        [.., "PORT"] if is_url() => true,
        // `EDS_SERVICE_PORT`, which may be followed by the name of the port.
        _ => words.windows(2).any(|pair| pair == ["SERVICE", "PORT"]) && is_port(value),
    };
    is_named && !words.contains(&"")
}

fn nearest<N: AsRef<str>>(name: &str, names: impl Iterator<Item = N>) -> String {
    let nearest = names.min_by_key(|known| damerau_levenshtein(name, known.as_ref()));
    nearest.map_or(String::new(), |nearest| nearest.as_ref().to_owned())
}

/// Reads the specified file, or the default file if it exists. Returns false if the file is unreadable or not valid TOML.
fn read_file(values: &mut Effective, named: Option<&Path>) -> bool {
    let path = named.unwrap_or(Path::new(values.program.default_file()));
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if named.is_none() && error.kind() == ErrorKind::NotFound => return true,
        Err(error) => {
            let text = format!("cannot be read: {error}; use --config to specify a readable file");
            values.refuse(Origin::File(path.to_owned(), 0), "", text);
            return false;
        }
    };
    values.file = Some(path.to_owned());
    let (tree, errors) = DeTable::parse_recoverable(&text);
    let mut file = File { path, text: &text, values };
    // The parser may report several errors for the same line; only the first is accurate.
    let mut lines = BTreeSet::new();
    for error in &errors {
        let span = error.span().unwrap_or_default();
        if lines.insert(file.line(&span)) {
            match error.message() {
                "duplicate key" => file.duplicate(&span),
                message => file.refuse(&span, "", format!("invalid TOML: {message}")),
            }
        }
    }
    if errors.is_empty() {
        file.top(tree.get_ref());
    }
    errors.is_empty()
}

struct File<'a> {
    path: &'a Path,
    text: &'a str,
    values: &'a mut Effective,
}

impl File<'_> {
    fn top(&mut self, table: &DeTable<'_>) {
        for (name, value) in table {
            let (section, span) = (&**name.get_ref(), name.span());
            let is_section = self.values.program.keys().any(|key| key.section() == section);
            match value.get_ref() {
                DeValue::Table(inner) if is_section => self.section(section, inner),
                DeValue::Array(parts)
                    if REPEATED.contains(&section) && is_section && !parts.is_empty() =>
                {
                    let repeated = REPEATED.into_iter().find(|repeated| *repeated == section);
                    for (index, part) in parts.iter().enumerate() {
                        if let DeValue::Table(inner) = part.get_ref() {
                            self.values.begin(repeated.unwrap_or(OUTPUT), index);
                            self.section(section, inner);
                        } else {
                            let text = format!(
                                "is not a section; put [[{section}]] above the keys of each {section}"
                            );
                            self.refuse(&part.span(), section, text);
                        }
                    }
                    self.values.index = 0;
                }
                _ if is_section => {
                    let text = format!(
                        "is a section; put [{section}] on a separate line, with its keys below"
                    );
                    self.refuse(&span, section, text);
                }
                DeValue::Table(_) if !self.values.program.keys().any(|key| key.path == section) => {
                    let sections = self.values.program.keys().map(Key::section);
                    let nearest = nearest(section, sections.filter(|section| !section.is_empty()));
                    let is_known =
                        |new: &str| self.values.program.keys().any(|key| key.section() == new);
                    let renamed =
                        RENAMED.iter().find(|(old, new)| *old == section && is_known(new));
                    let text = renamed.map_or_else(
                        || format!("unknown section [{section}]; did you mean [{nearest}]?"),
                        |(_, new)| format!("[{section}] is now [{new}]; rename it, or run eds config migrate FILE"),
                    );
                    self.refuse(&span, "", text);
                }
                _ => self.entry("", name, value),
            }
        }
    }

    fn section(&mut self, section: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            let inner = format!("{section}.{}", name.get_ref());
            let is_section = self.values.program.keys().any(|key| key.section() == inner);
            match value.get_ref() {
                DeValue::Table(table) if is_section => self.section(&inner, table),
                _ => self.entry(section, name, value),
            }
        }
    }

    fn entry(&mut self, section: &str, name: &Spanned<DeString<'_>>, value: &Spanned<DeValue<'_>>) {
        let (name, span) = (&**name.get_ref(), name.span());
        let is_it = |key: &&Key| key.section() == section && key.name() == name;
        let Some(key) = self.values.program.keys().find(is_it) else {
            let dot = if section.is_empty() { "" } else { "." };
            // If the name is known, the section is probably wrong, so differences in the section count little.
            let distance = |key: &&Key| {
                let of_section = damerau_levenshtein(section, key.section());
                damerau_levenshtein(name, key.name()) + of_section.min(SECTION_DISTANCE_MAX)
            };
            let nearest =
                self.values.program.keys().min_by_key(distance).map_or("", |key| key.path);
            let text = format!("unknown key {section}{dot}{name}; did you mean {nearest}?");
            return self.refuse(&span, "", text);
        };
        if key.form == Form::Secret {
            let text = format!(
                "is a secret, which must not be in this file; set {}_file to a file that contains it, or set {}",
                key.path,
                key.variable()
            );
            return self.refuse(&span, key.path, text);
        }
        match text(key.form, value.get_ref()) {
            Ok(text) => self.values.set(key.path, text, self.origin(&span)),
            Err(hint) => {
                let colon = if key.allowed.is_empty() { "" } else { ": " };
                let given = value.get_ref().type_str();
                let text = format!("is a TOML {given}; {hint}{colon}{}", key.allowed);
                self.refuse(&value.span(), key.path, text);
            }
        }
    }

    /// Reports a key or section that is defined twice, with both line numbers. The parser reports only the second.
    fn duplicate(&mut self, span: &Range<usize>) {
        let names: Vec<_> = self.text.lines().take(self.line(span)).map(named).collect();
        let (name, before) = names.split_last().unwrap_or((&"", &[]));
        let key = self.text.get(span.clone()).unwrap_or_default();
        let text = match before.iter().rposition(|earlier| earlier == name) {
            Some(first) if name.trim_end_matches(']').ends_with(key) => {
                format!("{name} is defined here and on line {}; keep one definition", first + 1)
            }
            _ => format!("{key} is defined twice in one value; keep one definition"),
        };
        self.refuse(span, "", text);
    }

    fn refuse(&mut self, span: &Range<usize>, path: &str, text: impl Into<String>) {
        self.values.refuse(self.origin(span), path, text.into());
    }

    fn origin(&self, span: &Range<usize>) -> Origin {
        Origin::File(self.path.to_owned(), self.line(span))
    }

    fn line(&self, span: &Range<usize>) -> usize {
        let before = self.text.as_bytes().get(..span.start).unwrap_or(self.text.as_bytes());
        1 + memchr::memchr_iter(b'\n', before).count()
    }
}

/// Maximum distance, in letters, that a wrong section contributes when the key nearest to an unknown name is determined.
const SECTION_DISTANCE_MAX: usize = 2;

/// Returns the key in a line of a file, or the section in brackets; never a value, which may be a secret.
fn named(line: &str) -> &str {
    let line = line.trim_start();
    let end = if line.starts_with('[') { ['#', '\n'] } else { ['=', '#'] };
    line.split(end).next().unwrap_or_default().trim_end()
}

fn text(form: Form, value: &DeValue<'_>) -> Result<String, &'static str> {
    match (form, value) {
        (Form::List, value) => {
            let items = value.as_array().into_iter().flat_map(|items| items.iter());
            let texts: Option<Vec<_>> = items.map(|item| item.get_ref().as_str()).collect();
            texts
                .filter(|_| value.is_array())
                .map(|texts| texts.join(","))
                .ok_or("use a list of strings, such as [\"127.0.0.1:8094\"]")
        }
        (Form::Integer, DeValue::Integer(number)) => {
            // A number that does not fit in an i128 is rejected later, because it is outside every allowed range.
            let decimal = i128::from_str_radix(number.as_str(), number.radix());
            Ok(decimal.map_or(number.as_str().to_owned(), |number| number.to_string()))
        }
        (Form::Switch, DeValue::Boolean(value)) => Ok(value.to_string()),
        (Form::Switch, _) => Err("use true or false, without quotes"),
        (Form::Integer, _) => Err("use a whole number without quotes"),
        (Form::Time, DeValue::Datetime(at)) => Ok(at.to_string()),
        (_, DeValue::String(text)) => Ok(text.to_string()),
        _ => Err("use a quoted string"),
    }
}
