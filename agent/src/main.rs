//! The `enginetap` program.

use std::process::ExitCode;

use clap::Parser;
use enginetap::cli::{Cli, Command, RunFlags};
use enginetap::config::{self, FileConfig, Settings};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Run(flags) => run(&flags),
        Command::Ps(flags) => enginetap::ps::ps(&flags.listen),
        Command::Slow(flags) => enginetap::slow::slow(&flags.listen),
        Command::Doctor => {
            return if enginetap::doctor::doctor() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            };
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("enginetap: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &RunFlags) -> anyhow::Result<()> {
    let file = match &flags.config {
        Some(path) => config::load(path)?,
        None => FileConfig::default(),
    };
    let settings = Settings::merge(file, flags.as_config())?;
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::new(
            settings.log_level.as_str(),
        ))
        .with_writer(std::io::stderr)
        .init();
    enginetap::run::run(settings)
}
