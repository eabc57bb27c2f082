//! Runs a schedule. Whenever all calls in flight are waiting for their turn, the next action is chosen at random.

use std::collections::HashMap;
use std::sync::atomic::AtomicI64;

use event_data_service::event::Minute;
use event_data_service::store::redis::scripts;
use event_data_service::store::{Claim, Store as _, StoreError};
use testing::lua_redis::keyspace::{Bytes, Hash, Reply, Sorted};
use testing::lua_redis::{Held, LuaRedis};
use testing::prelude::*;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::node::{
    Ended, LEASE, Node, RETENTION, Reads, Recorded, Sender, Task, Work, load_scripts, minute_of,
    partition, store,
};
use super::oracle::{Counts, Event, Truth};
use crate::simulation::dice::Dice;

const NODES: usize = 3;
const TASKS: [Task; 2] = [Task::Record, Task::Drain];
/// The outputs of each node. The last node has an additional output.
const OUTPUTS: [&[&str]; NODES] = [&["default"], &["default"], &["default", "two"]];
const SERIES: [&str; 4] = ["a=1", "b=1", "c=1", "d=1"];
const USERS: [&str; 4] = ["ann", "ben", "cleo", "dan"];
const POOL: usize = 12;
const STEPS: usize = 120;
/// Limits for finishing a schedule, far above the numbers of rounds and commands that are needed.
const ROUNDS_MAX: usize = 60;
const DRAINED_MAX: usize = 2000;
const TAG: &str = "{eds:0}";
const SETTINGS: &str = "eds:settings";

fn minutes() -> [Minute; 2] {
    ["20161204:1118", "20161204:1119"].map(|name| name.parse().unwrap())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Admit,
    Append,
    Cut,
    Read,
    Seal,
    Other,
}

impl Kind {
    fn of(held: &Held) -> Self {
        let runs = |script: &str| held.commands.iter().any(|command| runs_script(command, script));
        match () {
            () if runs("append.lua") => Self::Append,
            () if runs("admit.lua") => Self::Admit,
            () if runs("cut.lua") => Self::Cut,
            () if runs("seal.lua") => Self::Seal,
            () if held.commands[0][0] == b"LRANGE" => Self::Read,
            () => Self::Other,
        }
    }

    const fn task(self) -> Task {
        match self {
            Self::Admit | Self::Append => Task::Record,
            Self::Cut | Self::Read | Self::Seal | Self::Other => Task::Drain,
        }
    }
}

fn runs_script(command: &[Bytes], script: &str) -> bool {
    command.get(1).is_some_and(|sha| sha == scripts()[script].as_bytes())
}

fn named(command: &[Bytes]) -> impl Iterator<Item = Minute> {
    let text = String::from_utf8_lossy(&command.concat()).into_owned();
    minutes().into_iter().filter(move |minute| text.contains(&minute.to_string()))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Answered,
    /// The connection breaks before Redis receives the command.
    Lost,
    /// The connection breaks after the command has been executed, before the response.
    AnswerLost,
}

pub(super) async fn prepare(redis: &Arc<LuaRedis>, micros: &AtomicI64) {
    micros.store(minutes()[1].start_nanos() / 1000, Ordering::Relaxed);
    let event = (SERIES[0], USERS[0], minutes()[0].start_nanos());
    load_scripts(&store(redis.settings(), "n"), event).await;
}

pub(super) type Reached = BTreeMap<&'static str, usize>;

pub(super) struct World {
    redis: Arc<LuaRedis>,
    micros: Arc<AtomicI64>,
    dice: Dice,
    nodes: Vec<Node>,
    ended: (Sender, UnboundedReceiver<(usize, Task, Ended)>),
    pool: Vec<Event>,
    truths: BTreeMap<Minute, Truth>,
    recordings: usize,
    appending: HashMap<u64, Arc<Recorded>>,
    appended: BTreeSet<(usize, Minute)>,
    /// The held commands whose callers no longer wait for a response.
    abandoned: BTreeSet<u64>,
    /// For each node, the number of copies that it must report after its sealing step.
    repeated: [u64; NODES],
    reads: Reads,
    may_go_back: bool,
    /// Whether Redis has rolled back, after which it is unknown whether copies have been reported.
    went_back: bool,
    pub(super) log: Vec<String>,
    pub(super) reached: Reached,
}

