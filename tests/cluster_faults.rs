//! Seeded faults of a job on four hosts: it ends on all of them and says why, or goes on; run again, it
//! has the bytes of one process.
#![cfg(target_os = "linux")]

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::harness::{
    Bench, FLATTEN, FeatureKind, Graph, INFER, IdKind, Job, Outcome, TRAIN, assert_same_bytes, mix,
};
use crate::hosts::{Net, end};

/// Faults; more where it is set.
const FAULTS: &str = "GRAPHFLAT_TEST_HOST_FAULTS";
const HOSTS: usize = 4;
/// The stages with what they write.
const STAGES: [(&str, &str); 3] = [
    ("flatten", "out/features"),
    ("train", "out/model"),
    ("infer", "out/embeddings"),
];

#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    Stop,
    LinkDown,
    FullDisk,
}

const FAULT_KINDS: [Fault; 4] = [Fault::Kill, Fault::Stop, Fault::LinkDown, Fault::FullDisk];

fn job(graph: &Graph) -> Job {
    let flatten = FLATTEN.replace("targets_per_part = 16", "targets_per_part = 2");
    let train = TRAIN.replace("epochs = 4", "epochs = 4\nworkers = 4\nservers = 2");
    Job::new(graph, &[&flatten, &train, INFER])
        .with("workers = 2", "workers = 1")
        .and("rows_per_part = 8")
}

fn signal(child: &Child, signal: &str) {
    let mut kill = Command::new("kill");
    kill.args([signal, &child.id().to_string()]);
    assert!(kill.status().unwrap().success());
}

/// One fault in the midst of a stage: every other host ends by itself and says what it misses.
fn meet(net: &Net, bench: &Bench, stage: &str, whole: Duration, draw: u64) {
    let fault = FAULT_KINDS[usize::try_from(draw).unwrap() % FAULT_KINDS.len()];
    let victim = usize::try_from(mix(53, draw)).unwrap() % HOSTS;
    let args = ["--stage", stage, "--fresh", "--start-timeout", "10"];
    let full = format!("work_dir={}", net.disk.display());
    let with_full = [&args[..], &["--set", &full]].concat();
    let start = |host: usize| match fault {
        Fault::FullDisk if host == victim => net.start(bench, host, &with_full),
        _ => net.start(bench, host, &args),
    };
    let mut children: Vec<Child> = (0..HOSTS).map(start).collect();
    let share = (mix(59, draw) % 1000) as f64 / 1000.0;
    std::thread::sleep(whole.mul_f64(share));
    let begun = Instant::now();
    match fault {
        Fault::Kill => children[victim].kill().unwrap(),
        Fault::Stop => signal(&children[victim], "-STOP"),
        Fault::LinkDown => net.set_link(victim, "down"),
        Fault::FullDisk => {}
    }
    let stopped = matches!(fault, Fault::Stop).then(|| children.remove(victim));
    let outcomes: Vec<Outcome> = children.into_iter().map(end).collect();
    let seconds = begun.elapsed().as_secs_f64();
    if let Some(mut stopped) = stopped {
        stopped.kill().unwrap();
        stopped.wait().unwrap();
    }
    if matches!(fault, Fault::LinkDown) {
        net.set_link(victim, "up");
    }
    eprintln!("fault {draw}: {fault:?} of host {victim} at {share:.2} of {stage}: {seconds:.1} s");
    // It may have come after the end.
    let unscathed = outcomes.iter().filter(|outcome| outcome.code == 0).count();
    for outcome in &outcomes {
        let is_told = match fault {
            Fault::FullDisk => outcome.stderr.contains("No space left"),
            Fault::Kill | Fault::Stop | Fault::LinkDown => {
                let is_victim = outcome.code == -1;
                is_victim
                    || outcome.stderr.contains("lost process")
                    || outcome.stderr.contains("not there within")
            }
        };
        assert!(
            outcome.code == 0 || is_told,
            "{fault:?}, {unscathed} unscathed: {outcome:?}"
        );
    }
}

#[test]
fn hosts_end_together_whatever_happens_and_go_on() {
    let graph = Graph::new(600, IdKind::Utf8, FeatureKind::List).with_weights();
    let bench = Bench::new(&graph);
    let Some(net) = Net::new(&bench, HOSTS) else {
        return;
    };
    let job = job(&graph);
    bench.run(&job, &[]).ok();
    let expected = STAGES.map(|(_, output)| bench.data_files(output));
    let faults = std::env::var(FAULTS).map_or(4, |faults| faults.parse().unwrap());
    let mut whole = [Duration::ZERO; STAGES.len()];
    for (at, (stage, _)) in STAGES.into_iter().enumerate() {
        let started = Instant::now();
        let args = ["--stage", stage, "--fresh"];
        net.run(&bench, &args);
        whole[at] = started.elapsed();
        assert_same_bytes(&expected[at], &bench.data_files(STAGES[at].1), stage);
    }
    for draw in 0..faults {
        let at = usize::try_from(mix(61, draw)).unwrap() % STAGES.len();
        let (stage, output) = STAGES[at];
        meet(&net, &bench, stage, whole[at], draw);
        let args = ["--stage", stage];
        net.run(&bench, &args);
        assert_same_bytes(
            &expected[at],
            &bench.data_files(output),
            &format!("fault {draw}"),
        );
    }
}

/// A link that loses one packet in a hundred and takes 100 ms for each makes a job slower, no more.
#[test]
fn a_slow_link_that_loses_packets_is_survived() {
    let graph = Graph::new(200, IdKind::Int64, FeatureKind::List).with_weights();
    let bench = Bench::new(&graph);
    if !std::path::Path::new("/dev/net/tun").exists() {
        eprintln!("skipped: a slow link, for which this kernel has no device");
        return;
    }
    let Some(mut net) = Net::new(&bench, HOSTS) else {
        return;
    };
    let job = job(&graph)
        .with("targets_per_part = 2", "targets_per_part = 32")
        .with("rows_per_part = 8", "rows_per_part = 64");
    bench.run(&job, &[]).ok();
    let expected = STAGES.map(|(_, output)| bench.data_files(output));
    net.slow_down(2, 100, 1);
    for ((stage, output), files) in STAGES.into_iter().zip(expected) {
        let args = ["--stage", stage, "--fresh"];
        let started = Instant::now();
        net.run(&bench, &args);
        eprintln!(
            "{stage} by a slow link: {:.1} s",
            started.elapsed().as_secs_f64()
        );
        assert_same_bytes(&files, &bench.data_files(output), stage);
    }
}
