//! The plots of the report, as SVG.

use std::error::Error;
use std::path::Path;

use plotters::coord::ranged1d::SegmentValue;
use plotters::prelude::*;

use crate::growth::{Growth, growths};
use crate::list::group_of;
use crate::record::{Measured, Record};
use crate::report::groups;

/// File of the plot of [`Growth`].
pub(crate) const GROWTH: &str = "growth.svg";

const BAR: RGBColor = RGBColor(38, 110, 170);
const LINE_WIDTH: u32 = 2;

/// Width of the growth's plot beyond its largest graph, for the legend.
const LEGEND: f64 = 3.0;

/// Draws a plot for each group that has figures, and one of the growth; returns their files.
///
/// # Errors
///
/// If a file cannot be written.
pub(crate) fn draw(record: &Record, dir: &Path) -> anyhow::Result<Vec<String>> {
    let mut files = Vec::new();
    for group in groups(record) {
        let races = record
            .races
            .iter()
            .filter(|race| group_of(&race.name) == group);
        let file = format!("{group}.svg");
        if draw_group(&dir.join(&file), &group, &races.collect::<Vec<_>>())
            .map_err(problem(&file))?
        {
            files.push(file);
        }
    }
    let growths = growths(record);
    if !growths.is_empty() {
        draw_growth(&dir.join(GROWTH), &growths).map_err(problem(GROWTH))?;
        files.push(GROWTH.to_owned());
    }
    Ok(files)
}

fn problem(file: &str) -> impl Fn(Box<dyn Error>) -> anyhow::Error + '_ {
    move |error| anyhow::anyhow!("cannot draw {file}: {error}")
}

