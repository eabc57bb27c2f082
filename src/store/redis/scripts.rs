//! The Lua scripts, each atomic and for a single slot. A row of [`scripts!`] declares the keys and arguments of a script. In
//! Lua, each of them becomes a local variable. In Rust, the script becomes a struct with a field for each key and argument
//! that is not derived from the [`Place`]. Arguments without a name come last; in Lua, `REST` is the index of the first.

use std::fmt::Write as _;

use redis::{Script, ScriptInvocation};

use super::keys::{Place, Scope};

pub(super) const SHARED: &str = include_str!("shared.lua");

/// A script in the form that is sent to Redis.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) file: &'static str,
    #[cfg(test)]
    pub(super) text: String,
    pub(super) script: Script,
    pub(super) keys: &'static [(Scope, &'static str)],
    /// The names of the arguments whose values are derived from the [`Place`].
    placed: &'static [&'static str],
}

impl Source {
    /// Assembles a script from texts: first any shared functions, then the script itself, with its flags in the first line.
    pub(super) fn new(
        file: &'static str,
        texts: &[&str],
        keys: &'static [(Scope, &'static str)],
        placed: &'static [&'static str],
        named: &[&str],
    ) -> Self {
        let (code, parts) = texts.split_last().unwrap_or((&"", &[]));
        let (flags, code) = code.split_once('\n').unwrap_or((code, ""));
        let mut text = format!("{flags}\n");
        for (number, (scope, name)) in (1..).zip(keys) {
            let own = if *scope == Scope::Output { "own_" } else { "" };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "local {own}{name} = KEYS[{number}]");
        }
        for (number, name) in (1..).zip(placed.iter().chain(named)) {
            let _ = writeln!(text, "local {name} = ARGV[{number}]");
        }
        let _ = writeln!(text, "local REST = {}", placed.len() + named.len() + 1);
        text.extend(parts.iter().copied().chain([code]));
        let script = Script::new(&text);
        Self {
            file,
            #[cfg(test)]
            text,
            script,
            keys,
            placed,
        }
    }

    /// Adds the keys and arguments that are derived from the place.
    pub(super) fn put_at(&self, call: &mut ScriptInvocation<'_>, place: &Place<'_>) {
        for (scope, name) in self.keys.iter().filter(|(scope, _)| *scope != Scope::Given) {
            call.key(place.key(*scope, name));
        }
        for name in self.placed {
            call.arg(place.argument(name));
        }
    }
}

/// A row: `NAME Call = PARTS + "file.lua"(keys from the caller) scopes[keys] => arguments from the place (from the caller);`
macro_rules! scripts {
    ($(
        $source:ident $call:ident = $($part:ident +)* $file:literal
        ($($given:ident)*) $($scope:ident[$($key:ident)*])* => $($placed:ident)* ($($arg:ident)*);
    )*) => {
        $(
            pub(in crate::store::redis) static $source: std::sync::LazyLock<Source> =
                std::sync::LazyLock::new(|| {
                    use $crate::store::redis::keys::Scope;

                    let keys = &[
                        $((Scope::Given, stringify!($given)),)*
                        $($((Scope::$scope, stringify!($key)),)*)*
                    ];
                    let texts = &[$($part,)* include_str!($file)];
                    let placed = &[$(stringify!($placed)),*];
                    Source::new($file, texts, keys, placed, &[$(stringify!($arg)),*])
                });

            #[allow(non_camel_case_types, reason = "each type parameter is named after its field")]
            pub(in crate::store::redis) struct $call<$($given,)* $($arg),*> {
                $(pub(in crate::store::redis) $given: $given,)*
                $(pub(in crate::store::redis) $arg: $arg,)*
            }

            #[allow(non_camel_case_types, reason = "each type parameter is named after its field")]
            impl<$($given: redis::ToRedisArgs,)* $($arg: redis::ToRedisArgs),*>
                $call<$($given,)* $($arg),*>
            {
                pub(in crate::store::redis) fn at(
                    self,
                    place: &Place<'_>,
                ) -> redis::ScriptInvocation<'static> {
                    let mut call = $source.script.prepare_invoke();
                    $(call.key(self.$given);)*
                    $source.put_at(&mut call, place);
                    $(call.arg(self.$arg);)*
                    call
                }
            }
        )*

        pub(in crate::store::redis) fn sources() -> impl Iterator<Item = &'static Source> {
            [$(&*$source),*].into_iter()
        }
    };
}

pub(super) use scripts;
