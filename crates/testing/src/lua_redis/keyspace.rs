//! The keys of a [`LuaRedis`](super::LuaRedis), and the commands that the store uses, which behave as in Redis 7. Where
//! Redis returns items in an undefined order, such as the members of a set, they are sorted.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher};

pub type Bytes = Vec<u8>;
pub type Hash = BTreeMap<Bytes, Bytes>;
pub type Set = BTreeSet<Bytes>;
pub type Sorted = BTreeMap<Bytes, f64>;
pub type List = Vec<Bytes>;

/// The reply to a command.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    Nil,
    Status(&'static str),
    Int(i64),
    Bulk(Bytes),
    Array(Vec<Reply>),
    Error(String),
}

/// The value of a key.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Text(Bytes),
    Hash(Hash),
    Set(Set),
    Sorted(Sorted),
    List(List),
}

/// A value, and the time at which it expires, in ms since the epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub value: Value,
    pub expires_ms: Option<i64>,
}

/// All keys, and a time before which no key expires, in ms since the epoch. A clone is a snapshot.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Keyspace(pub BTreeMap<Bytes, Entry>, i64);

/// A collection type. A key with such a value is removed together with its last element.
pub trait Kind: Default {
    fn of(value: &Value) -> Option<&Self>;
    fn of_mut(value: &mut Value) -> Option<&mut Self>;
    fn into_value(self) -> Value;
    fn is_gone(&self) -> bool;
}

macro_rules! kinds {
    ($($type:ty: $variant:ident;)*) => {$(
        impl Kind for $type {
            fn of(value: &Value) -> Option<&Self> {
                if let Value::$variant(inner) = value { Some(inner) } else { None }
            }
            fn of_mut(value: &mut Value) -> Option<&mut Self> {
                if let Value::$variant(inner) = value { Some(inner) } else { None }
            }
            fn into_value(self) -> Value {
                Value::$variant(self)
            }
            fn is_gone(&self) -> bool {
                self.is_empty()
            }
        }
    )*};
}

kinds! {
    Hash: Hash;
    Set: Set;
    Sorted: Sorted;
    List: List;
}

type Answer = Result<Reply, String>;

fn text(bytes: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(bytes).map_err(|_| "ERR value is not UTF-8".to_owned())
}

fn int(bytes: &[u8]) -> Result<i64, String> {
    let number = text(bytes)?.parse();
    number.map_err(|_| "ERR value is not an integer or out of range".to_owned())
}

fn float(bytes: &[u8]) -> Result<f64, String> {
    let number = text(bytes)?.parse();
    number.map_err(|_| "ERR value is not a valid float".to_owned())
}

/// Formats a score as Redis does.
fn score(number: f64) -> Bytes {
    number.to_string().into_bytes()
}

/// Parses a bound of a range of scores. Returns the number, and whether the range excludes it.
fn bound(bytes: &[u8]) -> Result<(f64, bool), String> {
    match bytes {
        [b'(', rest @ ..] => Ok((float(rest)?, true)),
        all => Ok((float(all)?, false)),
    }
}

fn count(length: usize) -> Reply {
    Reply::Int(i64::try_from(length).unwrap())
}

fn flag(value: bool) -> Reply {
    Reply::Int(i64::from(value))
}

fn bulk(bytes: Option<&Bytes>) -> Reply {
    bytes.map_or(Reply::Nil, |bytes| Reply::Bulk(bytes.clone()))
}

fn array<'a>(items: impl IntoIterator<Item = &'a Bytes>) -> Reply {
    let items = items.into_iter();
    Reply::Array(items.cloned().map(Reply::Bulk).collect())
}

/// Returns the range of elements from one position to another. Negative positions count from the end.
fn range(length: usize, from: i64, to: i64) -> std::ops::Range<usize> {
    let length = i64::try_from(length).unwrap();
    let place = |at: i64| if at < 0 { at + length } else { at };
    let (from, to) = (place(from).max(0), place(to).min(length - 1));
    if from > to {
        return 0..0;
    }
    usize::try_from(from).unwrap()..usize::try_from(to + 1).unwrap()
}

impl Keyspace {
    /// Returns the value of a key, or None if it does not exist or has another type.
    pub fn get<T: Kind>(&self, key: &str) -> Option<&T> {
        T::of(&self.0.get(key.as_bytes())?.value)
    }

    /// Removes expired keys.
    pub fn expire(&mut self, now_ms: i64) {
        if now_ms < self.1 {
            return;
        }
        self.0.retain(|_, entry| entry.expires_ms.is_none_or(|at| at > now_ms));
        let next = self.0.values().filter_map(|entry| entry.expires_ms).min();
        self.1 = next.unwrap_or(i64::MAX);
    }

