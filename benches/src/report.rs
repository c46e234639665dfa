//! The report of all races, as Markdown.

use std::fmt::Write as _;

use crate::growth::{Growth, growths};
use crate::list::group_of;
use crate::machine::Machine;
use crate::record::{Competitor, Measured, Record, Run};
use crate::turns::Spread;

/// Returns the text of `race.md`, which links to the plots beside it.
pub(crate) fn markdown(record: &Record, plots: &[String]) -> String {
    let mut text = String::from("# Race\n\n");
    machine(&mut text, record);
    for group in groups(record) {
        write_group(&mut text, record, &group, plots);
    }
    write_growth(&mut text, &growths(record), plots);
    let failures = record.failures();
    if !failures.is_empty() {
        text.push_str("\n## Failures\n\n");
        write_items(&mut text, &failures);
    }
    if !record.left_out.is_empty() {
        text.push_str("\n## Left out\n\n");
        write_items(&mut text, &record.left_out);
    }
    text
}

/// Returns the groups of the races, in their order.
pub(crate) fn groups(record: &Record) -> Vec<String> {
    let mut groups: Vec<String> = Vec::new();
    for race in &record.races {
        let group = group_of(&race.name);
        if !groups.iter().any(|known| known == group) {
            groups.push(group.to_owned());
        }
    }
    groups
}

fn machine(text: &mut String, record: &Record) {
    let Machine {
        processor,
        cores,
        memory_bytes,
        caches,
        instructions,
        kernel,
        date,
        load,
    } = &record.machine;
    let rows = [
        ("processor", processor.clone()),
        ("cores", cores.to_string()),
        ("caches of a core", caches.join(", ")),
        ("instructions", instructions.join(", ")),
        ("memory", gigabytes(*memory_bytes)),
        ("kernel", kernel.clone()),
        ("date", date.clone()),
        ("load average at the start", format!("{load:.2}")),
        ("graphflat", record.program.clone()),
        ("turns", record.turns.to_string()),
    ];
    text.push_str("| | |\n|---|---|\n");
    for (name, value) in rows {
        put(text, format_args!("| {name} | {value} |\n"));
    }
    for (name, version) in versions(record) {
        put(text, format_args!("| {name} | {version} |\n"));
    }
    if let Some(warning) = record.machine.warning() {
        put(text, format_args!("\n**Warning**: {warning}.\n"));
    }
    text.push_str(
        "\nFigures are medians, in brackets least and most. *Work* leaves out the start of a \
         program and its\nimports, as each script defines it. *To ours* is a competitor's figure \
         divided by graphflat's first\none, of the column in bold. *Tuned* means glibc's \
         allocator with settings that keep freed memory.\n",
    );
}

/// Returns the versions of peers, each once.
fn versions(record: &Record) -> Vec<(String, String)> {
    let mut versions: Vec<(String, String)> = Vec::new();
    for competitor in record.races.iter().flat_map(|race| &race.competitors) {
        let name = competitor.name.split([',', ' ']).next().unwrap_or_default();
        if let Some(version) = &competitor.version {
            let pair = (name.to_owned(), version.clone());
            if !versions.contains(&pair) {
                versions.push(pair);
            }
        }
    }
    versions
}

fn write_group(text: &mut String, record: &Record, group: &str, plots: &[String]) {
    put(text, format_args!("\n## {group}\n"));
    let races: Vec<&Measured> = record
        .races
        .iter()
        .filter(|race| group_of(&race.name) == group)
        .collect();
    for of_process in [false, true] {
        let races: Vec<&Measured> = races
            .iter()
            .copied()
            .filter(|race| race.of_process == of_process)
            .collect();
        if races.is_empty() {
            continue;
        }
        let (work, process) = match of_process {
            true => ("work, s", "**process, s**"),
            false => ("**work, s**", "process, s"),
        };
        put(
            text,
            format_args!(
                "\n| race | competitor | {work} | {process} | CPU s | peak memory | to ours |\n\
                 |---|---|---|---|---|---|---|\n"
            ),
        );
        for race in &races {
            for competitor in &race.competitors {
                write_row(text, race, competitor);
            }
        }
    }
    write_ratios(text, &races);
    let plot = format!("{group}.svg");
    if plots.contains(&plot) {
        put(text, format_args!("\n![{group}]({plot})\n"));
    }
}

