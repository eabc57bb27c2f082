//! [`Cells`]: the counts of each series and minute with events, and of each window.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::event::{Minute, Rollup};

/// A series in one minute, by its number.
pub(super) type Cell = u32;

/// The number of distinct users and of distinct events.
#[derive(Debug, Default)]
struct Counts([AtomicU64; 2]);

impl Counts {
    fn get(&self) -> (u64, u64) {
        let [users, events] = &self.0;
        (users.load(Ordering::Relaxed), events.load(Ordering::Relaxed))
    }
}

#[derive(Debug, Default)]
pub(super) struct Cells {
    series: HashMap<Arc<str>, u32>,
    names: Vec<Arc<str>>,
    numbers: HashMap<(u32, Minute), Cell>,
    /// The series and the minute of each cell.
    keys: Vec<(u32, Minute)>,
    counts: Vec<Counts>,
    windows: Vec<Windows>,
}

/// The windows of a rollup.
#[derive(Debug, Default)]
struct Windows {
    /// The window of each cell; `None` if the rollup does not count the series.
    of_cell: Vec<Option<u32>>,
    /// The start and the group of each window.
    keys: Vec<(Minute, Arc<str>)>,
    users: Vec<AtomicU64>,
}

impl Cells {
    /// Returns the number of a series in a minute.
    pub(super) fn of(&mut self, series: &str, minute: Minute) -> Cell {
        let series = if let Some(number) = self.series.get(series) {
            *number
        } else {
            let (name, number) = (Arc::<str>::from(series), number(self.names.len()));
            self.names.push(Arc::clone(&name));
            self.series.insert(name, number);
            number
        };
        *self.numbers.entry((series, minute)).or_insert_with(|| {
            self.keys.push((series, minute));
            number(self.keys.len() - 1)
        })
    }

    /// Prepares the counts, once all cells are known.
    pub(super) fn begin(&mut self, rollups: &[Rollup]) {
        self.numbers = HashMap::new();
        self.counts = self.keys.iter().map(|_| Counts::default()).collect();
        for rollup in rollups {
            let groups: Vec<Option<Arc<str>>> =
                self.names.iter().map(|name| rollup.group(name).map(Arc::from)).collect();
            let mut known: HashMap<(Minute, Arc<str>), u32> = HashMap::new();
            let mut windows = Windows::default();
            for (series, minute) in &self.keys {
                let window = groups[*series as usize].clone().map(|group| {
                    let [start, _] = rollup.every.window(*minute);
                    *known.entry((start, Arc::clone(&group))).or_insert_with(|| {
                        windows.keys.push((start, group));
                        number(windows.keys.len() - 1)
                    })
                });
                windows.of_cell.push(window);
            }
            windows.users = windows.keys.iter().map(|_| AtomicU64::new(0)).collect();
            self.windows.push(windows);
        }
    }

    pub(super) fn add(&self, cell: Cell, users: u64, events: u64) {
        let Counts([of_users, of_events]) = &self.counts[cell as usize];
        of_users.fetch_add(users, Ordering::Relaxed);
        of_events.fetch_add(events, Ordering::Relaxed);
    }

    pub(super) const fn rollups(&self) -> usize {
        self.windows.len()
    }

    /// Returns the window of a cell.
    pub(super) fn window(&self, rollup: usize, cell: Cell) -> Option<u32> {
        self.windows[rollup].of_cell[cell as usize]
    }

    pub(super) fn add_user(&self, rollup: usize, window: u32) {
        self.windows[rollup].users[window as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the first and the last minute with events.
    pub(super) fn range(&self) -> Option<[Minute; 2]> {
        let minutes = || self.keys.iter().map(|(_, minute)| *minute);
        Some([minutes().min()?, minutes().max()?])
    }

    /// Returns the number of distinct events.
    pub(super) fn events(&self) -> u64 {
        self.counts.iter().map(|counts| counts.get().1).sum()
    }

    /// Returns the minute, series, users and events of all cells, by minute and series.
    pub(super) fn minutes(&self) -> impl Iterator<Item = (Minute, &str, u64, u64)> {
        let mut order: Vec<usize> = (0..self.keys.len()).collect();
        let name = |place: usize| &*self.names[self.keys[place].0 as usize];
        order.sort_unstable_by_key(|place| (self.keys[*place].1, name(*place)));
        order.into_iter().map(move |place| {
            let (users, events) = self.counts[place].get();
            (self.keys[place].1, name(place), users, events)
        })
    }

    /// Returns the start, group, users and events of all windows of a rollup, by start and group.
    pub(super) fn windows(&self, rollup: usize) -> impl Iterator<Item = (Minute, &str, u64, u64)> {
        let Windows { of_cell, keys, users } = &self.windows[rollup];
        let mut events = vec![0; keys.len()];
        for (window, counts) in of_cell.iter().zip(&self.counts) {
            if let Some(window) = window {
                events[*window as usize] += counts.get().1;
            }
        }
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_unstable_by_key(|place| &keys[*place]);
        order.into_iter().map(move |place| {
            let (start, group) = &keys[place];
            (*start, &**group, users[place].load(Ordering::Relaxed), events[place])
        })
    }
}

/// Returns an index as a number. There is memory for far fewer than 2³² items.
fn number(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}
