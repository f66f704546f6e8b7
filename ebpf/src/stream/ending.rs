//! How requests end: with a complete reply, with the connection, or unseen.
//!
//! A client that closes its side before the reply is complete may have left, or may only have said
//! that it sends no more. A complete reply then waits ([`state::AWAITING`]) for what the client
//! says to it: an acknowledgement makes it complete, a reset makes it an abort.

use super::once::reply_reset;
use super::{Cursor, Ending, Env};
use crate::abi::flow::{
    Dir, Flow, PIPELINE, Request, closer, dir_flag as flag, flow_flag, request_flag, state,
};

const SLOT: u32 = PIPELINE as u32 - 1;

/// Whether the client has closed its side.
#[inline(always)]
pub(super) unsafe fn left(f: *const Flow) -> bool {
    // SAFETY: an aligned word of a live flow; the other direction may write it meanwhile.
    unsafe { (&raw const (*f).requests.flags).read_volatile() & flag::FIN != 0 }
}

/// The message is over.
#[inline(always)]
pub(super) unsafe fn complete<E: Env, const REPLY: bool>(
    e: &mut E,
    f: *mut Flow,
    d: *mut Dir,
    c: *mut Cursor,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if !REPLY {
            (*d).state = state::IDLE;
            (*d).line_len = 0;
        } else if left(f) {
            wait(f, (*c).now, (*d).next_seq, (*c).end - (*c).pos);
        } else {
            complete_now(e, f, d, c);
        }
    }
}

/// The reply is over, whatever the client says to it.
#[inline(always)]
pub(super) unsafe fn complete_now<E: Env>(e: &mut E, f: *mut Flow, d: *mut Dir, c: *mut Cursor) {
    // SAFETY: the caller's promise.
    unsafe {
        end_one(e, f, Ending::Complete, (*c).now, (*c).end - (*c).pos);
        (*d).state = state::IDLE;
        (*d).line_len = 0;
    }
}

/// The reply is complete and the client's word decides.
#[inline(always)]
unsafe fn wait(f: *mut Flow, now: u64, seq: u32, excess: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        (*f).awaiting_ns = now;
        (*f).awaiting_seq = seq;
        (*f).awaiting_excess = excess;
        (*f).replies.state = state::AWAITING;
    }
}

/// Ends the request whose reply waits: an abort when the client answered it with a reset or not at
/// all, else complete.
#[inline(always)]
pub(super) unsafe fn judge<E: Env>(e: &mut E, f: *mut Flow) {
    // SAFETY: the caller's promise.
    unsafe {
        let gone = matches!((*f).closer, closer::PEER_RST | closer::PEER_TIMEOUT);
        let ending = if gone {
            Ending::Closed
        } else {
            Ending::Complete
        };
        let (now, excess) = ((*f).awaiting_ns, (*f).awaiting_excess);
        end_one(e, f, ending, now, excess);
        (*f).replies.state = state::IDLE;
        (*f).replies.line_len = 0;
    }
}

/// The client acknowledged the server's bytes up to `ack`.
///
/// # Safety
/// `f` is live and the reply direction's lock is held.
#[inline(always)]
pub unsafe fn acknowledged<E: Env>(e: &mut E, f: *mut Flow, ack: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let d = &raw const (*f).replies;
        if (*d).state == state::AWAITING
            && ack.wrapping_sub((*f).awaiting_seq) as i32 >= 0
            && (*d).next_seq.wrapping_sub(ack) as i32 >= 0
        {
            judge(e, f);
        }
    }
}

/// The server ended its stream, in order; `first` when nobody had closed before.
///
/// # Safety
/// `f` is live and the reply direction's lock is held.
#[inline(always)]
pub unsafe fn server_fin<E: Env>(e: &mut E, f: *mut Flow, first: bool, now: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        let d = &raw mut (*f).replies;
        if (*f).started == (*f).ended || (*d).state == state::AWAITING {
            return;
        }
        if (*d).state == state::UNTIL_CLOSE && left(f) {
            wait(f, now, (*d).next_seq.wrapping_sub(1), 0);
            return;
        }
        if (*d).state == state::UNTIL_CLOSE && first {
            let upto = (*f).ended.wrapping_add(1);
            end_all(e, f, Ending::Complete, upto, now);
        } else {
            end_all(e, f, Ending::Closed, u32::MAX, now);
        }
        if (*d).state != state::DEAD {
            (*d).state = state::IDLE;
        }
    }
}

/// The server sends, on a connection that was taken up in the middle, what answers no request that
/// was seen: one was open then, and it cannot be observed. Once per connection.
///
/// # Safety
/// `f` is live and the locks of both directions are held.
#[inline(always)]
pub unsafe fn took_over<E: Env>(e: &mut E, f: *mut Flow, now: u64) {
    // SAFETY: the caller's promise; the slot is masked.
    unsafe {
        if (*f).flags & flow_flag::ADOPTED == 0 {
            return;
        }
        (*f).flags &= !flow_flag::ADOPTED;
        if (*f).started != (*f).ended || (*f).replies.state != state::UNSYNCED {
            return;
        }
        let number = (*f).started.wrapping_add(1);
        let slot = number & SLOT;
        let r: *mut Request = (&raw mut (*f).open as *mut Request).add(slot as usize);
        (*r).start_ns = (*f).created_ns;
        (*r).set = 0;
        (*r).read_ns = 0;
        (*r).body_bytes = 0;
        (*r).number = number;
        (*r).flags = request_flag::ADOPTED;
        (*r).workload = (*f).workload;
        e.started(f, slot);
        core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
        (&raw mut (*f).started).write_volatile(number);
        end_one(e, f, Ending::Unobserved, now, 0);
    }
}

/// Ends the oldest open request.
#[inline(always)]
unsafe fn end_one<E: Env>(e: &mut E, f: *mut Flow, ending: Ending, now: u64, excess: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let number = (*f).ended.wrapping_add(1);
        e.ended(f, number & SLOT, ending, now, excess);
        core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
        (&raw mut (*f).ended).write_volatile(number);
        reply_reset(&raw mut (*f).reply, 0);
        (*f).replies.message_bytes = 0;
        (*f).replies.code = 0;
    }
}

/// Ends every open request up to `upto` (all when `u32::MAX`); one whose reply waits is judged.
///
/// # Safety
/// `f` is live; the reply direction's lock is held, and the request direction's too unless only
/// requests up to `lost_upto` are ended.
#[inline(always)]
pub unsafe fn end_all<E: Env>(e: &mut E, f: *mut Flow, ending: Ending, upto: u32, now: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        if (*f).replies.state == state::AWAITING {
            judge(e, f);
        }
        let mut i = 0;
        while i < PIPELINE {
            let ended = (*f).ended;
            let open = (*f).started.wrapping_sub(ended);
            if open == 0
                || open > PIPELINE as u32
                || (upto != u32::MAX && upto.wrapping_sub(ended) as i32 <= 0)
            {
                return;
            }
            end_one(e, f, ending, now, 0);
            i += 1;
        }
    }
}
