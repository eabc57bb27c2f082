//! Imports that the modules of the simulation share.

pub(crate) use async_trait::async_trait;
pub(crate) use event_data_service::event::{Minute, Partition};
pub(crate) use event_data_service::store::redis::{Layout, RedisStore};
pub(crate) use event_data_service::store::{
    AdmitRequest, Admitted, Announced, Bucket, CheckIn, Claim, ClaimRequest, Compaction, Draining,
    Known, OutputName, RecordRequest, Recording, Records, SealRequest, Seen, StoreError, Testimony,
};
pub(crate) use testing::lua_redis::LuaRedis;
pub(crate) use testing::prelude::*;

pub(crate) use super::event::Event;
pub(crate) use super::faulty_store::FaultyStore;
pub(crate) use super::life::Life;
pub(crate) use super::mutants::Mutant;
pub(crate) use super::oracle::{Place, Verdict};
pub(crate) use super::plan::{Plan, output_name};
pub(crate) use super::script::Delivery;
pub(crate) use super::scripted_output::ScriptedOutput;
pub(crate) use super::state::State;
pub(crate) use super::world::World;
