//! The frame of a chart: positions of values, ticks with round numbers, labels.

use std::fmt::Write;

use tern::units::thousands;

/// Space of the axis labels, and of title, note and legend above.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 44.0;
/// Ticks of an axis, at most about.
const TICKS: f64 = 5.0;

/// Where values are in a panel.
pub(super) struct Frame {
    /// Range of x, from 0.
    columns: f64,
    /// Range of y, from 0.
    top: f64,
}

impl Frame {
    pub(super) fn new(columns: f64, top: f64) -> Frame {
        let top = if top > 0.0 { top } else { 1.0 };
        let step = step(top);
        Frame { columns: columns.max(1.0), top: (top / step).ceil() * step }
    }

    pub(super) fn x(&self, column: f64) -> f64 {
        LEFT + (Panel::WIDTH - LEFT - RIGHT) * column / self.columns
    }

    pub(super) fn y(&self, value: f64) -> f64 {
        let height = Panel::HEIGHT - TOP - BOTTOM;
        TOP + height * (1.0 - value / self.top)
    }
}

/// A chart as SVG elements.
pub(super) struct Panel(pub(super) String);

impl Panel {
    pub(super) const WIDTH: f64 = 400.0;
    pub(super) const HEIGHT: f64 = 320.0;

    /// Title, axes, and the grid with the ticks of y.
    pub(super) fn new(title: &str, x_label: &str, y_label: &str, frame: &Frame) -> Panel {
        let mut panel =
            Panel(format!("<text class=\"text\" font-weight=\"600\" x=\"{LEFT}\" y=\"18\">{title}</text>\n"));
        let (right, bottom) = (Panel::WIDTH - RIGHT, frame.y(0.0));
        for (value, text) in ticks(0.0, frame.top) {
            let y = frame.y(value);
            let _ = writeln!(panel.0, "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/>");
            panel.text((LEFT - 6.0, y + 4.0), "end", "", &text);
        }
        let _ = writeln!(panel.0, "<path class=\"axis\" d=\"M{LEFT} {bottom:.1}H{right}\"/>");
        panel.text(((LEFT + right) / 2.0, Panel::HEIGHT - 8.0), "middle", "", x_label);
        let middle = (TOP + bottom) / 2.0;
        panel.text((14.0, middle), "middle", &format!(" transform=\"rotate(-90 14 {middle:.1})\""), y_label);
        panel
    }

    fn text(&mut self, (x, y): (f64, f64), anchor: &str, more: &str, text: &str) {
        let _ = writeln!(
            self.0,
            "<text class=\"dim\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{more}>{text}</text>"
        );
    }

    pub(super) fn x_tick(&mut self, x: f64, text: &str) {
        self.text((x, Panel::HEIGHT - BOTTOM + 16.0), "middle", "", text);
    }

    /// A line below the title.
    pub(super) fn note(&mut self, text: &str) {
        self.text((LEFT, 36.0), "start", "", text);
    }

    /// A vertical line.
    pub(super) fn mark(&mut self, x: f64) {
        let bottom = Panel::HEIGHT - BOTTOM;
        let _ = writeln!(self.0, "<path class=\"mark\" d=\"M{x:.1} {TOP}V{bottom}\"/>");
    }

    /// The name of series `index`, after names with `before` characters.
    pub(super) fn legend(&mut self, index: usize, name: &str, before: usize) {
        let x = LEFT + 7.0 * before as f64 + 44.0 * index as f64;
        let _ = writeln!(self.0, "<path class=\"line s{index}\" d=\"M{x} 32h22\"/>");
        self.text((x + 27.0, 36.0), "start", "", name);
    }
}

/// The distance of ticks: 1, 2 or 5 times a power of ten.
fn step(range: f64) -> f64 {
    let least = range / TICKS;
    let power = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|s| *s >= least * 0.999).unwrap_or(least)
}

/// Values with round numbers from `low` to `high`, with their labels.
pub(super) fn ticks(low: f64, high: f64) -> Vec<(f64, String)> {
    let step = step((high - low).max(1e-9));
    let first = (low / step).ceil() as i64;
    let values = (first..).map(|i| i as f64 * step).take_while(|value| *value <= high * (1.0 + 1e-9));
    values.take(64).map(|value| (value, label(value, step))).collect()
}

/// A number with the digits that values at distances of `step` need.
pub(super) fn label(value: f64, step: f64) -> String {
    let decimals = if step > 0.0 { (-step.log10().floor()).clamp(0.0, 6.0) as usize } else { 0 };
    if decimals == 0 { thousands(value.round() as u64) } else { format!("{value:.decimals$}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers() {
        let labels =
            |low, high| ticks(low, high).into_iter().map(|tick| tick.1).collect::<Vec<_>>().join(" ");
        assert_eq!(labels(0.0, 1.0), "0.0 0.2 0.4 0.6 0.8 1.0");
        assert_eq!(labels(0.0, 24_000.0), "0 5,000 10,000 15,000 20,000");
        assert_eq!(labels(3.1, 3.2), "3.10 3.12 3.14 3.16 3.18 3.20");
        assert_eq!(labels(0.0, 7.0), "0 2 4 6");
        assert!(ticks(5.0, 5.0).len() < 64);
        assert_eq!((label(0.0, 0.0), label(12.345, 0.12)), ("0".into(), "12.3".into()));
    }

    #[test]
    fn values_are_inside_of_the_frame() {
        let frame = Frame::new(4.0, 930.0);
        assert!(frame.y(930.0) >= TOP && frame.y(0.0) == Panel::HEIGHT - BOTTOM);
        assert!(frame.x(0.0) == LEFT && (frame.x(4.0) - (Panel::WIDTH - RIGHT)).abs() < 1e-9);
        assert_eq!(Frame::new(0.0, 0.0).top, 1.0);
    }
}
