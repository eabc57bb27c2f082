//! The log: text or JSON on standard error, or the journal, with a level that can be changed while it runs.

use std::io::IsTerminal;

use anyhow::Context;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

use crate::config::{Log, LogFormat};

/// Changes the level of the log.
#[derive(Debug, Clone)]
pub(super) struct LogHandle(reload::Handle<Targets, Registry>);

/// Our own events from `level` on, and those of libraries from `warn` on: their details are theirs.
fn targets(level: LevelFilter) -> Targets {
    Targets::new()
        .with_default(level.min(LevelFilter::WARN))
        .with_target(env!("CARGO_CRATE_NAME"), level)
        .with_target("coordination", level)
}

/// Begins to log.
pub(super) fn start(log: &Log) -> anyhow::Result<LogHandle> {
    let (filter, handle) = reload::Layer::new(targets(log.level));
    let layer: Box<dyn Layer<_> + Send + Sync> = match log.format {
        LogFormat::Text => {
            let layer = fmt::layer().with_writer(std::io::stderr).with_target(false);
            // By itself it is coloured everywhere, unless NO_COLOR is set.
            if std::io::stderr().is_terminal() {
                layer.boxed()
            } else {
                layer.with_ansi(false).boxed()
            }
        }
        LogFormat::Json => fmt::layer().with_writer(std::io::stderr).json().boxed(),
        LogFormat::Journald => tracing_journald::layer()
            .context("cannot reach the journal (log.format = \"journald\"); use text or json")?
            .boxed(),
    };
    tracing_subscriber::registry()
        .with(layer.with_filter(filter))
        .try_init()
        .context("the log is set up already")?;
    Ok(LogHandle(handle))
}

impl LogHandle {
    pub(super) fn set_level(&self, level: LevelFilter) {
        match self.0.reload(targets(level)) {
            Ok(()) => {
                tracing::info!(%level, "reloaded the log level; all else waits for a restart");
            }
            Err(error) => tracing::warn!(%error, "cannot change the level of the log"),
        }
    }
}
