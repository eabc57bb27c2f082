//! Lists that are replaced in one step: from the arguments of one script, or in pieces under a name of the writer's
//! own that then takes the place of the list.

use std::time::Duration;

use super::keys::Keys;
use super::link::Link;
use super::scripts::{self, Arguments};
use crate::arbiter::ArbiterError;
use crate::name::{Holder, Token};

/// The most items that one script takes, so that it does not hold up the server for long.
const PIECE_ITEMS: usize = 5000;
/// The most bytes that one script takes. A single item may be larger.
const PIECE_BYTES: usize = 1 << 20;
/// How long the token of a writer outlives its list.
const TOKEN_KEPT_MS: u64 = 600_000;
/// How long a piece is kept that its writer does not continue.
const STAGED_MS: u64 = 60_000;

pub(super) async fn replace(
    link: &Link,
    keys: &Keys,
    items: &[&[u8]],
    ttl: Duration,
    token: Option<Token>,
) -> Result<bool, ArbiterError> {
    let ttl_ms = u64::try_from(ttl.as_micros().div_ceil(1000)).unwrap_or(u64::MAX);
    let by = |arguments: Arguments| {
        let token = token.map(|token| token.to_string()).unwrap_or_default();
        let arguments = arguments.text(&token).number(ttl_ms + TOKEN_KEPT_MS);
        arguments.number(ttl_ms)
    };
    let pieces = pieces(items);
    if let [] | [_] = pieces.as_slice() {
        let arguments = by(Arguments::keys([keys.list(), keys.writer()]));
        let arguments = items.iter().fold(arguments, |it, item| it.bytes(item));
        return link.run(&scripts::REPLACE, &arguments).await;
    }
    let writer = Holder::random();
    let mut staged = 0;
    for piece in pieces {
        let arguments = Arguments::keys([keys.staged(&writer)]);
        let arguments = arguments.number(staged).number(STAGED_MS);
        let arguments = piece.iter().fold(arguments, |it, item| it.bytes(item));
        if !link.run(&scripts::STAGE, &arguments).await? {
            return Err(gone());
        }
        staged += piece.len() as u64;
    }
    let (staging, committed) = (keys.staged(&writer), keys.committed(&writer));
    let names = [staging, keys.list(), committed, keys.writer()];
    let arguments = by(Arguments::keys(names)).number(staged).number(STAGED_MS);
    match link.run(&scripts::COMMIT, &arguments).await? {
        -1 => Err(gone()),
        done => Ok(done == 1),
    }
}

pub(super) async fn read(link: &Link, keys: &Keys) -> Result<Vec<Vec<u8>>, ArbiterError> {
    let key = keys.list();
    let read = redis::Cmd::lrange(&key, 0, -1);
    link.query(redis_link::slot(key.as_bytes()), read).await
}

fn gone() -> ArbiterError {
    let message = "the pieces of the list are gone: the writer was too slow, or the master changed";
    ArbiterError::Unavailable(message.to_owned())
}

fn pieces<'a, 'b>(items: &'b [&'a [u8]]) -> Vec<&'b [&'a [u8]]> {
    let mut pieces = Vec::new();
    let (mut first, mut bytes) = (0, 0);
    for (index, item) in items.iter().enumerate() {
        if index > first && (index - first == PIECE_ITEMS || bytes + item.len() > PIECE_BYTES) {
            pieces.push(&items[first..index]);
            (first, bytes) = (index, 0);
        }
        bytes += item.len();
    }
    if first < items.len() {
        pieces.push(&items[first..]);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_bounded_and_lose_nothing() {
        let large = vec![0; PIECE_BYTES];
        for items in [vec![], vec![b"a".as_slice(); 12_001], vec![&large, b"a", &large, &large]] {
            let pieces = pieces(&items);
            assert_eq!(pieces.concat(), items);
            for piece in pieces {
                let bytes: usize = piece.iter().map(|item| item.len()).sum();
                assert!(piece.len() <= PIECE_ITEMS && (bytes <= PIECE_BYTES || piece.len() == 1));
            }
        }
    }
}
