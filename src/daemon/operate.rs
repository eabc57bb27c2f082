//! Operator commands, which read or change data in the nodes' Redis. They use the configuration of a node.

use std::collections::BTreeMap;
use std::io::{self, Write as _};

use tracing::Level;

use super::{Misused, build, log, runtime};
use crate::config::{Config, Log, LogFormat, OUTPUTS};
use crate::event::{Minute, Partitions};
use crate::quarantine::{self, Action};
use crate::status::bytes;
use crate::store::redis::{FORMATS, Layout, RedisStore};
use crate::store::{
    Draining as _, Dropped, OutputBacklog, OutputName, Store as _, StoreError, Survey as _,
    WindowCost, window_cost,
};

/// Prints the version of this program.
pub(crate) fn version(json: bool) -> io::Result<()> {
    let mut out = io::stdout();
    if !json {
        return writeln!(out, "eds {}", crate::BUILD);
    }
    let layouts = [Layout::Sets, Layout::Log].map(Layout::name);
    let version = serde_json::json!({
        "version": crate::VERSION,
        "commit": crate::COMMIT,
        "target": env!("BUILT_FOR"),
        "layouts": layouts,
        "formats": { "oldest": FORMATS.start(), "newest": FORMATS.end() },
    });
    writeln!(out, "{version:#}")
}

/// Runs `eds quarantine`. `output` is required only if several outputs are configured.
pub(crate) fn quarantine(
    config: &Config,
    output: Option<&str>,
    action: &Action,
) -> anyhow::Result<()> {
    let names = config.outputs.iter().map(|output| &output.name);
    let found = match (output, &config.outputs[..]) {
        (None, [only]) => Some(&only.name),
        (wanted, _) => names.clone().find(|name| Some(name.as_str()) == wanted),
    };
    let Some(output) = found else {
        let all: Vec<_> = names.map(OutputName::as_str).collect();
        return Err(Misused(format!(
            "--output must be one of the configured outputs: {}",
            all.join(", ")
        ))
        .into());
    };
    operate(config, async |store, partitions| {
        agree(&store).await?;
        let (mut out, mut notes) = (io::BufWriter::new(io::stdout()), io::stderr());
        let (out, notes) = (&mut out, &mut notes);
        let mut command = quarantine::Command { store: &store, partitions, output, out, notes };
        command.run(action).await?;
        Ok(())
    })
}

pub(crate) fn outputs(config: &Config, dropped: Option<&str>) -> anyhow::Result<()> {
    let dropped = dropped.map(str::parse::<OutputName>).transpose()?;
    let configured = config.outputs.iter().map(|output| output.name.clone());
    let rollup = config.partitions.rollups().next().map(|_| OutputName::rollup());
    let configured: BTreeMap<_, _> =
        configured.chain(rollup).map(|name| (name, OutputBacklog::default())).collect();
    operate(config, async |store, partitions| {
        agree(&store).await?;
        let mut backlogs = configured.clone();
        for partition in partitions.all() {
            for (name, backlog) in store.backlog(partition).await?.outputs {
                *backlogs.entry(name).or_default() += backlog;
            }
        }
        if let Some(name) = &dropped {
            let is_configured = configured.contains_key(name);
            return drop_output(&store, &partitions, name, &backlogs, is_configured).await;
        }
        let mut out = io::stdout();
        writeln!(
            out,
            "{:32}  {:>8}  {:14}  {:>11}  configured",
            "output", "unsent", "oldest", "quarantined"
        )?;
        for (name, backlog) in &backlogs {
            let oldest = backlog.oldest.map_or("-".to_owned(), Minute::shown);
            let is_configured = if configured.contains_key(name) { "yes" } else { "no" };
            writeln!(
                out,
                "{:32}  {:>8}  {oldest:14}  {:>11}  {is_configured}",
                name.as_str(),
                backlog.unsent,
                backlog.quarantined,
            )?;
        }
        Ok(())
    })
}

async fn drop_output(
    store: &RedisStore,
    partitions: &Partitions,
    name: &OutputName,
    backlogs: &BTreeMap<OutputName, OutputBacklog>,
    is_configured_here: bool,
) -> anyhow::Result<()> {
    let shared = store.shared([OUTPUTS].into_iter()).await?;
    let shared = shared.into_iter().flatten().collect::<String>();
    // The description of each output begins with its name.
    let is_shared =
        shared.split("; ").any(|description| description.split(' ').next() == Some(name.as_str()));
    anyhow::ensure!(
        !is_configured_here && !is_shared,
        "output {name} is configured {}; nothing was dropped. Remove the output from the configuration of all nodes, run \
         `eds settings apply` and restart each node, then run this command again",
        if is_configured_here { "here" } else { "on the nodes that use this Redis" }
    );
    if !backlogs.contains_key(name) {
        let distance = |known: &&str| strsim::damerau_levenshtein(name.as_str(), known);
        let nearest = backlogs.keys().map(OutputName::as_str).min_by_key(distance);
        return Err(Misused(format!(
            "Redis has no counts for output {name}; nothing was dropped. Did you mean {}? `eds outputs list` shows all outputs",
            nearest.unwrap_or_default()
        ))
        .into());
    }
    let mut all = Dropped::default();
    for partition in partitions.all() {
        let Dropped { minutes, counts, quarantined } = store.drop_output(partition, name).await?;
        all.minutes += minutes;
        all.counts += counts;
        all.quarantined += quarantined;
    }
    writeln!(
        io::stdout(),
        "{name}: dropped {} unsent counts in {} minutes (a minute is counted once per partition) and {} quarantined counts",
        all.counts,
        all.minutes,
        all.quarantined
    )?;
    Ok(())
}

