//! The whole configuration looked at: what cannot work together is refused, what is unwise is warned of.

use std::time::Duration;

use humantime::format_duration as span;

use super::keys::{flush, input, store};
use super::output::{Output, Target};
use super::reader::Reader;
use super::service::ServiceSettings;
use super::store::Store;
use super::url::{host_in_the_clear, is_loopback};
use crate::flush::FlushSettings;
use crate::ingest::ListenAddress;

/// A node looks at least so often whether the store is what it was.
const STORE_LOOK: Duration = Duration::from_secs(1);

/// Refuses what the service relies on.
pub(super) fn check(reader: &mut Reader<'_>, service: &ServiceSettings, store: &Store) {
    let grace = service.flush.grace;
    reader.together(
        &[input::linger.path, flush::grace.path],
        service.linger.least < grace,
        "is not shorter than flush.grace, so events that wait would come after their minute was closed; lower this or \
         raise that",
    );
    let Store::Redis(settings) = store else {
        return;
    };
    reader.together(
        &[flush::interval.path, flush::grace.path],
        service.flush.interval < grace,
        "is not shorter than flush.grace, but a node reports only so often that it lags, and the others would close \
         minutes before; lower this or raise that",
    );
    let window = service.replay_window;
    reader.together(
        &[store::replay_window.path, store::response_timeout.path],
        window.is_zero() || window >= settings.redis.timeouts.response,
        "is shorter than store.response_timeout, so what was recorded is forgotten before a missing answer shows a \
         failover; raise this or lower that, or write \"0s\"",
    );
}

/// What is allowed and unwise, a sentence each that names the keys.
pub(super) fn warnings(
    service: &ServiceSettings,
    drain_timeout: Duration,
    store: &Store,
    outputs: &[Output],
) -> Vec<String> {
    let mut warnings = exposed(service, store, outputs);
    let Store::Redis(settings) = store else {
        return warnings;
    };
    let FlushSettings { interval, grace, max_hold, lease, .. } = service.flush;
    let (window, timeouts) = (service.replay_window, settings.redis.timeouts);
    let (connect, response) = (timeouts.connect, timeouts.response);
    let noticed = connect + response + STORE_LOOK;
    let kept = connect + 2 * response + interval;
    let spools = service.spool.is_some();
    let pairs = [
        (
            interval > grace / 2,
            "flush.interval ({}) is longer than half of flush.grace ({}): when recording hangs, the other nodes may close \
             a minute before they know that this one lags",
            [interval, grace],
        ),
        (
            lease < kept,
            "flush.lease ({}) is shorter than flush.interval, store.connect_timeout and twice store.response_timeout together \
             ({}): when Redis is slow, claims lapse and others send the same counts again, and that a node lags is \
             forgotten",
            [lease, kept],
        ),
        (
            !window.is_zero() && window < noticed,
            "store.replay_window ({}) is shorter than it may take to notice that Redis is gone (store.connect_timeout, \
             store.response_timeout and a second: {}): a failover may lose events of the time between",
            [window, noticed],
        ),
        (
            response >= max_hold,
            "store.response_timeout ({}) is not shorter than flush.max_hold ({}): events whose recording hangs come after \
             their minute was closed in any case",
            [response, max_hold],
        ),
        (
            !spools && drain_timeout < response,
            "input.drain_timeout ({}) is shorter than store.response_timeout ({}), and there is no input.spool_dir: one \
             answer that is late at a stop loses what is queued",
            [drain_timeout, response],
        ),
    ];
    for (is_unwise, text, spans) in pairs {
        if is_unwise {
            let fill = |text: String, it| text.replacen("{}", &span(it).to_string(), 1);
            warnings.push(spans.into_iter().fold(text.to_owned(), fill));
        }
    }
    warnings
}

/// What leaves this host in the clear, or comes in from anywhere. Within this host nobody listens who could not read the
/// process itself; beyond it somebody may.
fn exposed(service: &ServiceSettings, store: &Store, outputs: &[Output]) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Store::Redis(settings) = store
        && let Some(host) = store.hosts_in_the_clear().into_iter().find(|host| !is_loopback(host))
    {
        let password = settings.redis.credentials.password.as_ref();
        let password = password.map_or("", |_| ", the password included");
        warnings.push(format!(
            "store.url is not encrypted: whoever is on the way to {host} can read and change all events and \
             counts{password}; use rediss://"
        ));
    }
    for output in outputs {
        let Target::InfluxDb(settings) = &output.target else {
            continue;
        };
        let Some(host) = host_in_the_clear(&settings.url).filter(|host| !is_loopback(host)) else {
            continue;
        };
        let of = match outputs {
            [_] => String::new(),
            _ => format!(" of {:?}", output.name.as_str()),
        };
        warnings.push(format!(
            "output.url{of} is not encrypted: whoever is on the way to {host} can read and change all counts, the token or \
             password included where there is one; use https://"
        ));
    }
    let is_any = |address: &&ListenAddress| matches!(address, ListenAddress::Udp(at) if at.ip().is_unspecified());
    let anywhere: Vec<_> = service.listen.iter().filter(is_any).collect();
    if !anywhere.is_empty() {
        warnings.push(format!(
            "input.listen takes events at every address of this host ({anywhere:?}), and UDP knows no sender: name one \
             address, and let a firewall admit the senders only"
        ));
    }
    warnings
}