    /// Reads or changes the value of a key. If the key does not exist, the value is empty; if the value is empty afterwards,
    /// the key is removed.
    fn with<T: Kind, R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut T) -> R,
    ) -> Result<R, String> {
        let Some(entry) = self.0.get_mut(key) else {
            let mut value = T::default();
            let result = change(&mut value);
            if !value.is_gone() {
                let (value, expires_ms) = (value.into_value(), None);
                self.0.insert(key.to_vec(), Entry { value, expires_ms });
            }
            return Ok(result);
        };
        let value = T::of_mut(&mut entry.value);
        let value = value.ok_or("WRONGTYPE Operation against a key holding the wrong kind")?;
        let result = change(value);
        if value.is_gone() {
            self.0.remove(key);
        }
        Ok(result)
    }

    /// Executes a command at this time, in microseconds since the epoch.
    pub(super) fn execute(&mut self, now_us: i64, command: &[Bytes]) -> Answer {
        let name = text(&command[0])?.to_ascii_uppercase();
        let keys = &command[1..];
        match name.as_str() {
            "PING" => Ok(Reply::Status("PONG")),
            "INFO" => Ok(Reply::Bulk(INFO.as_bytes().to_vec())),
            "TIME" => {
                let parts = [now_us.div_euclid(1_000_000), now_us.rem_euclid(1_000_000)];
                let parts = parts.map(|part| Reply::Bulk(part.to_string().into_bytes()));
                Ok(Reply::Array(parts.to_vec()))
            }
            "EXISTS" => Ok(count(keys.iter().filter(|key| self.0.contains_key(*key)).count())),
            "UNLINK" | "DEL" => {
                let gone = keys.iter().filter(|key| self.0.remove(*key).is_some());
                Ok(count(gone.count()))
            }
            "RENAME" => {
                let entry = self.0.remove(&keys[0]).ok_or("ERR no such key")?;
                self.0.insert(keys[1].clone(), entry);
                Ok(Reply::Status("OK"))
            }
            "GETBIT" | "SETBIT" => self.bit(&keys[0], &keys[1..]),
            _ => {
                let (key, args) =
                    keys.split_first().ok_or_else(|| format!("ERR unknown command {name}"))?;
                self.of_key(&name, now_us, key, args)
            }
        }
    }

    /// Returns a bit of a string, and sets it if a value is given.
    fn bit(&mut self, key: &[u8], args: &[Bytes]) -> Answer {
        let offset = usize::try_from(int(&args[0])?).map_err(|error| error.to_string())?;
        let (place, mask) = (offset / 8, 0x80_u8 >> (offset % 8));
        let empty = || Entry { value: Value::Text(Vec::new()), expires_ms: None };
        let entry = match args.get(1) {
            Some(_) => self.0.entry(key.to_vec()).or_insert_with(empty),
            None => match self.0.get_mut(key) {
                Some(entry) => entry,
                None => return Ok(Reply::Int(0)),
            },
        };
        let Value::Text(bytes) = &mut entry.value else {
            return Err("WRONGTYPE value is not a string".to_owned());
        };
        let before = bytes.get(place).copied().unwrap_or_default();
        if let Some(value) = args.get(1) {
            bytes.resize(bytes.len().max(place + 1), 0);
            bytes[place] = if value == b"1" { before | mask } else { before & !mask };
        }
        Ok(flag(before & mask > 0))
    }

    fn of_key(&mut self, name: &str, now_us: i64, key: &[u8], args: &[Bytes]) -> Answer {
        match name.as_bytes()[0] {
            b'H' => self.of_hash(name, key, args),
            b'S' => self.of_set(name, now_us, key, args),
            b'Z' => self.of_sorted(name, key, args),
            b'L' | b'R' => self.of_list(name, key, args),
            _ => self.of_any(name, now_us, key, args),
        }
    }

    fn of_any(&mut self, name: &str, now_us: i64, key: &[u8], args: &[Bytes]) -> Answer {
        let now = now_us.div_euclid(1000);
        let Some(entry) = self.0.get_mut(key) else {
            return Ok(match name {
                "GET" => Reply::Nil,
                "PTTL" => Reply::Int(-2),
                _ => Reply::Int(0),
            });
        };
        Ok(match name {
            "GET" => match &entry.value {
                Value::Text(text) => Reply::Bulk(text.clone()),
                _ => return Err("WRONGTYPE value is not a string".to_owned()),
            },
            "PERSIST" => flag(entry.expires_ms.take().is_some()),
            "PEXPIRE" => {
                let is_left =
                    args.get(1).is_some_and(|option| option == b"NX") && entry.expires_ms.is_some();
                if !is_left {
                    let at = now + int(&args[0])?;
                    entry.expires_ms = Some(at);
                    self.1 = self.1.min(at);
                }
                flag(!is_left)
            }
            "PTTL" => Reply::Int(entry.expires_ms.map_or(-1, |at| at - now)),
            name => return Err(format!("ERR unknown command {name}")),
        })
    }

    fn of_hash(&mut self, name: &str, key: &[u8], args: &[Bytes]) -> Answer {
        self.with(key, |hash: &mut Hash| {
            Ok(match name {
                "HGET" => bulk(hash.get(&args[0])),
                "HMGET" => Reply::Array(args.iter().map(|field| bulk(hash.get(field))).collect()),
                "HSET" => {
                    let pairs = args.chunks_exact(2);
                    let added = pairs
                        .filter(|pair| hash.insert(pair[0].clone(), pair[1].clone()).is_none());
                    count(added.count())
                }
                "HSETNX" => {
                    let is_new = !hash.contains_key(&args[0]);
                    hash.entry(args[0].clone()).or_insert(args[1].clone());
                    flag(is_new)
                }
                "HDEL" => count(args.iter().filter(|field| hash.remove(*field).is_some()).count()),
                "HEXISTS" => flag(hash.contains_key(&args[0])),
                "HGETALL" => array(hash.iter().flat_map(|(field, value)| [field, value])),
                "HKEYS" => array(hash.keys()),
                "HLEN" => count(hash.len()),
                "HSTRLEN" => count(hash.get(&args[0]).map_or(0, Vec::len)),
                "HINCRBY" => {
                    let before = hash.get(&args[0]).map_or(Ok(0), |value| int(value))?;
                    let after = before + int(&args[1])?;
                    hash.insert(args[0].clone(), after.to_string().into_bytes());
                    Reply::Int(after)
                }
                "HSCAN" => {
                    let (next, fields) = scan(hash.keys(), args)?;
                    let found = fields.iter().flat_map(|field| [*field, &hash[*field]]);
                    Reply::Array(vec![next, array(found)])
                }
                name => return Err(format!("ERR unknown command {name}")),
            })
        })?
    }

    fn of_set(&mut self, name: &str, now_us: i64, key: &[u8], args: &[Bytes]) -> Answer {
        if name == "SET" {
            let mut expires_ms = None;
            if let [_, option, span] = args
                && option == b"PX"
            {
                let at = now_us.div_euclid(1000) + int(span)?;
                expires_ms = Some(at);
                self.1 = self.1.min(at);
            }
            let value = Value::Text(args[0].clone());
            self.0.insert(key.to_vec(), Entry { value, expires_ms });
            return Ok(Reply::Status("OK"));
        }
        self.with(key, |set: &mut Set| {
            Ok(match name {
                "SADD" => count(args.iter().filter(|member| set.insert((*member).clone())).count()),
                "SREM" => count(args.iter().filter(|member| set.remove(*member)).count()),
                "SCARD" => count(set.len()),
                "SMEMBERS" => array(&*set),
                "SMISMEMBER" => {
                    Reply::Array(args.iter().map(|member| flag(set.contains(member))).collect())
                }
                "SRANDMEMBER" => array(set.iter().take(usize::try_from(int(&args[0])?).unwrap())),
                "SSCAN" => {
                    let (next, members) = scan(set.iter(), args)?;
                    Reply::Array(vec![next, array(members)])
                }
                name => return Err(format!("ERR unknown command {name}")),
            })
        })?
    }

    fn of_sorted(&mut self, name: &str, key: &[u8], args: &[Bytes]) -> Answer {
        self.with(key, |sorted: &mut Sorted| {
            Ok(match name {
                "ZADD" => {
                    let is_option = |arg: &Bytes| matches!(&**arg, b"NX" | b"XX" | b"GT" | b"CH");
                    let count_of_options = args.iter().take_while(|arg| is_option(arg)).count();
                    let (options, pairs) = args.split_at(count_of_options);
                    let has = |option: &[u8]| options.iter().any(|given| given == option);
                    let mut added = 0;
                    for pair in pairs.chunks_exact(2) {
                        let (number, before) = (float(&pair[0])?, sorted.get(&pair[1]).copied());
                        let is_left = match before {
                            Some(before) => has(b"NX") || (has(b"GT") && number <= before),
                            None => has(b"XX"),
                        };
                        if !is_left {
                            sorted.insert(pair[1].clone(), number);
                            added += usize::from(before.is_none() || has(b"CH"));
                        }
                    }
                    count(added)
                }
                "ZREM" => {
                    count(args.iter().filter(|member| sorted.remove(*member).is_some()).count())
                }
                "ZCARD" => count(sorted.len()),
                "ZSCORE" => {
                    sorted.get(&args[0]).map_or(Reply::Nil, |number| Reply::Bulk(score(*number)))
                }
                "ZCOUNT" => count(between(sorted, &args[0], &args[1])?.len()),
                "ZPOPMIN" => {
                    let first = in_order(sorted).first().map(|(member, _)| (*member).clone());
                    let Some(member) = first else {
                        return Ok(Reply::Array(Vec::new()));
                    };
                    let number = sorted.remove(&member).unwrap_or_default();
                    array(&[member, score(number)])
                }
                "ZRANGE" => zrange(sorted, &args[0], &args[1], &args[2..])?,
                "ZRANGEBYSCORE" => {
                    let mut options = vec![b"BYSCORE".to_vec()];
                    options.extend_from_slice(&args[2..]);
                    zrange(sorted, &args[0], &args[1], &options)?
                }
                name => return Err(format!("ERR unknown command {name}")),
            })
        })?
    }

    fn of_list(&mut self, name: &str, key: &[u8], args: &[Bytes]) -> Answer {
        self.with(key, |list: &mut List| {
            Ok(match name {
                "LLEN" => count(list.len()),
                "LRANGE" => array(&list[range(list.len(), int(&args[0])?, int(&args[1])?)]),
                "LTRIM" => {
                    let kept = range(list.len(), int(&args[0])?, int(&args[1])?);
                    *list = list[kept].to_vec();
                    Reply::Status("OK")
                }
                "RPUSHX" if list.is_empty() => Reply::Int(0),
                "RPUSH" | "RPUSHX" => {
                    list.extend_from_slice(args);
                    count(list.len())
                }
                name => return Err(format!("ERR unknown command {name}")),
            })
        })?
    }
}