/// Draws how many times as long the fastest peer takes; without peers, our seconds.
fn draw_group(path: &Path, group: &str, races: &[&Measured]) -> Result<bool, Box<dyn Error>> {
    let (bars, is_raced) = bars_of(races);
    if bars.is_empty() {
        return Ok(false);
    }
    let title = match is_raced {
        true => format!("{group}: how many times as long the fastest peer takes"),
        false => format!("{group}: seconds"),
    };
    let most = bars.iter().map(|(_, value)| *value).fold(1e-9, f64::max);
    let height = 110 + 28 * u32::try_from(bars.len())?;
    // The end is included. A range of one number has no labels, so one bar is below an empty row.
    let rows = (0..(bars.len() - 1).max(1)).into_segmented();
    let root = SVGBackend::new(path, (800, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(28)
        .y_label_area_size(210)
        .build_cartesian_2d(0.0..most * 1.1, rows)?;
    let name = |at: &SegmentValue<usize>| match at {
        SegmentValue::CenterOf(at) => {
            let bar = (bars.len() - 1).checked_sub(*at).map(|at| &bars[at]);
            bar.map_or(String::new(), |(name, _)| name.clone())
        }
        _ => String::new(),
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .max_light_lines(1)
        .y_labels(bars.len())
        .y_label_formatter(&name)
        .draw()?;
    // The first bar is at the top.
    for (at, (_, value)) in bars.iter().rev().enumerate() {
        let corners = [
            (0.0, SegmentValue::Exact(at)),
            (*value, SegmentValue::Exact(at + 1)),
        ];
        let mut bar = Rectangle::new(corners, BAR.filled());
        bar.set_margin(4, 4, 0, 0);
        chart.draw_series([bar])?;
        let label = Text::new(
            format!("{value:.3}"),
            (*value, SegmentValue::CenterOf(at)),
            ("sans-serif", 13),
        );
        chart.draw_series([label])?;
    }
    if is_raced {
        let line = [
            (1.0, SegmentValue::Exact(0)),
            (1.0, SegmentValue::Exact(bars.len())),
        ];
        chart.draw_series([PathElement::new(line, RED.stroke_width(LINE_WIDTH))])?;
    }
    root.present()?;
    Ok(true)
}

/// Returns the bars of a group, and whether they are ratios to the fastest peers.
fn bars_of(races: &[&Measured]) -> (Vec<(String, f64)>, bool) {
    let ratio = |race: &&Measured| Some((race.name.clone(), race.ratio(race.headline())?));
    let mut bars: Vec<(String, f64)> = races.iter().filter_map(ratio).collect();
    let is_raced = !bars.is_empty();
    if !is_raced {
        for race in races {
            for ours in race
                .competitors
                .iter()
                .filter(|competitor| competitor.is_ours)
            {
                let name = ours.name.replace("graphflat", &race.name);
                bars.extend(ours.median(race.headline()).map(|seconds| (name, seconds)));
            }
        }
    }
    (bars, is_raced)
}

/// Draws the nanoseconds of an edge: our side as whole lines, the fastest peer as pale ones.
fn draw_growth(path: &Path, growths: &[Growth]) -> Result<(), Box<dyn Error>> {
    let points = || {
        growths
            .iter()
            .flat_map(|growth| growth.ours.iter().chain(&growth.best_peer))
    };
    #[expect(
        clippy::cast_precision_loss,
        reason = "graphs have less than 2^52 edges"
    )]
    let millions = |edges: u64| edges as f64 / 1e6;
    let bounds = |values: &mut dyn Iterator<Item = f64>| {
        values.fold((f64::INFINITY, 0.0_f64), |(least, most), value| {
            (least.min(value), most.max(value))
        })
    };
    let (least_x, most_x) = bounds(&mut points().map(|point| millions(point.edges)));
    let (least_y, most_y) = bounds(&mut points().map(|point| point.nanoseconds));
    let root = SVGBackend::new(path, (900, 520)).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(
            "nanoseconds for each edge (pale: the fastest peer)",
            ("sans-serif", 18),
        )
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(60)
        .build_cartesian_2d(
            (least_x * 0.9..most_x * LEGEND).log_scale(),
            (least_y * 0.8..most_y * 1.25).log_scale(),
        )?;
    chart
        .configure_mesh()
        .max_light_lines(1)
        .x_desc("millions of edges")
        .draw()?;
    for (at, growth) in growths.iter().enumerate() {
        let colour = Palette99::pick(at).to_rgba();
        let line = |of_sizes: &[crate::growth::Point]| -> Vec<(f64, f64)> {
            of_sizes
                .iter()
                .map(|point| (millions(point.edges), point.nanoseconds))
                .collect()
        };
        let ours = LineSeries::new(line(&growth.ours), colour.stroke_width(LINE_WIDTH));
        chart
            .draw_series(ours.point_size(3))?
            .label(&growth.family)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour));
        let pale = colour.mix(0.35).stroke_width(LINE_WIDTH);
        chart.draw_series(LineSeries::new(line(&growth.best_peer), pale))?;
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::report::tests::record;

    #[test]
    fn plots_have_a_bar_for_each_race_and_a_line_for_each_family() {
        let dir = tempfile::tempdir().unwrap();
        let files = draw(&record(), dir.path()).unwrap();
        assert_eq!(files, ["infer.svg", "cores.svg", "growth.svg"]);
        let text = |file: &str| fs::read_to_string(dir.path().join(file)).unwrap();
        let infer = text("infer.svg");
        for part in [
            "how many times as long the fastest peer takes",
            "infer.sage.S",
            "3.000",
        ] {
            assert!(infer.contains(part), "{part} in {infer}");
        }
        // The scale of names has an entry for each bar, no more.
        let mut one = record();
        one.races.truncate(1);
        draw(&one, dir.path()).unwrap();
        assert_eq!(text("infer.svg").matches("infer.sage.S").count(), 1);
        let cores = text("cores.svg");
        for part in ["cores: seconds", "cores.rows.S, one core", "5.000"] {
            assert!(cores.contains(part), "{part} in {cores}");
        }
        let growth = text("growth.svg");
        assert!(
            growth.contains("infer.sage") && !growth.contains("cores"),
            "{growth}"
        );
        assert!(growth.matches("<polyline").count() >= 2);
    }
}
