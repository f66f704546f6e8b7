//! enginetap: taps unmodified LLM engines and gateways from outside and derives exact request
//! metrics from what crosses their sockets.

pub mod bpf;
pub mod cli;
pub mod config;
pub mod context;
pub mod doctor;
pub mod engines;
pub mod ingest;
pub mod metrics;
pub mod page;
pub mod pages;
pub mod probes;
pub mod protocol;
pub mod ps;
pub mod run;
pub mod sample;
pub mod serve;
pub mod slow;
pub mod stalls;
pub mod targets;
pub mod vocab;
pub mod watch;

#[cfg(test)]
mod fuzz;

pub use run::{Agent, Shared};