impl World {
    pub(super) async fn new(redis: &Arc<LuaRedis>, micros: &Arc<AtomicI64>, seed: u64) -> Self {
        redis.keyspace().0.retain(|key, _| *key == SETTINGS.as_bytes());
        micros.store(minutes()[1].start_nanos() / 1000, Ordering::Relaxed);
        let mut dice = Dice::new(seed);
        let mut world = Self {
            redis: Arc::clone(redis),
            micros: Arc::clone(micros),
            pool: (0..POOL).map(|_| event(&mut dice)).collect(),
            dice,
            nodes: Vec::new(),
            ended: unbounded_channel(),
            truths: minutes().map(|minute| (minute, Truth::default())).into(),
            recordings: 0,
            appending: HashMap::new(),
            appended: BTreeSet::new(),
            abandoned: BTreeSet::new(),
            repeated: [0; NODES],
            reads: Reads::default(),
            may_go_back: true,
            went_back: false,
            log: Vec::new(),
            reached: Reached::new(),
        };
        for number in 0..NODES {
            let node = world.start_node(number).await;
            world.nodes.push(node);
        }
        world
    }

    async fn start_node(&self, number: usize) -> Node {
        let dial = Some(self.redis.dial_held(number));
        let redis = redis_link::Settings { dial, ..self.redis.settings() };
        Node::start(number, store(redis, &format!("n{number}")), OUTPUTS[number]).await
    }

    pub(super) async fn play(&mut self) -> Result<(), String> {
        for _ in 0..STEPS {
            self.settle().await?;
            self.step().await?;
        }
        self.drain().await
    }

    pub(super) fn end(mut self) {
        for node in &mut self.nodes {
            for task in TASKS {
                node.abort(task);
            }
        }
        for held in self.redis.held() {
            self.redis.release(&held, false, false);
        }
    }

    fn place_in(&mut self, length: usize) -> usize {
        usize::try_from(self.dice.below(length as u64)).unwrap()
    }

    fn reach(&mut self, situation: &'static str) {
        *self.reached.entry(situation).or_default() += 1;
    }

    fn is_awaited(&self, held: &Held) -> bool {
        !self.abandoned.contains(&held.id)
    }

    fn held(&self) -> Vec<Held> {
        let mut held = self.redis.held();
        held.sort_by_key(|call| {
            if self.is_awaited(call) {
                (0, call.node, Kind::of(call).task() as u64)
            } else {
                (1, 0, call.id)
            }
        });
        held
    }

