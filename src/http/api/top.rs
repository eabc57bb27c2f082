//! Lists of the series with the greatest numbers, each computed once for all nodes.
//!
//! A list is known by its id. Whoever asks for one position after the other gets them from one list as long as that
//! is the present one, [`LIST_TTL`], and by its id for [`KEPT_TTL`]. A whole list is refreshed before it goes; one
//! that is asked for by positions is not, so that nobody gets the halves of two.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::answer::{self, Tagged};
use super::parameters::{By, Filter, Range, Top};
use super::problem::Problem;
use super::{Queries, SCAN_WITHIN};
use crate::coordination::{
    ComputeError, ComputeOnce, ComputeSettings, Computed, EarlyRefresh, InvalidSetting, Token,
};

/// How long a list is the present one.
pub(super) const LIST_TTL: Duration = Duration::from_secs(30);
/// How long a list can be had by its id.
const KEPT_TTL: Duration = Duration::from_secs(600);
/// After how long another node computes when the one that did is gone.
const LOCK_TTL: Duration = Duration::from_secs(3);
/// How long a request waits for somebody else's computation.
const PATIENCE: Duration = Duration::from_secs(12);
const GONE: &str = "410|";

/// The lists of all nodes.
#[derive(Debug)]
pub(super) struct Lists {
    present: ComputeOnce,
    refreshed: EarlyRefresh,
    kept: ComputeOnce,
}

impl Lists {
    pub(super) fn new(
        arbiter: &Arc<dyn crate::coordination::Arbiter>,
    ) -> Result<Self, InvalidSetting> {
        let once = |value_ttl| {
            let settings = ComputeSettings {
                lock_ttl: LOCK_TTL,
                value_ttl,
                ..ComputeSettings::default()
            };
            ComputeOnce::new(Arc::clone(arbiter), settings)
        };
        Ok(Self {
            present: once(LIST_TTL)?,
            refreshed: EarlyRefresh::new(once(LIST_TTL)?, 1.0)?,
            kept: once(KEPT_TTL)?,
        })
    }
}

