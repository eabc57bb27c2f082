//! Where an example's processes meet: memory by default, Redis by `--redis URL`.

use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Parser;
use event_data_service::coordination::Arbiter;
use event_data_service::coordination::memory::MemoryArbiter;
use event_data_service::coordination::redis::{RedisArbiter, Timeouts};

/// The example's command line.
#[derive(Debug, Parser)]
struct Arguments {
    /// `redis://host:port`, or `redis+cluster://host:port,host:port`; memory without it.
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
}

/// One arbiter for each of so many nodes. In memory they share one, as tasks of a process do; on Redis each has its
/// own connections, as processes on different hosts have.
pub(crate) fn nodes(count: usize) -> Result<Vec<Arc<dyn Arbiter>>> {
    let Some(url) = Arguments::parse().redis else {
        println!("(in memory; with --redis URL on a real Redis)\n");
        let arbiter: Arc<dyn Arbiter> = Arc::new(MemoryArbiter::default());
        return Ok(vec![arbiter; count]);
    };
    // A prefix of its own, so that a second run finds nothing of the first.
    let prefix = format!("example-{:08x}", rand::random::<u32>());
    let nodes = (0..count).map(|_| {
        let arbiter = RedisArbiter::open(&url, &prefix, Timeouts::default());
        Ok(Arc::new(arbiter.context("--redis")?) as Arc<dyn Arbiter>)
    });
    let nodes: Vec<_> = nodes.collect::<Result<_>>()?;
    println!(
        "(on {}, keys begin with {{{prefix}:)\n",
        nodes[0].describe()
    );
    Ok(nodes)
}
