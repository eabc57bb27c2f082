//! Sets up the log, which is written to standard error as text or JSON, or to the journal. Its level can be changed at run
//! time. If the journal reads standard error, each text line begins with a priority such as `<4>`, not a timestamp.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use anyhow::Context;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{Format, FormatEvent, FormatFields, Full, Writer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

use super::Misused;
use crate::config::{LOG_VARIABLE, Log, LogFormat};

/// Changes the level of a running log; `None` if the environment sets the filter.
#[derive(Debug, Clone)]
pub(super) struct LogHandle(Option<reload::Handle<Targets, Registry>>);

/// Returns the first of the variables that replace `log.level` which is set, and its value.
fn variable() -> Option<(&'static str, String)> {
    let set = |name| Some((name, std::env::var(name).ok().filter(|value| !value.is_empty())?));
    [LOG_VARIABLE, "RUST_LOG"].into_iter().find_map(set)
}

/// Returns the filter in this variable, such as `debug` or `info,coordination=trace`, whose default is `warn`. Without one,
/// returns a filter for log events of this program at `level` or above, and of libraries at `warn` or above. Fails with
/// [`Misused`] if the filter is invalid.
fn targets(level: LevelFilter, variable: Option<&(&str, String)>) -> anyhow::Result<Targets> {
    let Some((name, filter)) = variable else {
        return Ok(Targets::new()
            .with_default(level.min(LevelFilter::WARN))
            .with_target(env!("CARGO_CRATE_NAME"), level)
            .with_target("coordination", level));
    };
    let mut targets = Targets::new().with_default(LevelFilter::WARN);
    for part in filter.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (target, level) = part.split_once('=').unwrap_or(("", part));
        let level: LevelFilter = level.parse().map_err(|_| {
            Misused(format!(
                "{name}: {part:?} is not a level (off, error, warn, info, debug or trace) or MODULE=LEVEL, such as \
                 event_data_service=debug"
            ))
        })?;
        targets = match target {
            "" => targets.with_default(level),
            target => targets.with_target(target, level),
        };
    }
    Ok(targets)
}

pub(super) fn start(log: &Log) -> anyhow::Result<LogHandle> {
    let variable = variable();
    let (filter, handle) = reload::Layer::new(targets(log.level.into(), variable.as_ref())?);
    let layer: Box<dyn Layer<_> + Send + Sync> = match log.format {
        LogFormat::Text => {
            let layer = fmt::layer().with_writer(io::stderr).with_target(false);
            // By default, the layer would write colours even to a file or pipe, unless NO_COLOR is set.
            if io::stderr().is_terminal() {
                layer.boxed()
            } else if journal_reads_stderr() {
                let line = layer.with_ansi(false).without_time();
                line.map_event_format(Prioritized).boxed()
            } else {
                layer.with_ansi(false).boxed()
            }
        }
        LogFormat::Json => fmt::layer().with_writer(io::stderr).json().boxed(),
        LogFormat::Journald => tracing_journald::layer()
            .context("cannot reach the journal (log.format = \"journald\"); use text or json")?
            .boxed(),
    };
    tracing_subscriber::registry()
        .with(layer.with_filter(filter))
        .try_init()
        .context("the log is already initialized")?;
    let Some((name, filter)) = variable else {
        return Ok(LogHandle(Some(handle)));
    };
    tracing::info!(name, filter, "the environment sets the log filter, not log.level");
    Ok(LogHandle(None))
}

/// Returns whether standard error is the stream that systemd connected to the journal, i.e. has not been redirected.
fn journal_reads_stderr() -> bool {
    let connected = std::env::var("JOURNAL_STREAM").ok();
    let stderr = io::stderr().as_fd().try_clone_to_owned();
    let stderr = stderr.and_then(|descriptor| File::from(descriptor).metadata());
    connected.is_some_and(|connected| {
        stderr.is_ok_and(|stderr| connected == format!("{}:{}", stderr.dev(), stderr.ino()))
    })
}

pub(crate) fn write_error(message: &str) {
    let priority = if journal_reads_stderr() { "<3>" } else { "" };
    let lines = message.lines().map(|line| format!("{priority}{line}\n"));
    let _ = io::stderr().write_all(lines.collect::<String>().as_bytes());
}

/// Formats lines that begin with their priority, as specified in `sd-daemon(3)`.
struct Prioritized(Format<Full, ()>);

impl<S, N> FormatEvent<S, N> for Prioritized
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        };
        write!(writer, "<{priority}>")?;
        self.0.format_event(context, writer, event)
    }
}

impl LogHandle {
    pub(super) fn set_level(&self, level: LevelFilter) {
        let Some(handle) = &self.0 else {
            tracing::info!("the environment sets the log filter, not log.level");
            return;
        };
        let reloaded = targets(level, None).and_then(|targets| Ok(handle.reload(targets)?));
        if let Err(error) = reloaded {
            tracing::warn!(%error, "cannot change the log level");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_replaces_the_level() {
        let shows = |targets: &Targets, target, level| targets.would_enable(target, &level);
        let own = "event_data_service::ingest";
        let usual = targets(LevelFilter::INFO, None).unwrap();
        assert!(shows(&usual, own, Level::INFO) && !shows(&usual, own, Level::DEBUG));
        assert!(shows(&usual, "redis", Level::WARN) && !shows(&usual, "redis", Level::INFO));
        let filter =
            |filter: &str| targets(LevelFilter::INFO, Some(&("EDS_LOG", filter.to_owned())));
        let all = filter("debug").unwrap();
        assert!(shows(&all, own, Level::DEBUG) && shows(&all, "redis", Level::DEBUG));
        let one = filter("error, event_data_service::ingest=trace").unwrap();
        assert!(shows(&one, own, Level::TRACE));
        assert!(!shows(&one, "event_data_service::flush", Level::WARN));
        assert!(shows(&filter("redis=debug").unwrap(), own, Level::WARN));
        for invalid in ["warning", "ingest=loud", "info,event_data_service"] {
            let error = filter(invalid).unwrap_err();
            assert!(error.is::<Misused>() && error.to_string().starts_with("EDS_LOG: "), "{error}");
        }
    }
}
