//! Parses input lines: `[measurement,]key=value[,key=value…] field=value[,field=value…] [timestamp]`. A backslash escapes
//! only commas, equals signs and spaces, so the escaped form of a tag is unique: the tags as written, sorted by key, are the
//! canonical series. In tags, two backslashes before such a character are rejected, because InfluxDB's parsers disagree.

use std::ops::Range;

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::batch::Hint;
use super::datagram::Piece;
use super::partition::is_reserved;
use super::scan::{
    NAME_ENDS, User, control_characters, escape, is_ambiguous, scan_until, scan_value, skip_spaces,
    usual_end, without_outer_spaces,
};
use super::{Precision, Rejection, statsd};

/// Approximate limit on the memory for cached heads, in bytes. When it is reached, all cached heads are dropped.
const HEADS_BYTES_MAX: usize = 16 << 20;
/// Approximate size of a cached head in bytes, excluding its series.
const HEAD_BYTES: usize = 2 * size_of::<Head>();
/// The number of lines whose heads are looked up together.
const LOOKED_UP: usize = 16;

/// Maximum lengths of the parts of a line, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct LineLimits {
    /// The whole line, without its line ending.
    pub line: usize,
    /// All tags together, in canonical form.
    pub series: usize,
    /// Each tag key and each tag value, in escaped form.
    pub tag: usize,
    /// The user, in decoded form.
    pub user: usize,
}

impl LineLimits {
    /// No limit on any part.
    pub const NONE: Self =
        Self { line: usize::MAX, series: usize::MAX, tag: usize::MAX, user: usize::MAX };
}

/// The configured rules for parsing lines.
#[derive(Debug, Clone)]
pub struct LineRules {
    /// The name of the field that contains the user.
    pub user_field: String,
    /// The unit of timestamps.
    pub precision: Precision,
    /// Whether datagrams may contain `statsd` sets.
    pub statsd: bool,
    /// The tag key to use for the measurement; `None` leaves the measurement out of the series.
    pub measurement_tag: Option<String>,
    /// The maximum lengths of the parts of a line.
    pub limits: LineLimits,
}

impl Default for LineRules {
    fn default() -> Self {
        let limits = LineLimits { line: 8192, series: 1024, tag: 256, user: 256 };
        Self {
            user_field: "value".to_owned(),
            precision: Precision::Nanoseconds,
            statsd: false,
            measurement_tag: Some("measurement".to_owned()),
            limits,
        }
    }
}

/// One event, borrowed from the input and the parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    /// The canonical series: the tags sorted by key, in escaped form.
    pub series: &'a str,
    /// The user, in decoded form. It is never parsed as a number.
    pub user: &'a str,
    /// The timestamp, in nanoseconds since the epoch; `None` if the line has none.
    pub timestamp: Option<i64>,
}

#[derive(Debug)]
pub(crate) struct HintedLine<'a> {
    pub(crate) series: &'a str,
    /// The user, in decoded form. Always UTF-8, but kept as bytes because converting many users at once is cheaper.
    pub(crate) user: &'a [u8],
    pub(crate) timestamp: Option<i64>,
    /// The hint of the series, to be updated with the group of this event.
    pub(crate) hint: &'a mut Hint,
}

/// The result of looking up the head of a line: the text before its first space, which contains all its tags.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LookedUp {
    /// The length of the head and its place in the cache, if it is cached.
    known: Option<(usize, usize)>,
    /// The state of the cache, which has to be the same for the place to be valid.
    version: u64,
}

/// Parses lines one at a time, and caches the tags of recent lines.
#[derive(Debug)]
pub struct Parser {
    /// The user field's name, escaped, between a space and an equals sign.
    user_field: Box<[u8]>,
    measurement_tag: Option<Box<[u8]>>,
    precision: Precision,
    statsd: bool,
    limits: LineLimits,
    heads: Heads,
    /// The tags of the current line; kept to reuse the allocation.
    tags: Vec<Tag>,
    /// The series of the current line, if its tags are not sorted.
    series: Vec<u8>,
    /// The user of the current line, if it contains escapes.
    user: Vec<u8>,
}

#[derive(Debug, Clone)]
struct Tag {
    /// `None` for the measurement.
    key: Option<Range<usize>>,
    value: Range<usize>,
}

