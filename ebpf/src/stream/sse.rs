//! Event streams: counts events by event, whatever packets and writes they came in, and measures
//! the gaps between them.
//!
//! An SSE event counts when its blank line arrives and it has a data field; comments and fields
//! alone do not. A line of JSON counts when its newline arrives and it is not empty. Lines end with
//! LF or CRLF; a lone CR, which no engine sends, is not taken as a line end.

use super::once::{reply_add_gap, window_newline};
use super::{Cursor, Ending, Env, PROGRESS_NS, WINDOW};
use crate::abi::flow::{Dir, Flow, PIPELINE, Reply, dir_flag as flag};

const DATA: u64 = u64::from_le_bytes(*b"data:\0\0\0");
const DATA_BARE: u64 = u64::from_le_bytes(*b"data\0\0\0\0");
const DATA_BARE_CR: u64 = u64::from_le_bytes(*b"data\r\0\0\0");
const PING: u64 = u64::from_le_bytes(*b"event: p");
const PING_TIGHT: u64 = u64::from_le_bytes(*b"event:pi");
const DONE: u64 = u64::from_le_bytes(*b"data: [D");
const DONE_TIGHT: u64 = u64::from_le_bytes(*b"data:[DO");

/// Looks at up to [`WINDOW`] of the next `limit` bytes; returns how many it took, 0 when they
/// cannot be read.
///
/// # Safety
/// `f`, `d`, `c` are live and the direction's lock is held.
#[inline(always)]
pub unsafe fn scan<E: Env>(
    e: &mut E,
    f: *mut Flow,
    d: *mut Dir,
    c: *mut Cursor,
    limit: u32,
) -> u32 {
    // SAFETY: the window has WINDOW bytes; word indices are constants below its length.
    unsafe {
        let take = if limit < WINDOW as u32 {
            limit
        } else {
            WINDOW as u32
        };
        let window = &raw mut (*c).window as *mut u64;
        if !e.load::<{ WINDOW as u32 }>((*c).pos, window as *mut u8, take) {
            return 0;
        }
        let at = window_newline(c);
        let ended = at < take;
        let part = if ended { at } else { take };
        let len = (*d).event_len;
        if len < 8 && part > 0 {
            let mut first = window.read();
            if part < 8 {
                first &= (1u64 << (8 * part)) - 1;
            }
            (*d).word |= first << (8 * (len & 7));
        }
        let len = len + part;
        if !ended {
            (*d).event_len = if len > 0xffff { 0xffff } else { len };
            (*c).pos += take;
            return take;
        }
        (*c).pos += part + 1;
        line(e, f, d, c, len);
        (*d).event_len = 0;
        (*d).word = 0;
        part + 1
    }
}

/// Interprets a line of the stream.
#[inline(always)]
unsafe fn line<E: Env>(e: &mut E, f: *mut Flow, d: *mut Dir, c: *mut Cursor, len: u32) {
    // SAFETY: the caller's promise holds.
    unsafe {
        let word = (*d).word;
        let flags = (*d).flags;
        if flags & flag::LINE_UNKNOWN != 0 {
            (*d).flags = flags & !flag::LINE_UNKNOWN;
            return;
        }
        let blank = len == 0 || (len == 1 && word == b'\r' as u64);
        if flags & flag::NDJSON != 0 {
            if !blank {
                event(e, f, d, c, false);
            }
            return;
        }
        if blank {
            if flags & flag::EVENT_DATA != 0 {
                if flags & flag::EVENT_PING != 0 {
                    ping(f, d, c);
                } else {
                    event(e, f, d, c, flags & flag::EVENT_DONE != 0);
                }
            }
            (*d).flags &= !(flag::EVENT_DATA | flag::EVENT_DONE | flag::EVENT_PING);
            return;
        }
        // `event: ping` is the only event name of these dialects that begins with a p.
        if (word == PING && (len == 11 || len == 12))
            || (word == PING_TIGHT && (len == 10 || len == 11))
        {
            (*d).flags |= flag::EVENT_PING;
            return;
        }
        if word & 0xff_ffff_ffff == DATA || word == DATA_BARE || word == DATA_BARE_CR {
            let mut found = flag::EVENT_DATA;
            let tight = word == DONE_TIGHT && (len == 11 || len == 12);
            let done = tight || word == DONE && (len == 12 || len == 13);
            if flags & flag::EVENT_DATA == 0 && done {
                found |= flag::EVENT_DONE;
            }
            (*d).flags |= found;
        }
    }
}

/// A ping is complete: it counts, and ends no gap.
#[inline(always)]
unsafe fn ping(f: *mut Flow, d: *mut Dir, c: *mut Cursor) {
    // SAFETY: the caller's promise holds.
    unsafe {
        let r: *mut Reply = &raw mut (*f).reply;
        (*r).events += 1;
        if (*c).pos <= (*c).captured_to && (*d).flags & flag::PIECE_LOST == 0 {
            (*r).events_captured = (*r).events;
        }
    }
}

/// An event is complete.
#[inline(always)]
unsafe fn event<E: Env>(e: &mut E, f: *mut Flow, d: *mut Dir, c: *mut Cursor, done: bool) {
    // SAFETY: the caller's promise holds; the bucket is below the array's length.
    unsafe {
        let r: *mut Reply = &raw mut (*f).reply;
        let now = (*c).now;
        (*r).events += 1;
        if (*c).pos <= (*c).captured_to && (*d).flags & flag::PIECE_LOST == 0 {
            (*r).events_captured = (*r).events;
            if !done {
                (*r).event_ns = now;
                (*r).held_gap_ns = 0;
            }
        } else if !done {
            let held = (*r).held_gap_ns;
            if held != 0 {
                reply_add_gap(r, held);
            }
            let last = (*r).event_ns;
            let gap = if last != 0 && now > last {
                now - last
            } else {
                1
            };
            (*r).held_gap_ns = if last == 0 { 0 } else { gap };
            (*r).event_ns = now;
        }
        if done {
            (*r).done = 1;
        }
        if now - (*r).progress_ns > PROGRESS_NS && (*r).progress_ns != 0 {
            (*r).progress_ns = now;
            let slot = (*f).ended.wrapping_add(1) & (PIPELINE as u32 - 1);
            if e.ended(f, slot, Ending::Progress, now, 0) {
                (*r).events_reported = (*r).events;
            }
        }
    }
}
