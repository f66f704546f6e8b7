//! What crosses the sockets: HTTP/1.1 heads, chunked framing, JSON bodies, event streams, usage
//! and error codes. Plain functions over bytes that were captured and may be cut anywhere: no I/O,
//! no recursion, no unbounded buffers, and content is only ever looked at, never kept.

pub mod body;
pub mod chunked;
pub mod errors;
pub mod events;
pub mod framing;
pub mod head;
pub mod json;
pub mod kind;
pub mod reply;
pub mod tail;
pub mod usage;
pub mod wiped;

#[cfg(test)]
mod noise;
