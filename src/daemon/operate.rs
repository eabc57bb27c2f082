//! What operators do to the store beside the nodes, with the configuration of a node.

use std::io::{self, Write as _};

use anyhow::Context;
use tracing::level_filters::LevelFilter;

use super::{build, log};
use crate::config::{Config, Log, LogFormat};
use crate::event::Partitions;
use crate::quarantine::{self, Action};
use crate::store::Store as _;
use crate::store::redis::RedisStore;

/// The store of this configuration keeps nothing that another process could see.
#[derive(Debug, thiserror::Error)]
#[error(
    "store.url is memory:, which is within the node's own process; what is quarantined there stands in its log only, and \
     there are no settings to share. Name the Redis of the nodes by --store or --config"
)]
pub struct NothingShared;

/// What `eds settings` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingsAction {
    /// Print what stands in Redis.
    Show,
    /// Write what stands in the configuration.
    Apply,
}

/// Carries out `eds quarantine`: the answer on standard output, notes on standard error.
pub fn quarantine(config: &Config, action: &Action) -> anyhow::Result<()> {
    operate(config, async |store, partitions| {
        // Some of what there is may be in partitions that this configuration does not have.
        store.check().await?;
        let (mut out, mut notes) = (io::BufWriter::new(io::stdout()), io::stderr());
        quarantine::run(&store, partitions, action, &mut out, &mut notes).await?;
        Ok(())
    })
}

/// Carries out `eds settings`. Writes all that changes at once, or nothing.
pub fn settings(config: &Config, action: SettingsAction) -> anyhow::Result<()> {
    operate(config, async |store, _| {
        let ours = config.alike();
        let keys = ours.iter().map(|(key, _)| *key);
        let theirs = store.shared(keys).await?;
        let mut out = io::stdout();
        let mut changes = Vec::new();
        for ((key, ours), theirs) in ours.iter().zip(&theirs) {
            let differs = theirs.as_ref() != Some(ours);
            let shown = theirs
                .as_ref()
                .map_or("not set".to_owned(), |it| quoted(it));
            match action {
                SettingsAction::Show if differs => {
                    writeln!(out, "{key} = {shown} # here: {}", quoted(ours))?;
                }
                SettingsAction::Show => writeln!(out, "{key} = {shown}")?,
                SettingsAction::Apply if !differs => {}
                SettingsAction::Apply => {
                    changes.push((*key, ours.as_str()));
                    writeln!(out, "{key}: {shown} → {}", quoted(ours))?;
                }
            }
        }
        let mut notes = io::stderr();
        if action == SettingsAction::Show {
            if let Some((format, by)) = store.format().await? {
                writeln!(out, "# format {format}, written by {by}")?;
            }
        } else {
            store.share(&changes, config.max_future).await?;
            if changes.is_empty() {
                writeln!(notes, "nothing differs")?;
            } else if changes
                .iter()
                .all(|(key, _)| key.starts_with("store.partitions"))
            {
                writeln!(
                    notes,
                    "written; restart each node with this configuration before store.partitions_from: one that is not \
                     restarted goes on until then, and records nothing of later minutes"
                )?;
            } else {
                writeln!(
                    notes,
                    "written; a node with another configuration goes on recording, and neither closes minutes nor \
                     sends, until it is restarted with this one"
                )?;
            }
        }
        if let Some(left) = store.leftovers(0).await? {
            writeln!(notes, "{left}")?;
        }
        Ok(())
    })
}

/// A value as a configuration file has it.
fn quoted(value: &str) -> String {
    match value.parse::<u64>() {
        Ok(_) => value.to_owned(),
        Err(_) => format!("{value:?}"),
    }
}

fn operate(
    config: &Config,
    run: impl AsyncFnOnce(RedisStore, Partitions) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (store, partitions) = build::operated(config)?.ok_or(NothingShared)?;
    log::start(&Log {
        level: LevelFilter::WARN,
        format: LogFormat::Text,
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(run(store, partitions))
}
