//! Times as text.

/// Seconds and nanoseconds since 1970 in UTC, as RFC 3339.
pub(crate) fn rfc3339(seconds: u64, nanoseconds: u32) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days as i64);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanoseconds:09}Z")
}

/// Year, month and day of a number of days since 1970, in the Gregorian calendar.
fn date(days: i64) -> (i64, i64, i64) {
    // years begin in March, so that the leap day is the last of a year; an era has 400 years
    let shifted = days + 719_468;
    let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
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
    }
}
