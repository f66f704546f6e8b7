//! The stream machine: HTTP/1.1 messages, their framing and their event streams, taken byte by
//! byte position from wherever bytes come from.
//!
//! It is generic over [`Env`], so the kernel programs and the host tests run the same code. One
//! call of [`step`] does a bounded piece of work (a line, a hop over a body, up to 128 bytes of an
//! event stream) and says whether to go on; the kernel drives it with `bpf_loop`, the host with a
//! plain loop. All state lives in the [`Flow`]; nothing is kept between calls elsewhere but the
//! [`Cursor`]. Prompts and fixed-length bodies are hopped over, never read.

mod ending;
mod http1;
mod line;
mod message;
mod once;
mod sse;
#[cfg(test)]
mod tests;

pub use ending::{acknowledged, end_all, server_fin, took_over};
pub use message::{gap, step};

use crate::abi::flow::Flow;

/// Longest head that is followed.
pub const HEAD_MAX: u64 = 64 * 1024;
/// Bytes of a head that are handed over.
pub const HEAD_CAPTURE: u32 = 4096;
/// Bytes of a body that are handed over from its beginning, and from its end when that is known.
pub const BODY_CAPTURE: u32 = 1024;
/// Bytes of an event stream that are handed over at most before the agent has seen enough.
pub const STREAM_CAPTURE: u32 = 32 * 1024;
/// Events that are handed over at most before the agent has seen enough.
pub const STREAM_EVENTS: u32 = 64;
/// Pieces of the end of a body that are handed over at most.
pub const TAIL_PIECES: u32 = 16;
/// Time between two progress records of one stream.
pub const PROGRESS_NS: u64 = 5_000_000_000;
/// Bytes that one step over an event stream looks at.
pub const WINDOW: usize = 128;

/// Bytes that are held at most of the start of a segment, and of its end.
pub const HELD_PART: u32 = 1024;

/// Where the machine is in a packet.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    /// When the packet passed.
    pub now: u64,
    /// Offset in its message of the piece that is being handed over.
    pub piece_offset: u64,
    /// Next byte to take, as an offset in the packet.
    pub pos: u32,
    /// End of the payload.
    pub end: u32,
    /// Bytes before this offset have been handed over.
    pub captured_to: u32,
    /// Where the held segment is kept.
    pub held_slot: u32,
    /// Address of the held segment that is being read instead of the packet; 0 = none.
    pub held: u64,
    /// Bytes of it.
    pub held_len: u32,
    /// How many of its first bytes are held.
    pub held_first: u32,
    /// How many of its last bytes are held besides.
    pub held_last: u32,
    /// 1 when a FIN follows it.
    pub held_fin: u32,
    /// Bytes of the event stream being looked at.
    pub window: [u64; WINDOW / 8],
}

impl Cursor {
    /// Where `len` bytes at `off` of the held segment lie; 0 when they were not held.
    #[inline(always)]
    pub fn held_at(&self, off: u32, len: u32) -> u64 {
        let (first, last, all) = (self.held_first, self.held_last, self.held_len);
        let end = off.wrapping_add(len);
        if self.held == 0 || end > all {
            return 0;
        }
        if end <= first || first + last == all {
            return self.held + off as u64;
        }
        if off >= all - last {
            return self.held + HELD_PART as u64 + (off - (all - last)) as u64;
        }
        0
    }

    /// Where the next step has to stop, so that pieces follow each other without a hole.
    #[inline(always)]
    fn stop(&self) -> u32 {
        if self.captured_to > self.pos {
            self.captured_to
        } else {
            self.end
        }
    }
}

/// How a request ended, as the machine knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Ending {
    /// Its reply is complete.
    Complete = 0,
    /// The connection is over; who closed first decides.
    Closed = 1,
    /// Its reply can no longer be found in the stream.
    Unobserved = 2,
    /// It goes on: report how far it has come.
    Progress = 3,
}

/// Where bytes come from and where findings go.
pub trait Env {
    /// Copies `len` bytes (1 to `MAX`) at packet offset `off` to `dst`; false when they cannot be
    /// read.
    ///
    /// # Safety
    /// `dst` has room for `MAX` bytes.
    unsafe fn load<const MAX: u32>(&mut self, off: u32, dst: *mut u8, len: u32) -> bool;

    /// Hands over `len` bytes (1 to 1024) at packet offset `off`, which lie at `offset` of the
    /// current message; false when there was no room.
    ///
    /// # Safety
    /// `flow` is live and the direction's lock is held.
    unsafe fn piece(
        &mut self,
        flow: *mut Flow,
        off: u32,
        len: u32,
        offset: u64,
        flags: u32,
        now: u64,
    ) -> bool;

    /// A request began; its entry is in `open`.
    ///
    /// # Safety
    /// As for [`Env::piece`].
    unsafe fn started(&mut self, flow: *mut Flow, slot: u32);

    /// A request ended, or a stream goes on. True when the record found room.
    ///
    /// # Safety
    /// As for [`Env::piece`].
    unsafe fn ended(
        &mut self,
        flow: *mut Flow,
        slot: u32,
        ending: Ending,
        now: u64,
        tail_excess: u32,
    ) -> bool;

    /// Bytes of this connection cannot be read; `reason` is one of `counters::unparsed`.
    ///
    /// # Safety
    /// As for [`Env::piece`].
    unsafe fn unparsed(&mut self, flow: *mut Flow, reason: u32);

    /// Bytes of a confirmed flow were missed.
    ///
    /// # Safety
    /// As for [`Env::piece`].
    unsafe fn missed(&mut self, flow: *mut Flow);
}