    /// Waits until every call in flight is waiting for its turn. Virtual time does not advance before.
    async fn settle(&mut self) -> Result<(), String> {
        tokio::time::sleep(Duration::from_millis(1)).await;
        while let Ok((node, task, ended)) = self.ended.1.try_recv() {
            self.end_call(node, task, ended)?;
        }
        let held = self.held();
        let awaited: Vec<_> = held.iter().filter(|call| self.is_awaited(call)).collect();
        for held in awaited.iter().filter(|call| Kind::of(call) == Kind::Append) {
            if let Some(recording) = &self.nodes[held.node].recording {
                self.appending.entry(held.id).or_insert_with(|| Arc::clone(recording));
            }
        }
        for node in &self.nodes {
            for task in TASKS {
                let waits =
                    |call: &&Held| call.node == node.number && Kind::of(call).task() == task;
                if node.is_busy(task) && !awaited.iter().any(waits) {
                    let number = node.number;
                    return Err(format!("n{number} neither asks nor ends to {task:?}: {held:?}"));
                }
            }
        }
        Ok(())
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
                            return Err(format!("confirmed but not appended: {recorded:?}"));
                        }
                    }
                }
            }
            Ended::Claimed(result) => at.claims.extend(is_ok(result)?.into_iter().flatten()),
            Ended::Sealed(claim, Ok(step)) => {
                if step.left == 0 {
                    at.claims.retain(|kept| *kept != claim);
                }
                at.claims.extend(step.sending);
                if step.repeated != self.repeated[node] && !self.went_back {
                    let (told, right) = (step.repeated, self.repeated[node]);
                    return Err(format!("{told} copies were reported instead of {right}"));
                }
            }
            Ended::Sent(claim, Ok(true)) => at.claims.retain(|kept| *kept != claim),
            Ended::Sealed(claim, Err(error)) | Ended::Sent(claim, Err(error)) => {
                if is_lost(&claim, &error) {
                    at.claims.retain(|kept| *kept != claim);
                }
                is_ok::<()>(Err(error))?;
            }
            Ended::Sent(_, Ok(false)) => {}
            Ended::Extended(result) => drop(is_ok(result)?),
        }
        Ok(())
    }

    async fn step(&mut self) -> Result<(), String> {
        let held = self.held();
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
                // A recording must not be in flight for minutes, so advance the time by less while there is one.
                let is_recording = held.iter().any(|call| Kind::of(call).task() == Task::Record);
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
                let awaited: Vec<_> =
                    held.into_iter().filter(|call| self.is_awaited(call)).collect();
                if awaited.is_empty() {
                    return Ok(());
                }
                let held = &awaited[self.place_in(awaited.len())];
                match fault {
                    95..97 => self.hang_up(held),
                    97..99 => {
                        self.reach("a call is dropped");
                        self.abort(held.node, Kind::of(held).task());
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

    async fn begin_call(&mut self, is_draining: bool) {
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
                let known = self.dice.pick(&self.pool);
                events.push(if is_new { event(&mut self.dice) } else { known });
            }
            let admits = self.dice.one_in(2);
            self.log.push(format!("n{number} records {events:?}"));
            self.recordings += 1;
            let now_micros = self.micros.load(Ordering::Relaxed);
            node.record(&done, self.recordings, events, admits, now_micros);
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

    fn move_clock(&mut self, ahead: Duration) {
        self.micros.fetch_add(i64::try_from(ahead.as_micros()).unwrap(), Ordering::Relaxed);
        self.log.push(format!("the clock advances by {ahead:?}"));
    }

    fn abandon(&mut self, node: usize, task: Task) {
        let of_task = |call: &Held| call.node == node && Kind::of(call).task() == task;
        let held = self.redis.held().into_iter().filter(of_task);
        self.abandoned.extend(held.map(|call| call.id));
    }

    fn hang_up(&mut self, held: &Held) {
        self.reach("a command is executed without a waiting caller");
        let (node, kind) = (held.node, Kind::of(held));
        self.log.push(format!("n{node} hangs up while {kind:?} {} is held", held.id));
        self.abandon(node, kind.task());
        LuaRedis::hang_up(held);
        self.nodes[node].is_cut = true;
    }

    fn abort(&mut self, node: usize, task: Task) {
        self.log.push(format!("n{node} drops {task:?}"));
        self.nodes[node].abort(task);
        self.abandon(node, task);
    }

    /// Ends the process of a node, and starts a new one. Commands of the old process may still arrive.
    async fn crash(&mut self, node: usize) {
        self.reach("a node is killed");
        for task in TASKS {
            self.abort(node, task);
        }
        self.nodes[node] = self.start_node(node).await;
        self.log.push(format!("n{node} is killed, and begins"));
    }

    /// Executes a command, and compares its effect with the expected effect.
    fn release(&mut self, held: &Held, fate: Fate) -> Result<(), String> {
        let (kind, node) = (Kind::of(held), held.node);
        let is_awaited = self.is_awaited(held);
        let minute = held.commands.iter().flat_map(|command| named(command)).min();
        let was_closed = minute.is_some_and(|minute| self.is_closed(minute));
        // Redis is a replica for a moment, so it forgets the last writes but keeps its connections.
        let goes_back = kind == Kind::Seal && self.may_go_back && self.dice.one_in(4);
        let late_before = self.late();
        let before = goes_back.then(|| (self.redis.keyspace().clone(), self.truths.clone()));
        let reply = self.redis.release(held, fate != Fate::Lost, fate == Fate::Answered);
        let name = minute.map(|minute| minute.to_string());
        self.log.push(format!(
            "n{node} {kind:?} {} {name:?} {fate:?}, awaited {is_awaited}: {reply:?}",
            held.id
        ));
        if fate != Fate::Answered {
            self.nodes[node].is_cut = true;
        }
        let Some((reply, minute)) = reply.zip(minute) else {
            return Ok(());
        };
        match (kind, reply) {
            // The client sends the script and repeats the command.
            (_, Reply::Error(error)) if error.starts_with("NOSCRIPT") => {}
            (_, Reply::Error(error)) => return Err(format!("{kind:?} fails: {error}")),
            (Kind::Append, Reply::Array(replies)) => {
                for (command, reply) in held.commands.iter().zip(replies) {
                    let minute =
                        named(command).next().filter(|_| runs_script(command, "append.lua"));
                    match minute {
                        Some(minute) if reply == Reply::Int(1) => {
                            let recorded = Arc::clone(&self.appending[&held.id]);
                            self.appended.insert((recorded.number, minute));
                            let events = recorded.events.iter().copied();
                            let events = events.filter(|event| minute_of(event.2) == minute);
                            self.truth(minute).appended(events);
                        }
                        Some(_) => self.reach("a log is refused"),
                        None => {}
                    }
                }
            }
            (Kind::Cut | Kind::Seal, Reply::Nil) => self.reach("a claim is refused"),
            (Kind::Cut, _) => self.truth(minute).was_cut(),
            (Kind::Seal, Reply::Array(items)) => {
                let [Reply::Int(sealed), _, Reply::Int(left), ..] = items[..] else {
                    return Err(format!("a step answers {items:?}"));
                };
                let [sealed, left] = [sealed, left].map(i64::unsigned_abs);
                let step = (sealed, self.late() - late_before, left);
                let cut = self.redis.keyspace().get::<Hash>(&key(minute, "cut")).is_some();
                let there = self.counts(minute);
                let stepped = self.truth(minute).was_stepped(step, was_closed, !cut, &there);
                let repeated = stepped.map_err(|error| format!("{minute}: {error}"))?;
                if is_awaited {
                    self.repeated[node] = repeated;
                }
                for (situation, is_reached) in [
                    ("a series is sealed", step.0 > 0),
                    ("events are late", step.1 > 0),
                    ("a part is sealed", cut),
                    ("logs are left", !cut && step.2 > 0),
                ] {
                    if is_reached {
                        self.reach(situation);
                    }
                }
            }
            _ => {}
        }
        for minute in minutes() {
            let (is_closed, there) = (self.is_closed(minute), self.counts(minute));
            let agrees = self.truth(minute).agrees(&there, is_closed);
            agrees.map_err(|error| format!("{minute}: {error}"))?;
        }
        if let Some((saved, truths)) = before {
            self.log.push("Redis rolls back".to_owned());
            self.reach("Redis rolls back");
            *self.redis.keyspace() = saved;
            (self.truths, self.went_back) = (truths, true);
        }
        Ok(())
    }

    fn truth(&mut self, minute: Minute) -> &mut Truth {
        self.truths.get_mut(&minute).unwrap()
    }

    fn counts(&self, minute: Minute) -> Counts {
        let keyspace = self.redis.keyspace();
        let counts = keyspace.get::<Hash>(&key(minute, "counts")).into_iter().flatten();
        let sealed = counts.filter_map(|(series, counts)| {
            let (unique, cumulative) = text(counts).split_once(':')?;
            Some((text(series).to_owned(), (unique.parse().unwrap(), cumulative.parse().unwrap())))
        });
        sealed.collect()
    }

    fn late(&self) -> u64 {
        let keyspace = self.redis.keyspace();
        let stamps = keyspace.get::<Hash>(&format!("{TAG}:stamps")).into_iter().flatten();
        let late = stamps.filter_map(|(_, stamp)| text(stamp).rsplit('|').next());
        late.map(|late| late.parse::<u64>().unwrap()).sum()
    }

    fn is_closed(&self, minute: Minute) -> bool {
        let minute = minute.epoch_minutes();
        let keyspace = self.redis.keyspace();
        let listed = keyspace.get::<Sorted>(&format!("{TAG}:closed"));
        let since = keyspace.get::<Hash>(&format!("{TAG}:witness"));
        let since = since.and_then(|hash| text(hash.get(b"since".as_slice())?).parse::<i64>().ok());
        listed.is_some_and(|closed| closed.contains_key(minute.to_string().as_bytes()))
            || since.is_some_and(|since| minute < since)
    }

    async fn drain(&mut self) -> Result<(), String> {
        self.log.push("all commands are released".to_owned());
        self.may_go_back = false;
        let mut rounds = 0;
        for _ in 0..DRAINED_MAX {
            self.settle().await?;
            let held = self.held();
            if !held.is_empty() {
                let held = &held[self.place_in(held.len())];
                self.release(held, Fate::Answered)?;
            } else if self.nodes.iter().any(|node| !node.claims.is_empty()) || self.dice.one_in(2) {
                self.begin_call(true).await;
            } else {
                if self.is_done()? {
                    return Ok(());
                }
                rounds += 1;
                if rounds > ROUNDS_MAX {
                    return Err(format!("never done: {:?}", self.redis.keyspace()));
                }
                self.move_clock(LEASE);
            }
        }
        Err("the work does not end".to_owned())
    }

    fn is_done(&mut self) -> Result<bool, String> {
        let reads = std::mem::take(&mut *self.reads.lock().unwrap());
        for (claim, read) in reads {
            for (series, counts) in read {
                self.truth(claim.minute).was_sent(&series, counts)?;
            }
        }
        let stays = ["witness", "closed", "outputs", "stamps"].map(|name| format!("{TAG}:{name}"));
        let is_left = |name: &str, expires: bool| {
            let expires = expires && (name.ends_with(":counts") || name.ends_with(":coverage"));
            name != SETTINGS && !stays.iter().any(|kept| kept == name) && !expires
        };
        let keyspace = self.redis.keyspace();
        let mut keys = keyspace.0.iter();
        if keys.any(|(name, entry)| is_left(text(name), entry.expires_ms.is_some())) {
            return Ok(false);
        }
        self.truths.values().try_for_each(Truth::is_done)?;
        Ok(true)
    }
}

fn key(minute: Minute, suffix: &str) -> String {
    format!("{TAG}:{minute}:{suffix}")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn is_ok<T>(result: Result<T, StoreError>) -> Result<Option<T>, String> {
    match result {
        Ok(given) => Ok(Some(given)),
        Err(StoreError::Unavailable(_) | StoreError::ClaimLost) => Ok(None),
        Err(error) => Err(format!("a call fails: {error}")),
    }
}

fn event(dice: &mut Dice) -> Event {
    let minute = dice.pick(&minutes());
    let timestamp = minute.start_nanos() + dice.between(0, 2);
    (dice.pick(&SERIES), dice.pick(&USERS), timestamp)
}
