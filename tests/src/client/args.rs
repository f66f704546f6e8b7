//! The command line of `load-client`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::script::Script;

/// How a client leaves before the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AbortWith {
    /// Shuts down its sending side (FIN) and reads on to the end.
    #[default]
    Fin,
    /// RST.
    Rst,
    /// `close()`, as programs do: FIN, or RST when something is unread.
    Close,
}

fn script(json: &str) -> Result<String, String> {
    let parsed: Script = json.parse().map_err(|e| format!("{e}"))?;
    Ok(parsed.to_header())
}

/// Drives an LLM engine and keeps its own truth.
#[derive(Clone, Debug, Parser)]
#[command(name = "load-client")]
pub struct ClientArgs {
    /// Server.
    #[arg(long)]
    pub target: SocketAddr,
    /// Concurrent connections.
    #[arg(long, short = 'n', default_value_t = 1)]
    pub connections: usize,
    /// Requests per connection, one after the other; 0 = until `--seconds`.
    #[arg(long, short = 'm', default_value_t = 1)]
    pub requests: usize,
    /// Starts no request after so many seconds.
    #[arg(long)]
    pub seconds: Option<f64>,
    /// Requests per second over all connections, evenly spread.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Request target; repeatable, used in turn.
    #[arg(long, default_value = "/v1/chat/completions")]
    pub route: Vec<String>,
    /// Script for the engine, JSON; repeatable, used in turn.
    #[arg(long, value_parser = script)]
    pub script: Vec<String>,
    /// Model asked for; repeatable, used in turn.
    #[arg(long, default_value = "test-model")]
    pub model: Vec<String>,
    /// Asks for a unary reply.
    #[arg(long)]
    pub unary: bool,
    /// Asks for usage at the end of the stream.
    #[arg(long)]
    pub include_usage: bool,
    /// Sends `max_tokens`: the number of events when no script is sent.
    #[arg(long)]
    pub max_tokens: Option<usize>,
    /// Method; default: GET for the routes that are read, else POST.
    #[arg(long)]
    pub method: Option<String>,
    /// More header lines, `Name: value`.
    #[arg(long)]
    pub header: Vec<String>,
    /// Speaks HTTP/1.0.
    #[arg(long)]
    pub http10: bool,
    /// A connection per request.
    #[arg(long)]
    pub reconnect: bool,
    /// Sends `Connection: close`.
    #[arg(long)]
    pub say_close: bool,
    /// Prompt bytes.
    #[arg(long, default_value_t = 16)]
    pub prompt_bytes: usize,
    /// Puts `model` and `stream` behind the prompt.
    #[arg(long)]
    pub model_last: bool,
    /// Begins the body with lines that look like another request, in a write of its own.
    #[arg(long)]
    pub smuggle: bool,
    /// Sends the body in chunks of so many bytes.
    #[arg(long)]
    pub chunked: Option<usize>,
    /// Sends `Expect: 100-continue` and waits for it before the body.
    #[arg(long)]
    pub expect: bool,
    /// Requests sent in one write before the first reply is read.
    #[arg(long, default_value_t = 1)]
    pub pipeline: usize,
    /// Size of the first write.
    #[arg(long)]
    pub first: Option<usize>,
    /// Size of every (other) write.
    #[arg(long)]
    pub split: Option<usize>,
    /// One write for the head, one for the body.
    #[arg(long)]
    pub head_apart: bool,
    /// Microseconds between writes of one request.
    #[arg(long, default_value_t = 0)]
    pub pause_us: u64,
    /// Leaves after so many events with data.
    #[arg(long)]
    pub abort_after: Option<u64>,
    /// Leaves so many milliseconds after the request, unless a head came.
    #[arg(long)]
    pub abort_before_head_ms: Option<f64>,
    /// Leaves after half of the body.
    #[arg(long)]
    pub abort_in_body: bool,
    /// How it leaves.
    #[arg(long, value_enum, default_value_t)]
    pub abort_with: AbortWith,
    /// Bytes per read.
    #[arg(long, default_value_t = 65_536)]
    pub read_bytes: usize,
    /// Milliseconds before every read: a slow reader.
    #[arg(long, default_value_t = 0.0)]
    pub read_delay_ms: f64,
    /// SO_RCVBUF.
    #[arg(long)]
    pub rcvbuf: Option<usize>,
    /// Milliseconds between the requests of a connection.
    #[arg(long, default_value_t = 0.0)]
    pub think_ms: f64,
    /// Opens all connections before the first request.
    #[arg(long)]
    pub warm: bool,
    /// Pins all threads to this CPU.
    #[arg(long)]
    pub cpu: Option<usize>,
    /// Threads.
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Seconds after which a request is given up (outcome `abort`, error `deadline`).
    #[arg(long, default_value_t = 120.0)]
    pub deadline: f64,
    /// Prefix of the `x-row` header that pairs the rows of both ends.
    #[arg(long, default_value = "r")]
    pub tag: String,
    /// File that gets one row of JSON per request.
    #[arg(long)]
    pub rows: Option<PathBuf>,
    /// Leaves the per-event log out of the rows.
    #[arg(long)]
    pub no_event_log: bool,
    /// The demonstration's load: 8 connections, `demo-model`, usage, until `--seconds`.
    #[arg(long)]
    pub demo: bool,
}

impl ClientArgs {
    /// With the demonstration's values filled in.
    #[must_use]
    pub fn resolved(mut self) -> Self {
        if self.demo {
            self.connections = self.connections.max(8);
            self.requests = 0;
            self.model = vec!["demo-model".to_owned()];
            self.include_usage = true;
            self.no_event_log = true;
            self.think_ms = self.think_ms.max(50.0);
        }
        self
    }
}