/// Returns the next items from a cursor on, and the next cursor. The items are ordered by hash, so that a full scan finds
/// every item that is present throughout the scan, even if other items are added or removed.
fn scan<'a>(
    all: impl Iterator<Item = &'a Bytes>,
    args: &[Bytes],
) -> Result<(Reply, Vec<&'a Bytes>), String> {
    let hash = |member: &Bytes| {
        let mut hasher = DefaultHasher::new();
        member.hash(&mut hasher);
        hasher.finish() >> 16
    };
    let (from, most) = (int(&args[0])?.unsigned_abs(), int(&args[2])?.unsigned_abs());
    let mut found: Vec<_> = all.map(|member| (hash(member), member)).collect();
    found.retain(|(hash, _)| *hash >= from);
    found.sort_unstable();
    let rest = found.split_off(found.len().min(usize::try_from(most).unwrap()));
    let next = rest.first().map_or(0, |(hash, _)| *hash);
    let members = found.into_iter().map(|(_, member)| member).collect();
    Ok((Reply::Bulk(next.to_string().into_bytes()), members))
}

fn in_order(sorted: &Sorted) -> Vec<(&Bytes, f64)> {
    let mut all: Vec<_> = sorted.iter().map(|(member, number)| (member, *number)).collect();
    all.sort_by(|(_, left), (_, right)| left.total_cmp(right));
    all
}

