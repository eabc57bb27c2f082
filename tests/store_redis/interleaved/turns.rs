//! Serialises commands: each is held until the test releases it, and the next one is released after it executed.

use std::collections::HashMap;
use std::sync::{Condvar, MutexGuard};

use event_data_service::store::redis::scripts;
use testing::prelude::*;
use testing::redis_proxy::Watcher;
use tokio::sync::Notify;

/// The two concurrent tasks of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    Record,
    Drain,
}

/// The commands that are held. All others, and those of a transaction except its end, pass at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Admit,
    Append,
    Cut,
    Read,
    Seal,
    Other,
}

impl Kind {
    fn of(command: &[u8]) -> Option<Self> {
        let holds = |text: &str| memchr::memmem::find(command, text.as_bytes()).is_some();
        if holds("\r\nEXEC\r\n") {
            return Some(Self::Append);
        }
        if holds("\r\nLRANGE\r\n") {
            return Some(Self::Read);
        }
        holds("\r\nEVALSHA\r\n").then(|| {
            let of = [
                (scripts()["admit.lua"], Self::Admit),
                (scripts()["cut.lua"], Self::Cut),
                (scripts()["seal.lua"], Self::Seal),
            ];
            let known = of.iter().find(|(sha1, _)| holds(sha1));
            known.map_or(Self::Other, |(_, kind)| *kind)
        })
    }

    pub(super) const fn task(self) -> Task {
        match self {
            Self::Admit | Self::Append => Task::Record,
            Self::Cut | Self::Read | Self::Seal | Self::Other => Task::Drain,
        }
    }
}

/// The fate of a held command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Answered,
    /// The connection breaks before Redis gets it.
    Lost,
    /// The connection breaks after it executed, before the answer.
    AnswerLost,
}

/// A held command.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) id: u64,
    pub(super) node: usize,
    pub(super) connection: u64,
    pub(super) kind: Kind,
    pub(super) command: Vec<u8>,
    /// Whether its caller waits for the answer.
    pub(super) is_awaited: bool,
    fate: Option<Fate>,
}

#[derive(Debug, Default)]
struct State {
    held: Vec<Held>,
    next: u64,
    /// The scripts of an open transaction by node and connection; they tell its purpose.
    in_transactions: HashMap<(usize, u64), Vec<u8>>,
    /// Node and connection of the released command, the fate of its answer, and the answer.
    under_way: Option<(usize, u64, Fate, Option<Vec<u8>>)>,
}

/// The held commands.
#[derive(Debug, Default)]
pub(super) struct Turns {
    state: Mutex<State>,
    changed: Condvar,
    /// A command is held.
    pub(super) news: Notify,
}

/// The proxy's interface.
pub(super) struct OfNode(pub(super) Arc<Turns>, pub(super) usize);

impl Watcher for OfNode {
    fn command(&self, connection: u64, command: &[u8]) -> Then {
        let mut state = self.0.state();
        let connection_of = (self.1, connection);
        if memchr::memmem::find(command, scripts()["append.lua"].as_bytes()).is_some() {
            let scripts = state.in_transactions.entry(connection_of).or_default();
            scripts.extend_from_slice(command);
            return Then::Pass;
        }
        let Some(kind) = Kind::of(command) else {
            return Then::Pass;
        };
        let script = state.in_transactions.remove(&connection_of);
        let command = script.as_deref().unwrap_or(command);
        let id = state.next;
        state.next += 1;
        state.held.push(Held {
            id,
            node: self.1,
            connection,
            kind,
            command: command.to_owned(),
            is_awaited: true,
            fate: None,
        });
        self.0.news.notify_one();
        loop {
            let place = state.held.iter().position(|held| held.id == id).unwrap();
            if let Some(fate) = state.held[place].fate {
                state.held.remove(place);
                self.0.changed.notify_all();
                return match fate {
                    Fate::Lost => Then::Cut,
                    Fate::Answered | Fate::AnswerLost => Then::Pass,
                };
            }
            state = self.0.changed.wait(state).unwrap();
        }
    }

    fn answer(&self, connection: u64, answer: &[u8]) -> Then {
        let mut state = self.0.state();
        // Redis has queued commands of a transaction.
        let mut answer = answer;
        while let Some(rest) = ["+OK\r\n", "+QUEUED\r\n"]
            .iter()
            .find_map(|taken| answer.strip_prefix(taken.as_bytes()))
        {
            answer = rest;
        }
        match &mut state.under_way {
            _ if answer.is_empty() => Then::Pass,
            Some((node, of, fate, came)) if (*node, *of) == (self.1, connection) => {
                came.get_or_insert_with(|| answer.to_owned());
                let fate = *fate;
                self.0.changed.notify_all();
                match fate {
                    Fate::AnswerLost => Then::Cut,
                    Fate::Answered | Fate::Lost => Then::Pass,
                }
            }
            _ => Then::Pass,
        }
    }
}

impl Turns {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Returns the held commands, by node and task; abandoned ones in order of arrival.
    pub(super) fn held(&self) -> Vec<Held> {
        let mut held = self.state().held.clone();
        held.retain(|it| it.fate.is_none());
        held.sort_by_key(|it| {
            if it.is_awaited { (0, it.node, it.kind.task() as u64) } else { (1, 0, it.id) }
        });
        held
    }

    /// A task's command is abandoned.
    pub(super) fn abandon(&self, node: usize, task: Task) {
        for held in &mut self.state().held {
            if held.node == node && held.kind.task() == task {
                held.is_awaited = false;
            }
        }
    }

    /// Releases a command; returns the beginning of the answer once it executed.
    pub(super) fn release(&self, held: &Held, fate: Fate) -> Option<Vec<u8>> {
        let mut state = self.state();
        let goes = fate != Fate::Lost;
        state.under_way = goes.then_some((held.node, held.connection, fate, None));
        let of = state.held.iter_mut().find(|it| it.id == held.id);
        of.expect("it is held").fate = Some(fate);
        self.changed.notify_all();
        let is_pending = |state: &mut State| {
            let is_held = state.held.iter().any(|it| it.id == held.id);
            let waits = state.under_way.as_ref().is_some_and(|it| it.3.is_none());
            is_held || waits
        };
        let wait = self.changed.wait_timeout_while(state, SOON, is_pending);
        let (mut state, timeout) = wait.unwrap();
        assert!(!timeout.timed_out(), "no answer to {held:?}");
        state.under_way.take()?.3
    }

    /// Drops all held commands.
    pub(super) fn lose_all(&self) {
        for held in self.held() {
            self.release(&held, Fate::Lost);
        }
    }
}

/// How long the test waits for a command or the end of a call.
pub(super) const PATIENCE: Duration = SOON;
