//! Measures a relay: its cost, the cost that it saves on the nodes, and its highest rate without loss.

use std::net::UdpSocket;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use testing::redis::RedisServer;

use crate::measure::{Way, exited_cpu, process_cpu, side_by_side};
use crate::node::{Node, eds};
use crate::report::{Report, Table, column};

const ROUNDS: usize = 3;
/// The rates at which a relay is tested for losses.
const RATES: [u32; 7] = [100_000, 150_000, 200_000, 300_000, 400_000, 600_000, 800_000];
const POLL: Duration = Duration::from_millis(100);
const KEYS: [(&str, &str); 4] = [
    ("flush.grace", "1h"),
    ("flush.max_hold", "1h"),
    ("flush.interval", "1s"),
    ("log.level", "warn"),
];

pub(crate) fn run(report: &mut Report) -> anyhow::Result<()> {
    let server = RedisServer::start(&[]);
    // With one line per datagram, two nodes and a sender do not sustain a much higher rate on two cores.
    for (id, lines, events, rate) in
        [("relay-1", 1, 600_000, 40_000), ("relay-15", 15, 3_000_000, 150_000)]
    {
        let server = &server;
        let way = |name, relayed| Way {
            name,
            run: Box::new(move || two_nodes(server, (lines, events, rate), relayed)),
        };
        side_by_side(
            report,
            id,
            &format!("two nodes, {lines} lines per datagram, {events} events, {rate} per second"),
            ROUNDS,
            &[
                column("CPU s/M, without Redis", 2),
                column("of the sender", 2),
                column("of the relay", 2),
                column("of both nodes", 2),
                column("of Redis", 2),
                column("events lost", 0),
            ],
            &mut [way("senders send to both nodes", false), way("senders send to a relay", true)],
        )?;
    }
    let mut table = Table::new(
        "relay-highest",
        "highest rate of a relay without loss, to two sockets that are not read",
        &[column("events/s", 0), column("CPU s/M", 2)],
    );
    for lines in [1, 15] {
        let mut best = (0.0, 0.0);
        for rate in RATES {
            let (lost, reached, cpu) = relay_alone(lines, rate)?;
            if lost > 0 {
                break;
            }
            best = (reached, cpu);
        }
        table.row(&format!("{lines} lines per datagram"), [best.0, best.1]);
    }
    report.add(table);
    Ok(())
}

/// Sends a load to two nodes, through a relay if `relayed` is true. Returns the CPU seconds per million events of the sender,
/// the relay and the nodes together, of each of them, and of Redis, and the number of lost events.
fn two_nodes(
    server: &RedisServer,
    (lines, events, rate): (u32, u32, u32),
    relayed: bool,
) -> anyhow::Result<Vec<f64>> {
    server.query::<()>(&["FLUSHALL", "SYNC"]);
    let url = server.url();
    let keys = [&KEYS[..], &[("store.url", &*url)]].concat();
    let nodes = ["one", "two"].map(|name| Node::start(name, &keys));
    let to = nodes.each_ref().map(|node| node.udp().to_string());
    let relay = relayed.then(|| {
        let mut relay = Node::relay("relay", &[&to[0], &to[1]], &KEYS[3..]);
        relay.run();
        relay
    });
    let before = [process_cpu(server.pid())?, exited_cpu()?];
    let to = relay.as_ref().map_or(to.to_vec(), |relay| vec![relay.udp().to_string()]);
    send(&to, lines, events, rate)?;
    let of_sender = exited_cpu()? - before[1];
    let recorded = || {
        let counts = nodes.each_ref().map(|node| node.metrics().value("eds_events_recorded_total"));
        counts.iter().sum::<f64>()
    };
    let mut last = -1.0;
    while recorded() > last {
        last = recorded();
        thread::sleep(5 * POLL);
    }
    let per_million = |cpu: f64| cpu * 1e6 / f64::from(events);
    let of_relay = relay.as_ref().map_or(Ok(0.0), |relay| process_cpu(relay.pid()))?;
    let of_nodes = process_cpu(nodes[0].pid())? + process_cpu(nodes[1].pid())?;
    let of_redis = process_cpu(server.pid())? - before[0];
    Ok(vec![
        per_million(of_sender + of_relay + of_nodes),
        per_million(of_sender),
        per_million(of_relay),
        per_million(of_nodes),
        per_million(of_redis),
        2.0 * f64::from(events) - last,
    ])
}

/// Sends a load to a relay at this rate, or as fast as the sender can. Returns the number of lost copies, the actual rate,
/// and the relay's CPU seconds per million events.
fn relay_alone(lines: u32, rate: u32) -> anyhow::Result<(u64, f64, f64)> {
    let sinks = [UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?];
    let to = [sinks[0].local_addr()?.to_string(), sinks[1].local_addr()?.to_string()];
    let mut relay = Node::relay("relay", &[&to[0], &to[1]], &KEYS[3..]);
    relay.run();
    let events = rate * 4;
    let began = Instant::now();
    send(&[relay.udp().to_string()], lines, events, rate)?;
    let reached = f64::from(events) / began.elapsed().as_secs_f64();
    thread::sleep(5 * POLL);
    let metrics = relay.metrics();
    let sent = metrics.count("eds_relay_events_sent_total");
    let lost = (2 * u64::from(events)).saturating_sub(sent);
    Ok((lost, reached, process_cpu(relay.pid())? * 1e6 / f64::from(events)))
}

fn send(to: &[String], lines: u32, events: u32, rate: u32) -> anyhow::Result<()> {
    let mut command = eds();
    command.args(["send", "--quiet", "--seed", "1", "--minutes", "3"]);
    for to in to {
        command.args(["--to", to]);
    }
    let sent = command
        .args(["--lines-per-datagram", &lines.to_string()])
        .args(["--events", &events.to_string(), "--rate", &rate.to_string()])
        .stderr(Stdio::null())
        .status()?;
    ensure!(sent.success(), "eds send failed");
    Ok(())
}
