//! Test support: everything a test needs to see enginetap as its user does.
//!
//! - [`guard`]: namespaces, processes, cgroups and the agent, undone on drop;
//! - [`page`]: the scrape client and the matcher over the exposition text;
//! - [`engine`]: a scripted LLM engine that keeps its own truth;
//! - [`client`]: a load client that keeps its own truth;
//! - [`compare`]: a page beside both truths; [`follow`]: every page judged in the background;
//! - [`garbage`]: peers that speak no HTTP;
//! - [`pair`]: both ends of a connection in the caller's hand;
//! - [`cases`]: connections of known bytes and what each adds to the page;
//! - [`memory`]: what a core dump of a process would hold;
//! - [`readonly`]: what the kernel programs may do;
//! - [`raw`]: both ends of a connection in one hand;
//! - [`relay`]: a wire that loses, repeats, overtakes and forges;
//! - [`real`]: real engines, gateways and clients.
//!
//! Nothing here knows the agent's code: it drives the built programs.

#![warn(missing_docs)]

#[cfg(feature = "bench")]
pub mod bench;
#[cfg(test)]
mod both;
pub mod cases;
pub mod client;
pub mod clock;
pub mod compare;
pub mod engine;
pub mod event;
pub mod follow;
pub mod garbage;
pub mod guard;
pub mod http;
pub mod memory;
pub mod page;
pub mod pair;
#[cfg(test)]
mod processes;
pub mod raw;
pub mod readonly;
pub mod real;
pub mod relay;
pub mod scene;
pub mod script;
pub mod soak;
