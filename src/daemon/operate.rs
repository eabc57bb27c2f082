//! Operator commands on the nodes' Redis, using a node's configuration.

use std::collections::BTreeMap;
use std::io::{self, Write as _};

use tracing::Level;

use super::{Misused, build, log, runtime};
use crate::config::{Config, Log, LogFormat, OUTPUTS};
use crate::event::{Minute, Partitions};
use crate::quarantine::{self, Action};
use crate::store::redis::RedisStore;
use crate::store::{Draining as _, Dropped, OutputBacklog, OutputName, Store as _, Survey as _};

/// Runs `eds quarantine`. If there is a single output, it need not be specified.
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
            "--output must name one of the configured outputs: {}",
            all.join(", ")
        ))
        .into());
    };
    operate(config, async |store, partitions| {
        // Otherwise, counts in partitions missing from this configuration would be left out.
        store.check().await?;
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
    let configured: BTreeMap<_, _> =
        configured.map(|name| (name, OutputBacklog::default())).collect();
    operate(config, async |store, partitions| {
        store.check().await?;
        let mut backlogs = configured.clone();
        for partition in partitions.iter() {
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
    let is_shared = shared.split("; ").any(|it| it.split(' ').next() == Some(name.as_str()));
    anyhow::ensure!(
        !is_configured_here && !is_shared,
        "output {name} is configured {}; nothing was dropped. Remove it from the configuration of all nodes by \
         `eds settings apply` and a restart of each node, then repeat this command",
        if is_configured_here { "here" } else { "on the nodes of this Redis" }
    );
    if !backlogs.contains_key(name) {
        let distance = |it: &&str| strsim::damerau_levenshtein(name.as_str(), it);
        let nearest = backlogs.keys().map(OutputName::as_str).min_by_key(distance);
        return Err(Misused(format!(
            "Redis has no counts of an output {name}; nothing was dropped. Did you mean {}? `eds outputs list` shows all outputs",
            nearest.unwrap_or_default()
        ))
        .into());
    }
    let mut all = Dropped::default();
    for partition in partitions.iter() {
        let Dropped { minutes, counts, quarantined } = store.drop_output(partition, name).await?;
        all.minutes += minutes;
        all.counts += counts;
        all.quarantined += quarantined;
    }
    writeln!(
        io::stdout(),
        "{name}: dropped {} unsent counts of {} minutes (a minute counts once in each partition) and {} quarantined counts",
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
            let minute = loss.minute.map_or("earlier".to_owned(), |it| it.to_string());
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
                "docs/monitoring.md#losses explains each cause; `eds loss acknowledge` ends the warnings"
            )?;
        }
        Ok(())
    })
}

pub(crate) fn settings(config: &Config, apply: bool) -> anyhow::Result<()> {
    operate(config, async |store, _| {
        let ours = &config.alike;
        let theirs = store.shared(ours.iter().map(|(key, _)| *key)).await?;
        let (mut out, mut notes) = (io::stdout(), io::stderr());
        let mut changes = Vec::new();
        for ((key, ours), theirs) in ours.iter().zip(&theirs) {
            let differs = theirs.as_ref() != Some(ours);
            let shown = theirs.as_ref().map_or("not set".to_owned(), |it| quoted(it));
            match (apply, differs) {
                (false, true) => writeln!(out, "{key} = {shown} # here: {}", quoted(ours))?,
                (false, false) => writeln!(out, "{key} = {shown}")?,
                (true, true) => {
                    changes.push((*key, ours.as_str()));
                    writeln!(out, "{key}: {shown} → {}", quoted(ours))?;
                }
                (true, false) => {}
            }
        }
        if apply {
            store.share(&changes, config.input.max_future).await?;
            let note = if changes.is_empty() {
                "no setting differs"
            } else if changes.iter().all(|(key, _)| key.starts_with("store.partitions")) {
                "written; restart each node with this configuration before store.partitions_from. A node that is not restarted \
                 records nothing of later minutes"
            } else {
                "written; restart each node with this configuration. Until its restart a node records events, but neither \
                 closes minutes nor sends counts"
            };
            writeln!(notes, "{note}")?;
        } else if let Some((format, by)) = store.format().await? {
            writeln!(out, "# format {format}, written by {by}")?;
        }
        if let Some(left) = store.leftovers(0).await? {
            writeln!(notes, "{left}")?;
        }
        Ok(())
    })
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
