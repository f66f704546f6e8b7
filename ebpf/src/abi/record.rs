//! Records of the ring. Each begins with its kind and its length.

use super::flow::{FlowKey, TAIL_BANK};
use super::listener::ListenerKey;
use super::pod;
use super::process::ProcessKey;
use super::stall::{Clock, WORDS};
use crate::hist::GAP_BUCKETS;

/// Kinds of records.
pub mod kind {
    /// Bytes of a message: [`super::Piece`], then `len` bytes.
    pub const PIECE: u32 = 1;
    /// A request ended: [`super::End`], then the tail.
    pub const END: u32 = 2;
    /// A stream goes on: [`super::End`] without a tail.
    pub const PROGRESS: u32 = 3;
    /// A flow's socket is gone while requests are open: [`super::FlowClosed`].
    pub const CLOSED: u32 = 4;
    /// A socket began or ceased to listen: [`super::Listen`].
    pub const LISTEN: u32 = 5;
    /// A process did something: [`super::Life`].
    pub const LIFE: u32 = 6;
}

/// Bytes of data in the size classes of a piece.
pub const PIECE_SMALL: usize = 256;
/// See [`PIECE_SMALL`].
pub const PIECE_LARGE: usize = 1024;

/// Flags of a piece.
pub mod piece_flag {
    /// Of the reply; else of the request.
    pub const REPLY: u32 = 1;
    /// Last bytes of a body with a known length, not a continuation of the beginning.
    pub const TAIL: u32 = 1 << 1;
    /// The flow is not confirmed yet.
    pub const PROVISIONAL: u32 = 1 << 2;
    /// An earlier piece of this message was lost.
    pub const BROKEN: u32 = 1 << 3;
}

/// Which request a record is about.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestRef {
    /// The flow's unique number.
    pub flow: u64,
    /// Number of the request within the flow, from 1.
    pub number: u32,
    /// Workload; 0 = counted by the agent.
    pub workload: u32,
    /// The flow's key.
    pub key: FlowKey,
}
pod!(RequestRef, 56);

/// Bytes of the beginning (or, with `TAIL`, the end) of a message.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// [`kind::PIECE`].
    pub kind: u32,
    /// Bytes of data that follow.
    pub len: u32,
    /// Whose message.
    pub request: RequestRef,
    /// When the packet passed.
    pub ts_ns: u64,
    /// Offset of the data in the message.
    pub offset: u64,
    /// See [`piece_flag`].
    pub flags: u32,
    /// Of a reply: set whose clock `clock` is of, that of the request; 0 = none.
    pub set: u32,
    /// Readings at the request's start.
    pub clock_start: Clock,
    /// Readings now.
    pub clock: Clock,
}
pod!(Piece, 88 + 16 * WORDS);

/// How a request ended.
pub mod end_flag {
    /// By the framing of its reply.
    pub const COMPLETE: u32 = 1;
    /// A head was sent.
    pub const HEAD: u32 = 1 << 1;
    /// The reply was a stream of events or lines.
    pub const STREAM: u32 = 1 << 2;
    /// Bytes were not seen: times are not usable.
    pub const GAP: u32 = 1 << 3;
    /// A piece of the reply was lost: the first token cannot be told.
    pub const PIECE_LOST: u32 = 1 << 4;
    /// The stream ended with `[DONE]`.
    pub const DONE: u32 = 1 << 5;
    /// The request was not seen from its first byte on.
    pub const ADOPTED: u32 = 1 << 6;
    /// The body is JSON lines, not server-sent events.
    pub const NDJSON: u32 = 1 << 7;
    /// The reply is chunked.
    pub const CHUNKED: u32 = 1 << 8;
}

