//! Where lines come from.

use std::io::Read;

use super::lines::{Lines, Next};
use super::now_nanos;
use super::realtime::Realtime;
use super::synthetic::{Event, Synthetic};
use super::{LineRules, SendError};

/// A source of lines.
#[derive(Debug)]
pub(super) enum Source<R> {
    /// Lines that are read.
    Lines(Lines<R>),
    /// Events of a plan.
    Synthetic(Synthetic),
    /// Events of a plan, that happen when they are asked for.
    Realtime(Realtime),
}

impl<R: Read> Source<R> {
    /// Lines that are read. With `stamps`, those that lack a timestamp get the time at which they are read.
    pub(super) fn lines(input: R, rules: LineRules, stamps: bool) -> Self {
        let lines = Lines::new(input, rules.end);
        Self::Lines(if stamps { lines.stamping(rules.lacks_timestamp) } else { lines })
    }

    pub(super) const fn synthetic(load: Synthetic, realtime: bool) -> Self {
        if realtime { Self::Realtime(Realtime::new(load)) } else { Self::Synthetic(load) }
    }

    /// Puts the next line into `line`, without a line end.
    pub(super) fn next(&mut self, line: &mut Vec<u8>) -> Result<Next, SendError> {
        match self {
            Self::Lines(lines) => lines.next(line),
            Self::Synthetic(load) => Ok(write(load.next(), line)),
            Self::Realtime(load) => Ok(write(load.next(now_nanos()), line)),
        }
    }

    /// The number of the line given last, where lines are read.
    pub(super) const fn line_number(&self) -> Option<u64> {
        match self {
            Self::Lines(lines) => Some(lines.number()),
            Self::Synthetic(_) | Self::Realtime(_) => None,
        }
    }

    /// How many lines there will be, where that is known.
    pub(super) fn count(&self) -> Option<u64> {
        match self {
            Self::Lines(_) => None,
            Self::Synthetic(load) => Some(load.left()),
            Self::Realtime(load) => Some(load.left()),
        }
    }
}

fn write(event: Option<Event>, line: &mut Vec<u8>) -> Next {
    let Some(event) = event else { return Next::End };
    line.clear();
    event.write_line(line);
    Next::Line
}
