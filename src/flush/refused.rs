//! What becomes of counts that the output refuses: the quarantine, and one line of the log for all of a round.

use std::collections::BTreeMap;

use super::delivery::Refusal;
use super::sender::Sender;
use crate::diagnosis::{Cause, Diagnosis, LossCause};
use crate::event::Minute;
use crate::store::Claim;

/// The counts that are put into the quarantine at once.
const AT_ONCE: usize = 200;
/// The counts that a line of the log shows.
const EXAMPLES_MAX: usize = 3;

/// Counts of the same fate, for the log.
#[derive(Debug, Default)]
struct Tally {
    counts: u64,
    minutes: Option<(Minute, Minute)>,
    examples: Vec<String>,
}

impl Tally {
    fn add(&mut self, refusal: &Refusal) {
        self.counts += 1;
        let counts = &refusal.body.counts[0];
        let (first, last) = self.minutes.unwrap_or((counts.minute, counts.minute));
        self.minutes = Some((first.min(counts.minute), last.max(counts.minute)));
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(format!(
                "{} {} {}:{} ({})",
                counts.minute.shown(),
                counts.series,
                counts.unique,
                counts.cumulative,
                refusal.message
            ));
        }
    }
}

impl Sender {
    /// Takes refused counts out of what is unsent.
    pub(super) async fn quarantine(&self, claims: &[Claim], refused: &[Refusal]) {
        let mut by_claim: BTreeMap<usize, Vec<&Refusal>> = BTreeMap::new();
        for refusal in refused {
            by_claim.entry(refusal.body.claims[0]).or_default().push(refusal);
        }
        let (mut kept, mut discarded) = (Tally::default(), Tally::default());
        for (index, refused) in by_claim {
            let claim = &claims[index];
            for refused in refused.chunks(AT_ONCE) {
                if !self.outbox.held.has(claim) {
                    break;
                }
                let with_messages: Vec<_> = refused
                    .iter()
                    .map(|refusal| {
                        (refusal.body.counts[0].series.as_str(), refusal.message.as_str())
                    })
                    .collect();
                match self.store.quarantine(claim, &with_messages).await {
                    Ok(fates) => {
                        for (refusal, is_kept) in refused.iter().zip(fates) {
                            let tally = if is_kept { &mut kept } else { &mut discarded };
                            tally.add(refusal);
                            if !is_kept {
                                let counts = &refusal.body.counts[0];
                                let (cause, events) = (LossCause::Discarded, counts.cumulative);
                                self.node.losses.add(cause, counts.minute, events);
                            }
                        }
                    }
                    Err(error) => self.failed(claim, &error),
                }
            }
        }
        self.metrics.points_quarantined.inc_by(2 * kept.counts);
        self.metrics.points_discarded.inc_by(2 * discarded.counts);
        for (cause, tally) in [(Cause::Quarantine, kept), (Cause::Discarded, discarded)] {
            if let Some((first, last)) = tally.minutes {
                let found = Diagnosis::new(cause, tally.examples.join("; "));
                let found = found.at(format_args!("output {}", self.name));
                let found = found.named(self.name.as_str());
                tracing::error!(counts = tally.counts, %first, %last, "{found}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flush::suspects::Body;
    use crate::output::SealedCounts;

    #[test]
    fn a_line_of_the_log_tells_of_all_counts_and_shows_a_few() {
        let mut tally = Tally::default();
        for number in [5, 4, 3, 6] {
            let mut body = Body::default();
            let counts = SealedCounts {
                minute: Minute::from_epoch_minutes(number).unwrap(),
                series: format!("a={number}"),
                unique: 1,
                cumulative: 2,
            };
            body.push(0, vec![counts]);
            let message = "no".to_owned();
            tally.add(&Refusal { body, message });
        }
        assert_eq!(tally.counts, 4);
        let minutes = [3, 6].map(|number| Minute::from_epoch_minutes(number).unwrap());
        assert_eq!(tally.minutes, Some((minutes[0], minutes[1])));
        let examples = ["19700101:0005 a=5 1:2 (no)", "19700101:0004 a=4 1:2 (no)"];
        assert_eq!(tally.examples[..2], examples);
        assert_eq!(tally.examples.len(), EXAMPLES_MAX);
    }
}
