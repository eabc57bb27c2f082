//! [`follow_name`]: the task that keeps an outlet where its name is.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Outlet;

/// How often a name is looked up.
const LOOK_INTERVAL: Duration = Duration::from_secs(30);
/// The pause after a look, however much fails meanwhile.
const PAUSE: Duration = Duration::from_secs(1);

/// Looks the name up now, once in a while, and soon when sending fails. Ends only by being dropped; `first` is called
/// when the first answer is there.
pub async fn follow_name(outlet: Arc<Outlet>, first: impl FnOnce()) {
    let mut first = Some(first);
    loop {
        match tokio::net::lookup_host(outlet.name()).await {
            Ok(found) => {
                let found: Vec<_> = found.collect();
                let before = outlet.address();
                let others = others(&found, before, outlet.has_good_address());
                let opened = others.into_iter().find(|it| outlet.lead_to(*it));
                if let Some(address) = opened.filter(|it| before != Some(*it)) {
                    tracing::info!(to = outlet.name(), %address, "sending to this address");
                }
            }
            Err(error) => outlet.has_no_address(&error),
        }
        if let Some(first) = first.take() {
            first();
        }
        tokio::time::sleep(PAUSE).await;
        tokio::select! {
            () = outlet.failed.notified() => {}
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
        }
    }
}

/// The addresses to lead to anew, if to any: one after the other until one can be had. IPv4 before IPv6; where that in use does not
/// work the next one first, and at last the same by a new socket, for this host's own address may have changed.
fn others(found: &[SocketAddr], in_use: Option<SocketAddr>, works: bool) -> Vec<SocketAddr> {
    if works && in_use.is_some_and(|address| found.contains(&address)) {
        return Vec::new();
    }
    let mut found = found.to_vec();
    found.sort_by_key(|address| (address.is_ipv6(), *address));
    found.dedup();
    let place = found.iter().position(|address| Some(*address) == in_use);
    found.rotate_left(place.map_or(0, |place| place + 1));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_works_stays_and_one_that_does_not_makes_room() {
        let [a, b, v6] = ["10.0.0.1:1", "10.0.0.2:1", "[::1]:1"].map(|at| at.parse().unwrap());
        let check = |found: &[SocketAddr], in_use, works, expected: &[SocketAddr]| {
            let others = others(found, in_use, works);
            assert_eq!(others, expected, "{found:?} {in_use:?}");
        };
        check(&[v6, a, b], None, false, &[a, b, v6]);
        check(&[v6, a, b], Some(b), true, &[]);
        check(&[v6, a, b], Some(a), false, &[b, v6, a]);
        check(&[v6, a, b], Some(v6), false, &[a, b, v6]);
        check(&[a, a], Some(a), false, &[a]);
        check(&[b], Some(a), true, &[b]);
        check(&[], Some(a), false, &[]);
    }
}
