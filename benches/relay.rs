//! Measures a relay: its cost, the cost that it saves on the nodes, and its highest rate without loss.

use std::net::UdpSocket;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use testing::redis::RedisServer;

use crate::measure::{Way, float, on_one_cpu, process_cpu, side_by_side};
use crate::node::Node;
use crate::peers::flow::{Flow, Protocol};
use crate::peers::{BASE, SETTLED, settle};
use crate::report::{Report, Table, column};

const ROUNDS: usize = 3;
/// The rates at which a relay is tested for losses.
const RATES: [u32; 7] = [100_000, 150_000, 200_000, 300_000, 400_000, 600_000, 800_000];
const KEYS: [(&str, &str); 4] = [
    ("flush.grace", "1h"),
    ("flush.max_hold", "1h"),
    ("flush.interval", "1s"),
    ("log.level", "warn"),
];

pub(crate) fn run(report: &mut Report) -> anyhow::Result<()> {
    on_one_cpu(|| to_two_nodes(report))?;
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

/// Measures sending to two nodes, directly and through a relay.
fn to_two_nodes(report: &mut Report) -> anyhow::Result<()> {
    let server = RedisServer::start(&[]);
    // With one line per datagram, two nodes and a sender do not sustain a much higher rate on two cores.
    for (id, lines, events, rate) in
        [("relay-1", 1, 600_000, 40_000), ("relay-15", 15, 3_000_000, 150_000)]
    {
        let server = &server;
        let flow = Flow { events, rate, lines, ..BASE };
        let way =
            |name, relayed| Way { name, run: Box::new(move || two_nodes(server, &flow, relayed)) };
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
    Ok(())
}

/// Sends a load to two nodes, through a relay if `relayed` is true. Returns the CPU seconds per million events of the sender,
/// the relay and the nodes together, of each of them, and of Redis, and the number of lost events.
fn two_nodes(server: &RedisServer, flow: &Flow, relayed: bool) -> anyhow::Result<Vec<f64>> {
    server.query::<()>(&["FLUSHALL", "SYNC"]);
    let url = server.url();
    let keys = [&KEYS[..], &[("store.url", &*url)]].concat();
    let nodes = ["one", "two"].map(|name| Node::start(name, &keys));
    let to = nodes.each_ref().map(Node::udp);
    let relay = relayed.then(|| {
        let to = to.map(|to| to.to_string());
        let mut relay = Node::relay("relay", &[&to[0], &to[1]], &KEYS[3..]);
        relay.run();
        relay
    });
    let cpu = || -> anyhow::Result<[f64; 3]> {
        let of_relay = relay.as_ref().map_or(Ok(0.0), |relay| process_cpu(relay.pid()))?;
        let of_nodes = process_cpu(nodes[0].pid())? + process_cpu(nodes[1].pid())?;
        Ok([of_relay, of_nodes, process_cpu(server.pid())?])
    };
    let before = cpu()?;
    let to = relay.as_ref().map_or(to.to_vec(), |relay| vec![relay.udp()]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let sent = flow.send_to_each(&to, i64::try_from(now.as_nanos())?)?;
    let recorded = settle(&nodes);
    let after = cpu()?;
    let events = f64::from(flow.events);
    let [of_relay, of_nodes, of_redis] =
        [0, 1, 2].map(|at| (after[at] - before[at]) * 1e6 / events);
    let of_sender = sent.cpu * 1e6 / events;
    Ok(vec![
        of_sender + of_relay + of_nodes,
        of_sender,
        of_relay,
        of_nodes,
        of_redis,
        2.0 * events - float(recorded),
    ])
}

/// Sends a load to a relay at this rate, or as fast as the sender can. Returns the number of lost copies, the actual rate,
/// and the relay's CPU seconds per million events.
fn relay_alone(lines: usize, rate: u32) -> anyhow::Result<(u64, f64, f64)> {
    let sinks = [UdpSocket::bind("127.0.0.1:0")?, UdpSocket::bind("127.0.0.1:0")?];
    let to = [sinks[0].local_addr()?.to_string(), sinks[1].local_addr()?.to_string()];
    let mut relay = Node::relay("relay", &[&to[0], &to[1]], &KEYS[3..]);
    relay.run();
    let flow = Flow { events: rate * 4, rate, lines, ..BASE };
    let sent = flow.send(&[relay.udp()], Protocol::Events, 0)?;
    thread::sleep(SETTLED);
    let events = u64::from(flow.events);
    let lost = (2 * events).saturating_sub(relay.metrics().count("eds_relay_events_sent_total"));
    let per_million = 1e6 / f64::from(flow.events);
    let reached = f64::from(flow.events) / sent.seconds;
    Ok((lost, reached, process_cpu(relay.pid())? * per_million))
}
