//! [`Rejection`]: why a line was rejected. Every reason is a label value of `eds_events_rejected_total`.

macro_rules! rejections {
    ($($variant:ident => $label:literal, $message:literal, $remedy:literal;)*) => {
        /// The reason why a line was rejected, so that its event is not counted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
        #[expect(missing_docs, reason = "each reason has a message")]
        pub enum Rejection {
            $(#[error($message)] $variant,)*
        }

        impl Rejection {
            /// All reasons, in the order of the metrics.
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
    Truncated => "truncated", "the datagram is longer than input.max_datagram, so this line was cut off",
        "send smaller datagrams, or raise input.max_datagram on all nodes";
    NotUtf8 => "not_utf8", "the line is not valid UTF-8",
        "have the sender encode its lines as UTF-8";
    ControlCharacter => "control_character", "the line contains a control character",
        "have the sender omit control characters";
    TagsMissing => "tags_missing", "the line has no tags",
        "send other protocols (statsd, collectd) elsewhere; have the sender write event_type=login,product=shop value=USER TIMESTAMP (docs/input.md)";
    TagMalformed => "tag_malformed", "a tag is not of the form key=value",
        "send other protocols (statsd, collectd) elsewhere; have the sender write event_type=login,product=shop value=USER TIMESTAMP (docs/input.md)";
    TagKeyEmpty => "tag_key_empty", "a tag key is empty",
        "have the sender give each tag a key";
    TagKeyRepeated => "tag_key_repeated", "a tag key occurs twice (the measurement becomes the tag named in input.measurement_tag)",
        "have the sender omit one of the two tags, or change input.measurement_tag on all nodes";
    TagReserved => "tag_reserved", "a tag key is reserved (time, value, _field, _measurement or eds_overflow)",
        "have the sender use a different key";
    TagTooLong => "tag_too_long", "a tag key or value is longer than input.max_tag",
        "shorten the tag, or raise input.max_tag on all nodes";
    TrailingBackslash => "trailing_backslash", "a tag (or, on a relay, a line without a timestamp) ends in a backslash, which line protocol cannot represent",
        "have the sender omit the backslash";
    AmbiguousBackslash => "ambiguous_backslash", "a tag has a backslash before an escaped character, which servers interpret in different ways",
        "have the sender use a different character instead of the backslash";
    SeriesTooLong => "series_too_long", "the tags together are longer than input.max_series",
        "send fewer or shorter tags, or raise input.max_series on all nodes";
    FieldMalformed => "field_malformed", "a field is not of the form key=value",
        "have the sender write event_type=login,product=shop value=USER TIMESTAMP (docs/input.md)";
    QuoteUnclosed => "quote_unclosed", "a quoted field has no closing quote",
        "have the sender close the quote, and escape quotes inside it with a backslash";
    UserMissing => "user_missing", "the field named in input.user_field is missing",
        "have the sender add the field, or set input.user_field on all nodes to the field it sends; send other protocols (statsd, collectd) elsewhere";
    UserRepeated => "user_repeated", "the field named in input.user_field occurs twice",
        "have the sender omit one of the two fields";
    UserEmpty => "user_empty", "the user is empty",
        "have the sender set the user";
    UserTooLong => "user_too_long", "the user is longer than input.max_user",
        "have the sender use a shorter user name, or raise input.max_user on all nodes";
    TimestampInvalid => "timestamp_invalid", "the timestamp is not an integer, or is out of range for nanoseconds since 1970",
        "have the sender end the line with a single integer, in the unit set by input.timestamp_precision";
    TimestampInSeconds => "timestamp_in_s", "the timestamp looks like seconds, but input.timestamp_precision is a different unit",
        "set input.timestamp_precision to \"s\" on all nodes, or have the sender use the configured unit";
    TimestampInMilliseconds => "timestamp_in_ms", "the timestamp looks like milliseconds, but input.timestamp_precision is a different unit",
        "set input.timestamp_precision to \"ms\" on all nodes, or have the sender use the configured unit";
    TimestampInMicroseconds => "timestamp_in_us", "the timestamp looks like microseconds, but input.timestamp_precision is a different unit",
        "set input.timestamp_precision to \"us\" on all nodes, or have the sender use the configured unit";
    TimestampInNanoseconds => "timestamp_in_ns", "the timestamp looks like nanoseconds, but input.timestamp_precision is a different unit",
        "set input.timestamp_precision to \"ns\" on all nodes, or have the sender use the configured unit";
    TimestampMissing => "timestamp_missing", "the line has no timestamp, so a repeated request would count its event twice",
        "have the client end the line with a timestamp, or set input.http.stamp to true";
    TooOld => "too_old", "the event is older than input.max_age",
        "check the sender's clock and delay, or raise input.max_age on all nodes";
    TooFarAhead => "too_far_ahead", "the event is further ahead of the clock than input.max_future",
        "check the sender's clock, or raise input.max_future on all nodes";
    TooManyUsers => "too_many_users", "the series already has input.max_users_per_series users in this minute",
        "find the sender with too many distinct users, or raise input.max_users_per_series on all nodes";
    TooManySeries => "too_many_series", "the token already has its maximum number of series in this minute",
        "find the client with too many distinct series, or raise the token's limit in input.http.tokens_file";
    RateLimited => "rate_limited", "the source address sends more than input.max_rate_per_source lines per second",
        "find the flooding sender, or raise input.max_rate_per_source";
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
