//! `eds status`: prints the status that the store of the configuration shows, once or repeatedly.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;

use super::build;
use super::watch::{LOOK_INTERVAL, runtime, watch};
use crate::config::Config;
use crate::status::{self, Observer, Status};
use crate::store::redis::RedisStore;

/// The width of the table if `COLUMNS` is not set.
const WIDTH: usize = 100;

/// The store is in the memory of the node.
#[derive(Debug, thiserror::Error)]
#[error(
    "store.url is memory:, which is within the node's own process: ask the node itself ({0}), or name the Redis of the nodes by \
     --store or --config"
)]
pub(crate) struct OnlyTheNodeKnows(String);

/// There is no terminal to watch on.
#[derive(Debug, thiserror::Error)]
#[error("--watch needs a terminal, and standard output is none; leave it out, or use --json")]
pub(crate) struct NoTerminal;

/// The form of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shown {
    /// Lines of text.
    Table,
    /// One object.
    Json,
    /// Lines of text, repeatedly.
    Live,
}

/// Prints the status. Returns whether it is healthy.
pub(crate) fn status(config: &Config, shown: Shown) -> anyhow::Result<bool> {
    let observer = observer(config)?;
    if shown == Shown::Live {
        anyhow::ensure!(io::stdout().is_terminal() && io::stdin().is_terminal(), NoTerminal);
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        return if is_dumb { print_repeatedly(&observer) } else { watch(observer) };
    }
    let status = runtime()?.block_on(observer.status());
    let mut out = io::stdout();
    if shown == Shown::Json {
        writeln!(out, "{}", status.to_json())?;
    } else {
        print(&status, &mut out)?;
    }
    Ok(status.healthy)
}

/// Prints the status repeatedly, for a terminal that cannot move its cursor.
fn print_repeatedly(observer: &Observer) -> anyhow::Result<bool> {
    let runtime = runtime()?;
    loop {
        let status = runtime.block_on(observer.status());
        print(&status, &mut io::stdout())?;
        writeln!(io::stdout())?;
        std::thread::sleep(LOOK_INTERVAL);
    }
}

fn print(status: &Status, out: &mut dyn Write) -> io::Result<()> {
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let width = columns.unwrap_or(WIDTH).max(40);
    for line in status::lines(status, width) {
        writeln!(out, "{line}")?;
    }
    out.flush()
}

fn observer(config: &Config) -> anyhow::Result<Observer> {
    let Some((store, _)) = build::operated(config)? else {
        let address = config.service.http.listen.map_or_else(
            || "it has no http.listen".to_owned(),
            |address| format!("http://{address}/api/v1/status"),
        );
        return Err(OnlyTheNodeKnows(address).into());
    };
    observer_of(store, config)
}

/// Returns an observer of this store with the values of the configuration.
pub(super) fn observer_of(store: RedisStore, config: &Config) -> anyhow::Result<Observer> {
    let expected = build::expected(config, &build::outputs(config)?);
    Ok(Observer::new(Arc::new(store.alike_in(&config.alike)), expected, None))
}
