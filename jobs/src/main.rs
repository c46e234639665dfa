//! The program `graphflat`: arguments in, exit code out.

mod arguments;
mod check;
mod children;
mod cli;
mod compact;
mod console;
mod ending;
mod error;
mod generate;
mod hints;
mod inspect;
mod instruction_set;
mod job;
mod leftovers;
mod memory;
mod mistakes;
mod preflight;
mod processes;
mod report;
mod restart;
mod source;
mod stage;
mod stores;
mod variables;
mod versions;

use std::process::ExitCode;

use clap::Parser as _;
use schemas::ErrorKind;

use crate::cli::{Cli, Command};
use crate::console::Console;
use crate::error::JobError;

// Hundreds of megabytes of tensors are allocated and freed all the time; this allocator is fast for
// them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    abort_on_panic();
    if let Err(problem) = instruction_set::choose() {
        eprintln!("error: {problem}");
        return ExitCode::from(ErrorKind::Usage.exit_code());
    }
    let command = Cli::parse().command;
    let console = Console::of(&command);
    console.listen();
    ending::speak_through(&console);
    if let Err(error) = ending::listen_to_signals() {
        let error = JobError::from(schemas::threads::refused(error)).into();
        return fail(&console, &error);
    }
    let result = match command {
        Command::Run(args) => stage::run(&args, &console),
        Command::Check(args) => check::check(&args, &console),
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Versions(args) => versions::versions(&args),
        Command::Compact(args) => compact::compact(&args, &console),
        Command::Generate(args) => generate::generate(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&console, &error),
    }
}

/// Prints the error and returns its exit code, unless another thread is ending the program already.
fn fail(console: &Console, error: &anyhow::Error) -> ExitCode {
    ending::claim();
    console.fail(error);
    ExitCode::from(error::exit_code(error))
}

/// Ends the whole program on a panic of any thread: the peers of a dead worker would wait for it
/// for ever.
fn abort_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // The panic of a decoder on a broken file becomes an error that names the file.
        if schemas::guard::is_guarded() {
            return;
        }
        if info.payload_as_str().is_some_and(is_refused_thread) {
            let error = schemas::threads::refused("the system refuses it");
            ending::fail(&error.to_string());
        }
        // The thread of a connection to a lost process panics: the watch over that process ends
        // this one with a clear message.
        if cluster::is_connection(&std::thread::current()) {
            std::thread::sleep(cluster::SILENCE_MAX);
        }
        ending::claim();
        print(info);
        std::process::abort();
    }));
}

/// Tells whether a library panicked because the system refused it a thread.
fn is_refused_thread(panic: &str) -> bool {
    let refusals = [
        "failed to spawn thread",       // std
        "OS can't spawn worker thread", // tokio
        "ThreadPoolBuildError",         // rayon
        "Failed to send buzzer",        // timely: another worker's thread was not started
        "Failed to recv buzzer",        // timely, likewise
        "ailed to send MergeQueue",     // timely: no worker was started for this connection
        "Failed to receive MergeQueue", // timely, likewise
    ];
    refusals.iter().any(|refusal| panic.contains(refusal))
}
