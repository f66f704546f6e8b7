//! Where a count goes. A request that ends goes to the ring or, if that has no room, to one cell of
//! `LOST`: never both, never neither.

use core::ffi::c_void;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::generated::{bpf_probe_read_kernel, bpf_skb_load_bytes};
use enginetap_ebpf::abi::counters::{lost, lost_cell, outcome};
use enginetap_ebpf::abi::flow::{
    Flow, PIPELINE, Request, TAIL_BANK, closer, dir_flag, request_flag, state,
};
use enginetap_ebpf::abi::process::ProcessKey;
use enginetap_ebpf::abi::record::{
    End, EndWithTail, PIECE_LARGE, PIECE_SMALL, Piece, PieceLarge, PieceSmall, RequestRef,
    end_flag, kind, piece_flag,
};
use enginetap_ebpf::atomics::{add, swap};
use enginetap_ebpf::hist::GAP_BUCKETS;
use enginetap_ebpf::stream::{Cursor, Ending};

use super::flows::{count_unparsed, release, work};
use super::maps::{CLOCKS, EVENTS_LOST, LOST, PROCS, bump};
use super::packet::bounded;
use super::ring::{crowded, reserve, submit};
use super::stall::copy as copy_clock;

#[inline(always)]
unsafe fn reference(to: *mut RequestRef, f: *const Flow, number: u32, workload: u32) {
    // SAFETY: both are live.
    unsafe {
        (*to).flow = (*f).id;
        (*to).number = number;
        (*to).workload = workload;
        (*to).key = (*f).key;
    }
}

/// The place of a request in its flow.
#[inline(always)]
pub unsafe fn open_of(f: *mut Flow, number: u32) -> *mut Request {
    // SAFETY: the caller's flow is live; the place is masked.
    unsafe { (&raw mut (*f).open as *mut Request).add((number & (PIPELINE as u32 - 1)) as usize) }
}

/// Hands over bytes of a packet. `len_flags` holds the length (1 to 1024) in its low half and the
/// flags of the piece in its high half. 1 when there was room.
///
/// A global function: the kernel verifies it once and not on every path that calls it.
///
/// # Safety
/// `skb` is the program's context, `f` is live and the direction's lock is held.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn hand_over(
    skb: *mut __sk_buff,
    f: *mut Flow,
    off: u32,
    len_flags: u64,
    c: *mut Cursor,
) -> u64 {
    // SAFETY: the record is written in full before it is submitted; the helper is given a length
    // that was compared with the room behind its destination.
    unsafe {
        if f.is_null() || c.is_null() {
            return 0;
        }
        let (offset, now) = ((*c).piece_offset, (*c).now);
        let mut flags = (len_flags >> 32) as u32;
        let reply = flags & piece_flag::REPLY != 0;
        let len = len_flags as u32;
        if len == 0 || len > PIECE_LARGE as u32 {
            return 0;
        }
        if (*f).confirmed == 0 {
            flags |= piece_flag::PROVISIONAL;
        }
        let number = if reply {
            (*f).ended.wrapping_add(1)
        } else if (*f).requests.state < state::BODY {
            (*f).started.wrapping_add(1)
        } else {
            (*f).started
        };
        let small = len <= PIECE_SMALL as u32;
        let p = if crowded() {
            core::ptr::null_mut()
        } else if small {
            reserve::<PieceSmall>()
        } else {
            reserve::<PieceLarge>()
        };
        let ok = !p.is_null();
        if ok {
            let head = p as *mut Piece;
            (*head).kind = kind::PIECE;
            (*head).len = len;
            reference(&raw mut (*head).request, f, number, (*f).workload);
            (*head).ts_ns = now;
            (*head).offset = offset;
            (*head).flags = flags;
            let r = open_of(f, number);
            let set = if reply { (*r).set } else { 0 };
            (*head).set = set;
            if set != 0
                && let Some(clock) = CLOCKS.get_ptr(set)
            {
                copy_clock(&raw mut (*head).clock_start, &raw const (*r).clock);
                copy_clock(&raw mut (*head).clock, clock);
            }
            let data = p.add(core::mem::size_of::<Piece>()) as *mut c_void;
            let held = (*c).held;
            let from = (*c).held_at(off, len) as *const c_void;
            let read = if held != 0 && from.is_null() {
                -1
            } else if held != 0 && small {
                bpf_probe_read_kernel(data, bounded::<{ PIECE_SMALL as u32 }>(len), from)
            } else if held != 0 {
                bpf_probe_read_kernel(data, bounded::<{ PIECE_LARGE as u32 }>(len), from)
            } else if small {
                bpf_skb_load_bytes(
                    skb as *const c_void,
                    off,
                    data,
                    bounded::<{ PIECE_SMALL as u32 }>(len),
                )
            } else {
                bpf_skb_load_bytes(
                    skb as *const c_void,
                    off,
                    data,
                    bounded::<{ PIECE_LARGE as u32 }>(len),
                )
            };
            if read != 0 {
                (*head).len = 0;
            }
            submit(p);
        }
        if !ok && (*f).confirmed != 0 {
            bump(&EVENTS_LOST, lost::RING_FULL);
        }
        ok as u64
    }
}

