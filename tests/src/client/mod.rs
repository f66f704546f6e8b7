//! A load client that keeps its own truth of every request: its stamps are
//! taken just before the first write and right after each read.
//!
//! The program is `load-client`; [`run`] drives the same load from inside a
//! test process.

mod args;
mod classify;
mod drive;
mod exchange;
mod parse;
mod request;
mod rows;
mod sse;

pub use args::{AbortWith, ClientArgs};
pub use drive::run;
pub use rows::{ClientRow, Summary};