fn between<'a>(
    sorted: &'a Sorted,
    from: &[u8],
    to: &[u8],
) -> Result<Vec<(&'a Bytes, f64)>, String> {
    let ((from, from_is_out), (to, to_is_out)) = (bound(from)?, bound(to)?);
    let mut all = in_order(sorted);
    all.retain(|(_, number)| {
        let is_above = *number > from || (*number >= from && !from_is_out);
        let is_below = *number < to || (*number <= to && !to_is_out);
        is_above && is_below
    });
    Ok(all)
}

fn zrange(sorted: &Sorted, from: &[u8], to: &[u8], options: &[Bytes]) -> Answer {
    let place = |name: &[u8]| options.iter().position(|option| option == name);
    let is_reversed = place(b"REV").is_some();
    let mut found = if place(b"BYSCORE").is_some() {
        let (from, to) = if is_reversed { (to, from) } else { (from, to) };
        let mut found = between(sorted, from, to)?;
        if is_reversed {
            found.reverse();
        }
        found
    } else {
        let mut all = in_order(sorted);
        if is_reversed {
            all.reverse();
        }
        let range = range(all.len(), int(from)?, int(to)?);
        all[range].to_vec()
    };
    if let Some(at) = place(b"LIMIT") {
        let (skipped, most) = (int(&options[at + 1])?, int(&options[at + 2])?);
        found.drain(..found.len().min(usize::try_from(skipped).unwrap()));
        found.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    }
    let with_scores = place(b"WITHSCORES").is_some();
    let items = found.into_iter().flat_map(|(member, number)| {
        let number = with_scores.then(|| Reply::Bulk(score(number)));
        [Some(Reply::Bulk(member.clone())), number]
    });
    Ok(Reply::Array(items.flatten().collect()))
}

/// The reply to INFO, with only those fields that the store reads.
const INFO: &str = "redis_version:7.0.0\r\nrole:master\r\nloading:0\r\nmaxmemory_policy:noeviction\r\nmaxmemory:0\r\n\
                    used_memory:0\r\naof_enabled:1\r\nmaster_replid:one\r\n";
