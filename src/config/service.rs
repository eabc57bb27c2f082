//! `[input]`, `[flush]` and `[http]`: how the parts of a node behave.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use super::keys::{flush, http, input, store};
use super::reader::Reader;
use super::source::host_name;
use crate::event::{LineLimits, LineRules, Partitions, Window, is_reserved};
use crate::flush::FlushSettings;
use crate::ingest::{
    BatcherSettings, CapSettings, Linger, ListenAddress, QueueLimits, RecorderSettings,
};
use crate::spool::SpoolSettings;

/// The longest that an answer of the store may take before the node counts as lagging.
const LAGGING_AFTER_MAX: Duration = Duration::from_secs(1);
/// A lease is renewed once an interval while its work lasts; so two renewals may fail before it lapses.
const LEASE_INTERVALS_MIN: u32 = 3;

/// How a node behaves.
#[derive(Debug, Clone)]
pub struct ServiceSettings {
    /// Where events come in.
    pub listen: Vec<ListenAddress>,
    /// The receive buffer of each UDP socket, in bytes.
    pub receive_buffer: u64,
    /// The permissions of the file of a Unix socket.
    pub socket_mode: u32,
    /// The threads that read each socket.
    pub threads: usize,
    /// The most lines a second of one source address; 0: no limit.
    pub rate_per_source: u32,
    /// The longest datagram that is read whole, in bytes.
    pub datagram_max: usize,
    /// What the listeners accept, and how much of it may wait.
    pub batcher: BatcherSettings,
    /// Where events go that find no room in memory; `None`: they are dropped.
    pub spool: Option<SpoolSettings>,
    /// The longest that an event waits to be recorded while the store keeps up.
    pub linger: Linger,
    /// How the recorders behave.
    pub recorder: RecorderSettings,
    /// The users that the recorders know to be recorded, together.
    pub dedup_users: usize,
    /// How long the recorders keep what they recorded, to record it again after a failover. It takes as much
    /// memory as the queue may, at most.
    pub replay_window: Duration,
    /// How the worker behaves.
    pub flush: FlushSettings,
    /// Where health, metrics and queries are served.
    pub http: Option<SocketAddr>,
    /// The names by which it may be asked there.
    pub http_hosts: Vec<String>,
}

/// Reads it, for these partitions and accepted ages.
pub(super) fn read(
    reader: &mut Reader<'_>,
    partitions: Partitions,
    [max_age, max_future]: [Duration; 2],
) -> ServiceSettings {
    let window = Window::new(max_age, max_future);
    let flush = flush(reader);
    ServiceSettings {
        listen: reader.read(&input::listen),
        receive_buffer: reader.read(&input::receive_buffer),
        socket_mode: reader.read(&input::socket_mode),
        threads: reader.read(&input::threads),
        rate_per_source: reader.read(&input::max_rate_per_source),
        datagram_max: reader.length(&input::max_datagram),
        batcher: BatcherSettings {
            rules: rules(reader),
            window,
            partitions,
            limits: QueueLimits {
                events: reader.read(&input::queue_events),
                bytes: reader.read(&input::queue_bytes),
            },
        },
        spool: spool(reader),
        linger: linger(reader, flush.grace),
        recorder: RecorderSettings {
            window,
            precision: reader.read(&input::timestamp_precision),
            caps: CapSettings {
                series_max: reader.read(&input::max_series_per_minute),
                users_max: reader.read(&input::max_users_per_series),
            },
            lagging_after: (flush.grace / 4).min(LAGGING_AFTER_MAX),
        },
        dedup_users: reader.read(&input::dedup_users),
        replay_window: reader.read(&store::replay_window),
        flush,
        http: reader.read(&http::listen),
        http_hosts: http_hosts(reader),
    }
}

/// The names by which HTTP requests may ask: those that are given, and the host's own.
pub(super) fn http_hosts(reader: &mut Reader<'_>) -> Vec<String> {
    let mut hosts: Vec<String> = reader.read(&http::hosts);
    hosts.extend(host_name());
    hosts
}

