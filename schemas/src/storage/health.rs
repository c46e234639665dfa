//! Counts the requests of this process to one store and its faults, and reports a silent store.

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Silence of a store that has never answered, after which a warning is printed.
const UNHEARD: Duration = Duration::from_secs(2);
/// Silence of a store that has answered before, after which a warning is printed.
const SILENT: Duration = Duration::from_secs(15);
/// Time between two warnings.
const SAID_EVERY: Duration = Duration::from_secs(15);
/// Number of faults without an answer between them, after which a warning is printed.
const FAULTS_IN_A_ROW: u64 = 2;

/// Counts requests to a store, and warns when it does not answer.
#[derive(Debug)]
pub(super) struct Health {
    /// The store's name in warnings.
    endpoint: String,
    requests: AtomicU64,
    faults: AtomicU64,
    faults_max: u64,
    silence: Mutex<Silence>,
}

#[derive(Debug, Default)]
struct Silence {
    /// Faults since the last answer.
    faults: u64,
    answered: Option<Instant>,
    said: Option<Instant>,
}

impl Health {
    pub(super) fn new(endpoint: String, faults_max: u64) -> Self {
        Self {
            endpoint,
            requests: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            faults_max,
            silence: Mutex::default(),
        }
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    pub(super) fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    /// Tells whether there were more faults than the job allows.
    pub(super) fn is_spent(&self) -> bool {
        self.faults() > self.faults_max
    }

    pub(super) fn problem(&self) -> String {
        format!(
            "the job met more than {} faults (`storage.faults_max`)",
            self.faults_max
        )
    }

    /// Counts a request and waits for its answer; `fault` returns the problem of an answer that is
    /// a fault.
    pub(super) async fn watch<T>(
        &self,
        request: impl Future<Output = T>,
        fault: impl FnOnce(&T) -> Option<String>,
    ) -> T {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let began = Instant::now();
        let mut request = pin!(request);
        let answer = loop {
            match tokio::time::timeout(UNHEARD, &mut request).await {
                Ok(answer) => break answer,
                Err(_elapsed) => self.tell_of_silence(began),
            }
        };
        match fault(&answer) {
            Some(problem) => {
                self.faults.fetch_add(1, Ordering::Relaxed);
                self.tell_of_fault(&problem);
            }
            None => {
                *self.silence_guard() = Silence {
                    answered: Some(Instant::now()),
                    ..Silence::default()
                }
            }
        }
        answer
    }

    fn silence_guard(&self) -> MutexGuard<'_, Silence> {
        self.silence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell_of_fault(&self, problem: &str) {
        let mut silence = self.silence_guard();
        silence.faults += 1;
        if silence.faults >= FAULTS_IN_A_ROW {
            let attempt = silence.faults + 1;
            silence.tell(|| {
                format!(
                    "waiting for {}, attempt {attempt}: {problem}",
                    self.endpoint
                )
            });
        }
    }

    fn tell_of_silence(&self, began: Instant) {
        let mut silence = self.silence_guard();
        let (since, patience) = match silence.answered {
            Some(answered) => (answered.max(began), SILENT),
            None => (began, UNHEARD),
        };
        if since.elapsed() >= patience {
            let attempt = silence.faults + 1;
            silence.tell(|| format!("waiting for {}, attempt {attempt}", self.endpoint));
        }
    }
}

impl Silence {
    fn tell(&mut self, line: impl FnOnce() -> String) {
        if self.said.is_none_or(|said| said.elapsed() >= SAID_EVERY) {
            self.said = Some(Instant::now());
            tracing::warn!("{}", line());
        }
    }
}
