//! Runs races: every competitor as a fresh process, in turns.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;

use crate::child::Ended;
use crate::figure;
use crate::list::{Figure, Graph, Ours, Peer, Race};
use crate::ours::{Program, work_seconds};
use crate::peers::{self, Peers};
use crate::record::{Competitor, Measured, Record, Run};
use crate::tables::{Format, Maker, Tables};
use crate::turns::order;
use crate::{plot, report, say};

/// What all races of a run share.
pub(crate) struct Settings {
    /// The program `graphflat`.
    pub(crate) program: PathBuf,
    /// The root of the checkout.
    pub(crate) root: PathBuf,
    pub(crate) data: PathBuf,
    pub(crate) out: PathBuf,
    pub(crate) turns: usize,
    pub(crate) warm_up: bool,
    /// Longest time of one process.
    pub(crate) limit: Duration,
}

/// A competitor, before it runs.
enum Entrant {
    Ours(&'static Ours),
    Peer {
        peer: &'static Peer,
        python: PathBuf,
        tuned: bool,
    },
}

impl Entrant {
    fn is_one_core(&self) -> bool {
        match self {
            Self::Ours(ours) => ours.one_core,
            Self::Peer { peer, .. } => peer.one_core,
        }
    }

    fn competitor(&self) -> Competitor {
        let name = match self {
            Self::Ours(ours) if ours.label.is_empty() => "graphflat".to_owned(),
            Self::Ours(ours) => format!("graphflat, {}", ours.label),
            Self::Peer { peer, tuned, .. } => peers::name(peer, *tuned),
        };
        Competitor {
            name,
            is_ours: matches!(self, Self::Ours(_)),
            one_core: self.is_one_core(),
            version: None,
            runs: Vec::new(),
            failure: None,
        }
    }
}

/// The directories of a race's runs; removed at the end.
struct Work {
    prepared: PathBuf,
    scratch: PathBuf,
}

impl Work {
    fn new(out: &Path) -> anyhow::Result<Self> {
        let dir = out.join("work");
        let work = Self {
            prepared: dir.join("prepared"),
            scratch: dir.join("run"),
        };
        remove(&dir)?;
        fs::create_dir_all(&work.prepared).with_context(|| dir.display().to_string())?;
        Ok(work)
    }
}

fn remove(dir: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| dir.display().to_string())
        }
        _ => Ok(()),
    }
}

/// Runs the races, and writes `race.json` after each run and the report after each race.
///
/// Races of `record` that have all their turns are left out.
///
/// # Errors
///
/// If a directory cannot be written. A competitor that fails is recorded, and the others go on.
pub(crate) fn run(
    races: &[Race],
    settings: &Settings,
    peers: &mut Peers,
    record: &mut Record,
) -> anyhow::Result<()> {
    let work = Work::new(&settings.out)?;
    let mut tables = BTreeMap::new();
    for race in races {
        run_race(race, settings, peers, &work, &mut tables, record)?;
        record.left_out.clone_from(&peers.left_out);
        write(record, &settings.out)?;
    }
    remove(&settings.out.join("work"))
}

/// Writes the report and its plots.
///
/// # Errors
///
/// If a file cannot be written.
fn write(record: &Record, out: &Path) -> anyhow::Result<()> {
    record.save(out)?;
    let plots = plot::draw(record, out)?;
    let path = out.join("race.md");
    fs::write(&path, report::markdown(record, &plots)).with_context(|| path.display().to_string())
}

fn run_race(
    race: &Race,
    settings: &Settings,
    peers: &mut Peers,
    work: &Work,
    made: &mut BTreeMap<Graph, Tables>,
    record: &mut Record,
) -> anyhow::Result<()> {
    let name = race.name();
    let is_same = |known: &Measured| known.name == name;
    if record
        .races
        .iter()
        .any(|known| is_same(known) && is_finished(known, settings.turns))
    {
        say(&format!("{name}: measured before"));
        return Ok(());
    }
    record.races.retain(|known| !is_same(known));
    let tables = match tables_of(race.graph, settings, peers, made) {
        Ok(tables) => tables,
        Err(error) => {
            record.races.push(refused(race, &error));
            say(&format!("{name}: {error:#}"));
            return Ok(());
        }
    };
    let entrants = entrants(race, peers, tables.as_ref());
    let program = Program {
        path: &settings.program,
        root: &settings.root,
        prepared: &work.prepared,
        limit: settings.limit,
    };
    let prepared = |entrant: &Entrant| -> anyhow::Result<()> {
        match (entrant, &tables) {
            (Entrant::Ours(ours), Some(tables)) => program.prepare(race.graph, tables, ours.work),
            _ => Ok(()),
        }
    };
    let competitors = entrants.iter().map(|entrant| Competitor {
        failure: prepared(entrant).err().map(|error| format!("{error:#}")),
        ..entrant.competitor()
    });
    record.races.push(Measured {
        name,
        edges: race.graph.size().1,
        of_process: race.family.figure == Figure::Process,
        competitors: competitors.collect(),
    });
    let run = |entrant: &Entrant| {
        run_once(
            race,
            entrant,
            &program,
            peers,
            tables.as_ref(),
            &work.scratch,
        )
    };
    take_turns(&entrants, settings, &run, record)
}

/// What a run gives: its figures, and the version that the competitor prints.
type Outcome = anyhow::Result<(Run, Option<String>)>;

