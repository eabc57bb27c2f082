//! Events in the model, which consist of numbers, and the names of series and users in lines.

pub(crate) const SECOND: i64 = 1_000_000_000;
pub(crate) const MINUTE: i64 = 60 * SECOND;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Event {
    pub(crate) series: u8,
    pub(crate) user: u8,
    pub(crate) at: i64,
}

impl Event {
    pub(crate) const fn minute(self) -> i64 {
        self.at.div_euclid(MINUTE)
    }
}

/// The names of all series, followed by the overflow series of three partitions and by [`GROUP`].
const SERIES: [&str; 8] = [
    "kind=x,series=0",
    "kind=x,series=1",
    "kind=x,series=2",
    "kind=x,series=3",
    "eds_overflow=series,partition=0",
    "eds_overflow=series,partition=1",
    "eds_overflow=series,partition=2",
    "kind=x",
];

/// The number of the group that has all series, if a rollup groups by `kind`.
pub(crate) const GROUP: u8 = 7;

pub(crate) fn overflow_of(partition: usize) -> u8 {
    4 + u8::try_from(partition).unwrap()
}

pub(crate) fn overflows(series: u8) -> Option<usize> {
    (4..GROUP).contains(&series).then(|| usize::from(series - 4))
}

pub(crate) fn series_name(series: u8) -> &'static str {
    SERIES[usize::from(series)]
}

pub(crate) fn series_number(name: &str) -> u8 {
    let number = SERIES.iter().position(|known| *known == name);
    let number = number.unwrap_or_else(|| panic!("{name:?} was never sent"));
    u8::try_from(number).unwrap()
}

pub(crate) fn user_name(user: u8) -> String {
    format!("user{user}")
}

pub(crate) fn user_number(name: &str) -> u8 {
    let number = name.strip_prefix("user").and_then(|rest| rest.parse().ok());
    number.unwrap_or_else(|| panic!("{name:?} was never sent"))
}
