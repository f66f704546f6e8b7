//! Messages of a direction: where each begins, how long its body is, where it ends; and what
//! becomes of requests whose bytes were missed.

use super::ending::{complete, complete_now, judge, left};
use super::http1::{first4, method, method_of, status_of, whole_method};
use super::line::{Line, byte, line_step};
use super::once::{line_chunk_size, line_header, reply_reset};
use super::{
    BODY_CAPTURE, Cursor, Env, HEAD_CAPTURE, HEAD_MAX, STREAM_CAPTURE, STREAM_EVENTS, TAIL_PIECES,
    sse,
};
use crate::abi::counters::unparsed;
use crate::abi::flow::{
    Dir, Flow, PIPELINE, Request, dir_flag as flag, flow_flag, request_flag, state,
};
use crate::abi::record::{PIECE_LARGE, piece_flag};

const SLOT: u32 = PIPELINE as u32 - 1;

#[inline(always)]
unsafe fn dir<const REPLY: bool>(f: *mut Flow) -> *mut Dir {
    // SAFETY: only an address is computed.
    unsafe {
        if REPLY {
            &raw mut (*f).replies
        } else {
            &raw mut (*f).requests
        }
    }
}

/// Takes the next few bytes of a packet; false when the packet is used up.
///
/// # Safety
/// `f` and `c` are live and the lock of the direction `REPLY` names is held.
#[inline(always)]
pub unsafe fn step<E: Env, const REPLY: bool>(e: &mut E, f: *mut Flow, c: *mut Cursor) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let d = dir::<REPLY>(f);
        let pos = (*c).pos;
        let end = (*c).end;
        if pos >= end {
            return false;
        }
        if REPLY && (*d).state == state::AWAITING {
            judge(e, f);
        }
        match (*d).state {
            state::DEAD | state::UNSYNCED => {
                (*c).pos = end;
                return false;
            }
            state::IDLE if !begin::<E, REPLY>(e, f, d, c) => {
                (*c).pos = end;
                return false;
            }
            _ => {}
        }
        let captured_to = (*c).captured_to;
        // A body is hopped over at once, so what is wanted of its beginning is handed over ahead.
        let ahead =
            captured_to > pos && hops::<REPLY>(d) && (*d).remaining > (captured_to - pos) as u64;
        let from = if ahead { captured_to } else { pos };
        if from >= captured_to && from < end && capture::<E, REPLY>(e, f, d, c, from) {
            return true;
        }
        match (*d).state {
            state::BODY | state::CHUNK_DATA | state::UNTIL_CLOSE => data::<E, REPLY>(e, f, d, c),
            _ => lines::<E, REPLY>(e, f, d, c),
        }
    }
}

/// Whether the direction is in a body of known length that is not read.
#[inline(always)]
unsafe fn hops<const REPLY: bool>(d: *const Dir) -> bool {
    // SAFETY: the caller's promise.
    unsafe { (*d).state == state::BODY && !(REPLY && (*d).flags & (flag::SSE | flag::NDJSON) != 0) }
}

/// The first byte of a message is next; false when it belongs to no message.
#[inline(always)]
unsafe fn begin<E: Env, const REPLY: bool>(
    e: &mut E,
    f: *mut Flow,
    d: *mut Dir,
    c: *mut Cursor,
) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        if REPLY {
            if (*f).ended == (*f).started {
                (*d).state = state::UNSYNCED;
                return false;
            }
        } else if (*f).started.wrapping_sub((*f).ended) >= PIPELINE as u32 {
            (*d).state = state::DEAD;
            e.unparsed(f, unparsed::PIPELINED);
            return false;
        }
        (*d).flags &= !flag::PER_MESSAGE;
        (*d).state = state::FIRST_LINE;
        (*d).line_len = 0;
        (*d).word = 0;
        (*d).event_len = 0;
        (*d).tail_pieces = 0;
        (*d).message_bytes = 0;
        (*d).body_bytes = 0;
        (*d).remaining = 0;
        (*d).length = 0;
        (*d).captured = 0;
        (*d).capture_limit = HEAD_CAPTURE;
        (*d).code = 0;
        (*d).first_ns = (*c).now;
        (*c).captured_to = (*c).pos;
        if REPLY {
            reply_reset(&raw mut (*f).reply, (*c).now);
            if left(f) {
                (*d).flags |= flag::AFTER_FIN;
            }
        } else {
            (&raw mut (*f).read_ns).write_volatile(0);
        }
        true
    }
}

