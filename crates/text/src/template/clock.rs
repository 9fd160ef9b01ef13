//! `strftime_now`: a civil time formatted like C's `strftime` in the C locale.

use std::fmt::Write;

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A civil date and time.
#[derive(Debug, Clone, Copy)]
struct Civil {
    year: i64,
    month: i64,   // 1..=12
    day: i64,     // 1..=31
    weekday: i64, // Sunday is 0
    yearday: i64, // 1..=366
    second: i64,  // of the day
}

impl Civil {
    /// The proleptic Gregorian date of `seconds` since 1970-01-01 00:00.
    fn at(seconds: i64) -> Civil {
        let days = seconds.div_euclid(86_400);
        // eras of 400 years that start on 1 March, so that leap days are last
        let z = days + 719_468;
        let era = z.div_euclid(146_097);
        let doe = z.rem_euclid(146_097);
        let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
        let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
        let mp = (5 * doy + 2) / 153;
        let month = if mp < 10 { mp + 3 } else { mp - 9 };
        let year = yoe + era * 400 + i64::from(month <= 2);
        let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        let yearday = if month > 2 { doy + 60 + i64::from(leap) } else { doy - 305 };
        Civil {
            year,
            month,
            day: doy - (153 * mp + 2) / 5 + 1,
            weekday: (days + 4).rem_euclid(7),
            yearday,
            second: seconds.rem_euclid(86_400),
        }
    }
}

/// `datetime.strftime(format)` of the moment `seconds` after 1970-01-01 00:00, local time.
pub(super) fn strftime(format: &str, seconds: i64) -> String {
    // beyond these years the calendar's arithmetic would overflow
    let now = Civil::at(seconds.clamp(-62_135_596_800, 253_402_300_799));
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            // %-d: no padding
            Some('-') => {
                let mut field = String::new();
                write_field(&mut field, chars.next(), &now);
                let short = field.trim_start_matches(['0', ' ']);
                out.push_str(if short.is_empty() { "0" } else { short });
            }
            directive => write_field(&mut out, directive, &now),
        }
    }
    out
}

fn write_field(out: &mut String, directive: Option<char>, now: &Civil) {
    let (hour, minute, second) = (now.second / 3_600, now.second / 60 % 60, now.second % 60);
    let day = DAYS.get(now.weekday as usize).copied().unwrap_or_default();
    let month = MONTHS.get(now.month as usize - 1).copied().unwrap_or_default();
    let hour12 = if hour % 12 == 0 { 12 } else { hour % 12 };
    let written = match directive {
        Some('Y') => write!(out, "{}", now.year),
        Some('m') => write!(out, "{:02}", now.month),
        Some('d') => write!(out, "{:02}", now.day),
        Some('e') => write!(out, "{:2}", now.day),
        Some('y') => write!(out, "{:02}", now.year.rem_euclid(100)),
        Some('j') => write!(out, "{:03}", now.yearday),
        Some('B') => write!(out, "{month}"),
        Some('b' | 'h') => write!(out, "{:.3}", month),
        Some('A') => write!(out, "{day}"),
        Some('a') => write!(out, "{:.3}", day),
        Some('w') => write!(out, "{}", now.weekday),
        Some('u') => write!(out, "{}", if now.weekday == 0 { 7 } else { now.weekday }),
        Some('H') => write!(out, "{hour:02}"),
        Some('I') => write!(out, "{hour12:02}"),
        Some('M') => write!(out, "{minute:02}"),
        Some('S') => write!(out, "{second:02}"),
        Some('f') => write!(out, "000000"),
        Some('p') => write!(out, "{}", if hour < 12 { "AM" } else { "PM" }),
        Some('F') => write!(out, "{}-{:02}-{:02}", now.year, now.month, now.day),
        Some('T' | 'X') => write!(out, "{hour:02}:{minute:02}:{second:02}"),
        Some('R') => write!(out, "{hour:02}:{minute:02}"),
        Some('D' | 'x') => {
            write!(out, "{:02}/{:02}/{:02}", now.month, now.day, now.year.rem_euclid(100))
        }
        Some('c') => {
            write!(out, "{day:.3} {month:.3} {:2} {hour:02}:{minute:02}:{second:02} {}", now.day, now.year)
        }
        Some('n') => writeln!(out),
        Some('t') => write!(out, "\t"),
        Some('Z' | 'z') => Ok(()), // a naive time has no zone
        Some('%') => write!(out, "%"),
        Some(other) => write!(out, "%{other}"),
        None => write!(out, "%"),
    };
    written.unwrap_or_default();
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
    }
}
