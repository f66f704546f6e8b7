//! The command line. Every flag's text is its documentation.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::config::FileConfig;

/// Exact request metrics of unmodified LLM engines and gateways, read from outside.
#[derive(Debug, Parser)]
#[command(name = "enginetap", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Watches the engines on this node and serves their metrics.
    Run(Box<RunFlags>),
    /// Shows what a running agent watches, why, and how it is covered.
    Ps(PsFlags),
    /// Shows the slowest requests of the last 10 minutes and what held them up.
    Slow(PsFlags),
    /// Says what works on this machine and what is off because of what.
    Doctor,
}

/// Flags of `run`.
#[derive(Debug, Default, clap::Args)]
pub struct RunFlags {
    /// Address of /metrics, /healthz, /readyz, /targets and /requests/slow; port 0 takes a free one [default: 127.0.0.1:9469].
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<String>,
    /// Configuration file (TOML) with the same names as these flags; flags win.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Watches processes that match: exe=GLOB, cmdline=REGEX, port=N or cgroup=GLOB, then optionally ,engine=NAME. Repeatable.
    #[arg(long = "match", value_name = "RULE")]
    pub matches: Vec<String>,
    /// Never watches processes that match. Wins over everything else. Repeatable.
    #[arg(long, value_name = "RULE")]
    pub exclude: Vec<String>,
    /// Whether processes without a profile are recognised by answering an inference route [default: on].
    #[arg(long, value_name = "on|off")]
    pub recognise: Option<String>,
    /// Whether it is told what held requests up; off attaches no hook to the scheduler [default: on].
    #[arg(long, value_name = "on|off")]
    pub stalls: Option<String>,
    /// error, warn, info, debug or trace [default: info].
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
    /// Most series of the agent's own [default: 200000].
    #[arg(long, value_name = "N")]
    pub series_budget: Option<u64>,
    /// Most models that one workload may have series of its own for [default: 64].
    #[arg(long, value_name = "N")]
    pub models_per_workload: Option<u32>,
    /// One more bucket edge, like ttft=0.8; of head, ttft, tpot, duration, unfinished, tokens, body. Repeatable.
    #[arg(long, value_name = "FAMILY=VALUE")]
    pub bucket_edge: Vec<String>,
    /// Seconds for which the series of a workload stay after its last process, listener and connection are gone [default: 300].
    #[arg(long, value_name = "SECONDS")]
    pub workload_grace: Option<u64>,
    /// Where the host's /proc is mounted [default: /proc].
    #[arg(long, value_name = "DIR")]
    pub proc_root: Option<PathBuf>,
}

/// Flags of `ps` and `slow`.
#[derive(Debug, clap::Args)]
pub struct PsFlags {
    /// Address of the running agent.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9469")]
    pub listen: String,
}

impl RunFlags {
    /// The flags in the form of the configuration file.
    pub fn as_config(&self) -> FileConfig {
        let list = |v: &Vec<String>| (!v.is_empty()).then(|| v.clone());
        FileConfig {
            listen: self.listen.clone(),
            r#match: list(&self.matches),
            exclude: list(&self.exclude),
            recognise: self.recognise.clone(),
            stalls: self.stalls.clone(),
            log_level: self.log_level.clone(),
            series_budget: self.series_budget,
            models_per_workload: self.models_per_workload,
            bucket_edge: list(&self.bucket_edge),
            workload_grace: self.workload_grace,
            proc_root: self.proc_root.clone(),
        }
    }
}
