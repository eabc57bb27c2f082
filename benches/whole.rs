//! The whole daemon: `eds run`, fed by `eds send`, 15 lines a datagram, until every minute is written.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::measure::{Way, column, figure, process_cpu, side_by_side};
use crate::server::{Process, Server, free_port};

const EVENTS: usize = 1_500_000;
const ROUNDS: usize = 3;
/// Events a second: what a laptop's core sends and another counts with ease.
const RATE: usize = 150_000;
const START_MAX: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(100);

pub(crate) fn run() -> anyhow::Result<()> {
    let server = RefCell::new(Server::start()?);
    let with_redis = || {
        let server = &mut *server.borrow_mut();
        server.empty()?;
        let before = server.cpu()?;
        let mut figures = daemon(&format!("redis://127.0.0.1:{}", server.port))?;
        figures[1] = (server.cpu()? - before) * 1e6 / figure(EVENTS);
        Ok(figures)
    };
    side_by_side(
        &format!("the whole daemon, {EVENTS} events, {RATE} a second"),
        ROUNDS,
        &[
            column("CPU s/M", 2),
            column("Redis CPU s/M", 2),
            column("events lost", 0),
        ],
        &mut [
            Way {
                name: "eds run, memory",
                run: Box::new(|| daemon("memory:")),
            },
            Way {
                name: "eds run, Redis",
                run: Box::new(with_redis),
            },
        ],
    )?;
    Ok(())
}

fn daemon(store: &str) -> anyhow::Result<Vec<f64>> {
    let eds = || Command::new(env!("CARGO_BIN_EXE_eds"));
    let listen = format!("127.0.0.1:{}", free_udp_port()?);
    let http = format!("127.0.0.1:{}", free_port()?);
    let daemon = Process::start(
        eds()
            .args(["run", "--node", "bench", "--listen", &listen])
            .args(["--store", store, "--output", "stdout:", "--http", &http])
            .env("EDS_FLUSH__GRACE", "1s")
            .env("EDS_FLUSH__INTERVAL", "200ms")
            .env("EDS_LOG__LEVEL", "warn")
            .stdout(Stdio::null()),
    )?;
    let began = Instant::now();
    while metrics(&http).is_err() {
        ensure!(began.elapsed() < START_MAX, "eds run does not start");
        thread::sleep(POLL);
    }
    let sent = eds()
        .args(["send", "--quiet", "--seed", "1", "--minutes", "3"])
        .args(["--to", &listen, "--events", &EVENTS.to_string()])
        .args(["--rate", &RATE.to_string()])
        .stderr(Stdio::null())
        .status()?;
    ensure!(sent.success(), "eds send failed");
    // A gauge is as old as the last look; twice nothing to do is done.
    let mut idle = 0;
    while idle < 5 {
        thread::sleep(POLL);
        let text = metrics(&http)?;
        let busy = value(&text, "eds_events_queued")?
            + value(&text, "eds_backlog_pending")?
            + value(&text, "eds_backlog_claimed")?;
        idle = if busy == 0.0 { idle + 1 } else { 0 };
    }
    let recorded = value(&metrics(&http)?, "eds_events_recorded_total")?;
    let cpu = process_cpu(daemon.id())?;
    Ok(vec![cpu * 1e6 / recorded, 0.0, figure(EVENTS) - recorded])
}

fn metrics(address: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: eds\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn value(metrics: &str, name: &str) -> anyhow::Result<f64> {
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.trim().parse().ok())
        .with_context(|| format!("no {name} in the metrics"))
}

fn free_udp_port() -> anyhow::Result<u16> {
    Ok(UdpSocket::bind("127.0.0.1:0")?.local_addr()?.port())
}
