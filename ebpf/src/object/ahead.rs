//! Request segments that came before one that is still missing: held until the hole closes, then
//! read in order. A sender that loses a segment, or whose segments overtake each other, costs no
//! byte this way.
//!
//! Of a segment its first and its last KiB are held, which is all of one that fits an Ethernet
//! frame; segments that only go on with a body of known length are held as one, whose middle
//! nobody reads. Replies need none of this: they are seen where they are sent, in order.

use core::ffi::c_void;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::generated::bpf_skb_load_bytes;
use enginetap_ebpf::abi::flow::{Flow, closer, state};
use enginetap_ebpf::atomics::cas;
use enginetap_ebpf::stream::{Cursor, HELD_PART};

use super::machine::take_fin;
use super::maps::{AHEAD, AHEAD_TMP};
use super::packet::bounded;

/// Segments held of one connection: more than a sender's first window has (10, RFC 6928).
const SLOTS: u32 = 16;
/// From this many on, segments that follow each other are held as one, whatever they are part of: the
/// rest of the places is for further holes.
const JOINED_FROM: u32 = 12;
/// Bytes held of a segment's start, and of its end.
const PART: u32 = HELD_PART;
/// Distance from which a segment lies in no window; it is not held.
pub const WINDOW_MAX: u32 = 1 << 24;

/// Which segment.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AheadKey {
    flow: u64,
    slot: u64,
}

/// A segment, or several that follow each other.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Ahead {
    /// Sequence number of its first byte.
    seq: u32,
    /// Its bytes.
    len: u32,
    /// How many of the first are held.
    first: u32,
    /// How many of the last are held besides.
    last: u32,
    /// 1 when a FIN follows.
    fin: u32,
    pad: u32,
    /// The first from 0 on, the last from `PART` on.
    bytes: [u8; 2 * PART as usize],
}

#[inline(always)]
unsafe fn key(f: *const Flow, slot: u32) -> AheadKey {
    // SAFETY: the caller's flow is live.
    let flow = unsafe { (*f).id };
    AheadKey {
        flow,
        slot: slot as u64,
    }
}

/// The lowest slot that is not taken, without a branch: each would double what the verifier reads.
#[inline(always)]
const fn first_free(taken: u32) -> u32 {
    let below = (taken + 1) & !taken;
    (below - 1).count_ones()
}

/// Distance from `next` to the first byte that is held; `u32::MAX` when nothing is.
///
/// A global function: the kernel verifies it once.
///
/// # Safety
/// `f` is live and its request direction's lock is held.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ahead_first(f: *const Flow, next: u32) -> u64 {
    if f.is_null() {
        return u64::MAX;
    }
    // SAFETY: the caller's promise; map values are live.
    unsafe {
        let mut best = u32::MAX;
        let mut slot = 0;
        while slot < SLOTS {
            if (*f).ahead & 1 << slot != 0
                && let Some(h) = AHEAD.get_ptr(key(f, slot))
            {
                let far = (*h).seq.wrapping_sub(next);
                if (far as i32) < 0 {
                    return 0;
                }
                if far < best {
                    best = far;
                }
            }
            slot += 1;
        }
        best as u64
    }
}

/// Holds the cursor's segment, which begins at `seq`; 0 when there is no room.
///
/// A global function: the kernel verifies it once.
///
/// # Safety
/// `skb` is the program's context, `f` and `c` are live and the request direction's lock is held.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ahead_hold(
    skb: *mut __sk_buff,
    f: *mut Flow,
    c: *mut Cursor,
    seq: u32,
    fin: u32,
) -> u64 {
    // SAFETY: the caller's promise; every length is compared with the room behind its destination.
    unsafe {
        if f.is_null() || c.is_null() {
            return 0;
        }
        let len = (*c).end - (*c).pos;
        let free = first_free((*f).ahead);
        let mut before: *mut Ahead = core::ptr::null_mut();
        let mut slot = 0;
        while slot < SLOTS {
            if (*f).ahead & 1 << slot != 0
                && let Some(h) = AHEAD.get_ptr_mut(key(f, slot))
            {
                let at = seq.wrapping_sub((*h).seq);
                if at < (*h).len && len <= (*h).len - at && fin == 0 {
                    return 1;
                }
                if at == (*h).len && (*h).fin == 0 {
                    before = h;
                }
            }
            slot += 1;
        }
        let hopped = (*f).requests.state == state::BODY;
        if !before.is_null() && len > 0 && (hopped || (*f).ahead.count_ones() >= JOINED_FROM) {
            let last = if len < PART { len } else { PART };
            let to = (&raw mut (*before).bytes as *mut u8).add(PART as usize);
            if !load(skb, (*c).end - last, to, last) {
                return 0;
            }
            (*before).last = last;
            (*before).len += len;
            (*before).fin = fin;
            return 1;
        }
        if free >= SLOTS {
            return 0;
        }
        let Some(h) = AHEAD_TMP.get_ptr_mut(0) else {
            return 0;
        };
        let first = if len < PART { len } else { PART };
        let last = if len - first < PART {
            len - first
        } else {
            PART
        };
        let bytes = &raw mut (*h).bytes as *mut u8;
        if first > 0 && !load(skb, (*c).pos, bytes, first) {
            return 0;
        }
        if last > 0 && !load(skb, (*c).end - last, bytes.add(PART as usize), last) {
            return 0;
        }
        (*h).seq = seq;
        (*h).len = len;
        (*h).first = first;
        (*h).last = last;
        (*h).fin = fin;
        (*h).pad = 0;
        // By reference: it does not fit the stack.
        let held: &Ahead = &*h;
        if AHEAD.insert(key(f, free), held, 0).is_err() {
            return 0;
        }
        (*f).ahead |= 1 << free;
        1
    }
}

