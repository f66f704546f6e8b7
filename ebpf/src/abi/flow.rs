//! One TCP connection to a watched listener, as the tap sees it.
//!
//! A [`Flow`] has two directions, each guarded by its own try-lock; the request direction is the
//! only writer of `started`, the reply direction the only writer of `ended`, so the two never need
//! each other's lock. Whoever holds both locks may do everything.

use super::pod;
use super::stall::{Clock, WORDS};
use crate::hist::GAP_BUCKETS;

/// Requests of one connection that may be open at a time (HTTP/1.1 pipelining).
pub const PIPELINE: usize = 4;
/// Bytes of one bank of the rolling tail; the last `TAIL_BANK` bytes at least are always held.
pub const TAIL_BANK: usize = 1024;
/// Bytes of a line that are kept to be interpreted.
pub const LINE: usize = 64;

/// Identity of a flow: namespace and tuple, seen from the server. Addresses are in network order,
/// IPv4 as `::ffff:a.b.c.d`; ports are in host order.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Inode number of the network namespace.
    pub netns: u32,
    /// Port of the listener.
    pub server_port: u16,
    /// Port of the peer.
    pub client_port: u16,
    /// Address of the server's socket.
    pub server: [u32; 4],
    /// Address of the peer. Never leaves the agent.
    pub client: [u32; 4],
}
pod!(FlowKey, 40);

/// Parser state of a direction.
pub mod state {
    /// Between messages.
    pub const IDLE: u32 = 0;
    /// In the first line of a head.
    pub const FIRST_LINE: u32 = 1;
    /// In the header lines.
    pub const HEADERS: u32 = 2;
    /// In a body of known length.
    pub const BODY: u32 = 3;
    /// In a chunk-size line.
    pub const CHUNK_SIZE: u32 = 4;
    /// In the data of a chunk.
    pub const CHUNK_DATA: u32 = 5;
    /// In the line end after the data of a chunk.
    pub const CHUNK_END: u32 = 6;
    /// In the trailers after the last chunk.
    pub const TRAILERS: u32 = 7;
    /// In a body that ends with the connection.
    pub const UNTIL_CLOSE: u32 = 8;
    /// Not HTTP/1.1, or no longer: nothing more is read.
    pub const DEAD: u32 = 9;
    /// Waiting for a first line at the start of a segment.
    pub const UNSYNCED: u32 = 10;
    /// The reply is complete, but the client had closed its side before it had all of it: whether
    /// it still took the reply or left is told by its acknowledgement or its reset.
    pub const AWAITING: u32 = 11;

    /// Whether the status line of the current message is known in this state.
    #[inline(always)]
    pub const fn has_head(state: u32) -> bool {
        (state >= HEADERS && state <= UNTIL_CLOSE) || state == AWAITING
    }
}

/// Flags of a direction.
pub mod dir_flag {
    /// `next_seq` is known.
    pub const SEQ: u32 = 1;
    /// A FIN was taken in stream order.
    pub const FIN: u32 = 1 << 1;
    /// The current line was longer than `LINE` and has been interpreted already.
    pub const LONG_LINE: u32 = 1 << 3;
    /// The message has a Content-Length.
    pub const LENGTH: u32 = 1 << 4;
    /// The message is chunked.
    pub const CHUNKED: u32 = 1 << 5;
    /// The body is a stream of server-sent events.
    pub const SSE: u32 = 1 << 6;
    /// The body is a stream of JSON lines.
    pub const NDJSON: u32 = 1 << 7;
    /// The current event has a data field.
    pub const EVENT_DATA: u32 = 1 << 8;
    /// The current event is `[DONE]`.
    pub const EVENT_DONE: u32 = 1 << 9;
    /// Bytes of this message were not seen.
    pub const GAP: u32 = 1 << 10;
    /// A captured piece of this message could not be handed over.
    pub const PIECE_LOST: u32 = 1 << 11;
    /// The agent has seen what it needs of this stream's first events.
    pub const TOLD: u32 = 1 << 12;
    /// The current line began in a gap and cannot be interpreted.
    pub const LINE_UNKNOWN: u32 = 1 << 13;

