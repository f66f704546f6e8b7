//! Drives the machine as `object::wire::take` does, with packets in memory, and keeps what it says.

use crate::abi::flow::{Dir, Flow, closer, dir_flag, flow_flag, request_flag, state};
use crate::abi::record::piece_flag;
use crate::hist::GAP_BUCKETS;
use crate::stream::{
    Cursor, Ending, Env, WINDOW, acknowledged, end_all, gap, server_fin, step, took_over,
};

/// Bytes before the payload: the machine has no business there.
const FRONT: u32 = 54;
/// Bytes behind the payload, all newlines, so that a look beyond the end would change the result.
const BEHIND: usize = 160;

/// Bytes that were handed over.
#[derive(Clone, Debug)]
pub struct Piece {
    pub reply: bool,
    pub tail: bool,
    pub broken: bool,
    pub number: u32,
    pub offset: u64,
    pub data: Vec<u8>,
    pub at: u64,
}

/// A request that began.
#[derive(Clone, Debug)]
pub struct Begun {
    pub number: u32,
    pub at: u64,
    pub flags: u32,
}

/// A request that ended, or a report of one that goes on.
#[derive(Clone, Debug)]
pub struct Ended {
    pub number: u32,
    pub ending: Ending,
    pub at: u64,
    pub status: u32,
    pub flags: u32,
    pub start: u64,
    pub head: u64,
    pub event: u64,
    pub held: u64,
    pub gap_sum: u64,
    pub gaps: [u32; GAP_BUCKETS],
    pub events: u32,
    pub unreported: u32,
    pub captured: u32,
    pub done: bool,
    pub request_body: u64,
    pub request_gap: bool,
    pub reply_bytes: u64,
    pub reply_body: u64,
    pub excess: u32,
}

/// All that the machine said.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub pieces: Vec<Piece>,
    pub begun: Vec<Begun>,
    pub ended: Vec<Ended>,
    pub progress: Vec<Ended>,
    pub unparsed: Vec<u32>,
    pub missed: u32,
}

/// What must not depend on how a stream is cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub begun: Vec<(u32, u32)>,
    pub ended: Vec<(u32, u32, u64, u64, u64, u32, bool)>,
    pub unparsed: Vec<u32>,
}

impl Seen {
    pub fn facts(&self) -> Facts {
        let one = |e: &Ended| {
            (
                e.number,
                e.status,
                e.request_body,
                e.reply_bytes,
                e.reply_body,
                e.events,
                e.done,
            )
        };
        Facts {
            begun: self.begun.iter().map(|b| (b.number, b.flags)).collect(),
            ended: self.ended.iter().map(one).collect(),
            unparsed: self.unparsed.clone(),
        }
    }

    /// The only request that ended.
    pub fn only(&self) -> &Ended {
        assert_eq!(self.ended.len(), 1, "{self:?}");
        assert_eq!(self.ended[0].number, 1);
        &self.ended[0]
    }
}

/// Where packets come from and findings go.
struct Wire {
    packet: Vec<u8>,
    end: u32,
    /// Bytes at and after this offset of the packet cannot be read.
    hidden: u32,
    /// Reads outside the payload.
    stray: u32,
    /// Pieces from this one on find no room.
    full_from: usize,
    offered: usize,
    seen: Seen,
}

/// A connection under the tap.
pub struct Tap {
    pub flow: Box<Flow>,
    cursor: Box<Cursor>,
    wire: Wire,
    /// A direction was out of step at least once.
    pub lost_step: bool,
}

impl Env for Wire {
    unsafe fn load<const MAX: u32>(&mut self, off: u32, dst: *mut u8, len: u32) -> bool {
        if off < FRONT || len == 0 || len > MAX || off + len > self.end {
            self.stray += 1;
            return false;
        }
        if off + len > self.hidden {
            return false;
        }
        let from = &self.packet[off as usize..(off + len) as usize];
        // SAFETY: the caller gives room for MAX bytes, and `from` has no more.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), dst, from.len()) };
        true
    }

    unsafe fn piece(
        &mut self,
        flow: *mut Flow,
        off: u32,
        len: u32,
        offset: u64,
        flags: u32,
        now: u64,
    ) -> bool {
        assert!((1..=1024).contains(&len), "a piece of {len} bytes");
        assert!(
            off >= FRONT && off + len <= self.end,
            "a piece at {off}+{len} of {}",
            self.end
        );
        self.offered += 1;
        if self.offered > self.full_from {
            return false;
        }
        // SAFETY: the machine passes the flow that the test owns.
        let f = unsafe { &*flow };
        let reply = flags & piece_flag::REPLY != 0;
        let number = if reply {
            f.ended.wrapping_add(1)
        } else if f.requests.state < state::BODY {
            f.started.wrapping_add(1)
        } else {
            f.started
        };
        self.seen.pieces.push(Piece {
            reply,
            tail: flags & piece_flag::TAIL != 0,
            broken: flags & piece_flag::BROKEN != 0,
            number,
            offset,
            data: self.packet[off as usize..(off + len) as usize].to_vec(),
            at: now,
        });
        true
    }

