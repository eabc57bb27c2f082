//! Recording: one transaction, many members a command.
//!
//! No script: Redis spends about a quarter more on the same additions from Lua. The transaction makes
//! the minute known (`minutes`) with its first event, so that nothing lies in a set that no claim will find. It
//! also ends the expiry of the counts that the minute may have already (`PERSIST`): they are what a late event
//! must meet, and no node may be there to claim it before they would be forgotten.

use std::collections::BTreeMap;

use ::redis::{Cmd, Pipeline, cmd, pipe};

use super::keys::PartitionKeys;
use crate::event::Minute;
use crate::store::Recording;

/// The commands that record. All keys are in one slot.
pub(super) fn pipeline(keys: &PartitionKeys, recordings: &[Recording<'_>]) -> Pipeline {
    let mut pipeline = pipe();
    pipeline.atomic();
    let mut minutes: BTreeMap<Minute, Vec<&Recording<'_>>> = BTreeMap::new();
    for recording in recordings {
        minutes.entry(recording.minute).or_default().push(recording);
    }
    let mut member = Vec::new();
    for (minute, recordings) in minutes {
        let base = keys.minute(minute);
        let name = minute.to_string();
        let mut arrivals = 0;
        for recording in &recordings {
            let series = recording.series;
            if !recording.new_users.is_empty() {
                let mut users = cmd("SADD");
                users
                    .arg(format!("{base}unique_user:{series}"))
                    .arg(&recording.new_users);
                pipeline.add_command(users).ignore();
            }
            let mut events = cmd("SADD");
            events.arg(format!("{base}cumulative_user:{series}"));
            for occurrence in recording.occurrences {
                add_member(
                    &mut events,
                    &mut member,
                    recording.batch.user(occurrence),
                    occurrence.timestamp,
                );
            }
            pipeline.add_command(events).ignore();
            arrivals += recording.occurrences.len();
        }
        let mut series = cmd("SADD");
        series.arg(format!("{base}event_types"));
        for recording in &recordings {
            series.arg(recording.series);
        }
        pipeline.add_command(series).ignore();
        pipeline
            .cmd("ZADD")
            .arg(&keys.minutes)
            .arg("NX")
            .arg(minute.epoch_minutes())
            .arg(&name)
            .ignore();
        pipeline.hincr(&keys.arrivals, &name, arrivals).ignore();
        pipeline.persist(format!("{base}counts")).ignore();
    }
    pipeline
}

/// Adds `<user>_<timestamp>`. The timestamp has no underscore, so different events are different members.
fn add_member(command: &mut Cmd, member: &mut Vec<u8>, user: &str, timestamp: i64) {
    member.clear();
    member.extend_from_slice(user.as_bytes());
    member.push(b'_');
    // Writing to a vector cannot fail.
    let _ = std::io::Write::write_fmt(member, format_args!("{timestamp}"));
    command.arg(member.as_slice());
}
