//! The table of losses. Each row is a label of `eds_losses_unacknowledged`.

use std::fmt;

use super::Cause;
use super::catalogue::{QUARANTINED, RELIEVE, append_only};

const BUFFER_FULL: &str = "the receive buffer was full, because the process was stopped or too slow, or checksums were wrong";
const RAISE_BUFFER: &str = "raise input.receive_buffer (and net.core.rmem_max), or input.threads; check the load of the host";

macro_rules! losses {
    ($($loss:ident $label:literal $cause:ident $what:literal $why:expr => $remedy:expr;)*) => {
        /// Why a node's events are missing from all points, or a relay's lines were not sent.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "the table says what each is")]
        pub enum LossCause { $($loss,)* }

        impl LossCause {
            /// All causes, in the order of the metrics.
            pub const ALL: [Self; [$($label),*].len()] = [$(Self::$loss),*];

            /// Returns its name in the loss record and in the metrics.
            #[must_use]
            pub const fn label(self) -> &'static str { match self { $(Self::$loss => $label,)* } }

            /// Returns the cause of its finding.
            #[must_use]
            pub const fn cause(self) -> Cause { match self { $(Self::$loss => Cause::$cause,)* } }

            /// Returns the noun for what was lost, for use after a number.
            #[must_use]
            pub const fn what(self) -> &'static str { match self { $(Self::$loss => $what,)* } }

            /// Returns the reason.
            #[must_use]
            pub const fn why(self) -> &'static str { match self { $(Self::$loss => $why,)* } }

            /// Returns the remedy.
            #[must_use]
            pub const fn remedy(self) -> &'static str { match self { $(Self::$loss => $remedy,)* } }
        }
    };
}

losses! {
    QueueFull "queue_full" NodeDrops "events dropped"
        "the queue overflowed: events arrived faster than the store recorded them, and there is no spool, or it is too slow" =>
        RELIEVE;
    SpoolFull "spool_full" NodeDrops "events dropped" "the queue overflowed, and the spool is full (input.spool_max)" =>
        "restore the store or reduce its load; raise input.spool_max";
    SpoolFailed "spool_failed" NodeDrops "events dropped" "the spool could not be written or read" =>
        "free or repair the disk of input.spool_dir";
    Shutdown "shutdown" NodeDrops "events dropped" "the node stopped before the store had recorded them" =>
        "stop nodes while the store is available; raise input.drain_timeout, or set input.spool_dir";
    KernelDrops "kernel_drops" KernelDrops "datagrams dropped by the kernel" BUFFER_FULL => RAISE_BUFFER;
    Forgotten "forgotten" Forgotten "events lost by Redis"
        "Redis returned to an earlier state, and the node could not record them again" =>
        concat!(append_only!(), "; with replicas, set min-replicas-to-write 1 on the master; raise store.replay_window");
    Unconfirmed "unconfirmed" Unconfirmed "minutes lost by Redis while they were written"
        "an output may lack some of their counts" =>
        concat!("compare the points of these minutes with the expected counts; ", append_only!());
    Discarded "discarded" Discarded "events of discarded counts" "an output refused their counts, and its quarantine was full" => QUARANTINED;
    Late "late" Late "late events" "they arrived after their minute was closed, and are not published" =>
        "check clocks and delays of the senders; raise flush.grace with `eds settings apply`, and restart all nodes";
    RelayNowhere "relay_nowhere" RelayNowhere "events sent to no node" "every node refused them, or has no address" =>
        "start the nodes, and check their addresses in relay.to";
    RelayPassthrough "relay_passthrough_dropped" RelayPassthroughDrops "passthrough lines dropped"
        "the server in passthrough.url refuses them, does not respond, or leads back to the relay" =>
        "check that the server in passthrough.url accepts lines: the relay's log has its message; raise passthrough.queue_bytes";
    RelayKernelDrops "relay_kernel_drops" KernelDrops "datagrams dropped by the kernel" BUFFER_FULL => RAISE_BUFFER;
}

/// A number for each of [`LossCause::ALL`].
pub type ByCause = [u64; LossCause::ALL.len()];

impl LossCause {
    /// The causes for which the node itself drops events. They come first.
    pub const DROPPED: [Self; 4] =
        [Self::QueueFull, Self::SpoolFull, Self::SpoolFailed, Self::Shutdown];

    /// Returns the cause with this label.
    #[must_use]
    pub fn labelled(label: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.label() == label)
    }

    /// Returns whether all lost events are missing from points. Late events may be duplicates of published ones.
    #[must_use]
    pub const fn is_certain(self) -> bool {
        !matches!(self, Self::Late)
    }

    /// Returns whether it applies to relays.
    #[must_use]
    pub fn is_of_relay(self) -> bool {
        self.label().starts_with("relay_")
    }
}

/// Displays the loss, its reason and its remedy.
impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, why, remedy) = (self.what(), self.why(), self.remedy());
        write!(f, "{what}, lost unless another process has them: {why}; {remedy}")
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
