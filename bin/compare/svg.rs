//! Paired differences as a drawing: a panel for each figure, a dot for each step, the mean with its
//! interval as a band, and zero as a line.

use std::fmt::Write as _;

use super::{Comparison, Figure};

const WIDTH: f64 = 760.0;
const PANEL: f64 = 130.0;
const LEFT: f64 = 170.0;
const TOP: f64 = 50.0;
const COLOURS: [&str; 6] = ["#1b6ca8", "#c1440e", "#3a7d44", "#7a4fa3", "#b8860b", "#555555"];

/// One drawing of the comparisons of the first run with others; `names`: first the first run's.
pub fn drawing(names: &[String], comparisons: &[Comparison]) -> String {
    let has = |figure: &Figure| comparisons.iter().any(|c| c.differences.contains_key(figure));
    let figures: Vec<Figure> = Figure::ALL.into_iter().filter(has).collect();
    let height = TOP + PANEL * figures.len() as f64 + 20.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    let first = names.first().map_or("", String::as_str);
    let _ = writeln!(
        text,
        "<text x=\"10\" y=\"18\">differences from {first}, by step; band: 95 % of the mean</text>"
    );
    for (place, name) in names.iter().skip(1).enumerate() {
        let (x, colour) = (10.0 + 300.0 * place as f64, COLOURS[place % COLOURS.len()]);
        let _ = writeln!(text, "<text x=\"{x}\" y=\"36\" fill=\"{colour}\">{name}</text>");
    }
    for (row, figure) in figures.iter().enumerate() {
        panel(&mut text, TOP + PANEL * row as f64, *figure, comparisons);
    }
    text.push_str("</svg>\n");
    text
}

fn panel(text: &mut String, top: f64, figure: Figure, comparisons: &[Comparison]) {
    let points: Vec<Vec<(usize, f64)>> = comparisons
        .iter()
        .map(|c| {
            let steps = c.steps.iter().enumerate();
            let of = |(at, (_, a, b)): (usize, &(_, super::Figures, super::Figures))| {
                Some((at, b.get(&figure)? - a.get(&figure)?))
            };
            steps.filter_map(of).collect()
        })
        .collect();
    let bands = || comparisons.iter().filter_map(|c| c.differences.get(&figure)?.interval);
    let values = points.iter().flatten().map(|(_, d)| *d);
    let far = values
        .chain(bands().flat_map(|(low, high)| [low, high]))
        .fold(0.0, |a: f64, v| a.max(v.abs()));
    let far = if far > 0.0 { far } else { 1.0 };
    let steps = comparisons.iter().map(|c| c.steps.len()).max().unwrap_or(1).max(2) - 1;
    let (middle, reach) = (top + PANEL / 2.0, PANEL / 2.0 - 14.0);
    let y = |value: f64| middle - reach * value / far;
    let x = |at: usize| LEFT + (WIDTH - LEFT - 20.0) * at as f64 / steps as f64;
    let right = WIDTH - 20.0;
    let _ = writeln!(text, "<text x=\"10\" y=\"{middle}\">{}</text>", figure.name());
    for (value, at) in [(far, y(far)), (-far, y(-far))] {
        let _ = writeln!(
            text,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"#777\">{value:+.3}</text>",
            LEFT - 8.0,
            at + 4.0
        );
    }
    let _ = writeln!(
        text,
        "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{middle}\" y2=\"{middle}\" stroke=\"#bbb\"/>"
    );
    for (place, (comparison, points)) in comparisons.iter().zip(&points).enumerate() {
        let colour = COLOURS[place % COLOURS.len()];
        if let Some(difference) = comparison.differences.get(&figure) {
            if let Some((low, high)) = difference.interval {
                let (at, tall) = (y(high), y(low) - y(high));
                let _ = writeln!(
                    text,
                    "<rect x=\"{LEFT}\" y=\"{at:.2}\" width=\"{}\" height=\"{tall:.2}\" fill=\"{colour}\" \
                     fill-opacity=\"0.15\"/>",
                    right - LEFT
                );
            }
            let mean = y(difference.mean);
            let _ = writeln!(
                text,
                "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{mean:.2}\" y2=\"{mean:.2}\" stroke=\"{colour}\"/>"
            );
        }
        for (at, value) in points {
            let _ = writeln!(
                text,
                "<circle cx=\"{:.2}\" cy=\"{:.2}\" r=\"2.5\" fill=\"{colour}\"/>",
                x(*at),
                y(*value)
            );
        }
    }
}
