//! The charts of `tern bench serve` as one SVG: throughput and latencies over streams, or
//! histograms of one round.

use std::fmt::Write;

use super::summary::{Latencies, Summary};

mod axes;

use axes::{Frame, Panel, label};

/// Bars of a histogram.
const BINS: usize = 40;

/// Follows the light or dark theme of the viewer.
const STYLE: &str = "\
svg{color-scheme:light dark;font:12px system-ui,sans-serif}\
.back{fill:#fff}.text{fill:#1f2328}.dim{fill:#59636e}.grid{stroke:#d1d9e0}.axis{stroke:#818b98}\
.line{fill:none;stroke-width:2}.s0{--c:#0969da}.s1{--c:#bc4c00}.s2{--c:#cf222e}\
.line{stroke:var(--c)}.dot,.bar{fill:var(--c)}.s1.line{stroke-dasharray:7 3}.s2.line{stroke-dasharray:2 3}\
.mark{stroke:#1f2328;stroke-dasharray:4 3}.title{font-weight:600;font-size:14px}\
@media(prefers-color-scheme:dark){.back{fill:#0d1117}.text{fill:#f0f6fc}.dim{fill:#9198a1}.grid{stroke:#2f353d}\
.axis{stroke:#656c76}.mark{stroke:#f0f6fc}.s0{--c:#58a6ff}.s1{--c:#f0883e}.s2{--c:#ff7b72}}";

/// The charts of all rounds.
pub(crate) fn svg(title: &str, rounds: &[Summary]) -> String {
    let panels = match rounds {
        [one] => vec![
            histogram("Time to first token", "TTFT (ms)", &one.ttft),
            histogram("Inter-token latency", "ITL (ms)", &one.itl),
        ],
        _ => vec![
            throughput(rounds),
            percentiles("Time to first token", "TTFT (ms)", rounds, |round| &round.ttft),
            percentiles("Inter-token latency", "ITL (ms)", rounds, |round| &round.itl),
        ],
    };
    let (width, height) = (Panel::WIDTH * panels.len() as f64, Panel::HEIGHT + 40.0);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         role=\"img\">\n<title>{0}</title>\n<style>{STYLE}</style>\n<rect class=\"back\" width=\"100%\" height=\"100%\"/>\n\
         <text class=\"text title\" x=\"16\" y=\"26\">{0}</text>\n",
        escape(title)
    );
    for (i, panel) in panels.iter().enumerate() {
        let x = Panel::WIDTH * i as f64;
        let _ = write!(text, "<g transform=\"translate({x} 40)\">\n{}</g>\n", panel.0);
    }
    text + "</svg>\n"
}

/// A page with the charts.
pub(crate) fn html(title: &str, svg: &str) -> String {
    let style = "body{margin:0;color-scheme:light dark;background:#fff}svg{display:block;margin:auto;max-width:100%;height:auto}\
                 @media(prefers-color-scheme:dark){body{background:#0d1117}}";
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>{}</title>\n<style>{style}</style>\n{svg}</html>\n",
        escape(title)
    )
}

fn throughput(rounds: &[Summary]) -> Panel {
    let series = [
        ("output", rounds.iter().map(|round| Some(round.output_throughput())).collect()),
        ("input and output", rounds.iter().map(|round| Some(round.total_throughput())).collect()),
    ];
    lines("Throughput", "tokens per second", rounds, &series)
}

fn percentiles(title: &str, unit: &str, rounds: &[Summary], of: fn(&Summary) -> &Latencies) -> Panel {
    let series = [("P50", 50.0), ("P90", 90.0), ("P99", 99.0)].map(|(name, percent)| {
        let value = |round| of(round).percentile(percent).map(|seconds| seconds * 1e3);
        (name, rounds.iter().map(value).collect())
    });
    lines(title, unit, rounds, &series)
}

