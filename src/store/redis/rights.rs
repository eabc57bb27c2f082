//! Which rights the user of Redis lacks, found out without changing anything: every command that a node needs is queued in a
//! transaction, which checks the right to each, on keys that are there within it only.

use ::redis::{Cmd, Pipeline, RedisError};
use redis_link::{Attempts, Connection, Lane};

use super::RedisStore;
use crate::store::StoreError;

/// The commands by the kind of key that they are tried on (`-`: on none), with what follows the key. The last ones take back what
/// the first ones made. What a connection cannot do without (auth, ping, info, select, subscribe) is tried by connecting.
const TRIED: [(&str, &str, &[&str]); 47] = [
    ("sadd", "set", &["x"]),
    ("scard", "set", &[]),
    ("sscan", "set", &["0"]),
    ("srandmember", "set", &[]),
    ("smembers", "set", &[]),
    ("smismember", "set", &["x"]),
    ("srem", "set", &["x"]),
    ("zadd", "zset", &["1", "x"]),
    ("zrange", "zset", &["0", "0"]),
    ("zrangebyscore", "zset", &["0", "1"]),
    ("zscore", "zset", &["x"]),
    ("zcard", "zset", &[]),
    ("zcount", "zset", &["0", "1"]),
    ("zpopmin", "zset", &[]),
    ("zrem", "zset", &["x"]),
    ("hset", "hash", &["x", "1"]),
    ("hsetnx", "hash", &["x", "1"]),
    ("hget", "hash", &["x"]),
    ("hmget", "hash", &["x"]),
    ("hlen", "hash", &[]),
    ("hexists", "hash", &["x"]),
    ("hstrlen", "hash", &["x"]),
    ("hincrby", "hash", &["x", "1"]),
    ("hgetall", "hash", &[]),
    ("hscan", "hash", &["0"]),
    ("hdel", "hash", &["x"]),
    ("hkeys", "hash", &[]),
    ("rpush", "list", &["x"]),
    ("rpushx", "list", &["x"]),
    ("ltrim", "list", &["0", "-2"]),
    ("llen", "list", &[]),
    ("lrange", "list", &["0", "0"]),
    ("set", "string", &["x"]),
    ("get", "string", &[]),
    ("pexpire", "string", &["1000"]),
    ("pttl", "string", &[]),
    ("persist", "string", &[]),
    ("exists", "string", &[]),
    ("unlink", "set", &[]),
    ("unlink", "zset", &[]),
    ("unlink", "hash", &[]),
    ("unlink", "list", &[]),
    ("unlink", "string", &[]),
    ("time", "-", &[]),
    ("scan", "-", &["0", "COUNT", "1"]),
    ("eval", "-", &["return 1", "0"]),
    ("script", "-", &["LOAD", "return 1"]),
];

impl RedisStore {
    /// What the server says of each right that is missing, each once.
    pub async fn missing_rights(&self) -> Result<Vec<String>, StoreError> {
        let Some(partition) = self.partitions.iter().next() else {
            return Ok(Vec::new());
        };
        let keys = self.keys(partition);
        let transaction = transaction(&keys.tag);
        let server = self.surveyed.server(keys.slot).await?;
        let run =
            async move |connection: &mut Connection| Ok(transaction.exec_async(connection).await);
        let done: Result<(), RedisError> =
            self.surveyed.run_on(&server, Lane(0), 0, Attempts::One, run).await?;
        let Err(error) = done else {
            return Ok(Vec::new());
        };
        let causes = error.into_server_errors().unwrap_or_default();
        let denied = causes.iter().filter(|(_, it)| it.code() == "NOPERM");
        let mut missing: Vec<_> =
            denied.map(|(_, it)| it.details().unwrap_or_default().to_owned()).collect();
        missing.dedup();
        Ok(missing)
    }
}

fn transaction(tag: &str) -> Pipeline {
    let mut transaction = ::redis::pipe();
    transaction.atomic();
    for (command, kind, rest) in TRIED {
        let mut command = Cmd::new().arg(command.to_ascii_uppercase()).to_owned();
        if kind != "-" {
            command.arg(format!("{tag}:check:{kind}"));
        }
        command.arg(rest);
        transaction.add_command(command).ignore();
    }
    transaction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_right_of_the_shipped_acl_is_tried() {
        let acl = include_str!("../../../config/redis-acl.conf");
        let user = acl.lines().find(|line| line.starts_with("user eds "));
        let granted = user.unwrap().split(' ').filter_map(|word| word.strip_prefix('+'));
        // A connection is not had without these, or they are other forms of what is tried.
        let apart =
            ["auth", "multi", "exec", "evalsha", "publish", "psubscribe", "info", "ping", "select"];
        for right in granted.filter(|right| !apart.contains(right)) {
            let name = right.split('|').next().unwrap();
            assert!(TRIED.iter().any(|(tried, ..)| *tried == name), "{right} is not tried");
        }
    }
}