/// Runs the competitors of the last race of the record.
fn take_turns(
    entrants: &[Entrant],
    settings: &Settings,
    run: &dyn Fn(&Entrant) -> Outcome,
    record: &mut Record,
) -> anyhow::Result<()> {
    // A tuned peer follows its plain run, which has read the same files.
    let is_cold = |at: &usize| !matches!(entrants[*at], Entrant::Peer { tuned: true, .. });
    let warm_ups: Vec<usize> = match settings.warm_up {
        true => (0..entrants.len()).filter(is_cold).collect(),
        false => Vec::new(),
    };
    for next in order(&warm_ups, entrants.len(), settings.turns) {
        let race = record.races.last_mut().context("the race is recorded")?;
        let competitor = &mut race.competitors[next.competitor];
        if competitor.failure.is_some() {
            continue;
        }
        let what = match next.turn {
            Some(turn) => format!("turn {}", turn + 1),
            None => "warm-up".to_owned(),
        };
        let about = format!("{}: {}, {what}", race.name, competitor.name);
        match run(&entrants[next.competitor]) {
            Ok((figures, version)) => {
                say(&format!(
                    "{about}: {} s of work, {} s, {} CPU s",
                    report::seconds(figures.work),
                    report::seconds(figures.process),
                    report::seconds(figures.cpu),
                ));
                competitor.version = version.or(competitor.version.take());
                if next.turn.is_some() {
                    competitor.runs.push(figures);
                }
            }
            Err(error) => {
                say(&format!("{about} failed: {error:#}"));
                competitor.failure = Some(format!("{error:#}"));
            }
        }
        record.save(&settings.out)?;
    }
    Ok(())
}

fn is_finished(race: &Measured, turns: usize) -> bool {
    let is_done =
        |competitor: &Competitor| competitor.failure.is_none() && competitor.runs.len() >= turns;
    race.competitors.iter().all(is_done)
}

/// Returns a race that cannot run: all of our side has failed.
fn refused(race: &Race, error: &anyhow::Error) -> Measured {
    let ours = race.family.ours.iter().map(|ours| Competitor {
        failure: Some(format!("{error:#}")),
        ..Entrant::Ours(ours).competitor()
    });
    Measured {
        name: race.name(),
        edges: race.graph.size().1,
        of_process: false,
        competitors: ours.collect(),
    }
}

fn tables_of(
    graph: Graph,
    settings: &Settings,
    peers: &Peers,
    made: &mut BTreeMap<Graph, Tables>,
) -> anyhow::Result<Option<Tables>> {
    if graph == Graph::Debian {
        return Ok(None);
    }
    if let Some(tables) = made.get(&graph) {
        return Ok(Some(tables.clone()));
    }
    let generator = peers.generator();
    let maker = Maker {
        data: &settings.data,
        program: &settings.program,
        generator: generator
            .as_ref()
            .map(|(python, script)| (&**python, &**script)),
        limit: settings.limit,
    };
    let tables = maker.tables(graph)?;
    made.insert(graph, tables.clone());
    Ok(Some(tables))
}

/// Returns the competitors: our runs, then each peer that can run, with both allocators.
fn entrants(race: &Race, peers: &mut Peers, tables: Option<&Tables>) -> Vec<Entrant> {
    let mut entrants: Vec<Entrant> = race.family.ours.iter().map(Entrant::Ours).collect();
    if tables.is_none_or(|tables| tables.format != Format::Peers) {
        return entrants;
    }
    for peer in race.peers() {
        if let Some(python) = peers.python(peer) {
            entrants.extend([false, true].map(|tuned| Entrant::Peer {
                peer,
                python: python.clone(),
                tuned,
            }));
        }
    }
    entrants
}

/// Runs one competitor once, in an empty directory.
fn run_once(
    race: &Race,
    entrant: &Entrant,
    program: &Program<'_>,
    peers: &Peers,
    tables: Option<&Tables>,
    scratch: &Path,
) -> Outcome {
    remove(scratch)?;
    fs::create_dir_all(scratch).with_context(|| scratch.display().to_string())?;
    let launch = match entrant {
        Entrant::Ours(ours) => program.start(race.graph, tables, ours, scratch)?,
        Entrant::Peer {
            peer,
            python,
            tuned,
        } => {
            let tables = tables.context("peers run on tables")?;
            peers.start(peer, python, *tuned, &tables.dir, scratch)
        }
    };
    let ended = launch.run(program.limit)?;
    if let Some(failure) = ended.failure {
        anyhow::bail!(failure);
    }
    let (work, peak_bytes, version) = match entrant {
        Entrant::Ours(ours) => {
            let work = work_seconds(race.graph, ours, &ended, scratch)?;
            (work, ended.peak_bytes, None)
        }
        Entrant::Peer { .. } => {
            let said = figure::of_peer(&ended.lines)?;
            (
                said.seconds,
                ended.peak_bytes.max(said.peak_bytes),
                said.version,
            )
        }
    };
    remove(scratch)?;
    Ok((run_of(&ended, work, peak_bytes), version))
}

fn run_of(ended: &Ended, work: f64, peak_bytes: u64) -> Run {
    Run {
        work,
        process: ended.seconds,
        cpu: ended.cpu_seconds,
        peak_bytes,
    }
}
