//! [`Spans`]: the steps of minutes and requests, for traces. All steps of a minute have the same trace ID on every node, because
//! the ID is computed from the minute and the cluster-wide settings. Spans are kept only if they are exported.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Mutex, OnceLock};

use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::lock;
use crate::event::Minute;

/// Maximum number of spans kept until the next export. Further spans are dropped.
const SPANS_MAX: usize = 10_000;
/// Maximum number of minutes whose recording is kept as one span. Each batch of a further minute is a dropped span.
const MINUTES_MAX: usize = 1000;
/// How long nothing must have been recorded for a minute before its span is complete.
const COMPLETE_AFTER_NANOS: i64 = 15_000_000_000;

/// A step of a minute or request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) name: &'static str,
    pub(crate) trace: u128,
    /// The span of the client that sent the request.
    pub(crate) parent: Option<u64>,
    /// Nanoseconds since the epoch.
    pub(crate) start_nanos: i64,
    pub(crate) end_nanos: i64,
    pub(crate) attributes: Attributes,
    pub(crate) error: Option<String>,
}

pub(crate) type Attributes = Vec<(&'static str, Attribute)>;

/// The value of an attribute of a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Attribute {
    Text(String),
    Number(i64),
}

impl<T: Display> From<T> for Attribute {
    fn from(text: T) -> Self {
        Self::Text(text.to_string())
    }
}

/// Returns the attribute for a number.
pub(crate) fn number(number: impl TryInto<i64>) -> Attribute {
    Attribute::Number(number.try_into().unwrap_or(i64::MAX))
}

/// The spans that have not been exported yet.
#[derive(Debug, Default)]
pub(crate) struct Spans(OnceLock<(u64, Mutex<Kept>)>);

#[derive(Debug, Default)]
struct Kept {
    spans: Vec<Span>,
    dropped: u64,
    recording: BTreeMap<Minute, Recorded>,
}

#[derive(Debug)]
struct Recorded {
    start_nanos: i64,
    end_nanos: i64,
    events: usize,
    batches: usize,
}

impl Spans {
    /// Enables spans. `cluster` is the same on all nodes of a cluster.
    pub(crate) fn enable(&self, cluster: u64) {
        let _ = self.0.set((cluster, Mutex::default()));
    }

    /// Returns the trace ID of a minute, or `None` if spans are not kept.
    pub(crate) fn of_minute(&self, minute: Minute) -> Option<u128> {
        let (cluster, _) = self.0.get()?;
        Some(xxh3_128_with_seed(&minute.epoch_minutes().to_le_bytes(), *cluster).max(1))
    }

    /// Returns a span of the log for the steps of a minute; a disabled one if spans are not kept.
    pub(crate) fn log_of(&self, minute: Minute) -> tracing::Span {
        self.of_minute(minute).map_or_else(tracing::Span::none, log_span)
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.0.get().is_some()
    }

    pub(crate) fn add(&self, span: Span) {
        if let Some((_, kept)) = self.0.get() {
            lock(kept).add(span);
        }
    }

    /// Adds a step of a minute, which is also its first attribute.
    pub(crate) fn add_step(
        &self,
        name: &'static str,
        minute: Minute,
        [start_nanos, end_nanos]: [i64; 2],
        attributes: impl FnOnce() -> Attributes,
        error: Option<String>,
    ) {
        if let Some(trace) = self.of_minute(minute) {
            let mut all = vec![("eds.minute", minute.into())];
            all.extend(attributes());
            let (parent, attributes) = (None, all);
            self.add(Span { name, trace, parent, start_nanos, end_nanos, attributes, error });
        }
    }

    /// Adds a batch to the recording of a minute, which is one span.
    pub(crate) fn recorded(&self, minute: Minute, [start, end]: [i64; 2], events: usize) {
        let Some((_, kept)) = self.0.get() else { return };
        let Kept { recording, dropped, .. } = &mut *lock(kept);
        if recording.len() >= MINUTES_MAX && !recording.contains_key(&minute) {
            *dropped += 1;
            return;
        }
        let recorded = recording.entry(minute).or_insert(Recorded {
            start_nanos: start,
            end_nanos: end,
            events: 0,
            batches: 0,
        });
        recorded.end_nanos = recorded.end_nanos.max(end);
        recorded.events += events;
        recorded.batches += 1;
    }