/// Bytes of a flow cannot be read: counted now, or when the flow is confirmed.
///
/// # Safety
/// `f` is live.
#[inline(always)]
pub unsafe fn unparsed(f: *mut Flow, reason: u32) {
    // SAFETY: shared words are changed by atomics.
    unsafe {
        swap(&raw mut (*f).unparsed, reason as u64 + 1);
        if (&raw const (*f).confirmed).read_volatile() != 0 {
            count_unparsed(f);
        }
    }
}

/// A request began: it is counted for its workload, once the flow is confirmed.
///
/// # Safety
/// `f` is live and the request direction's lock is held.
#[inline(always)]
pub unsafe fn started(f: *mut Flow, slot: u32) {
    // SAFETY: the slot is masked; shared words are changed by atomics.
    unsafe {
        let r: *mut Request =
            (&raw mut (*f).open as *mut Request).add((slot & (PIPELINE as u32 - 1)) as usize);
        let read = (&raw const (*f).read_ns).read_volatile();
        if read >= (*r).start_ns {
            (*r).read_ns = read;
            if let Some(p) = PROCS.get_ptr_mut(owner(f)) {
                add(&raw mut (*p).in_flight, 1);
            }
        }
        if (*r).workload == 0 {
            (*r).flags |= request_flag::BY_AGENT;
            return;
        }
        if (*f).confirmed != 0 {
            if let Some(w) = work((*r).workload) {
                add(&raw mut (*w).started, 1);
            }
            return;
        }
        add(&raw mut (*f).uncounted, 1);
        if (&raw const (*f).confirmed).read_volatile() != 0 {
            release(f);
        }
    }
}

/// The process that reads from the flow.
///
/// # Safety
/// `f` is live.
#[inline(always)]
pub unsafe fn owner(f: *const Flow) -> ProcessKey {
    // SAFETY: a live map value of plain integers.
    unsafe {
        ProcessKey {
            tgid: (*f).owner_tgid as u32,
            pad: 0,
            start_ticks: (*f).owner_start,
        }
    }
}

#[inline(always)]
unsafe fn outcome_of(f: *const Flow, ending: u32, status: u32) -> u32 {
    // SAFETY: a live map value of plain integers.
    unsafe {
        if ending == Ending::Complete as u32 {
            return match status {
                0 => outcome::UNOBSERVED,
                408 | 504 => outcome::TIMEOUT,
                1..400 => outcome::SUCCESS,
                400..500 => outcome::REFUSED,
                _ => outcome::ERROR,
            };
        }
        let d = &(*f).replies;
        let hole = d.flags & dir_flag::SEQ != 0 && (d.acked.wrapping_sub(d.next_seq) as i32) > 0;
        if ending == Ending::Unobserved as u32
            || hole
            || d.state == state::UNSYNCED
            || d.state == state::DEAD
        {
            return outcome::UNOBSERVED;
        }
        match (*f).closer {
            closer::PEER_FIN | closer::PEER_RST | closer::PEER_TIMEOUT => outcome::ABORT,
            closer::LOCAL | closer::KILLED => outcome::RESET,
            _ => outcome::UNOBSERVED,
        }
    }
}

