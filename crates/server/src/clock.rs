//! Times as text.

use jiff::Timestamp;

/// Seconds and nanoseconds since 1970 in UTC, as RFC 3339.
pub(crate) fn rfc3339(seconds: u64, nanoseconds: u32) -> String {
    let time = i64::try_from(seconds).ok().and_then(|s| Timestamp::new(s, nanoseconds.cast_signed()).ok());
    format!("{:.9}", time.unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, want) in [
            (0, "1970-01-01T00:00:00.000000007Z"),
            (951_782_399, "2000-02-28T23:59:59.000000007Z"),
            (951_782_400, "2000-02-29T00:00:00.000000007Z"),
            (1_709_251_200, "2024-03-01T00:00:00.000000007Z"),
            (1_794_859_767, "2026-11-16T20:09:27.000000007Z"),
        ] {
            assert_eq!(rfc3339(seconds, 7), want);
        }
        assert_eq!(rfc3339(u64::MAX, 0), "9999-12-30T22:00:00.999999999Z");
    }
}
