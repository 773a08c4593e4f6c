//! Memory over time, as a picture.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use super::process::Sample;

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 300.0;
const MARGIN: f64 = 60.0;

/// Writes an SVG file: resident memory in MiB over minutes, from zero.
pub(crate) fn write(path: &Path, samples: &[(Duration, Sample)]) -> std::io::Result<()> {
    std::fs::write(path, svg(samples))
}

fn svg(samples: &[(Duration, Sample)]) -> String {
    let minutes = |at: &Duration| at.as_secs_f64() / 60.0;
    let mib = |sample: &Sample| sample.memory as f64 / f64::from(1 << 20);
    let most_minutes = samples.iter().map(|(at, _)| minutes(at)).fold(0.1, f64::max);
    let most_mib = samples.iter().map(|(_, sample)| mib(sample)).fold(1.0, f64::max) * 1.1;
    let (x, y) = (
        |at: f64| MARGIN + at / most_minutes * WIDTH,
        |size: f64| MARGIN + HEIGHT - size / most_mib * HEIGHT,
    );
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <text x=\"{MARGIN}\" y=\"30\">Resident memory of the server (MiB) over time (minutes)</text>\n",
        WIDTH + 2.0 * MARGIN,
        HEIGHT + 2.0 * MARGIN,
    );
    for step in 0..=5 {
        let part = f64::from(step) / 5.0;
        let (size, at) = (most_mib * part, most_minutes * part);
        let _ = writeln!(
            text,
            "<path d=\"M{MARGIN} {0:.1}h{WIDTH}\" stroke=\"#ddd\"/><text x=\"8\" y=\"{0:.1}\">{size:.0}</text>\
             <text x=\"{1:.1}\" y=\"{2}\">{at:.1}</text>",
            y(size),
            x(at),
            MARGIN + HEIGHT + 20.0,
        );
    }
    let points: Vec<String> =
        samples.iter().map(|(at, sample)| format!("{:.1},{:.1}", x(minutes(at)), y(mib(sample)))).collect();
    let _ =
        writeln!(text, "<polyline fill=\"none\" stroke=\"#06c\" points=\"{}\"/>\n</svg>", points.join(" "));
    text
}