    /// Removes and returns the complete spans, and the number of dropped ones. At the end of the process, all are complete.
    pub(crate) fn take(&self, now_nanos: i64, is_end: bool) -> (Vec<Span>, u64) {
        let Some((_, kept)) = self.0.get() else {
            return (Vec::new(), 0);
        };
        let kept = &mut *lock(kept);
        let is_complete = |recorded: &Recorded| {
            is_end || now_nanos.saturating_sub(recorded.end_nanos) > COMPLETE_AFTER_NANOS
        };
        for (minute, recorded) in std::mem::take(&mut kept.recording) {
            let Some(trace) = self.of_minute(minute).filter(|_| is_complete(&recorded)) else {
                kept.recording.insert(minute, recorded);
                continue;
            };
            let Recorded { start_nanos, end_nanos, events, batches } = recorded;
            let (name, parent, error) = ("record", None, None);
            let attributes = vec![
                ("eds.minute", minute.into()),
                ("eds.events", number(events)),
                ("eds.batches", number(batches)),
            ];
            kept.add(Span { name, trace, parent, start_nanos, end_nanos, attributes, error });
        }
        (std::mem::take(&mut kept.spans), std::mem::take(&mut kept.dropped))
    }
}

impl Kept {
    fn add(&mut self, span: Span) {
        if self.spans.len() < SPANS_MAX {
            self.spans.push(span);
        } else {
            self.dropped += 1;
        }
    }
}

/// Returns a span of the log with this trace ID.
pub(crate) fn log_span(trace: u128) -> tracing::Span {
    // Whatever the level of the log is, its messages have the ID.
    tracing::error_span!("trace", trace_id = format_args!("{trace:032x}"))
}

/// Returns the trace ID and the span ID in a `traceparent` header (W3C Trace Context), if the client samples the trace.
pub(crate) fn sampled(traceparent: &str) -> Option<(u128, u64)> {
    let mut parts = traceparent.trim().split('-');
    let (version, trace, span, flags) =
        (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let hex = |text: &str, length| {
        let is_hex = text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hex.then(|| u128::from_str_radix(text, 16).ok())?
    };
    let (_, trace, span, flags) = (
        hex(version, 2).filter(|version| *version < 255)?,
        hex(trace, 32)?,
        hex(span, 16)?,
        hex(flags, 2)?,
    );
    let span = u64::try_from(span).ok()?;
    (trace > 0 && span > 0 && flags & 1 == 1).then_some((trace, span))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Minute = Minute::MIN;
    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn nothing_is_kept_unless_enabled() {
        let spans = Spans::default();
        spans.recorded(MINUTE, [0, 1], 1);
        spans.add_step("seal", MINUTE, [0, 1], Vec::new, None);
        assert_eq!(spans.take(i64::MAX, true), (Vec::new(), 0));
        assert!(spans.log_of(MINUTE).is_disabled());
    }

    #[test]
    fn steps_of_a_minute_share_a_trace_on_all_nodes() {
        let [one, two, other] = [7, 7, 8].map(|cluster| {
            let spans = Spans::default();
            spans.enable(cluster);
            spans
        });
        assert_eq!(one.of_minute(MINUTE), two.of_minute(MINUTE));
        assert_ne!(one.of_minute(MINUTE), other.of_minute(MINUTE));
        one.recorded(MINUTE, [SECOND, 2 * SECOND], 3);
        one.recorded(MINUTE, [4 * SECOND, 5 * SECOND], 4);
        one.add_step("seal", MINUTE, [9 * SECOND, 10 * SECOND], Vec::new, Some("e".to_owned()));
        let names = |spans: &[Span]| spans.iter().map(|span| span.name).collect::<Vec<_>>();
        let (first, _) = one.take(12 * SECOND, false);
        assert_eq!(names(&first), ["seal"]);
        let (second, _) = one.take(21 * SECOND, false);
        assert_eq!(names(&second), ["record"]);
        assert_eq!(second[0].trace, first[0].trace);
        assert_eq!([second[0].start_nanos, second[0].end_nanos], [SECOND, 5 * SECOND]);
        assert!(second[0].attributes.contains(&("eds.events", number(7_u8))));
    }

    #[test]
    fn spans_are_bounded() {
        let spans = Spans::default();
        spans.enable(1);
        for _ in 0..SPANS_MAX + 3 {
            spans.add_step("seal", MINUTE, [0, 1], Vec::new, None);
        }
        let (kept, dropped) = spans.take(0, false);
        assert_eq!((kept.len(), dropped), (SPANS_MAX, 3));
        for minute in 0..=MINUTES_MAX {
            let minute = Minute::from_epoch_minutes(minute.try_into().unwrap()).unwrap();
            spans.recorded(minute, [0, 1], 1);
        }
        let (kept, dropped) = spans.take(0, true);
        assert_eq!((kept.len(), dropped), (MINUTES_MAX, 1));
    }

    #[test]
    fn only_sampled_requests_are_traced() {
        // The example of the specification.
        let header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let ids = (0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c, 0xb7ad_6b71_6920_3331);
        assert_eq!(sampled(header), Some(ids));
        for other in [
            &header.replace("-01", "-00"),
            &header.replace("b7ad6b7169203331", "0000000000000000"),
            &header.replace("00-0af", "ff-0af"),
            &header.replace("0af7", "+af7"),
            "",
            "00-1-1-01",
        ] {
            assert_eq!(sampled(other), None, "{other}");
        }
    }
}
