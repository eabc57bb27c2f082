//! Prints an explanation when a node is started in a terminal without a configuration file.

use std::io::{self, IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::run::Parts;
use crate::config::{Config, Program, Store, Target};
use crate::ingest::ListenAddress;

pub(super) fn explain(config: &Config, parts: &Parts) {
    if config.file.is_none() && io::stderr().is_terminal() {
        let text = text(config, &parts.addresses, parts.http, Utc::now());
        // Ignore an error, which means that the terminal has been closed.
        let _ = io::stderr().write_all(text.as_bytes());
    }
}

fn text(
    config: &Config,
    addresses: &[ListenAddress],
    http: Option<SocketAddr>,
    now: DateTime<Utc>,
) -> String {
    let file = Program::Node.default_file();
    let listens: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    let http = http.map_or("none (http.listen is empty)".to_owned(), |address| {
        format!("http://{address}/ (/readyz, /metrics, /api/v1/top)")
    });
    let (store, ending) = match config.store {
        Store::Memory { .. } => (
            "memory of this process; unpublished counts are lost when it exits. --store redis://… keeps minutes in Redis, where \
             nodes can share them",
            "Ctrl-C publishes the minutes that have ended and loses the current minute (exit code 3).",
        ),
        Store::Redis(_) => (
            "Redis; minutes outlive this process, and other nodes share them",
            "Ctrl-C stops this node; the minutes remain in Redis for the next node.",
        ),
    };
    let is_stdout = config.outputs.iter().all(|output| matches!(output.target, Target::Stdout));
    let outputs = if is_stdout {
        "standard output; --output http://… selects InfluxDB"
    } else {
        "a database"
    };
    let to = match addresses.first() {
        // A sender on this host reaches the node at the loopback address.
        Some(ListenAddress::Udp(address)) if address.ip().is_unspecified() => {
            format!("127.0.0.1:{}", address.port())
        }
        Some(address) => address.to_string(),
        None => String::new(),
    };
    let flush = &config.flush;
    let in_the_minute = Duration::from_millis(now.timestamp_millis().rem_euclid(60_000) as u64);
    let rest = Duration::from_secs(60).saturating_sub(in_the_minute);
    let wait = rest + flush.grace + flush.interval;
    let at = (now + wait).format("%H:%M:%S");
    format!(
        "
{file} does not exist, so this node uses the defaults (eds check --explain prints all of them):

  input     {listens}
  HTTP      {http}
  store     {store}
  output    {outputs}

To send an event to this node, run this in another terminal:

  echo 'event_type=login,product=shop value=ann' | eds send --to {to}

The node publishes two points: the number of distinct users and the number of events. An event sent now is published in
{wait} s, at {at} UTC, if no later event arrives for its minute: {grace} s (flush.grace) after the minute ends. {ending}

",
        listens = listens.join(", "),
        wait = wait.as_secs_f64().ceil(),
        grace = flush.grace.as_secs_f64(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Flags};

    fn shown(flags: &Flags) -> String {
        let (config, _) = config::load(flags, []).unwrap();
        let addresses = [ListenAddress::Udp("0.0.0.0:8094".parse().unwrap())];
        let http = Some("127.0.0.1:8095".parse().unwrap());
        let now = "2026-11-22T12:34:15.5Z".parse().unwrap();
        text(&config, &addresses, http, now)
    }

    #[test]
    fn first_start_explains_where_to_send_and_when_points_appear() {
        let text = shown(&Flags::default());
        for part in [
            "/etc/eds/eds.toml does not exist",
            "0.0.0.0:8094",
            "http://127.0.0.1:8095/",
            "memory of this process",
            "standard output",
            "eds send --to 127.0.0.1:8094",
            // The time left in the minute, the grace period and the interval.
            "in\n51 s",
            "12:35:06 UTC",
            "loses the current minute",
        ] {
            assert!(text.contains(part), "no {part:?} in:{text}");
        }
    }

    #[test]
    fn first_start_with_redis_does_not_warn_of_loss() {
        let flags = Flags { store: Some("redis://127.0.0.1:6379".to_owned()), ..Flags::default() };
        let text = shown(&flags);
        assert!(text.contains("remain in Redis"), "{text}");
        assert!(!text.contains("loses"), "{text}");
    }
}
