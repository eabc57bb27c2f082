//! A connection between a node and Redis that can go dead: data stays unread, and new connections are accepted but
//! lead nowhere, as behind a failed host or a firewall that dropped its state.

use redis_link::Address;
use testing::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A connection that can go dead.
pub(crate) struct Line {
    address: SocketAddr,
    dead: Arc<watch::Sender<bool>>,
}

impl Line {
    pub(crate) async fn to(redis: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let dead = Arc::new(watch::Sender::new(false));
        let accepted = Arc::clone(&dead);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(redis).await.unwrap();
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(carry(from_client, to_server, accepted.subscribe()));
                tokio::spawn(carry(from_server, to_client, accepted.subscribe()));
            }
        });
        Self { address, dead }
    }

    pub(crate) fn address(&self) -> Address {
        Address::Server(self.address.into())
    }

    /// Blocks or restores all traffic.
    pub(crate) fn set_dead(&self, dead: bool) {
        self.dead.send_replace(dead);
    }
}

async fn carry(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut dead: watch::Receiver<bool>,
) {
    let mut chunk = vec![0; 1 << 16];
    loop {
        let Ok(n @ 1..) = from.read(&mut chunk).await else {
            return;
        };
        if dead.wait_for(|dead| !dead).await.is_err() || to.write_all(&chunk[..n]).await.is_err() {
            return;
        }
    }
}
