//! Finds the permissions that the Redis user is missing, using a harmless transaction with every command a node needs.

use ::redis::{Pipeline, RedisError, cmd};
use redis_link::Connection;

use super::RedisStore;
use crate::store::Result;

/// The commands to try, each with the kind of its key (`-`: no key) and the arguments after the key. The last commands
/// remove the keys that the first ones create. Connecting already tests AUTH, PING, INFO, SELECT and SUBSCRIBE.
const TRIED: &str = "
    sadd set x; scard set; sscan set 0; srandmember set; smembers set; smismember set x;
    srem set x; zadd zset 1 x; zrange zset 0 0; zrangebyscore zset 0 1; zscore zset x;
    zcard zset; zcount zset 0 1; zpopmin zset; zrem zset x; hset hash x 1; hsetnx hash x 1;
    hget hash x; hmget hash x; hlen hash; hexists hash x; hstrlen hash x; hincrby hash x 1;
    hgetall hash; hscan hash 0; hdel hash x; hkeys hash; rpush list x; rpushx list x;
    ltrim list 0 -2; llen list; rename list; setbit string 0 1; getbit string 0;
    lpush list y; lset list 0 x; lindex list 0;
    lrange list 0 0; lpos list x; lrem list 0 x; lpop list; set string x; get string;
    pexpire string 1000; pttl string; persist string; exists string; unlink set; unlink zset; unlink hash;
    unlink list; unlink string; time -; scan - 0 COUNT 1";

impl RedisStore {
    /// Returns the server's message for each missing permission.
    pub async fn missing_rights(&self) -> Result<Vec<String>> {
        let Some(partition) = self.gateway.partitions.iter().next() else {
            return Ok(Vec::new());
        };
        let keys = self.gateway.keys(partition);
        let transaction = transaction(&keys.tag);
        let run = async |connection: &mut Connection| Ok(transaction.exec_async(connection).await);
        let done: Result<(), RedisError> = self.register.run(&keys.tag, run).await?;
        let Err(error) = done else {
            return Ok(Vec::new());
        };
        let causes = error.into_server_errors().unwrap_or_default();
        let denied = causes.iter().filter(|(_, cause)| cause.code() == "NOPERM");
        let mut missing: Vec<_> =
            denied.map(|(_, cause)| cause.details().unwrap_or_default().to_owned()).collect();
        missing.dedup();
        Ok(missing)
    }
}

fn tried() -> impl Iterator<Item = Vec<&'static str>> {
    TRIED.split(';').map(|command| command.split_whitespace().collect())
}

fn transaction(tag: &str) -> Pipeline {
    let mut transaction = ::redis::pipe();
    transaction.atomic();
    for words in tried() {
        let [name, kind, arguments @ ..] = &*words else { continue };
        let mut command = cmd(&name.to_ascii_uppercase());
        if *kind != "-" {
            command.arg(format!("{tag}:check:{kind}"));
        }
        // Renames the key to its own name.
        let target = (*name == "rename").then(|| format!("{tag}:check:{kind}"));
        transaction.add_command(command.arg(arguments).arg(target).take()).ignore();
    }
    transaction.add_command(cmd("SCRIPT").arg("LOAD").arg("return 1").take()).ignore();
    transaction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_right_of_the_acl_is_checked() {
        let acl = include_str!("../../../config/redis-acl.conf");
        let user = acl.lines().find(|line| line.starts_with("user eds "));
        let granted = user.unwrap().split(' ').filter_map(|word| word.strip_prefix('+'));
        // Every connection and every script call uses these commands, so they do not have to be tried.
        let apart =
            ["auth", "multi", "exec", "evalsha", "publish", "psubscribe", "info", "ping", "select"];
        for right in granted.filter(|right| !apart.contains(right)) {
            let name = right.split('|').next().unwrap();
            let is_tried = tried().any(|words| words[0] == name) || name == "script";
            assert!(is_tried, "{right} is not tested");
        }
    }
}
