//! Numbers as people read them.

/// `3.7 MiB`
pub fn bytes(n: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// `151,936`
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// `1,234/s`, `85.3/s`
pub fn rate(count: usize, seconds: f64) -> String {
    let rate = count as f64 / seconds.max(1e-9);
    if rate < 100.0 { format!("{rate:.1}/s") } else { format!("{}/s", thousands(rate as u64)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(bytes(500), "500 B");
        assert_eq!(bytes(3_862_272), "3.7 MiB");
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(151_936), "151,936");
        assert_eq!(rate(10, 2.0), "5.0/s");
        assert_eq!(rate(5000, 2.0), "2,500/s");
    }
}
