//! Lists of the series with the highest counts. Each list is computed once for all nodes. A client that requests single
//! positions gets them from the same list while that list is current, or for up to [`KEPT_TTL`] if it passes the list's ID.

use std::collections::BTreeMap;
use std::iter::once;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::counts::BySeries;
use super::lists::{Found, KEPT_TTL};
use super::parameters::{By, Range, Top, start};
use super::turns::has_room;
use super::{Queries, minute, tags};
use crate::event::{Every, Minute};
use crate::http::problem::Problem;

/// Number of series whose counts are in the response for each minute or window.
const STACKED_MAX: usize = 5;
/// Maximum number of minutes or windows in such a response, so that varied queries leave little in the store.
const MOMENTS_MAX: usize = 60;

#[derive(Debug, Serialize, Deserialize)]
struct Ranked {
    from: i64,
    to: i64,
    /// The series, each with its highest number of users in any minute or window and its total number of events.
    items: Vec<(String, [u64; 2])>,
    /// The closed minutes or windows, in order; empty if there are no counts, or more than [`MOMENTS_MAX`] in the range.
    by_time: Vec<Moment>,
}

/// The start of a minute or window, the sums of users and events over all series, and the numbers of the first series.
#[derive(Debug, Serialize, Deserialize)]
struct Moment(i64, [u64; 2], Vec<[u64; 2]>);

pub(super) async fn answer(
    queries: &Arc<Queries>,
    top: &Top,
) -> Result<(Value, Duration), Problem> {
    let Found { id, list, age, remaining, shared } = match &top.list {
        Some(id) => by_id(queries, id, &top.key()).await?,
        None => current(queries, top).await?,
    };
    let ranked: Ranked = serde_json::from_slice(&list)
        .map_err(|error| Problem::unavailable(format!("the list cannot be read: {error}")))?;
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let length = ranked.items.len();
    let mut answer = json!({
        "by": top.by.word(), "window": format!("{}m", top.window), "filter": top.filter,
        "from": minute(ranked.from), "to": minute(ranked.to),
        "list": {
            "id": id, "length": length, "shared": shared,
            "age_ms": millis(age), "expires_in_ms": millis(remaining),
        },
    });
    let unique_max = match &top.counted.rollup {
        None => "unique_minute_max",
        Some(name) => {
            answer["rollup"] = json!(name);
            "unique_window_max"
        }
    };
    let mut items = ranked.items.iter().enumerate().map(|(position, (series, [users, events]))| {
        json!({
            "position": position, "series": series, "tags": tags(series),
            unique_max: users, "cumulative": events,
        })
    });
    match top.position {
        None => {
            answer["items"] = items.collect();
            answer["by_time"] = ranked.by_time.iter().map(moment).collect();
        }
        Some(position) => {
            answer["item"] = items.nth(position).ok_or_else(|| {
                let detail = format!("list {id} has {length} items; use a lower position");
                Problem::new(StatusCode::NOT_FOUND, detail).of("position")
            })?;
        }
    }
    Ok((answer, age))
}

fn moment(Moment(start, [unique, cumulative], items): &Moment) -> Value {
    let item =
        |[unique, cumulative]: &[u64; 2]| json!({ "unique": unique, "cumulative": cumulative });
    let items: Vec<_> = items.iter().map(item).collect();
    json!({ "start": minute(*start), "unique": unique, "cumulative": cumulative, "items": items })
}

async fn by_id(queries: &Queries, id: &str, key: &str) -> Result<Found, Problem> {
    for lists in &queries.lists {
        if let Some(found) = lists.by_id(id, key).await? {
            return Ok(found);
        }
    }
    let minutes = KEPT_TTL.as_secs() / 60;
    let detail = format!(
        "there is no list with this ID and these parameters; lists are kept for {minutes} minutes, or for less if many other lists \
         are computed; omit `list` to get the current list"
    );
    Err(Problem::new(StatusCode::GONE, detail).of("list"))
}

