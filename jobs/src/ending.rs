//! Ends the program early, and once: for the first reason that a thread finds.
//!
//! A failed stage, an error of another process and a signal may end the program at the same time.
//! The first thread [`claim`]s the end, prints one line and exits; the others wait for it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use crate::console::Console;

/// Prints why the program ends.
static CONSOLE: OnceLock<Console> = OnceLock::new();

/// Whether a thread has claimed the end of the program.
static IS_CLAIMED: AtomicBool = AtomicBool::new(false);

/// Whether the process that started this one prints the line about a signal for both.
static IS_SILENT: AtomicBool = AtomicBool::new(false);

/// Whether the program runs a job, which the next run continues.
static IS_RESUMABLE: AtomicBool = AtomicBool::new(false);

/// Sends the reason why this process ends, and its exit code, to the other processes of the job.
static OTHERS: Mutex<Option<Box<TellOthers>>> = Mutex::new(None);

type TellOthers = dyn Fn(&str, u8) + Send;

/// A signal that ends the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// Sent by schedulers.
    Terminate,
}

impl Signal {
    const ALL: [Self; 2] = [Self::Interrupt, Self::Terminate];

    /// Returns the exit code of a program that the signal ended: 128 plus its number.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }

    /// Returns the signal with this exit code, if there is one.
    pub(crate) fn of_exit_code(exit_code: u8) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|signal| signal.exit_code() == exit_code)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        }
    }
}

/// Returns to the first caller only; other callers wait until the program has ended.
pub(crate) fn claim() {
    while IS_CLAIMED.swap(true, Ordering::SeqCst) {
        thread::sleep(Duration::from_secs(3600));
    }
}

/// Sets the console that prints why the program ends.
pub(crate) fn speak_through(console: &Console) {
    CONSOLE.set(console.clone()).ok(); // a program has one
}

/// Makes this process print no line about signals: the process that started it does.
pub(crate) fn be_silent() {
    IS_SILENT.store(true, Ordering::SeqCst);
}

/// Records that the program runs a job, which the next run continues.
pub(crate) fn be_resumable() {
    IS_RESUMABLE.store(true, Ordering::SeqCst);
}

/// Sets the function that sends the reason of an early end to the other processes of the job.
pub(crate) fn tell_others_with(tell: impl Fn(&str, u8) + Send + 'static) {
    *OTHERS.lock().expect("its holders never panic") = Some(Box::new(tell));
}

/// Prints the line about a signal, unless the process that started this one does.
pub(crate) fn say_interrupted(problem: &str, exit_code: u8) {
    if let Some(console) = CONSOLE.get()
        && !IS_SILENT.load(Ordering::SeqCst)
    {
        console.interrupted(problem, exit_code);
    }
}

/// Removes temporary files, releases locks and ends the program.
pub(crate) fn exit(exit_code: u8) -> ! {
    schemas::cleanup::run();
    std::process::exit(i32::from(exit_code))
}

/// Ends the program and the other processes of the job because of an error that cannot be returned
/// to `main`; any thread may call it.
pub(crate) fn fail(problem: &str) -> ! {
    claim();
    if let Some(console) = CONSOLE.get() {
        console.fail_with(problem, 1);
    }
    tell_others(problem, 1);
    exit(1)
}

fn tell_others(problem: &str, exit_code: u8) {
    if let Some(tell) = OTHERS.lock().expect("its holders never panic").take() {
        tell(problem, exit_code);
    }
}

/// Ends the program because of a signal.
fn end_by(signal: Signal) {
    claim();
    let hint = match IS_RESUMABLE.load(Ordering::SeqCst) {
        true => "; run again to go on",
        false => "",
    };
    let problem = format!("interrupted by {}{hint}", signal.name());
    say_interrupted(&problem, signal.exit_code());
    tell_others(&problem, signal.exit_code());
    exit(signal.exit_code());
}

/// Installs handlers: the first SIGINT or SIGTERM ends the program in good order, the second at
/// once.
///
/// The handlers also serve process 1 of a container, for which the system has no default handlers.
///
/// # Errors
///
/// If the system refuses a thread.
#[cfg(unix)]
pub(crate) fn listen_to_signals() -> io::Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    use signal_hook::flag::{register, register_conditional_shutdown};
    use std::sync::Arc;

    let is_second = Arc::new(AtomicBool::new(false));
    for (number, signal) in [(SIGINT, Signal::Interrupt), (SIGTERM, Signal::Terminate)] {
        // Handlers run in the order in which they are registered.
        let exit_code = i32::from(signal.exit_code());
        register_conditional_shutdown(number, exit_code, Arc::clone(&is_second))?;
        register(number, Arc::clone(&is_second))?;
    }
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
    let first = move || match signals.forever().next() {
        Some(SIGINT) => end_by(Signal::Interrupt),
        _ => end_by(Signal::Terminate),
    };
    let thread = thread::Builder::new().name("signals".to_owned());
    thread.spawn(first).map(drop)
}

/// Signals end the program at once.
#[cfg(not(unix))]
pub(crate) fn listen_to_signals() -> io::Result<()> {
    Ok(())
}