    unsafe fn started(&mut self, flow: *mut Flow, slot: u32) {
        // SAFETY: as above.
        let f = unsafe { &*flow };
        let r = f.open[slot as usize];
        assert_eq!(r.number, f.started.wrapping_add(1));
        self.seen.begun.push(Begun {
            number: r.number,
            at: r.start_ns,
            flags: r.flags,
        });
    }

    unsafe fn ended(
        &mut self,
        flow: *mut Flow,
        slot: u32,
        ending: Ending,
        now: u64,
        excess: u32,
    ) -> bool {
        // SAFETY: as above.
        let f = unsafe { &*flow };
        let (r, d, reply) = (f.open[slot as usize], f.replies, f.reply);
        let head = state::has_head(d.state) && d.code >= 101;
        let ended = Ended {
            number: r.number,
            ending,
            at: now,
            status: if head { d.code } else { 0 },
            flags: d.flags,
            start: r.start_ns,
            head: if head { reply.head_ns } else { 0 },
            event: reply.event_ns,
            held: reply.held_gap_ns,
            gap_sum: reply.gap_sum_ns,
            gaps: reply.gaps,
            events: reply.events,
            unreported: reply.events - reply.events_reported,
            captured: reply.events_captured,
            done: reply.done != 0,
            request_body: r.body_bytes,
            request_gap: r.flags & request_flag::GAP != 0,
            reply_bytes: d.message_bytes,
            reply_body: d.body_bytes,
            excess,
        };
        if ending == Ending::Progress {
            self.seen.progress.push(ended);
        } else {
            self.seen.ended.push(ended);
        }
        true
    }

    unsafe fn unparsed(&mut self, _: *mut Flow, reason: u32) {
        self.seen.unparsed.push(reason);
    }

    unsafe fn missed(&mut self, _: *mut Flow) {
        self.seen.missed += 1;
    }
}

impl Tap {
    pub fn new() -> Tap {
        // SAFETY: a flow is plain integers; all zero is how the kernel creates one.
        let mut flow: Box<Flow> = unsafe { Box::new(core::mem::zeroed()) };
        flow.id = 7;
        flow.confirmed = 1;
        flow.workload = 1;
        let cursor = Cursor {
            now: 0,
            piece_offset: 0,
            pos: 0,
            end: 0,
            captured_to: 0,
            held_slot: 0,
            held: 0,
            held_len: 0,
            held_first: 0,
            held_last: 0,
            held_fin: 0,
            window: [u64::MAX; WINDOW / 8],
        };
        let wire = Wire {
            packet: Vec::new(),
            end: 0,
            hidden: u32::MAX,
            stray: 0,
            full_from: usize::MAX,
            offered: 0,
            seen: Seen::default(),
        };
        Tap {
            flow,
            cursor: Box::new(cursor),
            wire,
            lost_step: false,
        }
    }

    pub fn requests(&mut self, bytes: &[u8], now: u64) {
        self.segment::<false>(bytes, now);
    }

    pub fn replies(&mut self, bytes: &[u8], now: u64) {
        self.segment::<true>(bytes, now);
    }

    /// From now on there is no room for pieces.
    pub fn fill(&mut self) {
        self.wire.full_from = self.wire.offered;
    }

    /// Only the first `n` bytes of the next segment can be read.
    pub fn hide_after(&mut self, n: u32) {
        self.wire.hidden = FRONT + n;
    }

    /// The agent says that it has seen enough, as `object::wire::ask_told` finds before a segment.
    pub fn tell(&mut self) {
        if self.flow.replies.flags & (dir_flag::SSE | dir_flag::NDJSON) != 0 {
            self.flow.replies.flags |= dir_flag::TOLD;
        }
    }

