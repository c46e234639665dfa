//! A job in several processes: finds this process's place, connects to the others, and ends with
//! them.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cluster::{Cluster, ClusterPlan, End, REASON_MAX, SILENCE_MAX, Secret, read_hosts};
use graphinfer::{InferPlan, Method};
use schemas::progress::Progress;

use crate::children::{Children, EarlyEnd, Hello, inherited_listener, read_hello};
use crate::cli::{RunArgs, Stage};
use crate::console::Console;
use crate::ending::{self, Signal};
use crate::error::{JobError, exit_code, is_peer_failure, one_line};
use crate::job::Job;
use crate::preflight::servers;
use crate::restart::Restart;
use crate::source::Edits;

/// Environment variable with the shared secret of a job's processes.
const SECRET: &str = "GRAPHFLAT_SECRET";

/// This process among those of its job.
pub(crate) struct Processes {
    pub(crate) cluster: Cluster,
    children: Arc<Children>,
    restart: Option<Arc<Restart>>,
}

/// Addresses of the processes of a job, and the number of this one.
struct Place {
    hosts: Vec<String>,
    process: usize,
    secret: Secret,
    /// None if this process listens on its address when it connects to the others.
    listener: Option<TcpListener>,
}

impl Processes {
    /// Starts the other processes, if the arguments say so, and waits until all have met.
    ///
    /// # Errors
    ///
    /// If arguments are invalid, a stage runs in one process only, or processes do not connect.
    pub(crate) fn start(
        args: &RunArgs,
        edits: &Edits,
        job: &Job,
        console: &Console,
    ) -> Result<Processes, JobError> {
        let children = Arc::new(Children::default());
        let Some(place) = find_place(args, edits, job, &children)? else {
            return Ok(Processes {
                cluster: Cluster::of_threads(job.workers),
                children,
                restart: None,
            });
        };
        let of = &args.processes;
        let restart = Restart::new(args, edits, job)?.map(Arc::new);
        let (its_restart, ended, console) =
            (restart.clone(), Arc::clone(&children), console.clone());
        let plan = ClusterPlan {
            hosts: place.hosts,
            process: place.process,
            bind: of.bind.clone(),
            threads: job.workers,
            secret: place.secret,
            build: checksum_of_program()?,
            job: job.fingerprint.clone(),
            start_timeout: Duration::from_secs(of.start_timeout),
            on_end: Arc::new(move |end: End<'_>| {
                end_job(end, &ended, its_restart.as_deref(), &console);
            }),
        };
        let on_end = Arc::clone(&plan.on_end);
        let started = Arc::clone(&children);
        let watch_children = move || {
            if let Some(EarlyEnd { text, exit_code }) = started.wait_for_early_end() {
                let text = &text;
                on_end(match exit_code {
                    None => End::Lost { text },
                    Some(exit_code) => End::Failed { text, exit_code },
                });
            }
        };
        schemas::threads::spawn("children", watch_children)?;
        let cluster = Cluster::join(plan, place.listener);
        children.meet();
        let cluster = cluster.inspect_err(|_| children.end(1))?;
        let (told, others) = (cluster.clone(), Arc::clone(&children));
        ending::tell_others_with(move |problem, exit_code| {
            told.fail(problem, exit_code);
            others.end(exit_code);
        });
        Ok(Processes {
            cluster,
            children,
            restart,
        })
    }

    /// Records that a stage has finished, so that a restart of the job does not start it over.
    pub(crate) fn note_done(&self, stage: Stage) {
        if let Some(restart) = &self.restart {
            restart.note_done(stage);
        }
    }

    /// Returns a `progress` that also sets the phase which messages about a lost process name.
    pub(crate) fn watched(&self, progress: Progress) -> Progress {
        let cluster = self.cluster.clone();
        Arc::new(move |event| {
            let (stage, phase) = (event.stage, &event.phase);
            cluster.set_phase(&format!("{stage}, {phase} {}/{}", event.done, event.total));
            progress(event);
        })
    }

    /// Ends together with the other processes: after success, or because one has failed.
    pub(crate) fn end<T>(self, result: anyhow::Result<T>) -> anyhow::Result<T> {
        match &result {
            Ok(_) => self.cluster.leave(),
            // The failed process sends its error, which ends this process.
            Err(error) if is_peer_failure(error) => {
                self.cluster.wait_for_end(self.patience(error));
                // No error has come, so this process reports its own to the others.
                self.cluster.fail(&one_line(error), exit_code(error));
            }
            Err(error) => self.cluster.fail(&one_line(error), exit_code(error)),
        }
        self.children.wait();
        result
    }

    /// Returns how long to wait for the error that caused a peer's failure. The leader of a
    /// training sees a lost connection at once, and possibly no process reports an error. When the
    /// watch should have noticed a lost process, the leader reports its own error, before the
    /// others do.
    fn patience(&self, error: &anyhow::Error) -> Duration {
        let is_training = matches!(error.downcast_ref(), Some(JobError::Train(_)));
        match is_training && self.cluster.process() == 0 {
            true => SILENCE_MAX + Duration::from_secs(2),
            false => REASON_MAX,
        }
    }
}

