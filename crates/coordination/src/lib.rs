#![doc = include_str!("../README.md")]

mod arbiter;
mod atomic_replace;
mod compute_once;
mod computed;
mod flight;
mod lease;
pub mod memory;
mod mutex;
#[cfg(feature = "redis")]
pub mod redis;
mod settings;
mod token;
mod wakes;
mod xfetch;

pub use self::arbiter::{
    Answer, Arbiter, Beginning, Claim, Entry, Error, Locking, NAME_BYTES_MAX, Name, Place, Token,
    WAITING_MAX,
};
pub use self::atomic_replace::{AtomicReplace, ITEMS_MAX, LIST_BYTES_MAX};
pub use self::compute_once::ComputeOnce;
pub use self::computed::{Computed, Failure, Fresh, Kept, Origin};
pub use self::lease::LockLost;
pub use self::mutex::{Guard, Mutex};
pub use self::settings::{ComputeSettings, InvalidSetting};
pub use self::wakes::Listener;