/// Copies 1 to `PART` bytes of the packet.
#[inline(always)]
unsafe fn load(skb: *mut __sk_buff, off: u32, to: *mut u8, len: u32) -> bool {
    // SAFETY: the caller has PART bytes at `to`.
    unsafe {
        bpf_skb_load_bytes(
            skb as *const c_void,
            off,
            to as *mut c_void,
            bounded::<PART>(len),
        ) == 0
    }
}

/// The cursor's segment is used up: moves it to the next that is held and no longer behind a hole.
/// 0 when there is none, or when `more` is 0: then only what is left of the last one is put away.
///
/// A global function that calls nothing: it is called deep in the stack, of which the tap has little.
///
/// # Safety
/// As for [`ahead_hold`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ahead_next(f: *mut Flow, c: *mut Cursor, more: u32) -> u64 {
    // SAFETY: the caller's promise; map values are live.
    unsafe {
        if f.is_null() || c.is_null() {
            return 0;
        }
        let d = &raw mut (*f).requests;
        if (*c).held != 0 {
            (*c).held = 0;
            if (*c).held_fin != 0 && take_fin(d) {
                cas(&raw mut (*f).closer, closer::NONE, closer::PEER_FIN);
            }
            put_away(f, (*c).held_slot);
        }
        if more == 0 {
            return 0;
        }
        let mut slot = 0;
        while slot < SLOTS {
            let found = if (*f).ahead & 1 << slot == 0 {
                None
            } else {
                AHEAD.get_ptr(key(f, slot))
            };
            if let Some(h) = found {
                let (len, fin) = ((*h).len, (*h).fin);
                let skip = (*d).next_seq.wrapping_sub((*h).seq);
                if skip < len || (skip == len && fin != 0) {
                    (*d).next_seq = (*h).seq.wrapping_add(len);
                    (*d).bytes += (len - skip) as u64;
                    (*c).held = (&raw const (*h).bytes) as u64;
                    (*c).held_slot = slot;
                    (*c).held_fin = fin;
                    (*c).held_len = len;
                    (*c).held_first = (*h).first;
                    (*c).held_last = (*h).last;
                    (*c).pos = skip;
                    (*c).end = len;
                    (*c).captured_to = 0;
                    return 1;
                }
                if skip as i32 > 0 {
                    put_away(f, slot);
                }
            }
            slot += 1;
        }
        0
    }
}

/// Forgets one.
#[inline(always)]
unsafe fn put_away(f: *mut Flow, slot: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let _ = AHEAD.remove(key(f, slot & (SLOTS - 1)));
        (*f).ahead &= !(1 << (slot & (SLOTS - 1)));
    }
}

/// Forgets what is held of a flow that ends.
///
/// # Safety
/// `f` is live and its request direction's lock is held.
#[inline(always)]
pub unsafe fn forget_ahead(f: *mut Flow) {
    // SAFETY: the caller's promise.
    unsafe {
        if (*f).ahead == 0 {
            return;
        }
        let mut slot = 0;
        while slot < SLOTS {
            if (*f).ahead & 1 << slot != 0 {
                let _ = AHEAD.remove(key(f, slot));
            }
            slot += 1;
        }
        (*f).ahead = 0;
    }
}
