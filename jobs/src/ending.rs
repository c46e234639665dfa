//! How the program ends before its work is done: once, whoever finds a reason first.
//!
//! A failed stage, another process of the job and a signal may all want to end the program at the same
//! time. The first one [`claim`]s the end, says why in one line and exits; the others wait for it.

use std::io::{self, Write as _};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Whether somebody ends the program.
static IS_CLAIMED: AtomicBool = AtomicBool::new(false);

/// Whether the process that started this one speaks of signals for both.
static IS_SILENT: AtomicBool = AtomicBool::new(false);

/// Whether the program runs a job, which goes on when it runs again.
static IS_RESUMABLE: AtomicBool = AtomicBool::new(false);

/// Tells the other processes of the job why this one ends: what happened, and the exit code.
static OTHERS: Mutex<Option<Box<TellOthers>>> = Mutex::new(None);

type TellOthers = dyn Fn(&str, u8) + Send;

/// A signal that ends the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Ctrl-C.
    Interrupt,
    /// What a scheduler sends.
    Terminate,
}

impl Signal {
    const ALL: [Self; 2] = [Self::Interrupt, Self::Terminate];

    /// The exit code of a program that it ended: 128 and its number.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }

    /// The signal whose exit code this is.
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

/// Returns to the first caller alone; the others wait until the program has ended.
pub(crate) fn claim() {
    while IS_CLAIMED.swap(true, Ordering::SeqCst) {
        thread::sleep(Duration::from_secs(3600));
    }
}

/// Leaves it to the process that started this one to speak of signals.
pub(crate) fn be_silent() {
    IS_SILENT.store(true, Ordering::SeqCst);
}

/// Notes that the program runs a job, which goes on when it runs again.
pub(crate) fn be_resumable() {
    IS_RESUMABLE.store(true, Ordering::SeqCst);
}

/// Sets how the other processes of the job learn why this one ends.
pub(crate) fn tell_others_with(tell: impl Fn(&str, u8) + Send + 'static) {
    *OTHERS.lock().expect("nobody panics with it") = Some(Box::new(tell));
}

/// Writes a line to standard error.
pub(crate) fn say(line: &str) {
    // Nothing is left to be done where even this cannot be written.
    let _ = writeln!(io::stderr(), "{line}");
}

/// Says why a signal ends this process, unless the one that started it does.
pub(crate) fn say_interrupted(line: &str) {
    if !IS_SILENT.load(Ordering::SeqCst) {
        say(line);
    }
}

/// Ends the program: removes its temporary files, releases its locks.
pub(crate) fn exit(exit_code: u8) -> ! {
    schemas::cleanup::run();
    std::process::exit(i32::from(exit_code))
}

/// Ends the program, and the other processes of the job, from any thread, because of an error that
/// has no way to `main`.
pub(crate) fn fail(problem: &str) -> ! {
    claim();
    say(&format!("error: {problem}"));
    tell_others(problem, 1);
    exit(1)
}

fn tell_others(problem: &str, exit_code: u8) {
    if let Some(tell) = OTHERS.lock().expect("nobody panics with it").take() {
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
    say_interrupted(&problem);
    tell_others(&problem, signal.exit_code());
    exit(signal.exit_code());
}

/// Has SIGINT and SIGTERM end the program in good order, and the second of them at once.
///
/// The handlers also serve process 1 of a container, for which the system has no default.
///
/// # Errors
///
/// If the system has no thread to give.
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
