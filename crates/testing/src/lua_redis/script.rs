//! Executes the scripts of a [`LuaRedis`](super::LuaRedis) with the same version of Lua as Redis. Each thread has an
//! separate interpreter with compiled scripts.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use mlua::{Function, IntoLua, Lua, Table, Value as LuaValue};

use super::keyspace::{Bytes, Keyspace, Reply};

struct Machine {
    lua: Lua,
    compiled: RefCell<HashMap<u64, Function>>,
}

thread_local! {
    static MACHINE: Machine = Machine::new();
    /// The keys that the running script uses, the time at which it runs, and the number of commands that it has called.
    static RUNNING: RefCell<(Keyspace, i64, u64)> = RefCell::default();
}

/// A script, and a number that identifies its text.
#[derive(Clone)]
pub(super) struct Script {
    text: Arc<str>,
    number: u64,
}

impl Script {
    pub(super) fn new(text: String) -> Self {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        Self { text: text.into(), number: hasher.finish() }
    }
}

/// Runs a script on these keys at this time. Returns its reply, and the number of commands that it has called.
pub(super) fn run(
    keyspace: &mut Keyspace,
    now_us: i64,
    script: &Script,
    keys: &[Bytes],
    args: &[Bytes],
) -> (Reply, u64) {
    RUNNING.set((std::mem::take(keyspace), now_us, 0));
    let answer = MACHINE.with(|machine| machine.run(script, keys, args));
    let calls;
    (*keyspace, _, calls) = RUNNING.take();
    let error = |error| Reply::Error(format!("ERR {error}").replace(['\r', '\n'], " "));
    (answer.unwrap_or_else(error), calls)
}

impl Machine {
    fn new() -> Self {
        let lua = Lua::new();
        let call = lua.create_function(|lua, args: mlua::Variadic<LuaValue>| {
            let command: Vec<Bytes> = args.iter().map(argument).collect();
            let answer = RUNNING.with_borrow_mut(|(keyspace, now_us, calls)| {
                *calls += 1;
                keyspace.execute(*now_us, &command)
            });
            to_lua(lua, answer.map_err(mlua::Error::runtime)?)
        });
        let redis = lua.create_table().unwrap();
        redis.set("call", call.unwrap()).unwrap();
        lua.globals().set("redis", redis).unwrap();
        Self { lua, compiled: RefCell::default() }
    }

    fn run(&self, script: &Script, keys: &[Bytes], args: &[Bytes]) -> mlua::Result<Reply> {
        let known = self.compiled.borrow().get(&script.number).cloned();
        let function = if let Some(function) = known {
            function
        } else {
            // Skip the first line, which has the flags for Redis.
            let code = script.text.split_once('\n').map_or("", |(_, code)| code);
            let function = self.lua.load(code).into_function()?;
            let mut compiled = self.compiled.borrow_mut();
            compiled.insert(script.number, function.clone());
            function
        };
        for (name, list) in [("KEYS", keys), ("ARGV", args)] {
            let items = list.iter().map(|item| self.lua.create_string(item));
            let items = items.collect::<mlua::Result<Vec<_>>>()?;
            self.lua.globals().set(name, items)?;
        }
        from_lua(function.call(())?)
    }
}

/// Converts a Lua value to an argument of a command, as Redis does.
fn argument(value: &LuaValue) -> Bytes {
    match value {
        LuaValue::String(text) => text.as_bytes().to_vec(),
        LuaValue::Integer(number) => number.to_string().into_bytes(),
        LuaValue::Number(number) => number.to_string().into_bytes(),
        other => panic!("{other:?} is not a valid command argument"),
    }
}

fn to_lua(lua: &Lua, reply: Reply) -> mlua::Result<LuaValue> {
    match reply {
        Reply::Nil => Ok(LuaValue::Boolean(false)),
        #[expect(clippy::cast_precision_loss, reason = "as in Redis")]
        Reply::Int(number) => Ok(LuaValue::Number(number as f64)),
        Reply::Bulk(bytes) => lua.create_string(bytes)?.into_lua(lua),
        Reply::Array(items) => {
            let items = items.into_iter().map(|item| to_lua(lua, item));
            items.collect::<mlua::Result<Vec<_>>>()?.into_lua(lua)
        }
        Reply::Status(status) => {
            let table = lua.create_table()?;
            table.set("ok", status)?;
            table.into_lua(lua)
        }
        Reply::Error(error) => Err(mlua::Error::runtime(error)),
    }
}

fn from_lua(value: LuaValue) -> mlua::Result<Reply> {
    Ok(match value {
        LuaValue::Boolean(true) => Reply::Int(1),
        LuaValue::Integer(number) => Reply::Int(number),
        #[expect(clippy::cast_possible_truncation, reason = "as in Redis")]
        LuaValue::Number(number) => Reply::Int(number as i64),
        LuaValue::String(text) => Reply::Bulk(text.as_bytes().to_vec()),
        LuaValue::Table(table) => items(&table)?,
        _ => Reply::Nil,
    })
}

/// Converts the items of a table, up to the first nil, to a reply.
fn items(table: &Table) -> mlua::Result<Reply> {
    let items = table.sequence_values().map(|item| from_lua(item?));
    Ok(Reply::Array(items.collect::<mlua::Result<_>>()?))
}
