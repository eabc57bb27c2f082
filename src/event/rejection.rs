//! Why a line was not counted. Every reason is a label value of `eds_events_rejected_total`.

macro_rules! rejections {
    ($($variant:ident => $label:literal, $message:literal, $remedy:literal;)*) => {
        /// Why a line was not counted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
        #[expect(missing_docs, reason = "each reason has a message")]
        pub enum Rejection {
            $(#[error($message)] $variant,)*
        }

        impl Rejection {
            /// Every reason, in the order of the metrics.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the reason's name in the metrics.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$variant => $label),* }
            }

            pub(crate) const fn remedy(self) -> &'static str {
                match self { $(Self::$variant => $remedy),* }
            }

            pub(crate) fn labelled(label: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|reason| reason.label() == label)
            }

            /// Returns the reason's index in [`Rejection::ALL`].
            #[must_use]
            pub const fn index(self) -> usize {
                self as usize
            }
        }
    };
}

rejections! {
    LineTooLong => "line_too_long", "the line is longer than input.max_line",
        "shorten the line, or raise input.max_line on all nodes";
    Truncated => "truncated", "the datagram is longer than input.max_datagram and was cut in this line",
        "send smaller datagrams, or raise input.max_datagram on all nodes";
    NotUtf8 => "not_utf8", "the line is not UTF-8",
        "have the sender encode its lines as UTF-8";
    ControlCharacter => "control_character", "the line contains a control character",
        "have the sender leave out control characters";
    TagsMissing => "tags_missing", "the line has no tag",
        "send other protocols (statsd, collectd) elsewhere; have the sender write event_type=login,product=shop value=USER TIMESTAMP (docs/input.md)";
    TagMalformed => "tag_malformed", "a tag is not of the form key=value",
        "send other protocols (statsd, collectd) elsewhere; have the sender write event_type=login,product=shop value=USER TIMESTAMP (docs/input.md)";
    TagKeyEmpty => "tag_key_empty", "a tag key is empty",
        "have the sender name each tag";
    TagKeyRepeated => "tag_key_repeated", "a tag key occurs twice; a measurement is the tag input.measurement_tag",
        "have the sender leave out one of the two, or change input.measurement_tag on all nodes";
    TagReserved => "tag_reserved", "the tag keys time, value, _field, _measurement and eds_overflow are reserved",
        "have the sender use another key";
    TagTooLong => "tag_too_long", "a tag key or value is longer than input.max_tag",
        "shorten the tag, or raise input.max_tag on all nodes";
    TrailingBackslash => "trailing_backslash", "a tag ends in a backslash, which line protocol cannot represent (at a relay: or the line does, and has no timestamp)",
        "have the sender leave out the backslash";
    AmbiguousBackslash => "ambiguous_backslash", "a tag has a backslash before an escaped character, which servers read differently",
        "have the sender use another character";
    SeriesTooLong => "series_too_long", "the tags together are longer than input.max_series",
        "send fewer or shorter tags, or raise input.max_series on all nodes";
    FieldMalformed => "field_malformed", "a field is not of the form key=value",
        "have the sender write event_type=login,product=shop value=USER TIMESTAMP (docs/input.md)";
    QuoteUnclosed => "quote_unclosed", "a quoted field is not closed",
        "have the sender close the quote, and escape quotes within it by a backslash";
    UserMissing => "user_missing", "the line has no field of the name input.user_field",
        "have the sender add the field, or set input.user_field on all nodes to the field that it sends; send other protocols (statsd, collectd) elsewhere";
    UserRepeated => "user_repeated", "the field input.user_field occurs twice",
        "have the sender leave out one of the two";
    UserEmpty => "user_empty", "the user is empty",
        "have the sender name the user";
    UserTooLong => "user_too_long", "the user is longer than input.max_user",
        "shorten the user, or raise input.max_user on all nodes";
    TimestampInvalid => "timestamp_invalid", "the timestamp is not an integer in the range of nanoseconds since 1970",
        "have the sender end the line in one whole number, in the unit of input.timestamp_precision";
    TimestampInSeconds => "timestamp_in_s", "the timestamp looks like seconds, which is not input.timestamp_precision",
        "set input.timestamp_precision to \"s\" on all nodes, or have the sender stamp in the unit that it says";
    TimestampInMilliseconds => "timestamp_in_ms", "the timestamp looks like milliseconds, which is not input.timestamp_precision",
        "set input.timestamp_precision to \"ms\" on all nodes, or have the sender stamp in the unit that it says";
    TimestampInMicroseconds => "timestamp_in_us", "the timestamp looks like microseconds, which is not input.timestamp_precision",
        "set input.timestamp_precision to \"us\" on all nodes, or have the sender stamp in the unit that it says";
    TimestampInNanoseconds => "timestamp_in_ns", "the timestamp looks like nanoseconds, which is not input.timestamp_precision",
        "set input.timestamp_precision to \"ns\" on all nodes, or have the sender stamp in the unit that it says";
    TooOld => "too_old", "the event is older than input.max_age",
        "check the sender's clock and delay, or raise input.max_age on all nodes";
    TooFarAhead => "too_far_ahead", "the event is further ahead of the clock than input.max_future",
        "check the sender's clock, or raise input.max_future on all nodes";
    TooManyUsers => "too_many_users", "the series has input.max_users_per_series users in this minute",
        "find the sender that invents users, or raise input.max_users_per_series on all nodes";
    RateLimited => "rate_limited", "the source address sends more than input.max_rate_per_source lines a second",
        "find the sender of the flood, or raise input.max_rate_per_source";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_is_the_position_in_all() {
        for (place, reason) in Rejection::ALL.iter().enumerate() {
            assert_eq!(reason.index(), place);
        }
    }
}