/// Hands over the bytes of the message's beginning that lie at `from`, if they are wanted.
#[inline(always)]
unsafe fn capture<E: Env, const REPLY: bool>(
    e: &mut E,
    f: *mut Flow,
    d: *mut Dir,
    c: *mut Cursor,
    from: u32,
) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let captured = (*d).captured;
        let mut limit = (*d).capture_limit;
        if REPLY
            && (*d).flags & (flag::SSE | flag::NDJSON) != 0
            && (*d).flags & (flag::TOLD | flag::PIECE_LOST) == 0
            && (*d).state >= state::BODY
            && (*f).reply.events < STREAM_EVENTS
        {
            limit = STREAM_CAPTURE;
        }
        if captured >= limit {
            return false;
        }
        let mut len = (*c).end - from;
        if len > limit - captured {
            len = limit - captured;
        }
        if len > PIECE_LARGE as u32 {
            len = PIECE_LARGE as u32;
        }
        let kind = if REPLY { piece_flag::REPLY } else { 0 };
        let broken = if (*d).flags & flag::PIECE_LOST != 0 {
            piece_flag::BROKEN
        } else {
            0
        };
        let offset = (*d).message_bytes + (from - (*c).pos) as u64;
        if !e.piece(f, from, len, offset, kind | broken, (*c).now) {
            (*d).flags |= flag::PIECE_LOST;
        }
        (*d).captured = captured + len;
        (*c).captured_to = from + len;
        true
    }
}

/// Bytes of a body.
#[inline(always)]
unsafe fn data<E: Env, const REPLY: bool>(
    e: &mut E,
    f: *mut Flow,
    d: *mut Dir,
    c: *mut Cursor,
) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let pos = (*c).pos;
        let mut n = if hops::<REPLY>(d) {
            (*c).end - pos
        } else {
            (*c).stop() - pos
        };
        if (*d).state != state::UNTIL_CLOSE && (n as u64) > (*d).remaining {
            n = (*d).remaining as u32;
        }
        if REPLY && (*d).flags & (flag::SSE | flag::NDJSON) != 0 {
            n = sse::scan(e, f, d, c, n);
            if n == 0 {
                unreadable::<E, REPLY>(e, f, d, c);
                return false;
            }
        } else {
            if (*d).state == state::BODY {
                end_of_body::<E, REPLY>(e, f, d, c, n);
            }
            (*c).pos = pos + n;
        }
        advance_body::<REPLY>(f, d, n as u64);
        if (*d).remaining == 0 {
            match (*d).state {
                state::BODY => complete::<E, REPLY>(e, f, d, c),
                state::CHUNK_DATA => (*d).state = state::CHUNK_END,
                _ => {}
            }
        }
        true
    }
}

/// Hands over what of the next `n` bytes lies within the last bytes of the body.
#[inline(always)]
unsafe fn end_of_body<E: Env, const REPLY: bool>(
    e: &mut E,
    f: *mut Flow,
    d: *mut Dir,
    c: *mut Cursor,
    n: u32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let left = (*d).remaining - n as u64;
        if left >= BODY_CAPTURE as u64
            || (*c).pos + n <= (*c).captured_to
            || (*d).tail_pieces >= TAIL_PIECES
        {
            return;
        }
        // Small segments: begin where as many pieces of this size as are left reach the end.
        if left > n as u64 * (TAIL_PIECES - 1 - (*d).tail_pieces) as u64 {
            return;
        }
        let mut len = n;
        if len > BODY_CAPTURE {
            len = BODY_CAPTURE;
        }
        let kind = if REPLY { piece_flag::REPLY } else { 0 } | piece_flag::TAIL;
        let offset = (*d).message_bytes + (n - len) as u64;
        if len > 0 {
            (*d).tail_pieces += 1;
            e.piece(f, (*c).pos + (n - len), len, offset, kind, (*c).now);
        }
    }
}

#[inline(always)]
unsafe fn advance_body<const REPLY: bool>(f: *mut Flow, d: *mut Dir, n: u64) {
    // SAFETY: the caller's promise; the slot is masked.
    unsafe {
        (*d).message_bytes += n;
        (*d).body_bytes += n;
        if (*d).state != state::UNTIL_CLOSE {
            (*d).remaining -= n;
        }
        if !REPLY {
            let r: *mut Request =
                (&raw mut (*f).open as *mut Request).add(((*f).started & SLOT) as usize);
            (*r).body_bytes = (*d).body_bytes;
        }
    }
}

#[inline(always)]
unsafe fn unreadable<E: Env, const REPLY: bool>(
    e: &mut E,
    f: *mut Flow,
    d: *mut Dir,
    c: *mut Cursor,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let rest = (*c).end - (*c).pos;
        (*c).pos = (*c).end;
        if rest > 0 {
            gap_in::<E, REPLY>(e, f, d, c, rest);
        }
    }
}

