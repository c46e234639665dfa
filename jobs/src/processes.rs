//! A job in several processes: which one this is, those that it starts, how they end together.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cluster::{Cluster, ClusterPlan, REASON_MAX, SILENCE_MAX, Secret, read_hosts};
use graphinfer::{InferPlan, Method};
use graphtrainer::{Peers, TrainError, TrainPlan};
use schemas::Manifest;
use schemas::progress::Progress;

use crate::cli::{RunArgs, Stage};
use crate::error::{JobError, exit_code, is_peer_failure, one_line};
use crate::job::Job;
use crate::preflight::servers;
use crate::source::Edits;

/// Holds the secret by which the processes of a job know each other.
const SECRET: &str = "GRAPHFLAT_SECRET";
/// Time in which processes that were started here end, once the job has.
const END_MAX: Duration = Duration::from_secs(5);

/// This process among those of its job.
pub(crate) struct Processes {
    pub(crate) cluster: Cluster,
    children: Arc<Children>,
}

/// Processes that this one started; they are killed where this one ends before them.
#[derive(Default)]
struct Children {
    running: Mutex<Vec<Child>>,
    /// Whether all processes of the job have met.
    have_met: Arc<AtomicBool>,
}

impl Processes {
    /// Starts the other processes, where the job asks for it, and waits until all have met.
    ///
    /// # Errors
    ///
    /// Arguments that cannot be, a stage that runs in one process only, processes that do not come.
    pub(crate) fn start(args: &RunArgs, edits: &Edits, job: &Job) -> Result<Processes, JobError> {
        let children = Arc::new(Children::default());
        let alone = Processes {
            cluster: Cluster::of_threads(job.workers),
            children: Arc::clone(&children),
        };
        let of = &args.processes;
        let (hosts, process) = match (&of.hosts, of.processes) {
            (Some(path), _) => (read_hosts(path)?, of.process.unwrap_or_default()),
            (None, Some(num @ 2..)) => (free_addresses(num.into())?, 0),
            (None, _) => return Ok(alone),
        };
        if process >= hosts.len() {
            let problem = format!("is {process}; there are 0 to {}", hosts.len() - 1);
            return Err(key("--process", problem));
        }
        if hosts.len() > 1 {
            refuse_single(job)?;
        }
        let secret = if of.hosts.is_some() {
            read_secret(of.secret_file.as_deref())?
        } else {
            let (secret, text) = Secret::draw();
            children.start(args, edits, job, &hosts, &text)?;
            secret
        };
        let ended = Arc::clone(&children);
        let plan = ClusterPlan {
            hosts,
            process,
            bind: of.bind.clone(),
            threads: job.workers,
            secret,
            build: checksum_of_program()?,
            job: job.fingerprint.clone(),
            start_timeout: Duration::from_secs(of.start_timeout),
            on_end: Arc::new(move |problem, exit_code| {
                // Nothing is left to be done where even this cannot be written.
                let _ = writeln!(std::io::stderr(), "error: {problem}");
                ended.kill();
                std::process::exit(i32::from(exit_code));
            }),
        };
        let on_end = Arc::clone(&plan.on_end);
        let started = Arc::clone(&children);
        std::thread::spawn(move || {
            while !started.have_met.load(Ordering::SeqCst) {
                if let Some(gone) = started.ended() {
                    on_end(&format!("process {gone} ended before all had met"), 1);
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let cluster = Cluster::join(plan);
        children.have_met.store(true, Ordering::SeqCst);
        Ok(Processes {
            cluster: cluster.inspect_err(|_| children.kill())?,
            children,
        })
    }

    /// Keeps in mind what this process is at, for those whom it misses.
    pub(crate) fn watched(&self, progress: Progress) -> Progress {
        let cluster = self.cluster.clone();
        Arc::new(move |event| {
            let (stage, phase) = (event.stage, &event.phase);
            cluster.set_phase(&format!("{stage}, {phase} {}/{}", event.done, event.total));
            progress(event);
        })
    }

    /// Ends with the other processes: in good order, or because one has failed.
    pub(crate) fn end<T>(self, result: anyhow::Result<T>) -> anyhow::Result<T> {
        match &result {
            Ok(_) => self.cluster.leave(),
            // Its own error is on the way, and ends this process.
            Err(error) if is_peer_failure(error) => {
                self.cluster.wait_for_end(self.patience(error));
                // If none has come, the others have to learn that this process ends.
                self.cluster.fail(&one_line(error), exit_code(error));
            }
            Err(error) => self.cluster.fail(&one_line(error), exit_code(error)),
        }
        self.children.wait();
        result
    }

    /// How long to wait for the error behind a peer's failure. The first process of a training knows as
    /// soon as a connection is lost, and no process may have an error of its own then: once the watch would
    /// have missed one, it says what it knows, before the others do.
    fn patience(&self, error: &anyhow::Error) -> Duration {
        let is_training = matches!(error.downcast_ref(), Some(JobError::Train(_)));
        match is_training && self.cluster.process() == 0 {
            true => SILENCE_MAX + Duration::from_secs(2),
            false => REASON_MAX,
        }
    }
}

impl Children {
    /// Starts all processes of a list but the first.
    fn start(
        &self,
        args: &RunArgs,
        edits: &Edits,
        job: &Job,
        hosts: &[String],
        secret: &str,
    ) -> Result<(), JobError> {
        let failed = |source| JobError::Process { source };
        let program = std::env::current_exe().map_err(failed)?;
        let mut same = vec!["--date".to_owned(), edits.date.to_rfc3339()];
        for (name, value) in &edits.set {
            same.extend(["--set".to_owned(), format!("{name}={value}")]);
        }
        let budget = format!("memory_budget={}B", job.memory_budget.as_u64());
        same.extend(["--set".to_owned(), budget]);
        for stage in &job.selected {
            same.extend(["--stage".to_owned(), stage.name().to_owned()]);
        }
        same.extend(args.fresh.then(|| "--fresh".to_owned()));
        same.extend(["--workers".to_owned(), job.workers.to_string()]);
        let start_timeout = args.processes.start_timeout.to_string();
        same.extend(["--start-timeout".to_owned(), start_timeout]);
        for process in 1..hosts.len() {
            let mut child = Command::new(&program)
                .arg("run")
                .arg(&args.job.path)
                .args(&same)
                .args(["--quiet", "--hosts", "/dev/stdin"])
                .args(["--process", &process.to_string()])
                .env(SECRET, secret)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()
                .map_err(failed)?;
            if let Some(said) = child.stderr.take() {
                let have_met = Arc::clone(&self.have_met);
                std::thread::spawn(move || hand_on(said, &have_met));
            }
            let list = child
                .stdin
                .take()
                .map(|mut input| writeln!(input, "{}", hosts.join("\n")));
            self.guard().push(child);
            list.unwrap_or(Ok(())).map_err(failed)?;
        }
        Ok(())
    }

    /// Returns the number of one that has ended.
    fn ended(&self) -> Option<usize> {
        let mut children = self.guard();
        let mut ends = children.iter_mut().map(Child::try_wait);
        ends.position(|end| matches!(end, Ok(Some(_))))
            .map(|child| child + 1)
    }

    /// Waits for all to end, and kills those that do not.
    fn wait(&self) {
        let deadline = Instant::now() + END_MAX;
        let mut children = self.guard();
        let is_running = |child: &mut Child| matches!(child.try_wait(), Ok(None));
        while children.iter_mut().any(is_running) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(children);
        self.kill();
    }

    fn kill(&self) {
        for child in self.guard().iter_mut() {
            // Fails for one that has ended.
            child.kill().ok();
            child.wait().ok();
        }
    }

    fn guard(&self) -> MutexGuard<'_, Vec<Child>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hands on what a process says that was started here. Once all have met, its error comes by the watch, to
/// this process too, which says it.
fn hand_on(said: ChildStderr, have_met: &AtomicBool) {
    for line in BufReader::new(said).lines().map_while(Result::ok) {
        if !(have_met.load(Ordering::SeqCst) && line.starts_with("error: ")) {
            writeln!(std::io::stderr(), "{line}").ok();
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Trains with the other processes of the job, if there are any.
pub(crate) fn train(
    plan: &TrainPlan,
    cluster: &Cluster,
    progress: &Progress,
) -> Result<Manifest, TrainError> {
    let peers = Peers {
        process: cluster.process(),
        num_processes: cluster.num_processes(),
        connect: &|| cluster.connect().map_err(std::io::Error::other),
        set_phase: &|phase| cluster.set_phase(phase),
    };
    graphtrainer::train_among(plan, &peers, progress)
}

/// Refuses plans of stages that several processes cannot run.
fn refuse_single(job: &Job) -> Result<(), JobError> {
    if let Some(plan) = job.train.as_ref().filter(|_| job.runs(Stage::Train)) {
        plan.check_processes()?;
        if job.own_training.is_some() {
            servers(job, plan)?;
        }
    }
    let by_neighborhoods = |plan: &InferPlan| plan.method() == Method::Neighborhoods;
    if job.runs(Stage::Infer) && job.infer.as_ref().is_some_and(by_neighborhoods) {
        let problem = "\"neighborhoods\" runs in one process only; \"layers\" runs in several";
        return Err(key("infer.method", problem.to_owned()));
    }
    Ok(())
}

/// Returns the checksum of this program's file.
fn checksum_of_program() -> Result<String, JobError> {
    let running = Path::new("/proc/self/exe"); // the one that was started, be it replaced since
    let failed = |source| JobError::Process { source };
    let path = match running.exists() {
        true => running.to_owned(),
        false => std::env::current_exe().map_err(failed)?,
    };
    Ok(schemas::xxh::file_checksum(&path)?)
}

/// Addresses of this machine that nobody listens on; what takes one before we do is told then.
fn free_addresses(num: usize) -> Result<Vec<String>, JobError> {
    let failed = |source| JobError::Process { source };
    let listeners = (0..num).map(|_| TcpListener::bind(("127.0.0.1", 0)));
    let listeners: Vec<TcpListener> = listeners.collect::<Result<_, _>>().map_err(failed)?;
    let address = |listener: &TcpListener| Ok(listener.local_addr().map_err(failed)?.to_string());
    listeners.iter().map(address).collect()
}

/// Reads the secret of the job: from a file, or the environment.
fn read_secret(path: Option<&Path>) -> Result<Secret, JobError> {
    let (name, bytes) = match path {
        Some(path) => {
            let bytes = std::fs::read(path).map_err(|source| JobError::Io {
                action: "read",
                path: path.to_owned(),
                source,
            })?;
            ("--secret-file", Some(bytes))
        }
        None => (SECRET, std::env::var(SECRET).ok().map(String::into_bytes)),
    };
    let Some(bytes) = bytes else {
        let problem = format!(
            "the processes of a job know each other by a secret: name its file, or set {SECRET}"
        );
        return Err(key("--secret-file", problem));
    };
    let problem = format!(
        "is too short; at least {} bytes are needed",
        Secret::BYTES_MIN
    );
    Secret::new(&bytes).ok_or_else(|| key(name, problem))
}

fn key(name: &str, problem: String) -> JobError {
    JobError::Key {
        key: name.to_owned(),
        problem,
    }
}
