//! The machine on the host: driven as the tap drives it, and held against a parser of whole byte
//! streams that shares no code with it.

mod adopted;
mod bodies;
mod corpus;
mod events;
mod fuzz;
mod gaps;
mod heads;
mod holes;
mod hostile;
mod left;
mod noise;
mod pieces;
mod pipeline;
mod reference;
mod splits;
mod talk;
mod tap;
mod verdict;

use tap::{Seen, Tap};

/// A request that any reply may follow.
pub const GET: &[u8] = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n";
/// Head of a reply that is a chunked stream of events.
pub const STREAM: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

/// One request and its reply, each in one segment, a millisecond apart.
pub fn exchange(request: &[u8], reply: &[u8]) -> Seen {
    let mut tap = Tap::new();
    tap.requests(request, 1_000_000);
    tap.replies(reply, 2_000_000);
    tap.seen()
}

/// A chunk in lower-case hex.
pub fn chunk(data: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat()
}

/// A reply with this head line after the status and this body, with its length.
pub fn unary(status: u32, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// A POST with its length.
pub fn post(body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}
