//! Receiving alone: many datagrams a system call, as the listener of `eds` reads them, and nothing done with them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow};
use event_data_service::ingest::{BindSettings, Receiver, bind, read_timeout};

use super::Figures;
use super::flow::{Flow, Protocol};
use super::program::kernel_drops;
use crate::measure::{figure, thread_cpu};

/// As in the default configuration.
const RECEIVE_BUFFER: u64 = 8 << 20;
const DATAGRAM_MAX: usize = 65_536;
const LINGER: Duration = Duration::from_millis(100);

pub(crate) fn count(flow: &Flow) -> anyhow::Result<Figures> {
    let settings = BindSettings {
        receive_buffer: RECEIVE_BUFFER,
        socket_mode: 0o600,
        read_timeout: read_timeout(LINGER),
    };
    let (socket, _) = bind(&"127.0.0.1:0".parse()?, &[], &settings)?;
    let to = socket.local_addr()?.as_socket().context("an IP address")?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut receiver = Receiver::new(socket, DATAGRAM_MAX);
    let stopped = Arc::clone(&stop);
    let reader = thread::spawn(move || -> anyhow::Result<(usize, f64)> {
        let before = thread_cpu()?;
        let mut datagrams = 0;
        // What is in the socket when it is stopped is read, too.
        while receiver.wait()? || !stopped.load(Ordering::Relaxed) {
            datagrams += receiver.datagrams().count();
        }
        Ok((datagrams, thread_cpu()? - before))
    });
    let sent = flow.send(&[to], Protocol::Events, 0)?;
    stop.store(true, Ordering::Relaxed);
    let dropped = kernel_drops(to.port()).unwrap_or_default();
    let (datagrams, cpu) = reader.join().map_err(|_| anyhow!("a thread panicked"))??;
    Ok(Figures {
        cpu,
        sender_cpu: sent.cpu,
        datagrams_dropped: dropped,
        events_lost: f64::from(flow.events) - figure(datagrams * flow.lines),
        users: f64::NAN,
        redis_bytes: f64::NAN,
        memory_mb: f64::NAN,
        ..Figures::default()
    })
}
