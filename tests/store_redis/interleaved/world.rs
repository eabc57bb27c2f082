//! Runs a schedule: once every call in flight waits, the next action is drawn.

use std::collections::HashMap;

use event_data_service::event::Minute;
use event_data_service::store::{Claim, Store as _, StoreError};
use testing::prelude::*;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::dice::Dice;
use super::node::{Ended, LEASE, Node, RETENTION, Reads, Recorded, Sender, Work, minute_of};
use super::oracle::{Event, Truth};
use super::site::Site;
use super::turns::{Fate, Held, Kind, PATIENCE, Task};
use crate::store_redis::site::{minute, next_minute, partition};

pub(super) const NODES: usize = 3;
const TASKS: [Task; 2] = [Task::Record, Task::Drain];
/// The last node has one more output.
const OUTPUTS: [&[&str]; NODES] = [&["default"], &["default"], &["default", "two"]];
const SERIES: [&str; 4] = ["a=1", "b=1", "c=1", "d=1"];
const USERS: [&str; 4] = ["ann", "ben", "cleo", "dan"];
/// The number of different events in most schedules.
const POOL: usize = 12;
/// The number of actions before everything is released.
const STEPS: usize = 120;
/// Counters of the events that a run must reach.
pub(super) type Reached = BTreeMap<&'static str, usize>;

pub(super) struct World<'a> {
    pub(super) site: &'a mut Site,
    pub(super) dice: Dice,
    pub(super) nodes: Vec<Node>,
    ended: (Sender, UnboundedReceiver<(usize, Task, Ended)>),
    pool: Vec<Event>,
    pub(super) micros: i64,
    pub(super) truths: BTreeMap<Minute, Truth>,
    recordings: usize,
    /// The recordings in held commands.
    pub(super) appending: HashMap<u64, Arc<Recorded>>,
    /// The appended recordings by number.
    pub(super) appended: BTreeSet<(usize, Minute)>,
    /// The number of copies that a node must report after its step.
    pub(super) repeated: [u64; NODES],
    pub(super) reads: Reads,
    pub(super) may_go_back: bool,
    /// Afterwards it is unknown whether copies were reported.
    pub(super) went_back: bool,
    pub(super) log: Vec<String>,
    pub(super) reached: Reached,
}

impl<'a> World<'a> {
    pub(super) async fn new(site: &'a mut Site, seed: u64) -> Self {
        let keep = |name: &String| name != "eds:settings";
        let names: Vec<_> = site.names().into_iter().filter(keep).collect();
        let mut forget = redis::cmd("UNLINK");
        let forget = forget.arg("nothing").arg(names);
        forget.exec(&mut site.connection).unwrap();
        let micros = next_minute().start_nanos() / 1000;
        site.clock.set(micros);
        let mut nodes = Vec::new();
        for (number, outputs) in OUTPUTS.into_iter().enumerate() {
            nodes.push(Node::start(number, &site.proxies[number], outputs).await);
        }
        let mut dice = Dice::new(seed);
        let pool = (0..POOL).map(|_| event(&mut dice)).collect();
        let truths = [minute(), next_minute()].map(|it| (it, Truth::default()));
        Self {
            site,
            dice,
            nodes,
            ended: unbounded_channel(),
            pool,
            micros,
            truths: truths.into(),
            recordings: 0,
            appending: HashMap::new(),
            appended: BTreeSet::new(),
            repeated: [0; NODES],
            reads: Reads::default(),
            may_go_back: true,
            went_back: false,
            log: Vec::new(),
            reached: Reached::new(),
        }
    }

    pub(super) async fn play(&mut self) -> Result<(), String> {
        for _ in 0..STEPS {
            self.settle().await?;
            self.step().await?;
        }
        self.drain().await
    }

    /// Finishes the calls in flight.
    pub(super) async fn end(mut self) {
        for node in &mut self.nodes {
            for task in TASKS {
                node.abort(task);
            }
        }
        self.site.turns.lose_all();
        tokio::task::yield_now().await;
    }

    pub(super) fn place_in(&mut self, length: usize) -> usize {
        usize::try_from(self.dice.below(length as u64)).unwrap()
    }

    pub(super) fn reach(&mut self, what: &'static str) {
        *self.reached.entry(what).or_default() += 1;
    }