/// Bytes of a head, a chunk-size line, a chunk's end or the trailers.
#[inline(always)]
unsafe fn lines<E: Env, const REPLY: bool>(
    e: &mut E,
    f: *mut Flow,
    d: *mut Dir,
    c: *mut Cursor,
) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        if !REPLY && (*d).state == state::FIRST_LINE && (*d).first_ns == 0 {
            (*d).first_ns = (*c).now;
            (&raw mut (*f).read_ns).write_volatile(0);
        }
        let found = line_step(e, d, c);
        let (whole, len) = match found {
            Line::Unreadable => {
                unreadable::<E, REPLY>(e, f, d, c);
                return false;
            }
            Line::More => {
                if !REPLY
                    && (*d).state == state::FIRST_LINE
                    && (*d).flags & flag::LONG_LINE == 0
                    && (*d).line_len >= 4
                    && let Err(reason) = method_of(first4(d))
                {
                    dead(e, f, d, reason);
                }
                if (*d).state < state::BODY && (*d).message_bytes > HEAD_MAX {
                    dead(e, f, d, unparsed::HEAD_TOO_LONG);
                }
                return true;
            }
            Line::Prefix => (false, 64),
            Line::Whole(len) => (true, len & 63),
            Line::Rest => (true, u32::MAX),
        };
        if (*d).state < state::BODY && (*d).message_bytes > HEAD_MAX {
            dead(e, f, d, unparsed::HEAD_TOO_LONG);
            return true;
        }
        match (*d).state {
            state::FIRST_LINE => first_line::<E, REPLY>(e, f, d, whole, len),
            state::HEADERS | state::TRAILERS => {
                let blank = whole && (len == 0 || (len == 1 && byte(d, 0) == b'\r'));
                if blank {
                    if (*d).state == state::HEADERS {
                        head_done::<E, REPLY>(e, f, d, c);
                    } else {
                        complete::<E, REPLY>(e, f, d, c);
                    }
                } else if (*d).state == state::HEADERS
                    && len != u32::MAX
                    && line_header(d, len) == 0
                {
                    dead(e, f, d, unparsed::BAD_FRAMING);
                }
            }
            state::CHUNK_SIZE => {
                if len != u32::MAX {
                    match line_chunk_size(d, len) {
                        size if size != u64::MAX => (*d).remaining = size,
                        _ => {
                            dead(e, f, d, unparsed::BAD_FRAMING);
                            return true;
                        }
                    }
                }
                if whole {
                    (*d).state = if (*d).remaining == 0 {
                        state::TRAILERS
                    } else {
                        state::CHUNK_DATA
                    };
                }
            }
            state::CHUNK_END => {
                if whole && (len == 0 || (len == 1 && byte(d, 0) == b'\r')) {
                    (*d).state = state::CHUNK_SIZE;
                } else {
                    dead(e, f, d, unparsed::BAD_FRAMING);
                }
            }
            _ => return false,
        }
        true
    }
}

#[inline(always)]
unsafe fn dead<E: Env>(e: &mut E, f: *mut Flow, d: *mut Dir, reason: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        (*d).state = state::DEAD;
        e.unparsed(f, reason);
    }
}

#[inline(always)]
unsafe fn first_line<E: Env, const REPLY: bool>(
    e: &mut E,
    f: *mut Flow,
    d: *mut Dir,
    whole: bool,
    len: u32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if len == u32::MAX {
            (*d).state = state::HEADERS;
            return;
        }
        if whole && len < 2 && (len == 0 || byte(d, 0) == b'\r') {
            // Empty lines before a first line are to be ignored (RFC 9112, 2.2): the request begins
            // with the byte that follows.
            if !REPLY {
                (*d).first_ns = 0;
            }
            return;
        }
        if REPLY {
            let status = status_of(d, len);
            if status == 0 {
                dead(e, f, d, unparsed::REPLY_NOT_HTTP);
                return;
            }
            (*d).code = status;
        } else {
            let known = if len < 4 {
                Err(unparsed::NOT_HTTP)
            } else {
                method_of(first4(d))
            };
            match known {
                Ok(m) => (*d).code = whole_method(d, m),
                Err(reason) => {
                    dead(e, f, d, reason);
                    return;
                }
            }
        }
        if whole {
            (*d).state = state::HEADERS;
        }
    }
}