/// Ends this process because another process of the job has ended; starts the job again if a
/// process was lost and `--restarts` allows it.
fn end_job(end: End<'_>, children: &Children, restart: Option<&Restart>, console: &Console) {
    ending::claim();
    let (text, exit_code) = match end {
        End::Lost { text } => {
            if let Some(restart) = restart {
                children.end(1);
                restart.run(text, console);
            }
            (text, 1)
        }
        End::Failed { text, exit_code } => (text, exit_code),
    };
    match Signal::of_exit_code(exit_code) {
        Some(_) => ending::say_interrupted(text, exit_code),
        None => console.fail_with(text, exit_code),
    }
    children.end(exit_code);
    ending::exit(exit_code);
}

/// Finds the processes of the job, and starts those that this process must start; none if the job
/// has one process.
fn find_place(
    args: &RunArgs,
    edits: &Edits,
    job: &Job,
    children: &Children,
) -> Result<Option<Place>, JobError> {
    let of = &args.processes;
    let (mut hello, mut listeners) = (None, Vec::new());
    let (hosts, process) = match (&of.hosts, of.launched, of.processes) {
        (Some(path), ..) => (read_hosts(path)?, of.process.unwrap_or_default()),
        (None, Some(process), _) => {
            ending::be_silent();
            let told = hello.insert(read_hello()?);
            listeners.push(inherited_listener()?);
            (told.hosts.clone(), process)
        }
        (None, None, Some(num @ 2..)) => {
            listeners = free_ports(num.into())?;
            (addresses(&listeners)?, 0)
        }
        (None, None, _) => return Ok(None),
    };
    if process >= hosts.len() {
        let problem = format!("is {process}; allowed is 0 to {}", hosts.len() - 1);
        return Err(key("--process", problem));
    }
    if hosts.len() > 1 {
        refuse_single(job)?;
    }
    let mut listeners = listeners.into_iter();
    let listener = listeners.next();
    let secret = match hello {
        Some(Hello { secret, .. }) => secret_of("--launched", secret.as_bytes())?,
        None if of.hosts.is_some() => read_secret(of.secret_file.as_deref())?,
        None => {
            let (secret, text) = Secret::draw();
            let told = Hello {
                hosts: hosts.clone(),
                secret: text,
            };
            children.start(&args.of_child(edits, job), &told, listeners)?;
            secret
        }
    };
    Ok(Some(Place {
        hosts,
        process,
        secret,
        listener,
    }))
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
    let running = Path::new("/proc/self/exe"); // the running program, even if its file was replaced
    let failed = |source| JobError::Process { source };
    let path = match running.exists() {
        true => running.to_owned(),
        false => std::env::current_exe().map_err(failed)?,
    };
    Ok(schemas::xxh::file_checksum(&path)?)
}

/// Listens on free ports of this machine. Each process of the job gets one of these listeners, so
/// no other program can take its port before it starts.
fn free_ports(num: usize) -> Result<Vec<TcpListener>, JobError> {
    let listeners = (0..num).map(|_| TcpListener::bind(("127.0.0.1", 0)));
    let listeners = listeners.collect::<Result<_, _>>();
    listeners.map_err(|source| JobError::Process { source })
}

fn addresses(listeners: &[TcpListener]) -> Result<Vec<String>, JobError> {
    let address = |listener: &TcpListener| Ok(listener.local_addr()?.to_string());
    let addresses = listeners.iter().map(address).collect::<Result<_, _>>();
    addresses.map_err(|source| JobError::Process { source })
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
        let problem =
            format!("the processes of a job need a shared secret: name its file, or set {SECRET}");
        return Err(key("--secret-file", problem));
    };
    secret_of(name, &bytes)
}

fn secret_of(name: &str, bytes: &[u8]) -> Result<Secret, JobError> {
    let problem = format!(
        "is too short; at least {} bytes are needed",
        Secret::BYTES_MIN
    );
    Secret::new(bytes).ok_or_else(|| key(name, problem))
}

fn key(name: &str, problem: String) -> JobError {
    JobError::Key {
        key: name.to_owned(),
        problem,
    }
}
