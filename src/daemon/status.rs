//! `eds status`: asks the store of the configuration how everything is, and prints the answer, once or again and again.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;

use super::build;
use super::watch::{LOOK_INTERVAL, runtime, watch};
use crate::config::Config;
use crate::status::{self, Expected, Observer, Status};
use crate::store::redis::RedisStore;

/// How wide the answer is where nobody says how wide the terminal is.
const WIDTH: usize = 100;

/// Nobody but the node itself knows how it is.
#[derive(Debug, thiserror::Error)]
#[error(
    "store.url is memory:, which is within the node's own process: ask the node itself ({0}), or name the Redis of the nodes by \
     --store or --config"
)]
pub struct OnlyTheNodeKnows(String);

/// There is no terminal to watch on.
#[derive(Debug, thiserror::Error)]
#[error("--watch needs a terminal, and standard output is none; leave it out, or use --json")]
pub struct NoTerminal;

/// How the answer is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// For people.
    Table,
    /// For programs.
    Json,
    /// For people, again and again.
    Live,
}

/// Prints how everything is. Answers whether it is healthy.
pub fn status(config: &Config, shown: Shown) -> anyhow::Result<bool> {
    let observer = observer(config)?;
    if shown == Shown::Live {
        anyhow::ensure!(io::stdout().is_terminal() && io::stdin().is_terminal(), NoTerminal);
        let is_dumb = std::env::var_os("TERM").is_none_or(|it| it.is_empty() || it == "dumb");
        return if is_dumb { again_and_again(&observer) } else { watch(observer) };
    }
    let status = runtime()?.block_on(observer.status());
    let mut out = io::stdout();
    if shown == Shown::Json {
        writeln!(out, "{}", serde_json::to_string(&*status)?)?;
    } else {
        print(&status, &mut out)?;
    }
    Ok(status.healthy)
}

/// On a terminal that can only go on.
fn again_and_again(observer: &Observer) -> anyhow::Result<bool> {
    let runtime = runtime()?;
    loop {
        let status = runtime.block_on(observer.status());
        print(&status, &mut io::stdout())?;
        writeln!(io::stdout())?;
        std::thread::sleep(LOOK_INTERVAL);
    }
}

fn print(status: &Status, out: &mut dyn Write) -> io::Result<()> {
    let columns = std::env::var("COLUMNS").ok().and_then(|it| it.parse().ok());
    let width = columns.unwrap_or(WIDTH).max(40);
    for line in status::lines(status, width) {
        writeln!(out, "{line}")?;
    }
    out.flush()
}

/// Who looks, with what this configuration expects.
fn observer(config: &Config) -> anyhow::Result<Observer> {
    let Some((store, _)) = build::operated(config)? else {
        let address = config.service.http;
        let address = address
            .map_or("it has no http.listen".to_owned(), |it| format!("http://{it}/api/v1/status"));
        return Err(OnlyTheNodeKnows(address).into());
    };
    observer_of(store, config)
}

/// The same of a store that is there.
pub(super) fn observer_of(store: RedisStore, config: &Config) -> anyhow::Result<Observer> {
    let outputs = build::outputs(config)?;
    let outputs = outputs.iter().map(|it| (it.name.to_string(), it.output.describe()));
    let expected = Expected {
        grace: config.service.flush.grace,
        max_hold: config.service.flush.max_hold,
        linger: config.service.linger.most,
        retention: config.retention,
        outputs: outputs.collect(),
        partitions: usize::from(config.partitions.count()),
    };
    Ok(Observer::new(Arc::new(store.alike_in(config.alike())), expected, None))
}