/// One line per series, over the streams of the rounds at equal distances.
fn lines(title: &str, unit: &str, rounds: &[Summary], series: &[(&str, Vec<Option<f64>>)]) -> Panel {
    let values = series.iter().flat_map(|(_, values)| values.iter().flatten());
    let frame = Frame::new(rounds.len() as f64, values.copied().fold(0.0, f64::max));
    let mut panel = Panel::new(title, "streams", unit, &frame);
    for (i, round) in rounds.iter().enumerate() {
        panel.x_tick(frame.x(i as f64 + 0.5), &round.streams.to_string());
    }
    for (s, (name, values)) in series.iter().enumerate() {
        let points = values.iter().enumerate().filter_map(|(i, value)| Some((i, (*value)?)));
        let points: Vec<_> =
            points.map(|(i, value)| (i, frame.x(i as f64 + 0.5), frame.y(value), value)).collect();
        let path: Vec<String> = points.iter().map(|(_, x, y, _)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(panel.0, "<polyline class=\"line s{s}\" points=\"{}\"/>", path.join(" "));
        for (i, x, y, value) in points {
            let (streams, value) = (rounds[i].streams, label(value, value / 100.0));
            let _ = writeln!(
                panel.0,
                "<circle class=\"dot s{s}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"><title>{streams} streams, {name}: {value}</title></circle>"
            );
        }
        panel.legend(s, name, series.iter().take(s).map(|(name, _)| name.len()).sum());
    }
    panel
}

/// Counts of values up to P99; the rest is stated below the title.
fn histogram(title: &str, unit: &str, latencies: &Latencies) -> Panel {
    let millis: Vec<f64> = latencies.values().iter().map(|seconds| seconds * 1e3).collect();
    let percentile = |percent| latencies.percentile(percent).unwrap_or(0.0) * 1e3;
    let (low, high) = (millis.first().copied().unwrap_or(0.0), percentile(99.0));
    let width = ((high - low) / BINS as f64).max(1e-6);
    let mut counts = [0_usize; BINS];
    for value in millis.iter().filter(|value| **value <= high) {
        counts[(((value - low) / width) as usize).min(BINS - 1)] += 1;
    }
    let tallest = counts.iter().copied().max().unwrap_or(0);
    let frame = Frame::new(BINS as f64, tallest as f64);
    let mut panel = Panel::new(title, unit, "count", &frame);
    let at = |value: f64| frame.x((value - low) / width);
    for tick in axes::ticks(low, low + width * BINS as f64) {
        panel.x_tick(at(tick.0), &tick.1);
    }
    for (i, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let (from, x, y) = (low + width * i as f64, frame.x(i as f64), frame.y(*count as f64));
        let _ = writeln!(
            panel.0,
            "<rect class=\"bar s0\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{} to {} ms: {count}</title></rect>",
            x + 0.5,
            frame.x(i as f64 + 1.0) - x - 1.0,
            frame.y(0.0) - y,
            label(from, width),
            label(from + width, width)
        );
    }
    let (median, last) = (percentile(50.0), millis.last().copied().unwrap_or(0.0));
    panel.mark(at(median));
    let precise = |value: f64| label(value, value / 100.0);
    panel.note(&format!("median {}, P99 {}, maximum {} ms", precise(median), precise(high), precise(last)));
    panel
}

/// Text for XML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::summary::tests::round;
    use super::*;

    fn summary(streams: usize) -> Summary {
        let (load, records) = round();
        Summary { streams, ..Summary::new(&load, &records) }
    }

    #[test]
    fn several_rounds_have_three_panels_with_a_point_per_round() {
        let text = svg("a <b> & c", &[summary(1), summary(8), summary(32)]);
        assert!(text.contains("a &lt;b&gt; &amp; c") && text.ends_with("</svg>\n"));
        assert_eq!((text.matches("<g ").count(), text.matches("</g>").count()), (3, 3));
        assert_eq!(text.matches("<polyline").count(), 2 + 3 + 3);
        assert_eq!(text.matches("<circle class=\"dot").count(), 3 * (2 + 3 + 3));
        assert!(text.contains("<title>8 streams, P99: 495</title>"), "{text}");
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }

    #[test]
    fn one_round_has_two_histograms() {
        let text = svg("t", &[summary(2)]);
        assert_eq!(text.matches("<g ").count(), 2);
        assert!(text.contains("median 250, P99 495, maximum 500 ms"), "{text}");
        assert!(html("t", &text).starts_with("<!doctype html>"));
        let (load, _) = round();
        let empty = svg("t", &[Summary::new(&load, &[])]);
        assert!(!empty.contains("NaN") && !empty.contains("inf"), "{empty}");
    }
}
