//! The arbiter in memory is the model of the one in Redis: a thousand random operations have the same answers. Only
//! what both must agree on is compared, which is all but the tokens' numbers and the times.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use coordination::memory::{MemoryArbiter, SetClock};
use coordination::{Arbiter, Beginning, Holder, Locking, Name, Token};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use testing::load::seed;

use crate::site::Site;

const LONG: Duration = Duration::from_secs(3600);

/// Which of the tokens given so far.
type Numbered = HashMap<Token, usize>;

fn number(numbers: &mut Numbered, tokens: &mut Vec<Token>, token: Token) -> usize {
    *numbers.entry(token).or_insert_with(|| {
        tokens.push(token);
        tokens.len() - 1
    })
}

/// One side of the comparison.
struct Side {
    arbiter: Arc<dyn Arbiter>,
    numbers: Numbered,
    tokens: Vec<Token>,
}

impl Side {
    async fn act(&mut self, random: &mut SmallRng, holders: &[Holder]) -> String {
        let name = Name::of_mutex(["a", "b"][random.random_range(0..2)]).unwrap();
        let holder = &holders[random.random_range(0..holders.len())];
        let kind = random.random_range(0..10);
        let pick = random.random_range(0..1000);
        let presence = random.random_bool(0.7).then_some(LONG);
        // One of the last three that were granted.
        let token = self.tokens.iter().rev().nth(pick % 3).copied();
        let Side {
            arbiter,
            numbers,
            tokens,
        } = self;
        let mut seen = |token| number(numbers, tokens, token);
        match (kind, token) {
            (0 | 1, _) => match arbiter.lock(&name, holder, LONG, presence).await.unwrap() {
                Locking::Granted(token) => format!("lock granted {}", seen(token)),
                Locking::Busy(_) => "lock busy".to_owned(),
                Locking::Crowded => "lock crowded".to_owned(),
            },
            (2, _) => {
                arbiter.leave(&name, holder).await.unwrap();
                "left".to_owned()
            }
            (3 | 4, _) => {
                let outdated = token.filter(|_| pick % 2 == 0);
                match arbiter.begin(&name, holder, LONG, outdated).await.unwrap() {
                    Beginning::Value(entry) => {
                        let value = String::from_utf8_lossy(&entry.value).into_owned();
                        format!("value {value} of {}", seen(entry.token))
                    }
                    Beginning::Failed(words) => format!("failed {words}"),
                    Beginning::Granted(token) => format!("begin granted {}", seen(token)),
                    Beginning::Busy(_) => "begin busy".to_owned(),
                }
            }
            (5, Some(token)) => {
                format!("renew {}", arbiter.renew(&name, token, LONG).await.unwrap())
            }
            (6, Some(token)) => format!("unlock {}", arbiter.unlock(&name, token).await.unwrap()),
            (7, Some(token)) => {
                let value = pick.to_string();
                let done = arbiter
                    .publish(&name, token, value.as_bytes(), LONG, LONG)
                    .await;
                format!("publish {}", done.unwrap())
            }
            (8, Some(token)) => {
                // Short enough that it is over when it matters only now and then.
                let done = arbiter
                    .fail(&name, token, "words", Duration::from_millis(1))
                    .await;
                tokio::time::sleep(Duration::from_millis(3)).await;
                format!("fail {}", done.unwrap())
            }
            (9, _) => match arbiter.peek(&name).await.unwrap() {
                Some(entry) => {
                    let value = String::from_utf8_lossy(&entry.value).into_owned();
                    format!("peeked {value} of {}", seen(entry.token))
                }
                None => "peeked nothing".to_owned(),
            },
            (kind, _) => format!("nothing to do for {kind}"),
        }
    }
}

async fn agree(site: Site) {
    let seed = seed();
    let new = |arbiter| Side {
        arbiter,
        numbers: Numbered::new(),
        tokens: Vec::new(),
    };
    let model: Arc<dyn Arbiter> = Arc::new(MemoryArbiter::default());
    let mut sides = [new(model), new(site.arbiter())];
    let holders = [(); 4].map(|()| Holder::random());
    let mut logs = [Vec::new(), Vec::new()];
    let mut randoms = [(); 2].map(|()| SmallRng::seed_from_u64(seed));
    for _ in 0..1000 {
        for (index, side) in sides.iter_mut().enumerate() {
            let done = side.act(&mut randoms[index], &holders).await;
            logs[index].push(done);
        }
        let [model, real] = &logs;
        assert_eq!(
            model.last(),
            real.last(),
            "after {:?}",
            model.iter().rev().take(30).collect::<Vec<_>>()
        );
    }
    let granted = logs[0].iter().filter(|it| it.contains("granted")).count();
    assert!(granted > 20, "only {granted} were granted");
}

#[tokio::test]
async fn redis_does_as_the_model() {
    agree(Site::redis()).await;
}

#[tokio::test]
async fn a_cluster_does_as_the_model() {
    agree(Site::cluster()).await;
}

/// By a clock that is set: a lock lapses to the microsecond, tokens grow although the clock is set back.
#[tokio::test]
async fn the_model_goes_by_its_clock() {
    let clock = Arc::new(SetClock::at(1_000_000));
    let arbiter = MemoryArbiter::new(Arc::clone(&clock) as _);
    let name = Name::of_mutex("a").unwrap();
    let ttl = Duration::from_secs(10);
    let ask = async || {
        arbiter
            .lock(&name, &Holder::random(), ttl, None)
            .await
            .unwrap()
    };
    let Locking::Granted(first) = ask().await else {
        panic!("a free lock");
    };
    assert_eq!(first.number(), 1_000_000);
    let almost = Duration::from_micros(9_999_999);
    clock.advance(almost);
    assert_eq!(ask().await, Locking::Busy(Duration::from_micros(1)));
    clock.advance(Duration::from_micros(1));
    let Locking::Granted(second) = ask().await else {
        panic!("a lock that has lapsed");
    };
    assert!(arbiter.unlock(&name, second).await.unwrap());
    clock.set(500_000);
    let Locking::Granted(third) = ask().await else {
        panic!("a free lock");
    };
    assert_eq!(third.number(), second.number() + 1);
}