/// A request ended (or goes on, when `ending` is `Progress`). 1 when its record found room.
///
/// A global function, as [`hand_over`].
///
/// # Safety
/// `f` is live and the reply direction's lock is held.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn end_request(
    f: *mut Flow,
    slot: u32,
    ending: u32,
    now: u64,
    excess: u32,
) -> u64 {
    // SAFETY: the slot is masked; the record is written in full before it is submitted; shared
    // words are changed by atomics.
    unsafe {
        if f.is_null() {
            return 0;
        }
        let r: *mut Request =
            (&raw mut (*f).open as *mut Request).add((slot & (PIPELINE as u32 - 1)) as usize);
        let progress = ending == Ending::Progress as u32;
        let d = &raw mut (*f).replies;
        let rep = &raw mut (*f).reply;
        let mut status = if state::has_head((*d).state) && (*d).code >= 101 {
            (*d).code
        } else {
            0
        };
        let outcome = outcome_of(f, ending, status);
        if outcome == outcome::ABORT && (*d).flags & dir_flag::AFTER_FIN != 0 {
            // It was sent to nobody.
            status = 0;
        }
        let by_agent = (*r).flags & request_flag::BY_AGENT != 0;
        let key = owner(f);
        let events = (*rep).events.wrapping_sub((*rep).events_reported);
        let read_ns = (*r).read_ns;
        if !progress {
            let read = swap(&raw mut (*r).read_ns, u64::MAX);
            if key.tgid != 0
                && let Some(p) = PROCS.get_ptr_mut(key)
            {
                add(&raw mut (*p).ended, 1);
                add(&raw mut (*p).events, (*rep).events as u64);
                if read != 0 && read != u64::MAX {
                    add(&raw mut (*p).in_flight, u64::MAX);
                }
            }
            if (*f).confirmed == 0 {
                if !by_agent {
                    add(&raw mut (*f).uncounted, u64::MAX);
                }
                return 0;
            }
        } else if (*f).confirmed == 0 {
            return 0;
        }
        let dflags = (*d).flags;
        let mut flags = 0;
        if ending == Ending::Complete as u32 {
            flags |= end_flag::COMPLETE;
        }
        if status != 0 {
            flags |= end_flag::HEAD;
            if dflags & (dir_flag::SSE | dir_flag::NDJSON) != 0 {
                flags |= end_flag::STREAM;
            }
            if dflags & dir_flag::NDJSON != 0 {
                flags |= end_flag::NDJSON;
            }
            if dflags & dir_flag::CHUNKED != 0 {
                flags |= end_flag::CHUNKED;
            }
            if dflags & dir_flag::PIECE_LOST != 0 {
                flags |= end_flag::PIECE_LOST;
            }
        }
        if dflags & dir_flag::GAP != 0 || (*r).flags & request_flag::GAP != 0 {
            flags |= end_flag::GAP;
        }
        if (*rep).done != 0 {
            flags |= end_flag::DONE;
        }
        if (*r).flags & request_flag::ADOPTED != 0 {
            flags |= end_flag::ADOPTED;
        }
        let with_tail = !progress
            && status != 0
            && (dflags & dir_flag::CHUNKED != 0
                || dflags & dir_flag::LENGTH == 0
                || flags & end_flag::STREAM != 0)
            && (*f).tail_len + (*f).tail_other_len > 0;
        let bank = (*f).tail_bank & 1;
        let p = if with_tail {
            reserve::<EndWithTail>()
        } else {
            reserve::<End>()
        };
        if !p.is_null() {
            let end = p as *mut End;
            (*end).kind = if progress { kind::PROGRESS } else { kind::END };
            (*end).len = if with_tail {
                (*f).tail_len + (*f).tail_other_len
            } else {
                0
            };
            reference(&raw mut (*end).request, f, (*r).number, (*r).workload);
            (*end).start_ns = (*r).start_ns;
            (*end).read_ns = read_ns;
            (*end).head_ns = if status != 0 { (*rep).head_ns } else { 0 };
            (*end).end_ns = now;
            (*end).event_ns = (*rep).event_ns;
            (*end).held_gap_ns = (*rep).held_gap_ns;
            (*end).gap_sum_ns = (*rep).gap_sum_ns;
            (*end).request_bytes = (*r).body_bytes;
            (*end).reply_bytes = (*d).message_bytes;
            (*end).owner = key;
            (*end).status = status;
            (*end).outcome = outcome;
            (*end).flags = flags;
            (*end).events = events;
            (*end).events_total = (*rep).events;
            (*end).events_captured = (*rep).events_captured;
            (*end).tail_excess = excess;
            (*end).tail_first = (*f).tail_other_len;
            let set = if progress { 0 } else { (*r).set };
            (*end).set = set;
            (*end).pad = 0;
            if set != 0
                && let Some(clock) = CLOCKS.get_ptr(set)
            {
                copy_clock(&raw mut (*end).clock_start, &raw const (*r).clock);
                copy_clock(&raw mut (*end).clock_end, clock);
            }
            let mut i = 0;
            while i < GAP_BUCKETS {
                (*end).gaps[i] = (*rep).gaps[i];
                i += 1;
            }
            if with_tail {
                copy_tail(p.add(core::mem::size_of::<End>()), f, bank);
            }
            submit(p);
            return 1;
        }
        bump(&EVENTS_LOST, lost::RING_FULL);
        if !progress && !by_agent {
            let class = if status == 0 { 0 } else { status / 100 };
            let streaming = if status == 0 {
                0
            } else if flags & end_flag::STREAM != 0 {
                1
            } else {
                2
            };
            if class < 6
                && let Some(cell) =
                    LOST.get_ptr_mut(lost_cell((*r).workload, outcome, class, streaming))
            {
                add(cell, 1);
            }
            if let Some(w) = work((*r).workload) {
                add(&raw mut (*w).lost_events, events as u64);
            }
        }
        0
    }
}

