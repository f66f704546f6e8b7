//! Development commands of enginetap: `cargo xtask COMMAND`.

mod build;
mod ci;
mod demo;
mod docs;
mod inspect;
mod lint;
mod object;
mod page;
mod real;
mod report;
mod scrape;
mod setup;
mod shell;
mod test;
mod vm;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Development commands of enginetap")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install what this machine lacks
    Setup {
        #[arg(long = "for", value_enum, default_value = "all")]
        purpose: setup::Purpose,
    },
    /// Build the agent: target/release/enginetap
    Build,
    /// Build the kernel object and list its programs with their instruction counts
    Object {
        /// Show the change since the last commit
        #[arg(long)]
        compare: bool,
    },
    /// Watch a small built-in engine under load, live, in the terminal
    Demo {
        /// End after so many seconds with a last table
        #[arg(long)]
        seconds: Option<u64>,
    },
    /// Run all tests, as root, on this kernel
    Test {
        /// Neither install real engines nor run the tests that need them
        #[arg(long)]
        no_real: bool,
        /// Arguments of the kernel tests' programs; with any, unit tests are left out
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Check formatting, spelling, manifests, licences and lints
    Lint,
    /// Write agent/METRICS.md anew from the catalogue
    Docs {
        /// Only fail if it is out of date
        #[arg(long)]
        check: bool,
    },
    /// Everything that must hold before a commit lands
    Ci,
    /// Run the kernel tests on other kernels, in virtual machines
    Vm {
        #[arg(long, value_enum, default_value = "all")]
        kernel: vm::Kernels,
        /// Arguments of the tests' programs
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Measure cost and accuracy; writes agent/BENCH.md
    Bench {
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Run the long proofs; writes agent/SOAK.md
    Soak {
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Install or start real engines, gateways and clients
    #[command(subcommand)]
    Real(Real),
}

#[derive(Debug, Subcommand)]
enum Real {
    /// What there is
    List,
    /// Install by name, with what it needs
    Install {
        #[arg(required = true)]
        names: Vec<String>,
    },
    /// Measure by name, or all that are installed, against their clients; writes agent/REAL.md
    Table { names: Vec<String> },
    /// Start in the foreground, on loopback
    Start {
        name: String,
        #[arg(long)]
        port: Option<u16>,
        /// Arguments of the recipe
        args: Vec<String>,
    },
}

fn main() -> ExitCode {
    match run(Args::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Setup { purpose } => setup::run(purpose),
        Command::Build => build::agent(),
        Command::Object { compare } => inspect::run(compare),
        Command::Demo { seconds } => demo::run(seconds),
        Command::Test { no_real, args } => test::run(!no_real, &args),
        Command::Lint => ci::each(lint::STEPS.iter()),
        Command::Docs { check } => docs::run(check),
        Command::Ci => ci::run(),
        Command::Vm { kernel, args } => vm::run(kernel, &args),
        Command::Bench { args } => report::run(report::BENCH, &args, args.is_empty()),
        Command::Soak { args } => report::run(report::SOAK, &args, args.is_empty()),
        Command::Real(Real::List) => real::list(),
        Command::Real(Real::Install { names }) => real::install(&names),
        Command::Real(Real::Table { names }) => real::table(&names),
        Command::Real(Real::Start { name, port, args }) => real::start(&name, port, &args),
    }
}