fn write_row(text: &mut String, race: &Measured, competitor: &Competitor) {
    let headline = race.headline();
    let ours = race.ours().and_then(|ours| ours.median(headline));
    let factor = competitor
        .median(headline)
        .zip(ours)
        .map(|(own, ours)| own / ours);
    let figure = |figure: fn(&Run) -> f64| competitor.spread(figure).map_or_else(dash, spread);
    #[expect(clippy::cast_precision_loss, reason = "memories are below 2^52 bytes")]
    let memory = competitor.median(|run| run.peak_bytes as f64 / 1e9);
    put(
        text,
        format_args!(
            "| {} | {} | {} | {} | {} | {} | {} |\n",
            race.name,
            competitor.name,
            figure(|run| run.work),
            figure(|run| run.process),
            competitor.median(|run| run.cpu).map_or_else(dash, seconds),
            memory.map_or_else(dash, |bytes| format!("{bytes:.2} GB")),
            match competitor.failure {
                Some(_) => "failed".to_owned(),
                None => factor.map_or_else(dash, |factor| format!("{factor:.2}")),
            },
        ),
    );
}

/// Compares with the fastest peer, at its better allocator.
fn write_ratios(text: &mut String, races: &[&Measured]) {
    let raced: Vec<&&Measured> = races
        .iter()
        .filter(|race| race.ratio(race.headline()).is_some())
        .collect();
    if raced.is_empty() {
        return;
    }
    text.push_str(
        "\nHow many times as long as graphflat the fastest peer takes, and how many times as much \
         memory the\nleanest needs:\n\n\
         | race | fastest peer | work | process | memory |\n|---|---|---|---|---|\n",
    );
    for race in raced {
        let name = race
            .best_peer(race.headline())
            .map_or("", |(peer, _)| &peer.name);
        let ratio = |figure: fn(&Run) -> f64| {
            race.ratio(figure)
                .map_or_else(dash, |ratio| format!("{ratio:.2}"))
        };
        #[expect(clippy::cast_precision_loss, reason = "memories are below 2^52 bytes")]
        let memory = ratio(|run| run.peak_bytes as f64);
        put(
            text,
            format_args!(
                "| {} | {name} | {} | {} | {memory} |\n",
                race.name,
                ratio(|run| run.work),
                ratio(|run| run.process),
            ),
        );
    }
}

fn write_growth(text: &mut String, growths: &[Growth], plots: &[String]) {
    if growths.is_empty() {
        return;
    }
    text.push_str(
        "\n## growth\n\nNanoseconds for each edge of the graph, and how many times as long an edge \
         of the largest graph\ntakes as one of M; without M or a larger graph, as one of the smallest:\n\n\
         | races | millions of edges | graphflat | factor | fastest peer | factor |\n\
         |---|---|---|---|---|---|\n",
    );
    for growth in growths {
        let list = |points: &[crate::growth::Point]| {
            let points = points
                .iter()
                .map(|point| format!("{:.0}", point.nanoseconds));
            points.collect::<Vec<_>>().join(", ")
        };
        let factor = |points: &[crate::growth::Point]| {
            Growth::factor(points).map_or_else(dash, |factor| format!("{factor:.2}"))
        };
        let edges = growth
            .ours
            .iter()
            .map(|point| (point.edges / 1_000_000).to_string());
        put(
            text,
            format_args!(
                "| {} | {} | {} | {} | {} | {} |\n",
                growth.family,
                edges.collect::<Vec<_>>().join(", "),
                list(&growth.ours),
                factor(&growth.ours),
                list(&growth.best_peer),
                factor(&growth.best_peer),
            ),
        );
    }
    if plots.iter().any(|plot| plot == crate::plot::GROWTH) {
        put(text, format_args!("\n![growth]({})\n", crate::plot::GROWTH));
    }
}

fn write_items(text: &mut String, lines: &[String]) {
    for line in lines {
        put(text, format_args!("- {line}\n"));
    }
}

/// Returns seconds with three digits.
pub(crate) fn seconds(seconds: f64) -> String {
    match seconds {
        ..0.01 => format!("{seconds:.5}"),
        ..0.1 => format!("{seconds:.4}"),
        ..1.0 => format!("{seconds:.3}"),
        ..10.0 => format!("{seconds:.2}"),
        _ => format!("{seconds:.1}"),
    }
}

fn spread(spread: Spread) -> String {
    let median = seconds(spread.median);
    if spread.least < spread.most {
        format!(
            "{median} ({} to {})",
            seconds(spread.least),
            seconds(spread.most)
        )
    } else {
        median
    }
}

fn gigabytes(bytes: u64) -> String {
    format!("{} GB", bytes / 1_000_000_000)
}

fn dash() -> String {
    "-".to_owned()
}

fn put(text: &mut String, args: std::fmt::Arguments<'_>) {
    text.write_fmt(args).expect("a string takes any text");
}

#[cfg(test)]
pub(crate) mod tests;
