//! [`LineRules`]: what makes a line valid, beyond the grammar.

use super::Precision;

/// The longest that the parts of a line may be, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct LineLimits {
    /// The whole line, without its end.
    pub line: usize,
    /// All tags together, in canonical form.
    pub series: usize,
    /// One tag key, and one tag value, escaped.
    pub tag: usize,
    /// The user, decoded.
    pub user: usize,
}

impl LineLimits {
    /// As long as one likes.
    pub const NONE: Self =
        Self { line: usize::MAX, series: usize::MAX, tag: usize::MAX, user: usize::MAX };
}

/// What makes a line valid, beyond the grammar.
#[derive(Debug, Clone)]
pub struct LineRules {
    /// The field that holds the user.
    pub user_field: String,
    /// The unit of timestamps.
    pub precision: Precision,
    /// The tag key under which a measurement joins the series; `None` keeps it out.
    pub measurement_tag: Option<String>,
    /// The bounds of the parts.
    pub limits: LineLimits,
}

/// The defaults of the configuration: the user is in `value`, timestamps are in nanoseconds, a measurement is
/// the tag `measurement`; lines of 8 KiB, series of 1 KiB, tags and users of 256 bytes at most.
impl Default for LineRules {
    fn default() -> Self {
        let limits = LineLimits { line: 8192, series: 1024, tag: 256, user: 256 };
        Self {
            user_field: "value".to_owned(),
            precision: Precision::Nanoseconds,
            measurement_tag: Some("measurement".to_owned()),
            limits,
        }
    }
}
