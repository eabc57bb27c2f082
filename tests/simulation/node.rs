//! A node with successive lives, each of which runs the real batcher, recorders and worker with a faulty store and output.

use std::collections::VecDeque;

use event_data_service::event::{OverflowSeries, Precision, Window};
use event_data_service::flush::{Destination, Flush};
use event_data_service::ingest::{Budget, CapSettings, QUEUED_BATCHES, Recorder, RecorderSettings};
use event_data_service::telemetry::Metrics;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::faulty_store::Role;
use super::life::Sleepy;
use super::listener::listen;
use super::script::Blow;
use crate::simulation::prelude::*;

const DRAIN: Duration = Duration::from_secs(8);

#[derive(Debug)]
pub(crate) struct Node {
    number: usize,
    world: Arc<World>,
    mutant: Option<Mutant>,
    inbox: Mutex<VecDeque<Delivery>>,
    life: Mutex<Option<Arc<Life>>>,
    /// The time the node stays down after the current life.
    rest: Mutex<Option<Duration>>,
}

impl Node {
    pub(crate) fn new(world: &Arc<World>, number: usize, mutant: Option<Mutant>) -> Self {
        let inbox = world.plan.deliveries[number].iter().cloned().collect();
        Self {
            number,
            world: Arc::clone(world),
            mutant,
            inbox: Mutex::new(inbox),
            life: Mutex::default(),
            rest: Mutex::default(),
        }
    }

    pub(crate) fn suffer(&self, blow: Blow) {
        if let Some(life) = &*self.life.lock().unwrap() {
            match blow {
                Blow::Kill(rest) => {
                    *self.rest.lock().unwrap() = Some(rest);
                    life.kill();
                }
                Blow::Stop(rest) => {
                    *self.rest.lock().unwrap() = Some(rest);
                    self.world.note(|| format!("life {} is stopped", life.number));
                    self.world.oracle().ends(life.number);
                    life.stop.cancel();
                }
                Blow::Pause(span) => life.put_to_sleep(span),
            }
        }
    }

    /// Tells the node that the store has rolled back, with or without losing the connection.
    pub(crate) fn meet_another_store(&self, is_noticed: bool) {
        if let Some(life) = &*self.life.lock().unwrap() {
            if is_noticed {
                life.reconnect();
            }
            if life.is_asleep() {
                self.world.oracle().sleeps(life.number);
            }
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        let life = self.life.lock().unwrap();
        let idle =
            |life: &Arc<Life>| !life.is_asleep() && life.shared.ledger.totals().queued_bytes == 0;
        life.as_ref().is_some_and(idle) && self.inbox.lock().unwrap().is_empty()
    }

    /// Checks the ledger of a life that has ended, or that is idle at the end of the schedule.
    pub(crate) fn settle(&self, life: &Life) {
        let max_age = i64::try_from(self.world.plan.max_age.as_nanos()).unwrap();
        let times = (life.shared.clock.now_nanos(), max_age);
        let totals = life.shared.ledger.totals();
        let verdict = self.world.oracle().ended(life.number, &totals, times);
        self.world.judge(verdict);
    }

    pub(crate) fn settle_last(&self) {
        let life = self.life.lock().unwrap();
        let life = life.as_ref().unwrap();
        self.settle(life);
        if self.world.plan.forgets.is_empty() {
            self.world.judge(life.has_counted_late());
        }
    }

    pub(crate) async fn run(&self) {
        loop {
            let life = Arc::new(Life::new(&self.world, self.number));
            *self.life.lock().unwrap() = Some(Arc::clone(&life));
            let now = self.world.time.after();
            // Lines that arrived while the node was down are lost.
            self.inbox.lock().unwrap().retain(|delivery| delivery.after >= now);
            tokio::select! {
                biased;
                () = life.died() => {}
                () = Sleepy::new(&life, self.live(&life)) => self.settle(&life),
            }
            *self.life.lock().unwrap() = None;
            let rest = self.rest.lock().unwrap().take();
            let rest = rest.unwrap_or_else(|| self.world.dice().millis(0, 20_000));
            tokio::time::sleep(rest).await;
        }
    }

    async fn live(&self, life: &Arc<Life>) {
        let world = &self.world;
        let plan = &world.plan;
        let metrics = Arc::new(Metrics::new(Arc::clone(&life.shared)));
        life.counts_with(&metrics);
        let abort = CancellationToken::new();
        let inner = super::mutants::store(self.mutant, world, life);
        let store = |role| {
            Arc::new(FaultyStore {
                world: Arc::clone(world),
                life: Arc::clone(life),
                inner: Arc::clone(&inner),
                role,
                mutant: self.mutant,
            })
        };
        let recorded_to: Arc<dyn Recording> = store(Role::Recorder);
        let to_drain = store(Role::Worker);
        let outputs = (0..plan.outputs).map(|number| {
            let output =
                ScriptedOutput { number, world: Arc::clone(world), life: Arc::clone(life) };
            Destination {
                name: output_name(number),
                output: super::mutants::output(self.mutant, world, &to_drain, output),
                write_counts_max: plan.write_counts_max,
            }
        });
        let replay = Arc::new(Budget::new(1 << 20));
        let budget = Arc::new(Budget::of_users(plan.dedup_users));
        let settings = RecorderSettings {
            window: window(plan.max_age),
            precision: Precision::Nanoseconds,
            caps: CapSettings { series_max: plan.series_max, users_max: plan.users_max },
            lagging_after: (plan.flush.grace / 4).min(Duration::from_secs(1)),
            replay_window: plan.replay_window,
        };
        let (senders, recorders): (Vec<_>, Vec<_>) = world
            .partitions()
            .iter()
            .map(|partition| {
                let (sender, receiver) = mpsc::channel(QUEUED_BATCHES);
                let recorder = Recorder {
                    partition,
                    settings,
                    batches: receiver,
                    store: Arc::clone(&recorded_to),
                    overflow: OverflowSeries::new(&world.partitions(), partition),
                    spool: None,
                    dedup: Arc::clone(&budget),
                    replay: Arc::clone(&replay),
                    node: Arc::clone(&life.shared),
                    metrics: Arc::clone(&metrics),
                    heartbeat: life.shared.progress.watch("recorder"),
                    abort: abort.clone(),
                };
                let recording: BoxFuture<'_, ()> = Box::pin(recorder.run());
                (sender, recording)
            })
            .unzip();
        let flush = Flush {
            store: to_drain.clone(),
            outputs: outputs.collect(),
            arbiter: world.arbiter(),
            partitions: world.partitions(),
            settings: plan.flush,
            witness_file: None,
            contributions: None,
            node: Arc::clone(&life.shared),
            metrics,
            stop: life.stop.clone(),
            recorded: CancellationToken::new(),
        };
        let listening: BoxFuture<'_, ()> = Box::pin(listen(world, life, &self.inbox, senders));
        // This executor polls only futures that have been woken.
        let mut parts: FuturesUnordered<_> = recorders.into_iter().collect();
        parts.extend(flush.into_tasks().unwrap());
        parts.push(listening);
        let deadline = async {
            life.stop.cancelled().await;
            tokio::time::sleep(DRAIN).await;
        };
        tokio::select! {
            biased;
            () = all(&mut parts) => return,
            () = deadline => abort.cancel(),
        }
        all(&mut parts).await;
    }
}

async fn all(parts: &mut FuturesUnordered<BoxFuture<'_, ()>>) {
    while parts.next().await.is_some() {}
}

pub(crate) fn window(max_age: Duration) -> Window {
    Window::new(max_age, Duration::from_secs(60))
}
