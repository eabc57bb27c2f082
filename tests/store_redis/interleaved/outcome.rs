//! Executes commands and compares their effects with the expected ones, to the end, when nothing may be left.

use std::sync::Arc;

use event_data_service::event::Minute;

use super::node::{LEASE, minute_of};
use super::oracle::Truth;
use super::site::TAG;
use super::turns::{Fate, Held, Kind};
use super::world::World;
use crate::store_redis::site::{minute, next_minute};

/// Limits far above the rounds, commands and calls that finishing needs.
const ROUNDS_MAX: usize = 60;
const DRAINED_MAX: usize = 2000;

impl World<'_> {
    /// Executes a command and compares its effect with the expected one.
    pub(super) fn release(&mut self, held: &Held, fate: Fate) -> Result<(), String> {
        let text = String::from_utf8_lossy(&held.command);
        let minutes = [minute(), next_minute()];
        let minute = minutes.into_iter().find(|it| text.contains(&it.to_string()));
        let was_closed = minute.is_some_and(|minute| self.site.is_closed(minute));
        // Redis becomes a replica for a moment: its last writes are forgotten, and connections stay.
        let goes_back = held.kind == Kind::Seal && self.may_go_back && self.dice.one_in(4);
        let late_before = self.site.late();
        let before = goes_back.then(|| (self.site.save(), self.truths.clone()));
        let answer = self.site.turns.release(held, fate);
        let answer = answer.map(|answer| String::from_utf8_lossy(&answer).into_owned());
        let Held { id, node, kind, is_awaited, .. } = *held;
        let shown = answer.as_ref().map(|it| it.chars().take(80).collect::<String>());
        let of = minute.map(|it| it.to_string());
        self.log.push(format!(
            "n{node} {kind:?} {id} {of:?} {fate:?}, awaited {is_awaited}: {shown:?}"
        ));
        if fate != Fate::Answered {
            self.nodes[node].is_cut = true;
        }
        let Some((answer, minute)) = answer.zip(minute) else {
            return Ok(());
        };
        if answer.starts_with('-') {
            return Err(format!("{kind:?} fails: {answer}"));
        }
        let is_refused = answer.starts_with("$-1") || answer.starts_with("*-1");
        match kind {
            Kind::Append => {
                let parts: Vec<_> = answer.lines().skip(1).collect();
                let appended = minutes.iter().filter(|it| text.contains(&it.to_string()));
                // The answers of scripts are the last ones.
                let appended: Vec<_> = appended.copied().collect();
                let answers = &parts[parts_of(&answer) - appended.len()..];
                for (minute, answer) in appended.into_iter().zip(answers) {
                    if *answer == ":1" {
                        let recorded = Arc::clone(&self.appending[&id]);
                        self.appended.insert((recorded.number, minute));
                        let events = recorded.events.iter().copied();
                        let truth = self.truth(minute);
                        truth.appended(events.filter(|it| minute_of(it.2) == minute));
                    } else {
                        self.reach("a log is refused");
                    }
                }
            }
            Kind::Cut | Kind::Seal if is_refused => self.reach("a claim is refused"),
            Kind::Cut => self.truth(minute).was_cut(),
            Kind::Seal => {
                let numbers =
                    answer.lines().filter_map(|line| line.strip_prefix(':')?.parse().ok());
                let numbers: Vec<u64> = numbers.take(3).collect();
                let step = (numbers[0], self.site.late() - late_before, numbers[2]);
                let cut: bool = self.site.ask(&["EXISTS", &format!("{TAG}:{minute}:cut")]);
                let there = self.site.counts(minute);
                let stepped = self.truth(minute).was_stepped(step, was_closed, !cut, &there);
                let repeated = stepped.map_err(|error| format!("{minute}: {error}"))?;
                if is_awaited {
                    self.repeated[node] = repeated;
                }
                for (what, is_so) in [
                    ("a series is sealed", step.0 > 0),
                    ("events are late", step.1 > 0),
                    ("a part is sealed", cut),
                    ("logs are left", !cut && step.2 > 0),
                ] {
                    if is_so {
                        self.reach(what);
                    }
                }
            }
            Kind::Admit | Kind::Read | Kind::Other => {}
        }
        for minute in minutes {
            let (is_closed, there) = (self.site.is_closed(minute), self.site.counts(minute));
            let agrees = self.truth(minute).agrees(&there, is_closed);
            agrees.map_err(|error| format!("{minute}: {error}"))?;
        }
        if let Some((saved, truths)) = before {
            self.log.push("Redis goes back".to_owned());
            self.reach("Redis goes back");
            self.site.go_back(&saved);
            (self.truths, self.went_back) = (truths, true);
        }
        Ok(())
    }

    fn truth(&mut self, minute: Minute) -> &mut Truth {
        self.truths.get_mut(&minute).unwrap()
    }

    /// Executes all held commands and lets the nodes finish their work.
    pub(super) async fn drain(&mut self) -> Result<(), String> {
        self.log.push("all is let go".to_owned());
        self.may_go_back = false;
        let mut rounds = 0;
        for _ in 0..DRAINED_MAX {
            self.settle().await?;
            let held = self.site.turns.held();
            if !held.is_empty() {
                let held = &held[self.place_in(held.len())];
                self.release(held, Fate::Answered)?;
            } else if self.nodes.iter().any(|node| !node.claims.is_empty()) || self.dice.one_in(2) {
                self.begin_call(true).await;
            } else {
                if self.is_done()? {
                    return Ok(());
                }
                rounds += 1;
                if rounds > ROUNDS_MAX {
                    return Err(format!("never done: {:?}", self.site.names()));
                }
                self.move_clock(LEASE);
            }
        }
        Err("there is no end of what there is to do".to_owned())
    }

    /// Returns whether all work is finished and all remaining keys expire.
    fn is_done(&mut self) -> Result<bool, String> {
        let reads = std::mem::take(&mut *self.reads.lock().unwrap());
        for (claim, read) in reads {
            for (series, counts) in read {
                self.truth(claim.minute).was_sent(&series, counts)?;
            }
        }
        for name in self.site.names() {
            let stays = [
                "eds:settings",
                "{eds:0}:witness",
                "{eds:0}:closed",
                "{eds:0}:outputs",
                "{eds:0}:stamps",
            ];
            if stays.contains(&name.as_str()) {
                continue;
            }
            let expires: i64 = self.site.ask(&["PTTL", &name]);
            if !(name.ends_with(":counts") || name.ends_with(":coverage")) || expires == -1 {
                return Ok(false);
            }
        }
        self.truths.values().try_for_each(Truth::is_done)?;
        Ok(true)
    }
}

/// Returns the number of parts of a transaction's answer.
fn parts_of(answer: &str) -> usize {
    let first = answer.lines().next();
    let parts = first.and_then(|it| it.strip_prefix('*')?.parse().ok());
    parts.expect("a transaction answers with an array")
}