impl Parser {
    /// Creates a parser with these rules.
    #[must_use]
    pub fn new(rules: &LineRules) -> Self {
        Self {
            user_field: [b" ", &escape(&rules.user_field)[..], b"="].concat().into(),
            measurement_tag: rules.measurement_tag.as_deref().map(|tag| escape(tag).into()),
            precision: rules.precision,
            statsd: rules.statsd,
            limits: rules.limits,
            heads: Heads::default(),
            tags: Vec::new(),
            series: Vec::new(),
            user: Vec::new(),
        }
    }

    /// Sets the unit of the timestamps in the lines to come.
    pub(crate) const fn set_precision(&mut self, precision: Precision) {
        self.precision = precision;
    }

    /// Returns a `statsd` set in line protocol; `None` for any other line, or if the rules do not permit sets. A line that can
    /// be parsed is not a set, even if it looks like one.
    pub(crate) fn statsd_set(&self, line: &[u8]) -> Option<Vec<u8>> {
        if self.statsd { statsd::line_protocol(line, &self.user_field) } else { None }
    }

    /// Parses one line, without its line ending.
    pub fn parse<'a>(&'a mut self, line: &'a [u8]) -> Result<Line<'a>, Rejection> {
        let line = self.parse_hinted(line, self.look_up(line))?;
        Ok(Line {
            series: line.series,
            user: std::str::from_utf8(line.user).map_err(|_| Rejection::NotUtf8)?,
            timestamp: line.timestamp,
        })
    }