/// Copies both banks, older first.
#[inline(always)]
unsafe fn copy_tail(to: *mut u8, f: *const Flow, bank: u32) {
    // SAFETY: both halves of source and destination are TAIL_BANK bytes long.
    unsafe {
        let from = &raw const (*f).tail as *const u8;
        let (older, newer) = if bank == 0 {
            (from.add(TAIL_BANK), from)
        } else {
            (from, from.add(TAIL_BANK))
        };
        bpf_probe_read_kernel(to as *mut c_void, TAIL_BANK as u32, older as *const c_void);
        bpf_probe_read_kernel(
            to.add(TAIL_BANK) as *mut c_void,
            TAIL_BANK as u32,
            newer as *const c_void,
        );
    }
}

/// Adds the bytes of both directions to the counters.
///
/// # Safety
/// `f` is live and the lock of the direction that `reply` names is held.
#[inline(always)]
pub unsafe fn flush_bytes(f: *mut Flow, reply: bool) {
    // SAFETY: shared words are changed by atomics.
    unsafe {
        let Some(w) = work((*f).workload) else { return };
        if (*f).confirmed == 0 {
            return;
        }
        let d = if reply {
            &raw mut (*f).replies
        } else {
            &raw mut (*f).requests
        };
        let n = (*d).bytes;
        if n == 0 {
            return;
        }
        (*d).bytes = 0;
        if reply {
            add(&raw mut (*w).bytes_sent, n);
        } else {
            add(&raw mut (*w).bytes_received, n);
        }
        if (*f).owner_tgid != 0
            && let Some(p) = PROCS.get_ptr_mut(owner(f))
        {
            if reply {
                add(&raw mut (*p).bytes_sent, n);
            } else {
                add(&raw mut (*p).bytes_received, n);
            }
        }
    }
}