    /// Waits until every call in flight waits for its turn.
    pub(super) async fn settle(&mut self) -> Result<(), String> {
        loop {
            while let Ok((node, task, ended)) = self.ended.1.try_recv() {
                self.end_call(node, task, ended)?;
            }
            let held = self.site.turns.held();
            for held in held.iter().filter(|it| it.kind == Kind::Append) {
                if held.is_awaited
                    && let Some(recording) = &self.nodes[held.node].recording
                {
                    let recording = Arc::clone(recording);
                    self.appending.entry(held.id).or_insert(recording);
                }
            }
            let waits = |node: usize, task: Task| {
                let is_it = |it: &&Held| it.is_awaited && it.node == node && it.kind.task() == task;
                held.iter().any(|it| is_it(&it))
            };
            let mut calls = self.nodes.iter().flat_map(|it| TASKS.map(|task| (it, task)));
            if calls.all(|(node, task)| !node.is_busy(task) || waits(node.number, task)) {
                return Ok(());
            }
            drop(calls);
            let more = async {
                tokio::select! {
                    ended = self.ended.1.recv() => ended,
                    () = self.site.turns.news.notified() => None,
                }
            };
            let more = tokio::time::timeout(PATIENCE, more).await;
            let more = more.map_err(|_| self.at_a_loss())?;
            if let Some((node, task, ended)) = more {
                self.end_call(node, task, ended)?;
            }
        }
    }

    fn at_a_loss(&self) -> String {
        let busy = self.nodes.iter();
        let busy: Vec<_> = busy.map(|it| TASKS.map(|task| it.is_busy(task))).collect();
        let held = self.site.turns.held();
        format!("a call neither asks nor ends: of {busy:?}, held {held:?}")
    }

    fn end_call(&mut self, node: usize, task: Task, ended: Ended) -> Result<(), String> {
        if !self.nodes[node].is_busy(task) {
            return Ok(());
        }
        self.log.push(format!("n{node} {ended:?}"));
        let at = &mut self.nodes[node];
        at.ended(task);
        let generation = at.store.generation(partition());
        let is_lost = |claim: &Claim, error: &StoreError| {
            matches!(error, StoreError::ClaimLost) || claim.generation != generation
        };
        match ended {
            Ended::Recorded(recorded, result) => {
                at.recording = None;
                if is_ok(result)?.is_some() {
                    self.nodes[node].learn(&recorded);
                    for (_, _, timestamp) in &recorded.events {
                        let minute = minute_of(*timestamp);
                        if !self.appended.contains(&(recorded.number, minute)) {
                            return Err(format!("confirmed and not appended: {recorded:?}"));
                        }
                    }
                }
            }
            Ended::Claimed(result) => at.claims.extend(is_ok(result)?.into_iter().flatten()),
            Ended::Sealed(claim, Ok(step)) => {
                if step.left == 0 {
                    at.claims.retain(|it| *it != claim);
                }
                at.claims.extend(step.sending);
                if step.repeated != self.repeated[node] && !self.went_back {
                    let (told, right) = (step.repeated, self.repeated[node]);
                    return Err(format!("{told} copies are told of {right}"));
                }
            }
            Ended::Sent(claim, Ok(true)) => at.claims.retain(|it| *it != claim),
            Ended::Sealed(claim, Err(error)) | Ended::Sent(claim, Err(error)) => {
                if is_lost(&claim, &error) {
                    at.claims.retain(|it| *it != claim);
                }
                is_ok::<()>(Err(error))?;
            }
            Ended::Sent(_, Ok(false)) => {}
            Ended::Extended(result) => drop(is_ok(result)?),
        }
        Ok(())
    }

    async fn step(&mut self) -> Result<(), String> {
        let held = self.site.turns.held();
        match self.dice.below(100) {
            0..50 if !held.is_empty() => {
                let held = &held[self.place_in(held.len())];
                let fate = match self.dice.below(50) {
                    0 => Fate::Lost,
                    1 => Fate::AnswerLost,
                    _ => Fate::Answered,
                };
                self.release(held, fate)?;
            }
            0..90 => self.begin_call(false).await,
            90..95 => {
                // No recording has been in flight for minutes.
                let is_recording = held.iter().any(|it| it.kind.task() == Task::Record);
                let ahead = match self.dice.below(8) {
                    0..2 if is_recording => LEASE,
                    0 => RETENTION + Duration::from_secs(1),
                    1 => Duration::from_secs(60),
                    2..4 => LEASE / 2,
                    _ => LEASE,
                };
                self.move_clock(ahead);
            }
            fault => {
                let awaited: Vec<_> = held.into_iter().filter(|it| it.is_awaited).collect();
                if awaited.is_empty() {
                    return Ok(());
                }
                let held = &awaited[self.place_in(awaited.len())];
                match fault {
                    95..97 => self.hang_up(held),
                    97..99 => {
                        self.reach("a call is dropped");
                        self.abort(held.node, held.kind.task());
                        if self.dice.one_in(2) {
                            self.release(held, Fate::Answered)?;
                        } else {
                            self.hang_up(held);
                        }
                    }
                    _ => self.crash(held.node).await,
                }
            }
        }
        Ok(())
    }