    /// Takes the next lines, and looks up their heads; `None` if there are no more. With many series, each head is a cache
    /// miss, and the processor waits for those of several lines at the same time.
    pub(crate) fn look_up_lines<'a>(
        &self,
        lines: &mut impl Iterator<Item = Piece<'a>>,
    ) -> Option<[Option<(Piece<'a>, LookedUp)>; LOOKED_UP]> {
        let mut found = [None; LOOKED_UP];
        for (found, piece) in found.iter_mut().zip(lines) {
            *found = Some(match piece {
                Piece::Line(line) => (piece, self.look_up(line)),
                Piece::Truncated => (piece, LookedUp::default()),
            });
        }
        found[0].is_some().then_some(found)
    }

    /// Looks up the head of a line.
    pub(crate) fn look_up(&self, line: &[u8]) -> LookedUp {
        // Tags are cached without leading spaces.
        let line = &line[skip_spaces(line, 0)..];
        let known = memchr::memchr(b' ', line)
            .filter(|space| *space <= self.limits.line)
            .and_then(|space| Some((space, self.heads.find(&line[..space])?)));
        LookedUp { known, version: self.heads.version }
    }

    /// Parses one line, whose head was looked up beforehand.
    pub(crate) fn parse_hinted<'a>(
        &'a mut self,
        line: &'a [u8],
        looked_up: LookedUp,
    ) -> Result<HintedLine<'a>, Rejection> {
        if line.len() > self.limits.line {
            return Err(Rejection::LineTooLong);
        }
        let is_valid = looked_up.version == self.heads.version;
        let LookedUp { known, .. } = if is_valid { looked_up } else { self.look_up(line) };
        let line = &line[skip_spaces(line, 0)..];
        // Only the text after a known head has to be parsed.
        let usual = known.and_then(|(space, head)| {
            let (user, timestamp) = usual_end(&line[space..], &self.user_field, self.precision)?;
            (user.len() <= self.limits.user).then_some((head, user, timestamp))
        });
        if let Some((head, user, timestamp)) = usual {
            let (series, hint) = self.heads.get(head).ok_or(Rejection::NotUtf8)?;
            return Ok(HintedLine { series, user, timestamp, hint });
        }
        let rest = known.map_or(line, |(space, _)| &line[space..]);
        let text = std::str::from_utf8(rest).map_err(|_| Rejection::NotUtf8)?;
        let mut controls = control_characters(text);
        let text = without_outer_spaces(text);
        let line = text.as_bytes();
        let tags_end = known.map_or_else(|| self.scan_tags(line), |_| Ok(0))?;
        let fields_start = skip_spaces(line, tags_end);
        let (user, fields_end) = self.scan_fields(line, fields_start, &mut controls)?;
        if controls > 0 {
            return Err(Rejection::ControlCharacter);
        }
        // All parts are cut at ASCII bytes, so these checks cannot fail. If there were a bug, it would only cost one line.
        let cut = |range| text.get(range).ok_or(Rejection::NotUtf8);
        let utf8 = |bytes| std::str::from_utf8(bytes).map_err(|_| Rejection::NotUtf8);
        let timestamp = cut(skip_spaces(line, fields_end)..line.len())?;
        let timestamp = self.precision.read(timestamp)?;
        let in_order = known.map_or_else(|| self.order_tags(line), |_| Ok(None))?;
        let user = match user {
            User::Literal(range) => cut(range)?,
            User::Decoded => utf8(&self.user)?,
        };
        match user.len() {
            0 => return Err(Rejection::UserEmpty),
            bytes if bytes > self.limits.user => return Err(Rejection::UserTooLong),
            _ => {}
        }
        let (series, hint) = if let Some((_, known)) = known {
            self.heads.get(known).ok_or(Rejection::NotUtf8)?
        } else {
            let series = match in_order {
                Some(range) => cut(range)?,
                None => utf8(&self.series)?,
            };
            if series.len() > self.limits.series {
                return Err(Rejection::SeriesTooLong);
            }
            let tags = cut(0..tags_end)?;
            let is_all = memchr::memchr(b' ', line) == Some(tags_end);
            (series, self.heads.learn(is_all.then_some(tags), series))
        };
        Ok(HintedLine { series, user: user.as_bytes(), timestamp, hint })
    }

    /// Collects the tags in `self.tags`, and returns where they end.
    fn scan_tags(&mut self, line: &[u8]) -> Result<usize, Rejection> {
        self.tags.clear();
        let mut at = 0;
        loop {
            let start = at;
            let equals = scan_until(line, at, &NAME_ENDS)?;
            if line.get(equals) == Some(&b'=') {
                at = self.scan_tag(line, start, equals)?;
            } else if start == 0 && equals > 0 {
                self.check_tag_length(equals)?;
                if self.measurement_tag.is_some() {
                    if is_ambiguous(&line[..equals]) {
                        return Err(Rejection::AmbiguousBackslash);
                    }
                    self.tags.push(Tag { key: None, value: 0..equals });
                }
                at = equals;
            } else {
                return Err(Rejection::TagMalformed);
            }
            match line.get(at) {
                Some(b',') => at += 1,
                _ => break,
            }
        }
        if self.tags.is_empty() { Err(Rejection::TagsMissing) } else { Ok(at) }
    }

    /// Adds the tag whose key spans `start` to `equals`, and returns where its value ends.
    fn scan_tag(&mut self, line: &[u8], start: usize, equals: usize) -> Result<usize, Rejection> {
        if equals == start {
            return Err(Rejection::TagKeyEmpty);
        }
        if is_reserved(&line[start..equals]) {
            return Err(Rejection::TagReserved);
        }
        let value = equals + 1;
        let end = scan_until(line, value, &NAME_ENDS)?;
        if end == value || line.get(end) == Some(&b'=') {
            return Err(Rejection::TagMalformed);
        }
        self.check_tag_length(equals - start)?;
        self.check_tag_length(end - value)?;
        if is_ambiguous(&line[start..end]) {
            return Err(Rejection::AmbiguousBackslash);
        }
        self.tags.push(Tag { key: Some(start..equals), value: value..end });
        Ok(end)
    }

    const fn check_tag_length(&self, bytes: usize) -> Result<(), Rejection> {
        if bytes > self.limits.tag { Err(Rejection::TagTooLong) } else { Ok(()) }
    }

    /// Sorts the tags by key. Returns the series as a range of the line, or writes it to `self.series` if the order changes.
    fn order_tags(&mut self, line: &[u8]) -> Result<Option<Range<usize>>, Rejection> {
        let Self { tags, measurement_tag, series, .. } = self;
        let key = |tag: &Tag| match &tag.key {
            Some(range) => &line[range.clone()],
            None => measurement_tag.as_deref().unwrap_or_default(),
        };
        if let [Tag { key: Some(first), .. }, ..] = &**tags
            && let Some(last) = tags.last()
            && tags.is_sorted_by(|a, b| key(a) < key(b))
        {
            return Ok(Some(first.start..last.value.end));
        }
        tags.sort_unstable_by(|a, b| key(a).cmp(key(b)));
        if tags.windows(2).any(|pair| key(&pair[0]) == key(&pair[1])) {
            return Err(Rejection::TagKeyRepeated);
        }
        series.clear();
        for tag in tags.iter() {
            if !series.is_empty() {
                series.push(b',');
            }
            series.extend_from_slice(key(tag));
            series.push(b'=');
            series.extend_from_slice(&line[tag.value.clone()]);
        }
        Ok(None)
    }

    /// Returns the user and where the fields end. Subtracts the control characters in other quoted fields from `controls`.
    fn scan_fields(
        &mut self,
        line: &[u8],
        start: usize,
        controls: &mut usize,
    ) -> Result<(User, usize), Rejection> {
        let mut at = start;
        let mut user = None;
        if at == line.len() {
            return Err(Rejection::UserMissing);
        }
        loop {
            let key = at;
            let equals = scan_until(line, at, &NAME_ENDS).map_err(|_| Rejection::FieldMalformed)?;
            if equals == key || line.get(equals) != Some(&b'=') {
                return Err(Rejection::FieldMalformed);
            }
            let name = self.user_field.get(1..self.user_field.len() - 1);
            let is_user = Some(&line[key..equals]) == name;
            if is_user && user.is_some() {
                return Err(Rejection::UserRepeated);
            }
            let value = equals + 1;
            let (found, end) = scan_value(line, value, is_user.then_some(&mut self.user))?;
            if *controls > 0 && !is_user && line.get(value) == Some(&b'"') {
                let text = std::str::from_utf8(&line[value..end]).unwrap_or_default();
                *controls -= control_characters(text);
            }
            at = end;
            if is_user {
                user = Some(found);
            }
            match line.get(at) {
                Some(b',') => at += 1,
                Some(b' ') | None => break,
                Some(_) => return Err(Rejection::QuoteUnclosed),
            }
        }
        user.map(|user| (user, at)).ok_or(Rejection::UserMissing)
    }
}

