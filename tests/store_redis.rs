//! Tests properties of the Redis store: connections, refused servers, out-of-memory errors, outages, and repartitioning.

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
    mod logs;
    mod losses;
    mod names;
    mod outage;
    mod refusals;
    mod repartition;
    mod role;
    mod shortage;
    mod site;
    mod sizes;
    mod strangers;

    mod prelude {
        pub(crate) use event_data_service::event::Minute;
        pub(crate) use event_data_service::store::redis::{Layout, RedisStore, Settings};
        pub(crate) use event_data_service::store::{
            AdmitRequest, Admitted, Claim, ClaimRequest, Draining, OutputName, Recording,
            SealRequest, Store, StoreError,
        };
        pub(crate) use redis_link::Address;
        pub(crate) use testing::prelude::*;

        pub(crate) use super::site::*;
    }
}
