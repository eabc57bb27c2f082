//! The table of losses. Each row describes one value of the label `reason` in the metric `eds_losses_unacknowledged`.

use std::fmt;

use super::Cause;
use super::catalogue::{QUARANTINED, RELIEVE, append_only};

const BUFFER_FULL: &str = "the receive buffer was full because of a burst, or because the process was stopped or too slow, or datagrams had wrong checksums";
const RAISE_BUFFER: &str = "raise input.receive_buffer (and net.core.rmem_max) or input.threads; check the load on the host";

macro_rules! losses {
    ($($loss:ident $label:literal $cause:ident $what:literal $why:expr => $remedy:expr;)*) => {
        /// The reason why events are missing from all points, or why a relay did not send lines.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "the table describes each variant")]
        pub enum LossCause { $($loss,)* }

        impl LossCause {
            /// All causes, in the order in which the metrics list them.
            pub const ALL: [Self; [$($label),*].len()] = [$(Self::$loss),*];

            /// Returns the name of this cause in the loss record and in metrics.
            #[must_use]
            pub const fn label(self) -> &'static str { match self { $(Self::$loss => $label,)* } }

            /// Returns the cause of the finding that reports this loss.
            #[must_use]
            pub const fn cause(self) -> Cause { match self { $(Self::$loss => Cause::$cause,)* } }

            /// Returns what was lost, worded to follow a number.
            #[must_use]
            pub const fn what(self) -> &'static str { match self { $(Self::$loss => $what,)* } }

            /// Returns why the data was lost, worded as a clause.
            #[must_use]
            pub const fn why(self) -> &'static str { match self { $(Self::$loss => $why,)* } }

            /// Returns the operator's remedy against further losses.
            #[must_use]
            pub const fn remedy(self) -> &'static str { match self { $(Self::$loss => $remedy,)* } }
        }
    };
}

losses! {
    QueueFull "queue_full" NodeDrops "events dropped"
        "the queue overflowed because events arrived faster than the store recorded them, and there was no spool or the spool was too slow" =>
        RELIEVE;
    SpoolFull "spool_full" NodeDrops "events dropped" "the queue overflowed while the spool was full (input.spool_max)" =>
        "fix the store or reduce its load; raise input.spool_max";
    SpoolFailed "spool_failed" NodeDrops "events dropped" "the spool could not be written or read" =>
        "free up space on the disk that holds input.spool_dir, or repair the disk";
    Shutdown "shutdown" NodeDrops "events dropped" "the node shut down before the store had recorded them" =>
        "shut nodes down only while the store is available; raise input.drain_timeout, or set input.spool_dir";
    KernelDrops "kernel_drops" KernelDrops "datagrams dropped by the kernel" BUFFER_FULL => RAISE_BUFFER;
    Forgotten "forgotten" Forgotten "events lost by Redis"
        "Redis returned to an earlier state, and the node could not re-record them" =>
        concat!(append_only!(), "; with replicas, set min-replicas-to-write 1 on the master; raise store.replay_window");
    Unconfirmed "unconfirmed" Unconfirmed "minutes lost by Redis while being written"
        "an output may be missing some of their counts" =>
        concat!("compare the points for these minutes with the expected counts; ", append_only!());
    Windows "windows" WindowsIncomplete "minutes missing in windows" "Redis lost users that had been added to a window, which has complete=false" =>
        concat!("set input.spool_dir on all nodes; ", append_only!());
    Discarded "discarded" Discarded "events in discarded counts" "an output rejected their counts while its quarantine was full" => QUARANTINED;
    Late "late" Late "late events" "they arrived after their minute had closed, so they are not published" =>
        "check the senders' clocks and delays; raise flush.grace with `eds settings apply` and restart all nodes";
    RelayNowhere "relay_nowhere" RelayNowhere "events not sent to any node" "every node was unreachable or had no address" =>
        "start the nodes, and check their addresses in relay.to";
    RelayPassthrough "relay_passthrough_dropped" RelayPassthroughDrops "passthrough lines dropped"
        "the server in passthrough.url rejected them, was not responding, or led back to the relay" =>
        "check that the server in passthrough.url accepts lines (the relay logs its error message); raise passthrough.queue_bytes";
    RelayKernelDrops "relay_kernel_drops" KernelDrops "datagrams dropped by the kernel" BUFFER_FULL => RAISE_BUFFER;
}

/// One number per cause, in the order of [`LossCause::ALL`].
pub type ByCause = [u64; LossCause::ALL.len()];

impl LossCause {
    /// The causes for which the node itself drops events. They come first in [`Self::ALL`].
    pub const DROPPED: [Self; 4] =
        [Self::QueueFull, Self::SpoolFull, Self::SpoolFailed, Self::Shutdown];

    /// Returns the cause with this label, or `None` if there is none.
    #[must_use]
    pub fn labelled(label: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.label() == label)
    }

    /// Returns whether events lost for this cause are certain to be missing from points. Late events may be duplicates.
    #[must_use]
    pub const fn is_certain(self) -> bool {
        !matches!(self, Self::Late)
    }

    /// Returns whether this loss occurs on relays rather than nodes.
    #[must_use]
    pub fn is_of_relay(self) -> bool {
        self.label().starts_with("relay_")
    }
}

/// Displays what was lost, the reason and the remedy.
impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, why, remedy) = (self.what(), self.why(), self.remedy());
        write!(f, "{what}, unless another process has them: {why}; {remedy}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_label_names_its_cause() {
        for (place, cause) in LossCause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, place);
            assert_eq!(LossCause::labelled(cause.label()), Some(cause));
        }
    }
}