/// The blank line after the headers.
#[inline(always)]
unsafe fn head_done<E: Env, const REPLY: bool>(
    e: &mut E,
    f: *mut Flow,
    d: *mut Dir,
    c: *mut Cursor,
) {
    // SAFETY: the caller's promise; slots are masked.
    unsafe {
        let limit = (*d).message_bytes as u32 + BODY_CAPTURE;
        let most = HEAD_CAPTURE + BODY_CAPTURE;
        (*d).capture_limit = if limit > most { most } else { limit };
        let flags = (*d).flags;
        if !REPLY {
            let number = (*f).started.wrapping_add(1);
            let slot = number & SLOT;
            let r: *mut Request = (&raw mut (*f).open as *mut Request).add(slot as usize);
            (*r).start_ns = (*d).first_ns;
            (*r).set = 0;
            (*r).read_ns = 0;
            (*r).body_bytes = 0;
            (*r).number = number;
            (*r).flags = match (*d).code {
                method::HEAD => request_flag::NO_BODY,
                method::CONNECT => request_flag::CONNECT,
                _ => 0,
            };
            (*r).workload = (*f).workload;
            (*f).flags &= !flow_flag::ADOPTED;
            e.started(f, slot);
            core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
            (&raw mut (*f).started).write_volatile(number);
            body_begins::<E, REPLY>(
                e,
                f,
                d,
                c,
                flags & flag::CHUNKED == 0 && flags & flag::LENGTH == 0,
            );
            return;
        }
        let status = (*d).code;
        if status < 200 && status != 101 {
            (*d).state = state::IDLE;
            return;
        }
        let slot = (*f).ended.wrapping_add(1) & SLOT;
        let r: *mut Request = (&raw mut (*f).open as *mut Request).add(slot as usize);
        let asked = (*r).flags;
        let tunnel = status == 101 || (asked & request_flag::CONNECT != 0 && status < 300);
        if tunnel {
            complete_now(e, f, d, c);
            dead(e, f, d, unparsed::UPGRADED);
            (&raw mut (*f).requests.state).write_volatile(state::DEAD);
            return;
        }
        let empty = asked & request_flag::NO_BODY != 0 || status == 204 || status == 304;
        if empty {
            complete::<E, REPLY>(e, f, d, c);
            return;
        }
        if flags & (flag::CHUNKED | flag::LENGTH) == 0 {
            (*d).state = state::UNTIL_CLOSE;
            return;
        }
        body_begins::<E, REPLY>(e, f, d, c, false);
    }
}

/// A body of known framing follows, if any.
#[inline(always)]
unsafe fn body_begins<E: Env, const REPLY: bool>(
    e: &mut E,
    f: *mut Flow,
    d: *mut Dir,
    c: *mut Cursor,
    none: bool,
) {
    // SAFETY: the caller's promise.
    unsafe {
        (*d).line_len = 0;
        if (*d).flags & flag::CHUNKED != 0 {
            (*d).state = state::CHUNK_SIZE;
        } else if none || (*d).length == 0 {
            complete::<E, REPLY>(e, f, d, c);
        } else {
            (*d).remaining = (*d).length;
            (*d).state = state::BODY;
        }
    }
}

#[inline(always)]
unsafe fn gap_in<E: Env, const REPLY: bool>(
    e: &mut E,
    f: *mut Flow,
    d: *mut Dir,
    c: *mut Cursor,
    n: u32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if REPLY && (*d).state == state::AWAITING {
            judge(e, f);
        }
        let st = (*d).state;
        if st == state::DEAD {
            return;
        }
        e.missed(f);
        (*d).flags |= flag::GAP | flag::PIECE_LOST;
        if !REPLY && (state::BODY..=state::TRAILERS).contains(&st) {
            let r: *mut Request =
                (&raw mut (*f).open as *mut Request).add(((*f).started & SLOT) as usize);
            (*r).flags |= request_flag::GAP;
        }
        let n = n as u64;
        let inside = match st {
            state::BODY | state::CHUNK_DATA => n <= (*d).remaining,
            state::UNTIL_CLOSE => true,
            _ => false,
        };
        if inside {
            (*d).flags |= flag::LINE_UNKNOWN;
            advance_body::<REPLY>(f, d, n);
            if (*d).remaining == 0 {
                match st {
                    state::BODY => complete::<E, REPLY>(e, f, d, c),
                    state::CHUNK_DATA => (*d).state = state::CHUNK_END,
                    _ => {}
                }
            }
            return;
        }
        (*d).state = state::UNSYNCED;
        if REPLY {
            (*f).lost_upto = (*f).started;
        }
    }
}

/// `n` bytes of the direction were missed. Where the framing says what they were, the message goes
/// on, marked; else the direction waits for a first line at the start of a segment.
///
/// # Safety
/// As for [`step`].
#[inline(always)]
pub unsafe fn gap<E: Env, const REPLY: bool>(e: &mut E, f: *mut Flow, c: *mut Cursor, n: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let d = dir::<REPLY>(f);
        gap_in::<E, REPLY>(e, f, d, c, n);
    }
}