/// A cache of the series of recent heads (tags as written), so that the tags need not be parsed and sorted again.
#[derive(Debug)]
struct Heads {
    /// Keyed by a seeded 128-bit hash, which senders cannot make collide. Comparing the tags would cost a cache miss.
    known: HashTable<Head>,
    seed: u64,
    series_bytes: usize,
    /// The number of changes, after each of which entries may be in other places.
    version: u64,
    /// The hint to return for tags that are not cached.
    no_hint: Hint,
}

/// An entry of the cache. Aligned so that it never straddles two cache lines: a lookup costs at most one miss.
#[derive(Debug)]
#[repr(align(64))]
struct Head {
    tags: u128,
    series: Box<str>,
    hint: Hint,
}

impl Head {
    const fn hash(&self) -> u64 {
        hash(self.tags)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "half of the bits will do")]
const fn hash(tags: u128) -> u64 {
    tags as u64
}

impl Default for Heads {
    fn default() -> Self {
        Self {
            known: HashTable::new(),
            seed: rand::random(),
            series_bytes: 0,
            version: 0,
            no_hint: Hint::default(),
        }
    }
}

impl Heads {
    fn find(&self, tags: &[u8]) -> Option<usize> {
        let tags = xxh3_128_with_seed(tags, self.seed);
        self.known.find_bucket_index(hash(tags), |head| head.tags == tags)
    }

    fn get(&mut self, place: usize) -> Option<(&str, &mut Hint)> {
        let head = self.known.get_bucket_mut(place)?;
        Some((&head.series, &mut head.hint))
    }

    /// Caches the series of these tags, and returns its hint. Caches nothing if `tags` is `None`.
    fn learn(&mut self, tags: Option<&str>, series: &str) -> &mut Hint {
        let Some(tags) = tags else {
            self.no_hint = Hint::default();
            return &mut self.no_hint;
        };
        if self.series_bytes + self.known.len() * HEAD_BYTES >= HEADS_BYTES_MAX {
            (self.series_bytes, self.known) = (0, HashTable::new());
        }
        self.series_bytes += series.len();
        self.version += 1;
        let head = Head {
            tags: xxh3_128_with_seed(tags.as_bytes(), self.seed),
            series: series.into(),
            hint: Hint::default(),
        };
        let new = self.known.insert_unique(head.hash(), head, Head::hash);
        &mut new.into_mut().hint
    }
}

#[cfg(test)]
#[path = "line_tests.rs"]
mod tests;
