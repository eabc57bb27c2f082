//! Tests and measures three processes with a real Redis server and with a real Redis Cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use testing::process::signal;

use crate::site::Site;
use crate::worker::{JOB, Job, Told, Work, now_us};

/// Ensures that only one measurement runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Process {
    child: Child,
    told: Receiver<Told>,
}

impl Process {
    fn start(job: &Job) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "worker::process", "--nocapture", "--test-threads", "1"])
            .env(JOB, serde_json::to_string(job).unwrap())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, told) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(told) = line.strip_prefix('@') {
                    let _ = sender.send(serde_json::from_str(told).unwrap());
                }
            }
        });
        Self { child, told }
    }

    /// Waits until the process has exited, and returns its remaining output.
    fn finish(mut self) -> Vec<Told> {
        let told = self.told.iter().collect();
        assert!(self.child.wait().unwrap().success());
        told
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn job(site: &Site, work: Work) -> Job {
    Job {
        url: site.url(),
        prefix: site.prefix.clone(),
        // Leave time for the processes to start and connect.
        start_us: now_us() + 1_000_000,
        lock_ms: 5000,
        value_ms: 60_000,
        cost_ms: 200,
        work,
    }
}

/// Runs three processes with a job that `part` varies for each process. Returns their output.
fn three(job: &Job, part: impl Fn(u32, &mut Job)) -> Vec<Told> {
    let processes: Vec<_> = (0..3)
        .map(|number| {
            let mut job = job.clone();
            part(number, &mut job);
            Process::start(&job)
        })
        .collect();
    processes.into_iter().flat_map(Process::finish).collect()
}

fn computations(told: &[Told]) -> Vec<(u64, u64)> {
    let mut computations: Vec<_> = told
        .iter()
        .filter_map(|told| match told {
            Told::Computed { began_us, ended_us } => Some((*began_us, *ended_us)),
            _ => None,
        })
        .collect();
    computations.sort_unstable();
    computations
}

fn median(mut numbers: Vec<u64>) -> u64 {
    numbers.sort_unstable();
    numbers[numbers.len() / 2]
}

/// 1,000 requests within 50 ms for a missing key result in one computation and 1,000 equal replies soon after it.
fn one_computation_for_a_thousand_requests(site: &Site, setup: &str) {
    let _alone = alone();
    let mut latest = Vec::new();
    let mut all = Vec::new();
    for round in 0..3 {
        let key = format!("cold{round}");
        let told = three(
            &job(site, Work::Burst { key: key.clone(), requests: 0, over_ms: 50 }),
            |number, job| {
                let requests = if number == 0 { 334 } else { 333 };
                job.work = Work::Burst { key: key.clone(), requests, over_ms: 50 };
            },
        );
        let computations = computations(&told);
        assert_eq!(computations.len(), 1, "computations");
        let ended_us = computations[0].1;
        let mut values = BTreeSet::new();
        let mut late_us = Vec::new();
        for told in &told {
            if let Told::Answer { asked_us, answered_us, token, value } = told {
                values.insert((*token, value.clone()));
                late_us.push(answered_us.saturating_sub(ended_us.max(*asked_us)));
            }
        }
        assert_eq!((late_us.len(), values.len()), (1000, 1), "replies and distinct values");
        latest.push(*late_us.iter().max().unwrap());
        all.extend(late_us);
    }
    let (median_latest, median_all) = (median(latest.clone()), median(all));
    eprintln!(
        "{setup}: 1,000 requests in 3 processes: 1 computation; delay of replies after the computation: median \
         {median_all} µs; last reply per round: median {median_latest} µs of {latest:?}"
    );
    assert!(median_all < 500_000, "{median_all} µs");
}

/// If the computing process is killed, a different one finishes the work within the duration of the lease plus one second.
fn a_killed_process_passes_the_work_on(site: &Site, setup: &str) {
    let _alone = alone();
    let key = "killed".to_owned();
    let mut hanging = job(site, Work::Hang { key: key.clone() });
    (hanging.lock_ms, hanging.start_us) = (1000, 0);
    let mut victim = Process::start(&hanging);
    while victim.told.recv().unwrap() != Told::Computing {}
    // Two other processes wait for the value.
    let waiting =
        Job { cost_ms: 1, work: Work::Burst { key, requests: 20, over_ms: 1 }, ..hanging };
    let others = [Process::start(&waiting), Process::start(&waiting)];
    for other in &others {
        assert_eq!(other.told.recv().unwrap(), Told::Ready);
    }
    // Sleep for longer than the lease lasts, so that it has to be renewed.
    std::thread::sleep(Duration::from_millis(1500));
    for other in &others {
        assert!(other.told.try_recv().is_err(), "computed while another process was alive");
    }
    let killed_us = now_us();
    signal(victim.child.id(), "KILL");
    victim.child.wait().unwrap();
    let told: Vec<_> = others.into_iter().flat_map(Process::finish).collect();
    let computations = computations(&told);
    assert_eq!(computations.len(), 1);
    let answers = told.iter().filter(|told| matches!(told, Told::Answer { .. }));
    assert_eq!(answers.count(), 40);
    let took_us = computations[0].1 - killed_us;
    eprintln!("{setup}: 1 s lock; another process finished computing {took_us} µs after the kill");
    assert!(took_us < 2_000_000, "{took_us} µs");
}

/// Positions 0 to 4 of a thousand lists, requested in any order by any process, are always five items of the same list.
fn five_positions_are_five_items_of_one_list(site: &Site, setup: &str) {
    const ROUNDS: u64 = 1000;
    let _alone = alone();
    let seed = testing::load::seed();
    let began = Instant::now();
    let told =
        three(&job(site, Work::Positions { seed, rounds: ROUNDS, process: 0 }), |number, job| {
            job.work = Work::Positions { seed, rounds: ROUNDS, process: number }
        });
    let mut lists: BTreeMap<u64, BTreeMap<usize, u64>> = BTreeMap::new();
    for told in told {
        if let Told::Item { round, position, item } = told {
            let before = lists.entry(round).or_default().insert(position, item.parse().unwrap());
            assert_eq!(before, None);
        }
    }
    assert_eq!(lists.len(), usize::try_from(ROUNDS).unwrap());
    for (round, items) in lists {
        let items: Vec<_> = items.into_values().collect();
        let first = items[0];
        assert_eq!(items, [0, 1, 2, 3, 4].map(|n| first + n), "round {round}");
    }
    eprintln!(
        "{setup}: {ROUNDS} lists of five items, requested by 3 processes, in {:?}",
        began.elapsed()
    );
}

/// A read that takes longer than this, in microseconds, means that the machine was too busy to refresh the value in time.
const STOOD_STILL_US: u64 = 300_000;

/// 2,000 reads per second of a value that lives for two seconds never find it missing, although it expires repeatedly.
fn a_hot_key_is_never_missing(site: &Site, setup: &str) {
    let _alone = alone();
    for round in 0..3 {
        let (missed, slowest) = misses_of_a_hot_key(site, setup, round);
        if missed.is_empty() {
            return;
        }
        assert!(slowest > STOOD_STILL_US, "misses at {missed:?}");
    }
    panic!("this machine is too busy for this test");
}

/// Returns when reads found no value, and how long the slowest read took, both in microseconds.
fn misses_of_a_hot_key(site: &Site, setup: &str, round: u32) -> (Vec<u64>, u64) {
    let mut hot =
        job(site, Work::Hot { key: format!("hot{round}"), reads_per_s: 667, seconds: 14 });
    (hot.lock_ms, hot.value_ms, hot.cost_ms) = (1900, 2000, 150);
    let told = three(&hot, |_, _| {});
    let computations = computations(&told);
    // Reads find no value until the first value has been published.
    let first = told.iter().filter_map(|told| match told {
        Told::Reads { first_us, .. } => *first_us,
        _ => None,
    });
    let first_us = first.min().unwrap();
    let (mut all, mut refreshed, mut slowest) = (0, 0, 0);
    let mut missed: Vec<u64> = Vec::new();
    for told in &told {
        if let Told::Reads { reads, missed_at_us, refreshes, failed, slowest_us, .. } = told {
            assert_eq!(*failed, 0);
            all += reads;
            refreshed += refreshes;
            slowest = slowest.max(*slowest_us);
            missed.extend(missed_at_us.iter().filter(|at_us| **at_us > first_us));
        }
    }
    let together = computations.windows(2).filter(|pair| pair[1].0 < pair[0].1).count();
    eprintln!(
        "{setup}: {all} reads, {refreshed} refreshes, {} misses, {together} concurrent computations; \
         slowest read of a cached value {slowest} µs",
        missed.len()
    );
    assert_eq!(together, 0, "concurrent computations");
    assert!(computations.len() > 6, "{} computations", computations.len());
    (missed, slowest)
}

macro_rules! on_each {
    ($($name:ident: $test:ident;)*) => {
        mod one_redis {
            $(#[test]
            fn $name() {
                super::$test(&crate::site::Site::redis(), "one Redis");
            })*
        }
        mod redis_cluster {
            $(#[test]
            fn $name() {
                super::$test(&crate::site::Site::cluster(), "Redis Cluster");
            })*
        }
    };
}

on_each! {
    a_thousand_requests: one_computation_for_a_thousand_requests;
    a_killed_process: a_killed_process_passes_the_work_on;
    five_positions: five_positions_are_five_items_of_one_list;
    a_hot_key: a_hot_key_is_never_missing;
}

/// For comparison, reads, computes and writes a value without protection.
#[test]
fn stampede_without_protection() {
    let _alone = alone();
    let site = Site::redis();
    let key = format!("{}:cold", site.prefix);
    let work = Work::Stampede { key, requests: 333, over_ms: 50 };
    let computed = computations(&three(&job(&site, work), |_, _| {})).len();
    eprintln!("without protection: 999 requests, {computed} computations");
    assert!(computed > 10, "{computed}");
}
