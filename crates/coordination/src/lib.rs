//! Do an expensive thing once, however many processes want it at the same moment.
//!
//! | to | use |
//! | --- | --- |
//! | let one process at a time do something | [`Mutex`] |
//! | compute a value once for all callers | [`ComputeOnce`] |
//! | compute it again before it expires, so that no reader waits | [`ComputeSettings::beta`] |
//! | replace a list and its time to live in one step | [`AtomicReplace`] |
//!
//! Each is written once, over an [`Arbiter`]: the place that all processes share. [`redis::RedisArbiter`] is one for many
//! processes, with the feature `redis`, which is on by default; [`memory::MemoryArbiter`] is one for a single process, and for
//! tests; any other can be made one:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use coordination::memory::MemoryArbiter;
//! use coordination::{Arbiter, ComputeOnce, ComputeSettings, Mutex, Origin};
//!
//! const PATIENCE: Duration = Duration::from_secs(10);
//! let arbiter: Arc<dyn Arbiter> = Arc::new(MemoryArbiter::default());
//!
//! // Two requests for a value that takes long to compute: one computes, both get it.
//! let once = ComputeOnce::new(Arc::clone(&arbiter), ComputeSettings::default())?;
//! let compute = |_token| async { Ok::<_, String>(b"expensive".to_vec()) };
//! let (one, other) = tokio::join!(once.get("key", PATIENCE, compute), once.get("key", PATIENCE, compute));
//! let (one, other) = (one?, other?);
//! assert_eq!(one.token(), other.token());
//! assert_eq!(once.get("key", PATIENCE, compute).await?.origin, Origin::Kept);
//!
//! // A lock, held while the guard lives. Its token is greater than that of any holder before.
//! let mutex = Mutex::new(arbiter, "reports", Duration::from_secs(5))?;
//! let first = mutex.acquire(PATIENCE).await?;
//! assert!(mutex.try_acquire().await?.is_none(), "somebody has it");
//! let before = first.token();
//! first.release().await?;
//! let second = mutex.acquire(PATIENCE).await?;
//! assert!(second.token() > before);
//!
//! // Work that must not go on without the lock is dropped when the lock is lost.
//! let written = second.protect(async { "written with the token" }).await?;
//! # assert_eq!(written, "written with the token");
//! # Ok(())
//! # }
//! ```
//!
//! # Terms
//!
//! A **lease** is a right for a limited time: a lock, or the right to compute a value. A background task renews it three times in
//! that time while its holder lives; without renewal it **lapses**. A **token** is the number of a lease, greater than that of any
//! earlier one of the same name: pass it to whatever a holder writes to, and let that refuse smaller ones. **Patience** is
//! how long a caller waits for others.
//!
//! `docs/guarantees.md` in the repository lists the guarantees when processes, connections and servers fail, and their limits.

mod arbiter;
mod atomic_replace;
mod compute_once;
mod computed;
mod event;
mod flight;
mod keeper;
mod lease;
pub mod memory;
mod mutex;
mod name;
#[cfg(feature = "redis")]
pub mod redis;
mod settings;
mod wakes;
pub mod xfetch;

pub use self::arbiter::{Answer, Arbiter, ArbiterError, Beginning, Entry, Locking, WAITING_MAX};
pub use self::atomic_replace::{AtomicReplace, ITEMS_MAX, LIST_BYTES_MAX, ReplaceError};
pub use self::compute_once::ComputeOnce;
pub use self::computed::{ComputeError, Computed, Failure, Fresh, Origin};
pub use self::event::Event;
pub use self::lease::LockLost;
pub use self::mutex::{AcquireError, Guard, Mutex};
pub use self::name::{Holder, InvalidName, NAME_BYTES_MAX, Name, Token};
pub use self::settings::{ComputeSettings, InvalidSetting};
pub use self::wakes::Listener;