/// Returns the current list: the one shared by all nodes or, if a different list occupies its slot, this node's own. If that
/// slot is also occupied, computes the list for this request.
async fn current(queries: &Arc<Queries>, top: &Top) -> Result<Found, Problem> {
    let (key, is_whole) = (top.key(), top.position.is_none());
    let room = has_room(&*queries.reading).await;
    for lists in &queries.lists {
        let asked = (Arc::clone(queries), top.clone(), lists.clone());
        let compute = move |token: coordination::Token| {
            let (queries, top, lists) = asked.clone();
            async move {
                let list = compute(&queries, &top).await?;
                lists.keep(&token.to_string(), &top.key(), &list).await;
                Ok(list)
            }
        };
        let found = match room {
            Ok(()) => Box::pin(lists.get(&key, is_whole, compute)).await?,
            // Reading a list that already exists does not require more memory in the store.
            Err(_) => lists.peek(&key, is_whole).await?,
        };
        if let Some(found) = found {
            return Ok(found);
        }
    }
    room?;
    let list = Box::pin(compute(queries, top)).await?;
    let id = (queries.node.clock.now_nanos() / 1000).to_string();
    queries.lists[1].keep(&id, &key, &list).await;
    Ok(Found { id, list, ..Found::default() })
}

async fn compute(queries: &Queries, top: &Top) -> Result<Vec<u8>, Problem> {
    let ranked = queries.read(async {
        queries.metrics.query_computations.inc();
        let range = Range::before(queries.now(), top.window, top.counted.every);
        let source = queries.source(&top.filter, &top.counted);
        let mut minutes: Vec<Minute> = range.windows(top.counted.every).collect();
        if minutes.len() > MOMENTS_MAX {
            minutes.clear();
        } else {
            // Read before the sealed counts, so that a minute that is sealed in the meantime is left out.
            let (open, _) = source.open(range).await?;
            minutes.retain(|minute| !open.contains_key(minute));
        }
        let found = source.by_series(range).await?;
        let summed = found.iter().map(|(series, counts)| {
            let add = |[most, all]: [u64; 2], (_, [unique, cumulative]): &(_, [u64; 2])| {
                [most.max(*unique), all + cumulative]
            };
            (series.as_str(), counts.iter().fold([0; 2], add))
        });
        let mut items: Vec<_> = summed.collect();
        rank(&mut items, top.by, top.n);
        let by_time = if found.is_empty() {
            Vec::new()
        } else {
            by_time(&found, &items, &minutes, top.counted.every)
        };
        let items = items.into_iter().map(|(series, counts)| (series.to_owned(), counts)).collect();
        Ok(Ranked { from: range.from, to: range.to, items, by_time })
    });
    serde_json::to_vec(&ranked.await?).map_err(|error| Problem::unavailable(error.to_string()))
}

/// Returns the sums over all series in these minutes or windows, and the numbers of the first [`STACKED_MAX`] items.
fn by_time(
    found: &BySeries,
    items: &[(&str, [u64; 2])],
    minutes: &[Minute],
    every: Every,
) -> Vec<Moment> {
    let stacked = &items[..items.len().min(STACKED_MAX)];
    let moment = |minute: &Minute| {
        let start = start(every, minute.epoch_minutes());
        (*minute, Moment(start, [0; 2], vec![[0; 2]; stacked.len()]))
    };
    let mut moments: BTreeMap<_, _> = minutes.iter().map(moment).collect();
    for (series, counts) in found {
        let place = stacked.iter().position(|(name, _)| name == series);
        for (minute, [unique, cumulative]) in counts {
            let Some(Moment(_, all, items)) = moments.get_mut(minute) else {
                continue;
            };
            for sums in once(all).chain(place.and_then(|place| items.get_mut(place))) {
                sums[0] += unique;
                sums[1] += cumulative;
            }
        }
    }
    moments.into_values().collect()
}

/// Sorts series by count, highest first, and keeps the first `n`. Ties are sorted by the other count, then by name.
fn rank(all: &mut Vec<(&str, [u64; 2])>, by: By, n: usize) {
    let numbers = |[unique, cumulative]: [u64; 2]| match by {
        By::Unique => (unique, cumulative),
        By::Cumulative => (cumulative, unique),
    };
    all.sort_unstable_by(|(a, a_numbers), (b, b_numbers)| {
        numbers(*b_numbers).cmp(&numbers(*a_numbers)).then_with(|| a.cmp(b))
    });
    all.truncate(n);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_have_a_defined_order() {
        let all = || [("b", [1, 5]), ("a", [1, 5]), ("c", [2, 5]), ("d", [9, 4])].to_vec();
        let names = |by, n| {
            let mut all = all();
            rank(&mut all, by, n);
            all.into_iter().map(|(series, _)| series).collect::<String>()
        };
        assert_eq!(names(By::Cumulative, 4), "cabd");
        assert_eq!(names(By::Unique, 3), "dca");
    }
}