/// A list as it is kept.
#[derive(Debug, Serialize, Deserialize)]
struct Ranked {
    from: i64,
    to: i64,
    items: Vec<Ranking>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Ranking {
    series: String,
    unique_minute_sum: u64,
    unique_minute_max: u64,
    cumulative: u64,
}

#[derive(Debug, Serialize)]
struct Item {
    position: usize,
    #[serde(flatten)]
    series: Tagged,
    /// The sum of the minutes' numbers of different users: who came in two minutes is in it twice.
    unique_minute_sum: u64,
    unique_minute_max: u64,
    cumulative: u64,
}

#[derive(Debug, Serialize)]
struct List {
    id: String,
    length: usize,
    age_ms: u64,
    expires_in_ms: u64,
    /// Whether all nodes have this list; false where each computes its own.
    shared: bool,
}

/// The answer.
#[derive(Debug, Serialize)]
pub(super) struct TopAnswer {
    by: &'static str,
    window: String,
    from: String,
    to: String,
    filter: Filter,
    list: List,
    #[serde(skip_serializing_if = "Option::is_none")]
    items: Option<Vec<Item>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<Item>,
}

/// The list that is asked for, or the one item of it, and its age.
pub(super) async fn answer(queries: &Queries, top: Top) -> Result<(TopAnswer, Duration), Problem> {
    let computed = computed(queries, &top).await.map_err(problem)?;
    let ranked: Ranked = serde_json::from_slice(computed.bytes())
        .map_err(|error| Problem::unavailable(format!("the list is unreadable: {error}")))?;
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let length = ranked.items.len();
    let id = match &top.list {
        Some(id) => id.clone(),
        None => computed.token().to_string(),
    };
    let mut items = ranked.items.into_iter().enumerate().map(item);
    let (items, item) = match top.position {
        None => (Some(items.collect()), None),
        Some(position) => {
            let item = items.nth(position).ok_or_else(|| {
                let detail = format!("the list {id} has {length} items; ask for a lower position");
                Problem::missing("position", detail)
            })?;
            (None, Some(item))
        }
    };
    let age = computed.age();
    let answer = TopAnswer {
        by: top.by.word(),
        window: format!("{}m", top.window),
        from: answer::minute(ranked.from),
        to: answer::minute(ranked.to),
        filter: top.filter,
        list: List {
            id,
            length,
            age_ms: millis(age),
            expires_in_ms: millis(computed.remaining()),
            shared: queries.shared,
        },
        items,
        item,
    };
    Ok((answer, age))
}

fn item((position, ranking): (usize, Ranking)) -> Item {
    Item {
        position,
        series: Tagged::new(ranking.series),
        unique_minute_sum: ranking.unique_minute_sum,
        unique_minute_max: ranking.unique_minute_max,
        cumulative: ranking.cumulative,
    }
}

async fn computed(queries: &Queries, top: &Top) -> Result<Computed, ComputeError> {
    let lists = &queries.lists;
    let key = top.key();
    let compute = |token| compute(queries, top, token);
    match (&top.list, top.position) {
        (Some(id), _) => {
            let gone = |_| async { Err::<Vec<u8>, _>(GONE) };
            lists.kept.get(&kept(id, &key), PATIENCE, gone).await
        }
        (None, Some(_)) => {
            let key = format!("each:{key}");
            lists.present.get(&key, PATIENCE, compute).await
        }
        (None, None) => lists.refreshed.get(&key, PATIENCE, compute).await,
    }
}

fn kept(id: &str, key: &str) -> String {
    format!("list:{id}:{key}")
}

async fn compute(queries: &Queries, top: &Top, token: Token) -> Result<Vec<u8>, String> {
    let ranked = async {
        let _permit = queries.scan().await?;
        queries.metrics.query_computations.inc();
        let range = Range::before(queries.now(), top.window);
        let mut all = queries.source(&top.filter).by_series(range).await?;
        rank(&mut all, top.by, top.n);
        Ok(Ranked {
            from: range.from,
            to: range.to,
            items: all.into_iter().map(ranking).collect(),
        })
    };
    let ranked = tokio::time::timeout(SCAN_WITHIN, ranked).await;
    let ranked: Ranked = ranked
        .unwrap_or_else(|_| Err(Problem::late()))
        .map_err(|problem| format!("{}|{problem}", problem.status()))?;
    let bytes = serde_json::to_vec(&ranked).map_err(|error| error.to_string())?;
    let key = kept(&token.to_string(), &top.key());
    let keep = |_| {
        let bytes = bytes.clone();
        async move { Ok::<_, String>(bytes) }
    };
    if let Err(error) = queries.lists.kept.get(&key, PATIENCE, keep).await {
        tracing::warn!(%error, "a list cannot be had by its id");
    }
    Ok(bytes)
}

/// The greatest first; of equals the one that is greater by the other number, then the lower name.
fn rank(all: &mut Vec<(String, [u64; 3])>, by: By, n: usize) {
    let numbers = |[unique, _, cumulative]: [u64; 3]| match by {
        By::Unique => (unique, cumulative),
        By::Cumulative => (cumulative, unique),
    };
    all.sort_unstable_by(|(a, a_of), (b, b_of)| {
        numbers(*b_of).cmp(&numbers(*a_of)).then_with(|| a.cmp(b))
    });
    all.truncate(n);
}

fn ranking(
    (series, [unique_minute_sum, unique_minute_max, cumulative]): (String, [u64; 3]),
) -> Ranking {
    Ranking {
        series,
        unique_minute_sum,
        unique_minute_max,
        cumulative,
    }
}

/// Those who waited for a computation get its problem in words.
fn problem(error: ComputeError) -> Problem {
    match error {
        ComputeError::Failed(words) => match words.split_once('|') {
            Some(("410", _)) => {
                let minutes = KEPT_TTL.as_secs() / 60;
                Problem::gone(format!(
                    "there is no such list of these parameters; lists are kept for {minutes} minutes; leave `list` out for the present one"
                ))
            }
            Some(("422", detail)) => Problem::too_much(detail),
            Some(("504", _)) => Problem::late(),
            Some((_, detail)) => Problem::unavailable(detail),
            None => Problem::unavailable(words),
        },
        ComputeError::TimedOut => Problem::late(),
        ComputeError::Key(_) => Problem::too_much("the tags are too long together; ask by fewer"),
        ComputeError::Arbiter(error) => Problem::unavailable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_have_an_order() {
        let all = || {
            [
                ("b", [1, 1, 5]),
                ("a", [1, 1, 5]),
                ("c", [2, 1, 5]),
                ("d", [9, 9, 4]),
            ]
            .map(|(series, of)| (series.to_owned(), of))
            .to_vec()
        };
        let names = |by, n| {
            let mut all = all();
            rank(&mut all, by, n);
            all.into_iter()
                .map(|(series, _)| series)
                .collect::<String>()
        };
        assert_eq!(names(By::Cumulative, 4), "cabd");
        assert_eq!(names(By::Unique, 3), "dca");
    }
}
