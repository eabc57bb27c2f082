//! SVG plots: bars for CPU time, and lines for growth. Their colours follow the reader's theme.

use std::fmt::Write;

use super::{Counter, OF_PROGRAM, OF_REDIS};
use crate::measure::figure;
use crate::report::Table;

const WIDTH: f64 = 760.0;
const STYLE: &str = "<style>\
    text{font:13px system-ui,sans-serif;fill:#1f2328}.title{font-weight:600;font-size:15px}.axis{stroke:#8b949e}\
    .grid{stroke:#8b949e;stroke-opacity:.25}.line{fill:none;stroke-width:2}\
    .c0{fill:#0969da}.c1{fill:#bc4c00}.c2{fill:#1a7f37}.c3{fill:#8250df}\
    .s0{stroke:#0969da}.s1{stroke:#bc4c00}.s2{stroke:#1a7f37}.s3{stroke:#8250df}\
    @media(prefers-color-scheme:dark){text{fill:#e6edf3}\
    .c0{fill:#4493f8}.c1{fill:#f0883e}.c2{fill:#3fb950}.c3{fill:#ab7df8}\
    .s0{stroke:#4493f8}.s1{stroke:#f0883e}.s2{stroke:#3fb950}.s3{stroke:#ab7df8}}</style>";

/// Returns an SVG image of this height with a title and these elements.
fn svg(title: &str, height: f64, elements: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">\n\
         {STYLE}\n<text class=\"title\" x=\"8\" y=\"20\">{title}</text>\n{elements}</svg>\n"
    )
}

/// Returns a text element; `anchor` is the part of the text that is at this position: start, middle or end.
fn text(x: f64, y: f64, anchor: &str, words: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>\n")
}

/// Returns a line with a CSS class.
fn stroke(class: &str, from: (f64, f64), to: (f64, f64)) -> String {
    let ((x1, y1), (x2, y2)) = (from, to);
    format!(
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>\n"
    )
}

/// Plots the cost per event of each program in each table as a bar, split into the CPU time of the program and of Redis.
pub(crate) fn bars(title: &str, groups: &[(&str, &Table)], counters: &[Counter]) -> String {
    const LEFT: f64 = 200.0;
    const RIGHT: f64 = WIDTH - 60.0;
    const ROW: f64 = 22.0;
    let parts = |table: &Table, counter: &Counter| {
        let part = |column| table.get(counter.name(), column);
        [part(OF_PROGRAM), part(OF_REDIS)]
    };
    let bars = groups
        .iter()
        .flat_map(|(_, table)| counters.iter().map(|counter| parts(table, counter).iter().sum()));
    let most = bars.filter(|bar: &f64| !bar.is_nan()).fold(0.0, f64::max);
    let mut elements = legend(&["the program", "Redis"], 40.0);
    let mut y = 62.0;
    for (group, table) in groups {
        elements += &text(8.0, y + 12.0, "start", group);
        y += ROW;
        for counter in counters {
            let parts = parts(table, counter);
            if parts.iter().any(|part| part.is_nan()) {
                continue;
            }
            elements += &text(LEFT - 8.0, y + 13.0, "end", counter.name());
            let mut x = LEFT;
            for (at, part) in parts.iter().enumerate() {
                let width = part / most * (RIGHT - LEFT);
                let _ = writeln!(
                    elements,
                    "<rect class=\"c{at}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"16\"/>"
                );
                x += width;
            }
            let sum: f64 = parts.iter().sum();
            elements += &text(x + 6.0, y + 13.0, "start", &format!("{sum:.2}"));
            y += ROW;
        }
        y += ROW / 2.0;
    }
    svg(title, y, &elements)
}

fn legend(names: &[&str], y: f64) -> String {
    let place = |(at, name): (usize, &&str)| {
        let x = 8.0 + 180.0 * figure(at);
        let square =
            format!("<rect class=\"c{at}\" x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\"/>\n");
        square + &text(x + 18.0, y + 11.0, "start", name)
    };
    names.iter().enumerate().map(place).collect()
}

/// The name and the points of a line in a plot.
pub(crate) type Line<'a> = (&'a str, Vec<(f64, f64)>);

/// Plots lines with a logarithmic x axis. The y axis is logarithmic if `has_powers` is true; otherwise, it is linear from 0.
pub(crate) fn lines(
    title: &str,
    x: &str,
    (y, has_powers): (&str, bool),
    lines: &[Line<'_>],
) -> String {
    const LEFT: f64 = 64.0;
    const RIGHT: f64 = WIDTH - 24.0;
    const TOP: f64 = 84.0;
    const BOTTOM: f64 = 330.0;
    let points = || lines.iter().flat_map(|(_, points)| points.iter().copied());
    let ends = |figures: &mut dyn Iterator<Item = f64>| {
        figures.fold((f64::MAX, f64::MIN), |(least, most), figure| {
            (least.min(figure), most.max(figure))
        })
    };
    let (x_least, x_most) = ends(&mut points().map(|(x, _)| x.log10()));
    let scaled = |y: f64| if has_powers { y.log10() } else { y };
    let (y_least, y_most) = ends(&mut points().map(|(_, y)| scaled(y)));
    let (y_least, y_most) =
        if has_powers { (y_least.floor(), y_most.ceil()) } else { (0.0, y_most * 1.1) };
    let x_of = |x: f64| LEFT + (x.log10() - x_least) / (x_most - x_least) * (RIGHT - LEFT);
    let y_of = |y: f64| BOTTOM - (scaled(y) - y_least) / (y_most - y_least) * (BOTTOM - TOP);
    let names: Vec<&str> = lines.iter().map(|(name, _)| *name).collect();
    let mut elements = legend(&names, 34.0) + &text(8.0, TOP - 14.0, "start", y);
    let steps = if has_powers { whole(y_most - y_least) } else { 4 };
    for step in 0..=steps {
        let at = y_least + (y_most - y_least) * f64::from(step) / f64::from(steps);
        let at = if has_powers { 10_f64.powf(at) } else { at };
        elements += &stroke("grid", (LEFT, y_of(at)), (RIGHT, y_of(at)));
        elements += &text(LEFT - 6.0, y_of(at) + 4.0, "end", &short(at));
    }
    for (x, _) in lines.first().map_or(&[][..], |(_, points)| points) {
        elements += &text(x_of(*x), BOTTOM + 18.0, "middle", &short(*x));
    }
    elements += &stroke("axis", (LEFT, BOTTOM), (RIGHT, BOTTOM));
    elements += &text(RIGHT, BOTTOM + 38.0, "end", x);
    for (at, (_, points)) in lines.iter().enumerate() {
        let place = |(x, y): &(f64, f64)| format!("{:.1},{:.1}", x_of(*x), y_of(*y));
        let places: Vec<_> = points.iter().map(place).collect();
        let _ =
            writeln!(elements, "<polyline class=\"line s{at}\" points=\"{}\"/>", places.join(" "));
        for (x, y) in points {
            let _ = writeln!(
                elements,
                "<circle class=\"c{at}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"/>",
                x_of(*x),
                y_of(*y)
            );
        }
    }
    svg(title, BOTTOM + 50.0, &elements)
}

/// Formats a figure on an axis.
fn short(figure: f64) -> String {
    match figure {
        figure if figure >= 1e6 => format!("{} M", figure / 1e6),
        figure if figure >= 1e3 => format!("{} k", figure / 1e3),
        figure if figure.fract() == 0.0 => format!("{figure}"),
        figure => format!("{figure:.2}"),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few powers of ten")]
fn whole(powers: f64) -> u32 {
    powers.round() as u32
}