    fn segment<const REPLY: bool>(&mut self, bytes: &[u8], now: u64) {
        if bytes.is_empty() {
            return;
        }
        if REPLY {
            let next = &mut self.flow.replies.next_seq;
            *next = next.wrapping_add(bytes.len() as u32);
        }
        let w = &mut self.wire;
        w.packet.clear();
        w.packet.resize(FRONT as usize, b'\n');
        w.packet.extend_from_slice(bytes);
        w.end = w.packet.len() as u32;
        w.packet.resize(w.packet.len() + BEHIND, b'\n');
        self.cursor.now = now;
        self.cursor.end = w.end;
        self.cursor.captured_to = 0;
        self.cursor.pos = FRONT;
        if self.dir::<REPLY>().state == state::UNSYNCED {
            self.lost_step = true;
            self.resync::<REPLY>(bytes);
        }
        let (f, c) = (&raw mut *self.flow, &raw mut *self.cursor);
        let mut steps = 0;
        // SAFETY: flow and cursor are ours, alive and not referenced elsewhere.
        while unsafe { step::<Wire, REPLY>(&mut self.wire, f, c) } {
            steps += 1;
            assert!(
                steps <= 2 * bytes.len() + 8,
                "{steps} steps over {} bytes",
                bytes.len()
            );
        }
        assert_eq!(self.cursor.pos, self.wire.end, "bytes were left over");
        assert_eq!(self.wire.stray, 0, "a read outside the payload");
        self.wire.hidden = u32::MAX;
        self.lost_step |= self.dir::<REPLY>().state == state::UNSYNCED;
    }

    pub fn dir<const REPLY: bool>(&self) -> &Dir {
        if REPLY {
            &self.flow.replies
        } else {
            &self.flow.requests
        }
    }

    fn resync<const REPLY: bool>(&mut self, b: &[u8]) {
        if b.len() < 8 {
            return;
        }
        if REPLY {
            if b.starts_with(b"HTTP/1") {
                let (upto, now) = (self.flow.lost_upto, self.cursor.now);
                self.end(Ending::Unobserved, upto, now);
                if self.flow.started != self.flow.ended {
                    self.flow.replies.state = state::IDLE;
                }
            }
            return;
        }
        let idle = matches!(self.flow.replies.state, state::IDLE | state::UNSYNCED);
        if idle && (b.starts_with(b"GET /") || b.starts_with(b"POST /")) {
            self.flow.lost_upto = self.flow.started;
            self.flow.requests.state = state::IDLE;
        }
    }

    /// `n` bytes of a direction pass unseen.
    pub fn lose<const REPLY: bool>(&mut self, n: u32, now: u64) {
        self.cursor.now = now;
        self.cursor.captured_to = 0;
        self.cursor.pos = FRONT;
        self.cursor.end = FRONT;
        self.wire.end = FRONT;
        let (f, c) = (&raw mut *self.flow, &raw mut *self.cursor);
        // SAFETY: as above.
        unsafe { gap::<Wire, REPLY>(&mut self.wire, f, c, n) };
        self.lost_step |= self.dir::<REPLY>().state == state::UNSYNCED;
    }

    pub fn end(&mut self, ending: Ending, upto: u32, now: u64) {
        let f = &raw mut *self.flow;
        // SAFETY: as above.
        unsafe { end_all(&mut self.wire, f, ending, upto, now) };
    }

    /// The server ends its stream first, in order.
    pub fn fin(&mut self, now: u64) {
        self.server_fin(true, now);
    }

    /// The server ends its stream, in order.
    pub fn server_fin(&mut self, first: bool, now: u64) {
        let f = &raw mut *self.flow;
        // SAFETY: as above.
        unsafe { server_fin(&mut self.wire, f, first, now) };
    }

    /// A connection that was taken up in the middle.
    pub fn adopted() -> Tap {
        let mut tap = Tap::new();
        tap.flow.flags = flow_flag::ADOPTED;
        tap.flow.created_ns = 1;
        tap.flow.requests.state = state::UNSYNCED;
        tap.flow.replies.state = state::UNSYNCED;
        tap
    }

    /// What the tap does after a segment of the server.
    pub fn take_over(&mut self, now: u64) {
        let f = &raw mut *self.flow;
        // SAFETY: as above.
        unsafe { took_over(&mut self.wire, f, now) };
    }

    /// The client closes its side, in order.
    pub fn client_fin(&mut self) {
        self.flow.requests.flags |= dir_flag::FIN;
        self.flow.closer = closer::PEER_FIN;
    }

    /// The client acknowledges all that the server sent.
    pub fn client_acks(&mut self) {
        self.client_acks_upto(self.flow.replies.next_seq);
    }

    /// The client acknowledges what the server sent up to `ack`.
    pub fn client_acks_upto(&mut self, ack: u32) {
        let f = &raw mut *self.flow;
        // SAFETY: as above.
        unsafe { acknowledged(&mut self.wire, f, ack) };
    }

    /// When the last segment passed.
    pub fn now(&self) -> u64 {
        self.cursor.now
    }

    pub fn seen(&self) -> Seen {
        self.wire.seen.clone()
    }

    pub fn said(&self) -> &Seen {
        &self.wire.seen
    }
}
