//! Properties of Redis as a store: connections, refused servers, memory shortage, outages, and the cost of a large
//! minute.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

#[path = "store_redis"]
mod store_redis {
    mod access;
    mod admission;
    mod interleaved;
    mod line;
    mod load;
    mod losses;
    mod names;
    mod outage;
    mod refusals;
    mod repartition;
    mod role;
    mod shortage;
    mod site;
    mod sizes;
    mod slow;
    mod strangers;
    mod tls;
}