    /// The current event is a ping.
    pub const EVENT_PING: u32 = 1 << 14;

    /// The reply began after the client had closed its side.
    pub const AFTER_FIN: u32 = 1 << 15;

    /// Flags that belong to one message and are cleared when the next begins.
    pub const PER_MESSAGE: u32 = LONG_LINE
        | LENGTH
        | CHUNKED
        | SSE
        | NDJSON
        | EVENT_DATA
        | EVENT_DONE
        | EVENT_PING
        | GAP
        | PIECE_LOST
        | TOLD
        | LINE_UNKNOWN
        | AFTER_FIN;
}

/// One direction of a flow.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Dir {
    /// 0 free, 1 held.
    pub lock: u64,
    /// Bytes left of the body or chunk.
    pub remaining: u64,
    /// Bytes of the current message so far, framing included.
    pub message_bytes: u64,
    /// Bytes of the current body so far, framing excluded.
    pub body_bytes: u64,
    /// Content-Length of the current message.
    pub length: u64,
    /// When the first byte of the current message passed.
    pub first_ns: u64,
    /// First eight bytes of the current line of an event stream.
    pub word: u64,
    /// Bytes taken in this direction that are not yet in the counters.
    pub bytes: u64,
    /// Sequence number of the next byte to take.
    pub next_seq: u32,
    /// An acknowledgement of the peer: the highest that lay past `next_seq`, else an old one; known
    /// together with `next_seq`.
    pub acked: u32,
    /// See [`dir_flag`].
    pub flags: u32,
    /// See [`state`].
    pub state: u32,
    /// Bytes of the current line so far, saturating.
    pub line_len: u32,
    /// Bytes of the current message handed over as pieces.
    pub captured: u32,
    /// How many bytes of the message may be handed over.
    pub capture_limit: u32,
    /// Method (request) or status (reply) of the current message.
    pub code: u32,
    /// Bytes of the current line of an event stream, saturating.
    pub event_len: u32,
    /// Pieces of the body's end handed over.
    pub tail_pieces: u32,
    /// Start of the current line.
    pub line: [u8; LINE],
}
pod!(Dir, 168);

/// Flags of a request.
pub mod request_flag {
    /// The reply to it has no body (HEAD).
    pub const NO_BODY: u32 = 1;
    /// A CONNECT: a successful reply turns the connection into a tunnel.
    pub const CONNECT: u32 = 1 << 1;
    /// Bytes of the request were not seen.
    pub const GAP: u32 = 1 << 2;
    /// Counted by the agent, since its workload was not known when it began.
    pub const BY_AGENT: u32 = 1 << 3;
    /// It began before its first byte was seen, or its begin is not certain.
    pub const ADOPTED: u32 = 1 << 4;
}

/// A request that has begun and not ended.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// When its first byte passed.
    pub start_ns: u64,
    /// When the process first read after that; 0 = not yet.
    pub read_ns: u64,
    /// Bytes of its body so far.
    pub body_bytes: u64,
    /// Its number within the flow, from 1.
    pub number: u32,
    /// See [`request_flag`].
    pub flags: u32,
    /// Workload it is counted for; 0 = none yet.
    pub workload: u32,
    /// Set whose clock `clock` is of; 0 = none was read.
    pub set: u32,
    /// Readings at its start.
    pub clock: Clock,
}
pod!(Request, 40 + 8 * WORDS);

/// What is measured of the reply that is under way.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    /// When its status line began.
    pub head_ns: u64,
    /// When its last event ended, `[DONE]` excluded.
    pub event_ns: u64,
    /// Gap that ended with the last event; not in the histogram yet. 0 = none.
    pub held_gap_ns: u64,
    /// Sum of the gaps in the histogram.
    pub gap_sum_ns: u64,
    /// When the last progress record was sent.
    pub progress_ns: u64,
    /// Data events, `[DONE]` included.
    pub events: u32,
    /// Data events that were already reported in progress records.
    pub events_reported: u32,
    /// Data events whose last byte was handed over as a piece.
    pub events_captured: u32,
    /// 1 when the stream ended with `[DONE]`.
    pub done: u32,
    /// Gaps per bucket, those after the captured events.
    pub gaps: [u32; GAP_BUCKETS],
}
pod!(Reply, 56 + 4 * GAP_BUCKETS);