/// What waits longer comes well before its minute is closed.
fn linger(reader: &mut Reader<'_>, grace: Duration) -> Linger {
    let least = reader.read(&input::linger);
    let most: Duration = reader.read(&input::linger_max);
    Linger { least, most: most.min(grace / 4).max(least) }
}

fn rules(reader: &mut Reader<'_>) -> LineRules {
    let rules = LineRules {
        user_field: reader.read(&input::user_field),
        precision: reader.read(&input::timestamp_precision),
        measurement_tag: reader.optional(&input::measurement_tag),
        limits: LineLimits {
            line: reader.length(&input::max_line),
            series: reader.length(&input::max_series),
            tag: reader.length(&input::max_tag),
            user: reader.length(&input::max_user),
        },
    };
    let tag = rules.measurement_tag.as_deref().unwrap_or_default();
    reader.together(
        &[input::measurement_tag.path],
        !is_reserved(tag.as_bytes()),
        "is a reserved tag key, as in every line; choose another one",
    );
    let LineLimits { line, series, tag, user } = rules.limits;
    let datagram = (input::max_datagram.path, reader.length(&input::max_datagram));
    let line = (input::max_line.path, line);
    let series = (input::max_series.path, series);
    for (outer, inner) in [
        (datagram, line),
        (line, series),
        (series, (input::max_tag.path, tag)),
        (line, (input::max_user.path, user)),
    ] {
        let text = format!(
            "{} bytes never fit into {}, {} bytes; lower this or raise that",
            inner.1, outer.0, outer.1
        );
        reader.together(&[inner.0, outer.0], inner.1 <= outer.1, &text);
    }
    rules
}

fn spool(reader: &mut Reader<'_>) -> Option<SpoolSettings> {
    let bytes_max = reader.read(&input::spool_max);
    let directory = reader.read(&input::spool_dir)?;
    let path = input::spool_dir.path;
    let hint = "is not an absolute path; begin it with a slash";
    reader.together(&[path], directory.is_absolute(), hint);
    if reader.sends
        && let Err(text) = usable(&directory)
    {
        reader.together(&[path], false, &text);
    }
    Some(SpoolSettings { directory, bytes_max })
}

/// Whether a node could keep events there, as far as can be said without making anything.
fn usable(directory: &Path) -> Result<(), String> {
    let hint = "name a directory that the service's user may write to";
    for place in directory.ancestors() {
        match std::fs::metadata(place) {
            Ok(found) if !found.is_dir() => {
                let place = place.display();
                return Err(format!("{place} is there, and not a directory; {hint}"));
            }
            // One that is still to be made may be made by another user, or by systemd.
            Ok(_) if place != directory => return Ok(()),
            Ok(_) => break,
            Err(_) => {}
        }
    }
    // A file that has no name and goes with its descriptor. Some file systems know none.
    let mut file = OpenOptions::new();
    let Err(error) = file.write(true).custom_flags(libc::O_TMPFILE).open(directory) else {
        return Ok(());
    };
    match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            let directory = directory.display();
            Err(format!(
                "{directory} cannot be written to: {error}; {hint}, and look at it as that user"
            ))
        }
        _ => Ok(()),
    }
}

fn flush(reader: &mut Reader<'_>) -> FlushSettings {
    let settings = FlushSettings {
        interval: reader.read(&flush::interval),
        grace: reader.read(&flush::grace),
        max_hold: reader.read(&flush::max_hold),
        lease: reader.read(&flush::lease),
    };
    reader.together(
        &[flush::max_hold.path, flush::grace.path],
        settings.max_hold >= settings.grace,
        "is shorter than flush.grace, so no minute would ever be idle long enough; raise this or lower that",
    );
    reader.together(
        &[flush::lease.path, flush::interval.path],
        settings.lease >= settings.interval.saturating_mul(LEASE_INTERVALS_MIN),
        "is shorter than 3 × flush.interval, so it could lapse while its minute is being sent; raise this or lower that",
    );
    settings
}
