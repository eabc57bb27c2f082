//! Doing an expensive thing once among many processes. A library of its own: it knows nothing of events.
//!
//! | to | use |
//! | --- | --- |
//! | let one at a time do something | [`Mutex`] |
//! | compute a value once for all that ask | [`ComputeOnce`] |
//! | compute it again before it goes, so that nobody waits | [`EarlyRefresh`] |
//! | replace a list and its time to live in one step | [`AtomicReplace`] |
//!
//! Each is written once, over an [`Arbiter`]: [`memory`] for one process, [`redis`] for many, on one server or on a
//! cluster. What is promised under failure, and what is not, stands in `docs/coordination.md`.

mod arbiter;
mod atomic_replace;
mod compute_once;
mod computed;
mod early_refresh;
mod flights;
mod lease;
pub mod memory;
mod mutex;
mod name;
pub mod redis;
mod settings;
mod wakes;
pub mod xfetch;

pub use self::arbiter::{Arbiter, ArbiterError, Beginning, Entry, Locking, WAITING_MAX};
pub use self::atomic_replace::{AtomicReplace, ITEMS_MAX, LIST_BYTES_MAX, ReplaceError};
pub use self::compute_once::ComputeOnce;
pub use self::computed::{ComputeError, Computed, NotAList, Origin, encode_list};
pub use self::early_refresh::{EarlyRefresh, is_to_be_refreshed};
pub use self::lease::LockLost;
pub use self::mutex::{AcquireError, Guard, Mutex};
pub use self::name::{Holder, InvalidName, NAME_BYTES_MAX, Name, Token};
pub use self::settings::{ComputeSettings, InvalidSetting};
pub use self::wakes::Listener;
