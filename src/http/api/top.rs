//! Lists of the series with the highest counts, each computed once for all nodes. A client that requests positions gets them
//! from the same list while it is current, and by the list's ID for at most [`KEPT_TTL`].

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::lists::{Found, KEPT_TTL};
use super::parameters::{By, Range, Top};
use super::turns::has_room;
use super::{Queries, minute, tags};
use crate::http::problem::Problem;

#[derive(Debug, Serialize, Deserialize)]
struct Ranked {
    from: i64,
    to: i64,
    /// Each series, with its highest number of users in any minute and its total number of events.
    items: Vec<(String, [u64; 2])>,
}

pub(super) async fn answer(
    queries: &Arc<Queries>,
    top: &Top,
) -> Result<(Value, Duration), Problem> {
    let Found { id, list, age, remaining, shared } = match &top.list {
        Some(id) => by_id(queries, id, &top.key()).await?,
        None => current(queries, top).await?,
    };
    let ranked: Ranked = serde_json::from_slice(&list)
        .map_err(|error| Problem::unavailable(format!("the list is unreadable: {error}")))?;
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
    let mut items = ranked.items.iter().enumerate().map(|(position, (series, [users, events]))| {
        json!({
            "position": position, "series": series, "tags": tags(series),
            "unique_minute_max": users, "cumulative": events,
        })
    });
    match top.position {
        None => answer["items"] = items.collect(),
        Some(position) => {
            answer["item"] = items.nth(position).ok_or_else(|| {
                let detail = format!("the list {id} has {length} items; use a lower position");
                Problem::new(StatusCode::NOT_FOUND, detail).of("position")
            })?;
        }
    }
    Ok((answer, age))
}

async fn by_id(queries: &Queries, id: &str, key: &str) -> Result<Found, Problem> {
    for lists in &queries.lists {
        if let Some(found) = lists.by_id(id, key).await? {
            return Ok(found);
        }
    }
    let minutes = KEPT_TTL.as_secs() / 60;
    let detail = format!(
        "there is no list of this id and these parameters; a list is kept for {minutes} minutes, or less when many others are \
         computed; leave `list` out for the current list"
    );
    Err(Problem::new(StatusCode::GONE, detail).of("list"))
}

/// Returns the shared current list, or else this node's. If both slots hold a different list, it is computed for this request.
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
            // Reading a kept list needs no extra memory.
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
        let range = Range::before(queries.now(), top.window);
        let mut all = queries.source(&top.filter).by_series(range).await?;
        rank(&mut all, top.by, top.n);
        Ok(Ranked { from: range.from, to: range.to, items: all })
    });
    serde_json::to_vec(&ranked.await?).map_err(|error| Problem::unavailable(error.to_string()))
}

/// Sorts by highest count first; ties by the other count, then by name.
fn rank(all: &mut Vec<(String, [u64; 2])>, by: By, n: usize) {
    let numbers = |[unique, cumulative]: [u64; 2]| match by {
        By::Unique => (unique, cumulative),
        By::Cumulative => (cumulative, unique),
    };
    all.sort_unstable_by(|(a, a_of), (b, b_of)| {
        numbers(*b_of).cmp(&numbers(*a_of)).then_with(|| a.cmp(b))
    });
    all.truncate(n);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_have_a_defined_order() {
        let all = || {
            [("b", [1, 5]), ("a", [1, 5]), ("c", [2, 5]), ("d", [9, 4])]
                .map(|(series, of)| (series.to_owned(), of))
                .to_vec()
        };
        let names = |by, n| {
            let mut all = all();
            rank(&mut all, by, n);
            all.into_iter().map(|(series, _)| series).collect::<String>()
        };
        assert_eq!(names(By::Cumulative, 4), "cabd");
        assert_eq!(names(By::Unique, 3), "dca");
    }
}
