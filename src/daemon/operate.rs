//! The commands of operators on the Redis of the nodes, with the configuration of a node.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};

use tracing::Level;

use super::watch::runtime;
use super::{Misused, build, log};
use crate::config::{Config, Log, LogFormat, OUTPUTS};
use crate::event::{Minute, Partitions};
use crate::quarantine::{self, Action};
use crate::store::redis::RedisStore;
use crate::store::{Draining as _, Dropped, OutputBacklog, OutputName, Store as _, Survey as _};

/// Runs `eds quarantine`. A single output need not be named.
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
            "--output names none of the outputs that are configured, which are {}; name one of them",
            all.join(", ")
        ))
        .into());
    };
    operate(config, async |store, partitions| {
        // Otherwise counts in partitions that this configuration lacks would be missing.
        store.check().await?;
        let (mut out, mut notes) = (io::BufWriter::new(io::stdout()), io::stderr());
        let (out, notes) = (&mut out, &mut notes);
        let mut command = quarantine::Command { store: &store, partitions, output, out, notes };
        command.run(action).await?;
        Ok(())
    })
}

/// Runs `eds outputs`: lists the outputs, or drops the unsent counts of one.
pub(crate) fn outputs(config: &Config, dropped: Option<&str>) -> anyhow::Result<()> {
    let dropped = dropped.map(str::parse::<OutputName>).transpose()?;
    operate(config, async |store, partitions| {
        store.check().await?;
        match &dropped {
            None => list_outputs(config, &store, &partitions).await,
            Some(name) => drop_output(config, &store, &partitions, name).await,
        }
    })
}

async fn list_outputs(
    config: &Config,
    store: &RedisStore,
    partitions: &Partitions,
) -> anyhow::Result<()> {
    let configured = config.outputs.iter().map(|output| output.name.clone());
    let mut all: BTreeMap<_, _> = configured.map(|name| (name, OutputBacklog::default())).collect();
    for partition in partitions.iter() {
        for (name, lacks) in store.backlog(partition).await?.outputs {
            *all.entry(name).or_default() += lacks;
        }
    }
    let mut out = io::stdout();
    let width = all.keys().map(|name| name.as_str().len()).max();
    let width = width.unwrap_or_default().max("output".len());
    writeln!(
        out,
        "{:width$}  {:>8}  {:14}  {:>11}  configured",
        "output", "unsent", "oldest", "quarantined"
    )?;
    for (name, lacks) in &all {
        let oldest = lacks.oldest.map_or("-".to_owned(), Minute::shown);
        let is_configured = config.outputs.iter().any(|output| output.name == *name);
        writeln!(
            out,
            "{:width$}  {:>8}  {oldest:14}  {:>11}  {}",
            name.as_str(),
            lacks.unsent,
            lacks.quarantined,
            if is_configured { "yes" } else { "no" }
        )?;
    }
    Ok(())
}

async fn drop_output(
    config: &Config,
    store: &RedisStore,
    partitions: &Partitions,
    name: &OutputName,
) -> anyhow::Result<()> {
    let here = config.outputs.iter().any(|output| output.name == *name);
    let shared = store.shared([OUTPUTS].into_iter()).await?;
    let shared = shared.into_iter().flatten().collect::<String>();
    // The description of each output begins with its name.
    let there = shared.split("; ").any(|output| output.split(' ').next() == Some(name.as_str()));
    anyhow::ensure!(
        !here && !there,
        "output {name} is configured {}; take it out of the configuration of all nodes first, by `eds settings apply` and \
         a restart of each. Nothing was dropped",
        if here { "here" } else { "on the nodes of this Redis" }
    );
    let mut known = BTreeSet::new();
    for partition in partitions.iter() {
        known.extend(store.backlog(partition).await?.outputs.into_keys());
    }
    if !known.contains(name) {
        let configured = config.outputs.iter().map(|output| output.name.as_str());
        let known = known.iter().map(OutputName::as_str).chain(configured);
        let distance = |it: &&str| strsim::damerau_levenshtein(name.as_str(), it);
        let nearest = known.min_by_key(distance).unwrap_or_default();
        return Err(Misused(format!(
            "nothing is kept for an output {name}; did you mean {nearest}? `eds outputs list` shows all of them. Nothing was \
             dropped"
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
        "{name}: {} unsent counts of {} minutes dropped (a minute counts once in each partition), and {} quarantined ones",
        all.counts,
        all.minutes,
        all.quarantined
    )?;
    Ok(())
}

/// Runs `eds loss`: prints the losses that are not acknowledged, and acknowledges them if asked to.
pub(crate) fn loss(config: &Config, acknowledge: bool) -> anyhow::Result<()> {
    operate(config, async |store, _| {
        let record = store.registry().losses().await?;
        let left: Vec<_> = record.into_iter().filter(|loss| loss.left() > 0).collect();
        let (mut out, mut notes) = (io::BufWriter::new(io::stdout()), io::stderr());
        if left.is_empty() {
            writeln!(notes, "nothing is lost that is not acknowledged")?;
            return Ok(());
        }
        let width = left.iter().map(|loss| loss.process.chars().count()).max();
        let width = width.unwrap_or_default().max("process".len());
        writeln!(out, "{:14}  {:width$}  {:18}  {:>12}", "minute", "process", "cause", "lost")?;
        for loss in &left {
            let minute = loss.minute.map_or("earlier".to_owned(), |it| it.to_string());
            writeln!(
                out,
                "{minute:14}  {:width$}  {:18}  {:>12}",
                loss.process,
                loss.cause,
                loss.left()
            )?;
        }
        out.flush()?;
        if acknowledge {
            store.acknowledge_losses(&left).await?;
            writeln!(notes, "acknowledged")?;
        } else {
            writeln!(
                notes,
                "docs/monitoring.md#losses says what each cause means; eds loss acknowledge ends the warnings"
            )?;
        }
        Ok(())
    })
}

/// Runs `eds settings`: shows the cluster-wide settings, or writes all changes at once.
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
            store.share(&changes, config.service.input.max_future).await?;
            let note = if changes.is_empty() {
                "nothing differs"
            } else if changes.iter().all(|(key, _)| key.starts_with("store.partitions")) {
                "written; restart each node with this configuration before store.partitions_from: one that is not restarted \
                 goes on until then, and records nothing of later minutes"
            } else {
                "written; a node with another configuration goes on recording, and neither closes minutes nor sends, until \
                 it is restarted with this one"
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

/// Returns a value as in a configuration file.
fn quoted(value: &str) -> String {
    match value.parse::<u64>() {
        Ok(_) => value.to_owned(),
        Err(_) => format!("{value:?}"),
    }
}

fn nothing_shared() -> Misused {
    Misused(
        "store.url is memory:, which is within the node's own process; what is quarantined there stands in its log only, and \
         there are no settings to share. Name the Redis of the nodes by --store or --config"
            .to_owned(),
    )
}

fn operate(
    config: &Config,
    run: impl AsyncFnOnce(RedisStore, Partitions) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (store, partitions) = build::operated(config)?.ok_or_else(nothing_shared)?;
    log::start(&Log { level: Some(Level::WARN), format: LogFormat::Text })?;
    runtime()?.block_on(run(store, partitions))
}