/// The end of a request, or how far it has come.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct End {
    /// [`kind::END`] or [`kind::PROGRESS`].
    pub kind: u32,
    /// Bytes of tail that follow.
    pub len: u32,
    /// Which request.
    pub request: RequestRef,
    /// Its first byte.
    pub start_ns: u64,
    /// The process's first read after that; 0 = unknown.
    pub read_ns: u64,
    /// First byte of the reply's head; 0 = none.
    pub head_ns: u64,
    /// Last byte, or now.
    pub end_ns: u64,
    /// Its last event but `[DONE]`; 0 = none.
    pub event_ns: u64,
    /// The gap that this event ended; not in the buckets. 0 = none.
    pub held_gap_ns: u64,
    /// Sum of the gaps in the buckets.
    pub gap_sum_ns: u64,
    /// Bytes of the request body.
    pub request_bytes: u64,
    /// Bytes of the reply, framing included.
    pub reply_bytes: u64,
    /// Process that read the request; 0 = none.
    pub owner: ProcessKey,
    /// Status code; 0 = none.
    pub status: u32,
    /// Outcome as the kernel tells it, see `counters::outcome`.
    pub outcome: u32,
    /// See [`end_flag`].
    pub flags: u32,
    /// Events that no earlier record reported.
    pub events: u32,
    /// Events of the whole reply.
    pub events_total: u32,
    /// Events whose end is within the captured pieces.
    pub events_captured: u32,
    /// Bytes at the end of the tail that belong to the next message.
    pub tail_excess: u32,
    /// Bytes of the tail's first part.
    pub tail_first: u32,
    /// Set whose clock the readings are of; 0 = none.
    pub set: u32,
    /// Explicit padding.
    pub pad: u32,
    /// Readings at the start.
    pub clock_start: Clock,
    /// Readings now.
    pub clock_end: Clock,
    /// Gaps per bucket, those after the captured events.
    pub gaps: [u32; GAP_BUCKETS],
}
pod!(End, 64 + 9 * 8 + 16 + 10 * 4 + 16 * WORDS + 4 * GAP_BUCKETS);

/// An end with its tail.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EndWithTail {
    /// The end.
    pub end: End,
    /// Older bank, then newer bank.
    pub tail: [u8; 2 * TAIL_BANK],
}
pod!(EndWithTail, core::mem::size_of::<End>() + 2 * TAIL_BANK);

/// A small piece.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PieceSmall {
    /// Header.
    pub head: Piece,
    /// Data.
    pub data: [u8; PIECE_SMALL],
}
pod!(PieceSmall, 88 + 16 * WORDS + PIECE_SMALL);

/// A large piece.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PieceLarge {
    /// Header.
    pub head: Piece,
    /// Data.
    pub data: [u8; PIECE_LARGE],
}
pod!(PieceLarge, 88 + 16 * WORDS + PIECE_LARGE);

/// A flow whose socket is gone while something of it is open.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FlowClosed {
    /// [`kind::CLOSED`].
    pub kind: u32,
    /// Explicit padding.
    pub len: u32,
    /// The flow.
    pub key: FlowKey,
    /// Its unique number.
    pub flow: u64,
    /// When.
    pub ts_ns: u64,
}
pod!(FlowClosed, 64);

/// A socket began (`listening` 1) or ceased to listen.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Listen {
    /// [`kind::LISTEN`].
    pub kind: u32,
    /// 1 or 0.
    pub listening: u32,
    /// The socket.
    pub key: ListenerKey,
    /// The process that called.
    pub process: ProcessKey,
}
pod!(Listen, 48);

/// Events in the life of a process.
pub mod life {
    /// It executes another program.
    pub const EXEC: u32 = 1;
    /// Its last thread ended.
    pub const EXIT: u32 = 2;
    /// A watched process has a child.
    pub const FORK: u32 = 3;
}

/// Something in the life of a process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Life {
    /// [`kind::LIFE`].
    pub kind: u32,
    /// See [`life`].
    pub what: u32,
    /// The process.
    pub process: ProcessKey,
}
pod!(Life, 24);

/// What the agent writes into `TOLD` when it has seen enough of a stream's first events.
#[inline(always)]
pub const fn told(flow: u64, number: u32) -> u64 {
    flow << 20 | (number as u64 & 0xf_ffff)
}
