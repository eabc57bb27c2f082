//! What an event is. Pure: no I/O, no clock, no tokio.

mod minute;

pub use minute::{Minute, ParseMinuteError};