/// Who closed first.
pub mod closer {
    /// Nobody yet.
    pub const NONE: u64 = 0;
    /// The client sent FIN.
    pub const PEER_FIN: u64 = 1;
    /// The client sent RST.
    pub const PEER_RST: u64 = 2;
    /// The server's side closed.
    pub const LOCAL: u64 = 3;
    /// The server's process ended with the connection open.
    pub const KILLED: u64 = 4;
    /// Not known: the socket was gone when it was looked for.
    pub const UNOBSERVED: u64 = 5;
    /// The client no longer answered.
    pub const PEER_TIMEOUT: u64 = 6;
    /// Number of values.
    pub const COUNT: usize = 7;
}

/// Flags of a flow.
pub mod flow_flag {
    /// The connection is older than the tap and no request on it was seen yet: one may be under way.
    pub const ADOPTED: u32 = 1;
}

/// A connection.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Bytes that the client sends. The directions come first, so that a verifier that adds up
    /// the largest offset and the largest length of a line finds room behind them.
    pub requests: Dir,
    /// Bytes that the server sends.
    pub replies: Dir,
    /// Last bytes of the reply: two banks, filled alternately.
    pub tail: [u8; 2 * TAIL_BANK],
    /// Its own key, to tell whether a pointer still means this flow.
    pub key: FlowKey,
    /// Unique number, never 0.
    pub id: u64,
    /// When it was created, then when its socket was established.
    pub created_ns: u64,
    /// When the last packet passed.
    pub seen_ns: u64,
    /// 1 once the kernel's own socket of this tuple was seen.
    pub confirmed: u64,
    /// Requests begun before that, to be counted at that moment.
    pub uncounted: u64,
    /// 1 once the socket is gone.
    pub closed: u64,
    /// See [`closer`].
    pub closer: u64,
    /// Process that reads from it: thread group in the low half, 0 = none yet.
    pub owner_tgid: u64,
    /// Start of that process in clock ticks since boot.
    pub owner_start: u64,
    /// Times the process read from it.
    pub reads: u64,
    /// When the process first read after the current request head began; 0 = not yet.
    pub read_ns: u64,
    /// 1 once its workload counts it as a connection.
    pub counted: u64,
    /// Why its bytes could not be read, plus 1, found before it was confirmed; 0 = nothing found.
    pub unparsed: u64,
    /// When the reply that is [`state::AWAITING`] was complete.
    pub awaiting_ns: u64,
    /// Workload of its listener; 0 = none yet.
    pub workload: u32,
    /// See [`flow_flag`].
    pub flags: u32,
    /// Requests begun.
    pub started: u32,
    /// Requests ended.
    pub ended: u32,
    /// Requests up to this number can no longer be matched with a reply.
    pub lost_upto: u32,
    /// Sequence number behind the reply that is [`state::AWAITING`].
    pub awaiting_seq: u32,
    /// Bytes behind that reply in its last segment.
    pub awaiting_excess: u32,
    /// Request segments that are held behind a hole, one bit each.
    pub ahead: u32,
    /// Timestamp of the latest request segment that came in its turn (RFC 7323).
    pub stamp: u32,
    /// When that was, in seconds; 0 = none came.
    pub stamp_s: u32,
    /// Length of the current bank.
    pub tail_len: u32,
    /// Length of the other bank.
    pub tail_other_len: u32,
    /// Current bank, 0 or 1.
    pub tail_bank: u32,
    /// When bytes were last added to the counters, in milliseconds.
    pub flushed_ms: u32,
    /// Open requests, by number modulo [`PIPELINE`].
    pub open: [Request; PIPELINE],
    /// The reply under way.
    pub reply: Reply,
}
pod!(
    Flow,
    2 * TAIL_BANK
        + 40
        + 14 * 8
        + 14 * 4
        + PIPELINE * (40 + 8 * WORDS)
        + 56
        + 4 * GAP_BUCKETS
        + 2 * 168
);
