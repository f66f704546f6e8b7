//! Which bytes of a segment are next in the stream, which are known already and which are missing.

use core::ffi::c_void;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::generated::bpf_skb_load_bytes;
use enginetap_ebpf::abi::flow::{Dir, Flow, TAIL_BANK, dir_flag, state};
use enginetap_ebpf::abi::record::told as told_value;
use enginetap_ebpf::stream::gap;

use super::ahead::{WINDOW_MAX, ahead_first, ahead_hold};
use super::kernel::now;
use super::machine::{Tap, resync, run, take_fin};
use super::maps::{TOLD, WIRE_TMP};
use super::packet::{Segment, bounded, tcp};

/// What is appended to a bank that holds something already is at most this long.
const HALF_BANK: u32 = TAIL_BANK as u32 / 2;

/// Takes the bytes of a segment that are next in the stream. True when it ended the stream.
///
/// # Safety
/// `f` is live, `d` is its direction `REPLY` names and the lock of it is held.
#[inline(always)]
pub unsafe fn take<const REPLY: bool>(
    skb: *mut __sk_buff,
    f: *mut Flow,
    d: *mut Dir,
    s: &Segment,
) -> bool {
    // SAFETY: the direction's lock is held; the cursor is this CPU's and bottom halves are off.
    unsafe {
        let Some(c) = WIRE_TMP.get_ptr_mut(0) else {
            return false;
        };
        let t = now();
        (*f).seen_ns = t;
        let mut seq = s.seq;
        if s.flags & tcp::SYN != 0 {
            seq = seq.wrapping_add(1);
            if REPLY && (*d).flags & dir_flag::SEQ == 0 {
                (*d).next_seq = seq;
                (*d).acked = seq;
                (*d).flags |= dir_flag::SEQ;
            }
        }
        let len = s.end - s.payload;
        let fin = s.flags & tcp::FIN != 0;
        if len == 0 && !fin {
            return false;
        }
        if (*d).flags & dir_flag::SEQ == 0 {
            (*d).next_seq = seq;
            (*d).acked = seq;
            (*d).flags |= dir_flag::SEQ;
        }
        (*c).now = t;
        (*c).held = 0;
        (*c).captured_to = 0;
        let mut tap = Tap {
            skb,
            flow: f,
            cursor: c,
        };
        if seq.wrapping_sub((*d).next_seq) as i32 > 0 {
            missing::<REPLY>(&mut tap, d, s, seq);
        }
        let ahead = seq.wrapping_sub((*d).next_seq) as i32;
        if ahead > 0 {
            if !REPLY && (ahead as u32) < WINDOW_MAX {
                (*c).pos = s.payload;
                (*c).end = s.end;
                ahead_hold(skb, f, c, seq, fin as u32);
            }
            return false;
        }
        let skip = ahead.unsigned_abs();
        if skip > len || (skip == len && !fin) {
            return false;
        }
        (*d).next_seq = seq.wrapping_add(len);
        (*d).bytes += (len - skip) as u64;
        (*c).pos = s.payload + skip;
        (*c).end = s.end;
        if skip < len {
            if (*d).state == state::UNSYNCED && skip == 0 {
                resync::<REPLY>(&mut tap, d);
            }
            run::<REPLY>(&mut tap);
        }
        fin && take_fin(d)
    }
}

/// Bytes before this segment have not passed. What the receiver has acknowledged of them will not
/// come any more: it is a gap.
#[inline(always)]
unsafe fn missing<const REPLY: bool>(tap: &mut Tap, d: *mut Dir, s: &Segment, seq: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let (f, c) = (tap.flow, tap.cursor);
        let next = (*d).next_seq;
        let mut hole = seq.wrapping_sub(next);
        if !REPLY && (*f).ahead != 0 {
            let first = ahead_first(f, next);
            if first < hole as u64 {
                hole = first as u32;
            }
        }
        let acked = (&raw const (*d).acked).read_volatile();
        if (acked.wrapping_sub(next) as i32) < hole as i32 {
            return;
        }
        (*c).pos = s.payload;
        (*c).end = s.payload;
        if hole != 0 {
            gap::<Tap, REPLY>(tap, f, c, hole);
            (*d).next_seq = next.wrapping_add(hole);
        }
        if !REPLY && (*f).ahead != 0 {
            run::<false>(tap);
        }
    }
}

/// Appends the end of the segment to the rolling tail, for replies whose end is not known ahead.
///
/// # Safety
/// The reply direction's lock is held.
#[inline(always)]
pub unsafe fn keep_tail(skb: *mut __sk_buff, f: *mut Flow, d: *mut Dir, s: &Segment) {
    // SAFETY: the bank's offset and the length are compared with the bank's size.
    unsafe {
        let st = (*d).state;
        if matches!(
            st,
            state::BODY | state::DEAD | state::UNSYNCED | state::AWAITING
        ) {
            return;
        }
        if (*d).flags & dir_flag::SEQ != 0 && (s.seq.wrapping_sub((*d).next_seq) as i32) < 0 {
            return;
        }
        let whole = s.end - s.payload;
        let len = if whole > TAIL_BANK as u32 {
            TAIL_BANK as u32
        } else {
            whole
        };
        let mut at = (*f).tail_len;
        // Offset and length are bounded apart from each other, which is all a verifier follows.
        if at == 0 || at >= HALF_BANK || len > HALF_BANK {
            if at != 0 {
                (*f).tail_bank ^= 1;
                (*f).tail_other_len = at;
            }
            at = 0;
        }
        let bank = if (*f).tail_bank & 1 == 0 {
            0
        } else {
            TAIL_BANK
        };
        let to = (&raw mut (*f).tail as *mut u8).add(bank);
        let from = s.end - len;
        let read = if at == 0 {
            let n = bounded::<{ TAIL_BANK as u32 }>(len);
            bpf_skb_load_bytes(skb as *const c_void, from, to as *mut c_void, n)
        } else {
            let n = bounded::<HALF_BANK>(len);
            let behind = core::ptr::read_volatile(&raw const at) & (HALF_BANK - 1);
            bpf_skb_load_bytes(
                skb as *const c_void,
                from,
                to.add(behind as usize) as *mut c_void,
                n,
            )
        };
        if read == 0 {
            (*f).tail_len = at + len;
        }
    }
}

/// Asks whether the agent has seen enough of this stream's first events.
///
/// # Safety
/// As for [`keep_tail`].
#[inline(always)]
pub unsafe fn ask_told(f: *mut Flow, d: *mut Dir) {
    // SAFETY: live map values of plain integers.
    unsafe {
        let flags = (*d).flags;
        if flags & (dir_flag::SSE | dir_flag::NDJSON) == 0 || flags & dir_flag::TOLD != 0 {
            return;
        }
        let id = (*f).id;
        if let Some(told) = TOLD.get_ptr(id as u32 & 0xffff)
            && *told == told_value(id, (*f).ended.wrapping_add(1))
        {
            (*d).flags |= dir_flag::TOLD;
        }
    }
}
