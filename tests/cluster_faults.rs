//! Seeded faults of a job on four hosts: it ends on all hosts with a reason, or continues; the next
//! run has the bytes of one process.
#![cfg(target_os = "linux")]

use std::process::Child;
use std::time::{Duration, Instant};

use crate::harness::{
    Bench, FLATTEN, FeatureKind, Graph, INFER, IdKind, Job, Outcome, TRAIN, assert_same_bytes, mix,
};
use crate::hosts::{LOSS_MAX, Net, end_within, send_signal};
use crate::needs::{skip, slow};

/// Variable with the number of faults that end the job; 50 if it is not set.
const FAULTS: &str = "GRAPHFLAT_TEST_HOST_FAULTS";
const HOSTS: usize = 4;
/// The stages and their outputs.
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

/// Draws a number below `num`.
fn choose(seed: u64, draw: u64, num: usize) -> usize {
    usize::try_from(mix(seed, draw) % num as u64).unwrap()
}

/// When a fault came, as far as the outcome shows it.
#[derive(PartialEq)]
enum Moment {
    /// Before the host had connected.
    Start,
    Midst,
    /// Too late, or on a disk that was large enough.
    End,
}

/// Causes one fault in the middle of a stage: every other host must end by itself in time and name
/// the lost host.
fn meet(
    net: &Net,
    bench: &Bench,
    (stage, fault): (&str, Fault),
    whole: Duration,
    draw: u64,
) -> Moment {
    let victim = choose(53, draw, HOSTS);
    let room = 4 + 4 * (mix(67, draw) % 20);
    net.disk.empty();
    net.disk.resize(room);
    let args = ["--stage", stage, "--fresh", "--start-timeout", "10"];
    let full = format!("work_dir={}", net.disk.dir.display());
    let with_full = [&args[..], &["--set", &full]].concat();
    let start = |host: usize| match fault {
        Fault::FullDisk if host == victim => net.start(bench, host, &with_full),
        _ => net.start(bench, host, &args),
    };
    let mut children: Vec<Option<Child>> = (0..HOSTS).map(|host| Some(start(host))).collect();
    let share = (mix(59, draw) % 1000) as f64 / 1000.0;
    std::thread::sleep(whole.mul_f64(share));
    let begun = Instant::now();
    let target = children[victim].as_mut().unwrap();
    match fault {
        Fault::Kill => target.kill().unwrap(),
        Fault::Stop => send_signal(target, "-STOP"),
        Fault::LinkDown => net.set_link(victim, "down"),
        Fault::FullDisk => {}
    }
    let left = children[victim].take().unwrap();
    let others = children.into_iter().flatten();
    let in_time = |child| end_within(child, LOSS_MAX.saturating_sub(begun.elapsed()));
    let outcomes: Vec<Outcome> = others.map(in_time).collect();
    let seconds = begun.elapsed().as_secs_f64();
    if matches!(fault, Fault::LinkDown) {
        net.set_link(victim, "up");
    }
    if matches!(fault, Fault::Stop) {
        // The host continues and must notice that the others are gone.
        send_signal(&left, "-CONT");
    }
    let hit = end_within(left, LOSS_MAX);
    eprintln!(
        "fault {draw}: {fault:?} of host {victim} at {share:.2} of {stage}: {seconds:.1} s, code {}",
        outcomes[0].code
    );
    // The fault may have come after the end, or the disk may have been large enough.
    let what = format!("{fault:?}: {hit:?}, {outcomes:?}");
    assert!(
        outcomes
            .iter()
            .all(|outcome| outcome.code == outcomes[0].code),
        "{what}"
    );
    if outcomes[0].code == 0 {
        return Moment::End;
    }
    assert_eq!(outcomes[0].code, 1, "{what}");
    let expected = match fault {
        Fault::FullDisk => "No space left".to_owned(),
        Fault::Kill | Fault::Stop | Fault::LinkDown => format!("lost process {victim} ("),
    };
    let (is_named, is_missing) = (
        |outcome: &Outcome| outcome.stderr.contains(&expected),
        |outcome: &Outcome| outcome.stderr.contains("not there within"),
    );
    if outcomes.iter().all(is_named) {
        return Moment::Midst;
    }
    let is_told = |outcome: &Outcome| is_named(outcome) || is_missing(outcome);
    assert!(outcomes.iter().all(is_told), "{what}");
    Moment::Start
}

#[test]
fn hosts_end_together_whatever_happens_and_go_on() {
    if !slow() {
        return;
    }
    let graph = Graph::new(600, IdKind::Utf8, FeatureKind::List).with_weights();
    let bench = Bench::new(&graph);
    let Some(net) = Net::new(&bench, HOSTS) else {
        return;
    };
    let job = job(&graph);
    bench.run(&job, &[]).ok();
    let expected = STAGES.map(|(_, output)| bench.data_files(output));
    let faults = std::env::var(FAULTS).map(|faults| faults.parse().unwrap());
    let faults = faults.unwrap_or(50);
    let mut whole = [Duration::ZERO; STAGES.len()];
    for (at, (stage, _)) in STAGES.into_iter().enumerate() {
        let started = Instant::now();
        let args = ["--stage", stage, "--fresh"];
        net.run(&bench, &args);
        whole[at] = started.elapsed();
        assert_same_bytes(&expected[at], &bench.data_files(STAGES[at].1), stage);
    }
    let (mut num_ended, mut draw) = ([0; FAULT_KINDS.len()], 0);
    while num_ended.iter().sum::<usize>() < faults {
        draw += 1;
        let kind = usize::try_from(draw).unwrap() % FAULT_KINDS.len();
        // Training writes no file on a host's own disk.
        let at = match FAULT_KINDS[kind] {
            Fault::FullDisk => 2 * choose(61, draw, 2),
            _ => choose(61, draw, STAGES.len()),
        };
        let (stage, output) = STAGES[at];
        // A finished output would leave nothing to do for the next run.
        std::fs::remove_dir_all(bench.path(output)).unwrap();
        let moment = meet(&net, &bench, (stage, FAULT_KINDS[kind]), whole[at], draw);
        num_ended[kind] += usize::from(moment == Moment::Midst);
        // The load of the machine changes after the job was timed.
        whole[at] = whole[at].mul_f64(match moment {
            Moment::Start => 1.1,
            Moment::Midst => 1.0,
            Moment::End => 0.9,
        });
        let args = ["--stage", stage];
        net.run(&bench, &args);
        assert_same_bytes(
            &expected[at],
            &bench.data_files(output),
            &format!("fault {draw}"),
        );
    }
    eprintln!("jobs ended, by {FAULT_KINDS:?}: {num_ended:?} in {draw} runs");
    assert!(num_ended.iter().all(|&num| num > 0), "{num_ended:?}");
}

/// A link that loses 1 % of the packets and delays each by 100 ms makes a job slower, but does not
/// end it.
#[test]
fn a_slow_link_that_loses_packets_is_survived() {
    if !slow() {
        return;
    }
    let graph = Graph::new(200, IdKind::Int64, FeatureKind::List).with_weights();
    let bench = Bench::new(&graph);
    if !std::path::Path::new("/dev/net/tun").exists() {
        skip::<()>("this kernel has no device for a slow link (/dev/net/tun)");
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
