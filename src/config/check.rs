//! Builds the sections that need no other, and holds the keys of each against each other.

use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::kind;
use super::reader::Reader;
use super::sections::{Flush, Http, Input, Log, LogFormat, LogLevel, Precision, Spool};

/// The tag keys that a line must not have either.
const RESERVED_TAGS: [&str; 6] = [
    "time",
    "value",
    "_field",
    "_measurement",
    "eds_overflow",
    "eds_probe",
];

pub(super) fn input(reader: &mut Reader<'_>) -> Input {
    let precisions = [
        ("ns", Precision::Nanoseconds),
        ("us", Precision::Microseconds),
        ("ms", Precision::Milliseconds),
        ("s", Precision::Seconds),
    ];
    let input = Input {
        listen: reader.read("input.listen", kind::addresses),
        user_field: reader.text("input.user_field"),
        timestamp_precision: reader.choice(
            "input.timestamp_precision",
            &precisions,
            Precision::Nanoseconds,
        ),
        measurement_tag: reader.optional("input.measurement_tag"),
        receive_buffer: reader.read("input.receive_buffer", kind::size),
        threads: reader.count("input.threads"),
        linger: reader.read("input.linger", kind::duration),
        queue_events: reader.count("input.queue_events"),
        queue_bytes: reader.read("input.queue_bytes", kind::size),
        spool: spool(reader),
        max_age: reader.read("input.max_age", kind::duration),
        max_future: reader.read("input.max_future", kind::duration),
        max_datagram: length(reader, "input.max_datagram"),
        max_line: length(reader, "input.max_line"),
        max_series: length(reader, "input.max_series"),
        max_tag: length(reader, "input.max_tag"),
        max_user: length(reader, "input.max_user"),
        max_series_per_minute: reader.count("input.max_series_per_minute"),
        max_users_per_series: reader.read("input.max_users_per_series", kind::integer),
        max_rate_per_source: u32::try_from(reader.read("input.max_rate_per_source", kind::integer))
            .unwrap_or(u32::MAX),
        dedup_users: reader.count("input.dedup_users"),
        drain_timeout: reader.read("input.drain_timeout", kind::duration),
    };
    reader.together(
        &["input.measurement_tag"],
        !input
            .measurement_tag
            .as_deref()
            .is_some_and(|tag| RESERVED_TAGS.contains(&tag)),
        "is a reserved tag key, as in every line; choose another one",
    );
    let lengths = [
        (
            "input.max_line",
            input.max_line,
            "input.max_datagram",
            input.max_datagram,
        ),
        (
            "input.max_series",
            input.max_series,
            "input.max_line",
            input.max_line,
        ),
        (
            "input.max_tag",
            input.max_tag,
            "input.max_series",
            input.max_series,
        ),
        (
            "input.max_user",
            input.max_user,
            "input.max_line",
            input.max_line,
        ),
    ];
    for (inner, inner_bytes, outer, outer_bytes) in lengths {
        let text = format!(
            "{inner_bytes} bytes never fit into {outer}, {outer_bytes} bytes; lower this or raise that"
        );
        reader.together(&[inner, outer], inner_bytes <= outer_bytes, &text);
    }
    input
}

fn spool(reader: &mut Reader<'_>) -> Option<Spool> {
    let directory = reader.read("input.spool_dir", kind::path);
    let bytes_max = reader.read("input.spool_max", kind::size);
    let directory = directory?;
    let usable = if reader.sends {
        usable(&directory)
    } else {
        Ok(())
    };
    reader.together(
        &["input.spool_dir"],
        directory.is_absolute(),
        "is not an absolute path; begin it with a slash",
    );
    reader.together(
        &["input.spool_dir"],
        usable.is_ok(),
        &usable.err().unwrap_or_default(),
    );
    Some(Spool {
        directory,
        bytes_max,
    })
}

/// Whether a node could keep events there, as far as can be said without making anything.
fn usable(directory: &Path) -> Result<(), String> {
    let mend = "name a directory that the service's user may write to";
    for place in directory.ancestors() {
        match std::fs::metadata(place) {
            Ok(found) if !found.is_dir() => {
                let place = place.display();
                return Err(format!("{place} is there, and no directory; {mend}"));
            }
            // One that is still to be made may be made by another user, or by systemd.
            Ok(_) if place != directory => return Ok(()),
            Ok(_) => break,
            Err(_) => {}
        }
    }
    // A file that has no name and goes with its descriptor. Some file systems know none.
    let mut file = OpenOptions::new();
    match file
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .open(directory)
    {
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            let directory = directory.display();
            Err(format!(
                "{directory} cannot be written to: {error}; {mend}, and look at it as that user"
            ))
        }
        _ => Ok(()),
    }
}

fn length(reader: &mut Reader<'_>, path: &str) -> usize {
    usize::try_from(reader.read(path, kind::size)).unwrap_or(usize::MAX)
}

pub(super) fn flush(reader: &mut Reader<'_>) -> Flush {
    let flush = Flush {
        interval: reader.read("flush.interval", kind::duration),
        grace: reader.read("flush.grace", kind::duration),
        max_hold: reader.read("flush.max_hold", kind::duration),
        lease: reader.read("flush.lease", kind::duration),
    };
    let text = "is shorter than flush.grace, so no minute would ever be quiet long enough; raise this or lower that";
    reader.together(
        &["flush.max_hold", "flush.grace"],
        flush.max_hold >= flush.grace,
        text,
    );
    // A lease is renewed once an interval while its work lasts; so two renewals may fail before it lapses.
    let enough = flush.lease >= flush.interval.saturating_mul(LEASE_INTERVALS_MIN);
    let text = "is shorter than 3 × flush.interval, so it could lapse while its minute is being sent; raise this or lower that";
    reader.together(&["flush.lease", "flush.interval"], enough, text);
    flush
}

const LEASE_INTERVALS_MIN: u32 = 3;

pub(super) fn http(reader: &mut Reader<'_>) -> Http {
    Http {
        listen: reader.read("http.listen", kind::address),
    }
}

pub(super) fn log(reader: &mut Reader<'_>) -> Log {
    let levels = [
        ("error", LogLevel::Error),
        ("warn", LogLevel::Warn),
        ("info", LogLevel::Info),
        ("debug", LogLevel::Debug),
        ("trace", LogLevel::Trace),
    ];
    let formats = [
        ("text", LogFormat::Text),
        ("json", LogFormat::Json),
        ("journald", LogFormat::Journald),
    ];
    Log {
        level: reader.choice("log.level", &levels, LogLevel::Info),
        format: reader.choice("log.format", &formats, LogFormat::Text),
    }
}
