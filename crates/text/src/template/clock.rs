//! `strftime_now`: a civil time formatted like C's `strftime` in the C locale.

use jiff::SignedDuration;
use jiff::civil::{DateTime, date};
use jiff::fmt::strtime::{BrokenDownTime, Config, PosixCustom};

/// 1970-01-01 00:00.
const EPOCH: DateTime = date(1970, 1, 1).at(0, 0, 0, 0);
/// Seconds of the first and the last moment that Python's `datetime` has.
const FIRST: i64 = -62_135_596_800;
const LAST: i64 = 253_402_300_799;

/// `datetime.strftime(format)` of the moment `seconds` after 1970-01-01 00:00, local time.
pub(super) fn strftime(format: &str, seconds: i64) -> String {
    let now = EPOCH.saturating_add(SignedDuration::from_secs(seconds.clamp(FIRST, LAST)));
    // unknown directives are written as they are
    let config = Config::new().custom(PosixCustom::new()).lenient(true);
    BrokenDownTime::from(now).to_string_with_config(&config, translated(format)).unwrap_or_default()
}

/// Python's directives as jiff writes them: a naive time has no zone, and its fraction has six digits.
fn translated(format: &str) -> String {
    let mut out = String::with_capacity(format.len());
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        match (c, if c == '%' { chars.next() } else { None }) {
            ('%', Some('Z' | 'z')) => {}
            ('%', Some('f')) => out.push_str("%6f"),
            (c, next) => out.extend([c].into_iter().chain(next)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn dates_as_python_writes_them() {
        let all = "%Y-%m-%d %H:%M:%S %a %A %b %B %j %y %I %p %e %-d %% %w %u|%Z|%c";
        // datetime.datetime(...).strftime(all)
        for (seconds, text) in [
            (
                0,
                "1970-01-01 00:00:00 Thu Thursday Jan January 001 70 12 AM  1 1 % 4 4||Thu Jan  1 00:00:00 1970",
            ),
            (
                951_782_399,
                "2000-02-28 23:59:59 Mon Monday Feb February 059 00 11 PM 28 28 % 1 1||Mon Feb 28 23:59:59 2000",
            ),
            (
                951_782_400,
                "2000-02-29 00:00:00 Tue Tuesday Feb February 060 00 12 AM 29 29 % 2 2||Tue Feb 29 00:00:00 2000",
            ),
            (
                1_735_646_400,
                "2024-12-31 12:00:00 Tue Tuesday Dec December 366 24 12 PM 31 31 % 2 2||Tue Dec 31 12:00:00 2024",
            ),
        ] {
            assert_eq!(strftime(all, seconds), text);
        }
        assert_eq!(strftime("%d %b %Y", i64::MAX), "31 Dec 9999");
        assert_eq!(strftime("100%", 0), "100%");
        assert_eq!(strftime("%f%Z%z|%%Z|%%%Z|%!|%", 0), "000000|%Z|%|%!|%");
        assert_eq!(
            strftime("%F %T %X %R %D %x %h%n%t", 0),
            "1970-01-01 00:00:00 00:00:00 00:00 01/01/70 01/01/70 Jan\n\t"
        );
    }
}
