//! A connection that nobody used for a while, and that the other side has ended, fails no call.

use std::sync::Arc;

use coordination::Mutex;
use coordination::redis::RedisArbiter;
use testing::redis::RedisServer;
use testing::tcp_proxy::{TcpProxy, Traffic};

use crate::site::{PATIENCE, TIMEOUTS};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_after_idle_connections_were_cut_are_carried_out() {
    let server = RedisServer::start(&[]);
    let proxy = TcpProxy::start(server.address());
    let arbiter = RedisArbiter::open(&proxy.url(), "eds", TIMEOUTS).unwrap();
    let mutex = Mutex::new(Arc::new(arbiter), "a", PATIENCE).unwrap();
    for _ in 0..3 {
        let held = mutex.acquire(PATIENCE).await.unwrap();
        proxy.set(Traffic::Cut);
        proxy.set(Traffic::Open);
        held.release().await.unwrap();
    }
}
