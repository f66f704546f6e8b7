//! A scripted LLM engine: a separate, unmodified HTTP/1.1 server that does what
//! each request's script says and keeps its own truth of it. The stamps are
//! taken right after the write call that completed the moment.
//!
//! The program is `scripted-engine`; [`serve`] runs the same server inside a
//! test process.

mod args;
mod conn;
mod control;
mod dialect;
mod exchange;
mod handover;
mod parent;
mod reply;
mod request;
mod route;
mod server;
mod truth;
mod unary;
mod wire;
mod workers;

pub use args::{Control, EngineArgs, Share};
pub use route::Route;
pub use server::{Server, serve};
pub use truth::{EngineRow, Truth};
pub use workers::main;