    /// Starts a call on an idle task.
    pub(super) async fn begin_call(&mut self, is_draining: bool) {
        let number = self.place_in(NODES);
        let task = self.dice.pick(if is_draining { &TASKS[1..] } else { &TASKS });
        let node = &mut self.nodes[number];
        if node.is_busy(task) || node.is_cut && !node.is_idle() {
            return;
        }
        if node.is_cut {
            node.connect().await;
        }
        let done = self.ended.0.clone();
        if task == Task::Record {
            let count = self.dice.between(1, 4);
            let mut events = Vec::new();
            for _ in 0..count {
                let is_new = self.dice.one_in(8);
                let pool = &self.pool;
                let known = self.dice.pick(pool);
                events.push(if is_new { event(&mut self.dice) } else { known });
            }
            let admits = self.dice.one_in(2);
            self.log.push(format!("n{number} records {events:?}"));
            self.recordings += 1;
            node.record(&done, self.recordings, events, admits, self.micros);
        } else if node.claims.is_empty() || !is_draining && self.dice.one_in(5) {
            let lapsed_max = self.dice.pick(&[0, 1, 2]);
            let lapsed_max = if is_draining { 10 } else { lapsed_max };
            self.log.push(format!("n{number} claims"));
            node.claim(&done, lapsed_max);
        } else {
            let claim = self.dice.below(node.claims.len() as u64);
            let claim = node.claims[usize::try_from(claim).unwrap()].clone();
            let work = match self.dice.below(8) {
                0 if !is_draining => Work::Extend,
                1..7 if !is_draining => Work::Go(self.dice.pick(&[1, 2])),
                _ => Work::Go(100),
            };
            self.log.push(format!("n{number} {work:?} {claim:?}"));
            node.work(&done, claim, work, &self.reads);
        }
    }

    pub(super) fn move_clock(&mut self, ahead: Duration) {
        self.micros += i64::try_from(ahead.as_micros()).unwrap();
        self.site.clock.set(self.micros);
        self.log.push(format!("the clock goes on by {ahead:?}"));
    }

    fn hang_up(&mut self, held: &Held) {
        self.reach("a command goes when nobody waits for it");
        let Held { id, node, kind, connection, .. } = *held;
        self.log.push(format!("n{node} hangs up while {kind:?} {id} is held"));
        self.site.turns.abandon(node, kind.task());
        self.site.proxies[node].hang_up(connection);
        self.nodes[node].is_cut = true;
    }

    fn abort(&mut self, node: usize, task: Task) {
        self.log.push(format!("n{node} drops {task:?}"));
        self.nodes[node].abort(task);
        self.site.turns.abandon(node, task);
    }

    /// The process ends, and another of its name starts. Its commands may still arrive.
    async fn crash(&mut self, node: usize) {
        self.reach("a node is killed");
        for task in TASKS {
            self.abort(node, task);
        }
        let proxy = &self.site.proxies[node];
        self.nodes[node] = Node::start(node, proxy, OUTPUTS[node]).await;
        self.log.push(format!("n{node} is killed, and begins"));
    }
}

/// Returns the result of a call, or nothing if it failed in a permitted way.
fn is_ok<T>(result: Result<T, StoreError>) -> Result<Option<T>, String> {
    match result {
        Ok(given) => Ok(Some(given)),
        Err(StoreError::Unavailable(_) | StoreError::ClaimLost) => Ok(None),
        Err(error) => Err(format!("a call fails: {error}")),
    }
}

fn event(dice: &mut Dice) -> Event {
    let minute = dice.pick(&[minute(), next_minute()]);
    let timestamp = minute.start_nanos() + dice.between(0, 2);
    (dice.pick(&SERIES), dice.pick(&USERS), timestamp)
}
