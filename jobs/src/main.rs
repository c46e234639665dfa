//! The program `graphflat`: arguments in, exit code out.

mod check;
mod cli;
mod console;
mod error;
mod generate;
mod inspect;
mod job;
mod memory;
mod preflight;
mod processes;
mod source;
mod stage;
mod variables;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::{Cli, Command};

// Tensors are allocated and freed by the hundred megabytes; this allocator finds room for them fast.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    abort_on_panic();
    let result = match Cli::parse().command {
        Command::Run(args) => stage::run(&args),
        Command::Check(args) => check::check(&args),
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Generate(args) => generate::generate(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to be done where even this cannot be written.
            let _ = writeln!(std::io::stderr(), "error: {}", error::one_line(&error));
            ExitCode::from(error::exit_code(&error))
        }
    }
}

/// Ends the whole program on a panic of any thread: a worker that dies alone would leave its peers
/// waiting for it for ever.
fn abort_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // A decoder of a broken file: its panic becomes an error that names the file.
        if schemas::guard::is_guarded() {
            return;
        }
        // The connection to another process is gone: who is missed knows who watches them, and ends
        // this process with a clear word.
        if cluster::is_connection(&std::thread::current()) {
            std::thread::sleep(cluster::SILENCE_MAX);
        }
        print(info);
        std::process::abort();
    }));
}