pub(crate) fn loss(config: &Config, acknowledge: bool) -> anyhow::Result<()> {
    operate(config, async |store, _| {
        let record = store.registry().losses().await?;
        let left: Vec<_> = record.into_iter().filter(|loss| loss.left() > 0).collect();
        let (mut out, mut notes) = (io::BufWriter::new(io::stdout()), io::stderr());
        if left.is_empty() {
            writeln!(notes, "there are no unacknowledged losses")?;
            return Ok(());
        }
        let width = left.iter().map(|loss| loss.process.chars().count()).max();
        let width = width.unwrap_or_default().max("process".len());
        writeln!(out, "{:14}  {:width$}  {:18}  {:>12}", "minute", "process", "cause", "lost")?;
        for loss in &left {
            let minute = loss.minute.map_or("earlier".to_owned(), Minute::shown);
            let (process, cause, left) = (&loss.process, &loss.cause, loss.left());
            writeln!(out, "{minute:14}  {process:width$}  {cause:18}  {left:>12}")?;
        }
        out.flush()?;
        if acknowledge {
            store.acknowledge_losses(&left).await?;
            writeln!(notes, "acknowledged")?;
        } else {
            writeln!(
                notes,
                "docs/monitoring.md#losses explains each cause; `eds loss acknowledge` clears the warnings"
            )?;
        }
        Ok(())
    })
}

pub(crate) fn settings(config: &Config, apply: bool) -> anyhow::Result<()> {
    operate(config, async |store, _| {
        let settings = &config.alike;
        let shared = store.shared(settings.iter().map(|(key, _)| *key)).await?;
        let (mut out, mut notes) = (io::stdout(), io::stderr());
        let (mut changes, mut shown_changes) = (Vec::new(), Vec::new());
        for ((key, value), shared) in settings.iter().zip(&shared) {
            let differs = shared.as_ref() != Some(value);
            let shown = shared.as_ref().map_or("not set".to_owned(), |text| quoted(text));
            match (apply, differs) {
                (false, true) => writeln!(out, "{key} = {shown} # here: {}", quoted(value))?,
                (false, false) => writeln!(out, "{key} = {shown}")?,
                (true, true) => {
                    changes.push((*key, value.as_str()));
                    shown_changes.push(format!("{key}: {shown} → {}", quoted(value)));
                }
                (true, false) => {}
            }
        }
        if apply {
            store.share(&changes, config.input.max_future).await?;
            let note = if changes.is_empty() {
                "all settings already match"
            } else if changes.iter().all(|(key, _)| key.starts_with("store.partitions")) {
                "written; restart each node with this configuration before store.partitions_from. A node that has not been restarted by then \
                 does not record events for later minutes"
            } else {
                "written; restart each node with this configuration. A node that has not been restarted records events, \
                 but does not close minutes or send counts"
            };
            writeln!(notes, "{note}")?;
            shown_changes.iter().try_for_each(|change| writeln!(out, "{change}"))?;
        } else if let Some((format, by)) = store.format().await? {
            writeln!(out, "# format {format}, written by {by}")?;
        }
        if let Some(left) = store.leftovers(0).await? {
            writeln!(notes, "{left}")?;
        }
        Ok(())
    })
}

/// Fails if the settings differ, because the command would miss counts, for example in other partitions. Succeeds if Redis is
/// full, when an operator needs these commands.
async fn agree(store: &RedisStore) -> Result<(), StoreError> {
    store.difference().await?.map_or(Ok(()), |found| Err(StoreError::Refused(found)))
}

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
    let (store, partitions) = build::operated(config)?;
    log::start(&Log { level: Some(Level::WARN), format: LogFormat::Text })?;
    runtime()?.block_on(run(store, partitions))
}

/// Prints the memory that a window of each rollup takes, with this many groups, each with this many users.
pub(crate) fn rollup_costs(config: &Config, groups: u64, users: u64) -> io::Result<()> {
    let mut out = io::stdout();
    let mut all = 0_u64;
    for (_, rollup) in config.partitions.rollups() {
        let WindowCost { stored, sealing, is_estimated } =
            window_cost(rollup.limits, groups, users);
        all += stored;
        let [stored, sealing] = [stored, sealing].map(bytes);
        let estimated =
            if is_estimated { "; beyond its limits, numbers of users are estimates" } else { "" };
        writeln!(
            out,
            "rollup {} ({}): an open window takes about {stored} in the store (in Redis: one slot), and {sealing} on the node that \
             seals or reads it{estimated}",
            rollup.name, rollup.every
        )?;
    }
    writeln!(
        out,
        "{} rollups: about {} in the store, or twice that while a window waits to be sealed and the next one is open",
        config.partitions.rollups().count(),
        bytes(all)
    )
}
