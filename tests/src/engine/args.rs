//! The command line of `scripted-engine`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::script::Script;

/// How workers share a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum Share {
    /// The parent listens, the workers accept on the inherited socket.
    #[default]
    Inherit,
    /// Each worker listens on its own SO_REUSEPORT socket.
    Reuseport,
}

/// Where the truth is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Control {
    /// Nowhere; it is printed at the end.
    #[default]
    None,
    /// Commands on standard input (`truth`, `reset`), answers on standard
    /// output: no socket that an observer could take for traffic.
    Stdin,
    /// HTTP `GET /truth` and `POST /reset` on this address.
    Tcp(SocketAddr),
}

fn control(text: &str) -> Result<Control, String> {
    match text {
        "stdin" => Ok(Control::Stdin),
        "none" => Ok(Control::None),
        address => address
            .parse()
            .map(Control::Tcp)
            .map_err(|e| format!("{address}: {e}")),
    }
}

/// A scripted LLM engine with its own truth.
#[derive(Clone, Debug, Parser, Serialize, Deserialize)]
#[command(name = "scripted-engine")]
pub struct EngineArgs {
    /// Address to serve on; repeatable; port 0 picks one. Each is printed as `ready ADDR`.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: Vec<SocketAddr>,
    /// `stdin`, `none`, or an address for `GET /truth` (printed as `control ADDR`).
    #[arg(long, default_value = "none", value_parser = control)]
    pub control: Control,
    /// File that gets the truth at the end, and before a scripted exit.
    #[arg(long)]
    pub truth_file: Option<PathBuf>,
    /// Worker processes; 0 serves in this one.
    #[arg(long, default_value_t = 0)]
    pub workers: usize,
    /// How workers share the port.
    #[arg(long, value_enum, default_value_t)]
    pub share: Share,
    /// Starts another worker when one exits.
    #[arg(long)]
    pub respawn: bool,
    /// Threads per process.
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Moves the writing thread to the next CPU before every write.
    #[arg(long)]
    pub cpu_hop: bool,
    /// Whole command line to appear under, words split at blanks: `vllm serve m`.
    #[arg(long)]
    pub title: Option<String>,
    /// Thread name to appear under (`comm`).
    #[arg(long)]
    pub comm: Option<String>,
    /// Model served.
    #[arg(long, default_value = "scripted-model")]
    pub model: String,
    /// Fields of the default script, JSON.
    #[arg(long)]
    pub script: Option<String>,
    /// The demonstration's script as the default (`demo-model`, 32 tokens, 20 ms).
    #[arg(long)]
    pub demo: bool,
    /// Lets the headers `x-reply-model`, `x-reply-status` and `x-reply-events`
    /// of a request override the script.
    #[arg(long)]
    pub reply_from_header: bool,
    /// Value of a `Server:` header; none by default.
    #[arg(long)]
    pub server_header: Option<String>,
    /// SO_SNDBUF of accepted connections.
    #[arg(long)]
    pub sndbuf: Option<usize>,
    /// Leaves the per-event log out of the rows.
    #[arg(long)]
    pub no_event_log: bool,
    /// Keeps totals only, no rows.
    #[arg(long)]
    pub no_rows: bool,
}

impl EngineArgs {
    /// The script of a request that brings none.
    pub fn default_script(&self) -> Result<Script, serde_json::Error> {
        let base = if self.demo {
            Script::demo()
        } else {
            Script::default()
        };
        self.script
            .as_deref()
            .map_or(Ok(base.clone()), |json| base.overlay(json))
    }

    /// The model served.
    pub fn served_model(&self) -> &str {
        if self.demo { "demo-model" } else { &self.model }
    }
}
