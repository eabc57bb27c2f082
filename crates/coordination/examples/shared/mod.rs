//! Where the nodes of an example meet: in memory, or on the Redis whose URL is the only argument.

use std::sync::Arc;

use coordination::Arbiter;
use coordination::memory::MemoryArbiter;
use coordination::redis::{RedisArbiter, Timeouts};

/// An example prints whatever error ends it.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Returns one arbiter per node. In memory they share one, like tasks of a process; on Redis each has its connections,
/// like processes on different hosts.
pub(crate) fn nodes(count: usize) -> Result<Vec<Arc<dyn Arbiter>>> {
    let Some(url) = std::env::args().nth(1) else {
        println!("(in memory; pass a URL of Redis to run it there)\n");
        let arbiter: Arc<dyn Arbiter> = Arc::new(MemoryArbiter::default());
        return Ok(vec![arbiter; count]);
    };
    // A second run finds no data of the first.
    let prefix = format!("example-{:08x}", rand::random::<u32>());
    println!("(on Redis, keys begin with {{{prefix}:)\n");
    let node = |_| Ok(Arc::new(RedisArbiter::open(&url, &prefix, Timeouts::default())?) as _);
    (0..count).map(node).collect()
}
