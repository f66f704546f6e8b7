//! Making, finding, locking and confirming flows.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_loop;
use enginetap_ebpf::abi::counters::{Workload, dropped};
use enginetap_ebpf::abi::flow::{Dir, Flow, FlowKey, dir_flag, flow_flag, state};
use enginetap_ebpf::abi::listener::{ListenerKey, Ports};
use enginetap_ebpf::atomics::{add, cas, swap};

use super::kernel::now;
use super::maps::{
    FLOW_NEW, FLOW_SEQ, FLOWS, FLOWS_DROPPED, LISTENERS, PORTS, UNPARSED, WORK, bump,
};

const NO_EXIST: u64 = 1;
/// Attempts to take a lock after the first one failed: well below a millisecond on a machine of its own, and more
/// than a virtual processor that holds one is usually away. The kernel's own locks wait without end.
const LOCK_TRIES: u32 = 65_536;

/// The cell of a port and its bit.
#[inline(always)]
pub fn port_bit(port: u16) -> (Option<*mut Ports>, u64) {
    (PORTS.get_ptr_mut(port as u32 >> 6), 1u64 << (port & 63))
}

/// Sets bits of a word without losing those that others change.
///
/// # Safety
/// `word` is live and aligned.
#[inline(always)]
pub unsafe fn set_bits(word: *mut u64, bits: u64) {
    // SAFETY: the caller's promise.
    unsafe { change_bits(word, bits, 0) };
}

/// Clears and sets bits of a word without losing those that others change.
///
/// # Safety
/// `word` is live and aligned.
#[inline(always)]
pub unsafe fn change_bits(word: *mut u64, set: u64, clear: u64) {
    let mut i = 0;
    while i < 16 {
        // SAFETY: the caller's promise.
        unsafe {
            let old = word.read_volatile();
            let new = old & !clear | set;
            if old == new || cas(word, old, new) {
                return;
            }
        }
        i += 1;
    }
}

/// The listener that a connection reaches: its workload in the low half, its mode in the high half;
/// 0 when there is none.
///
/// A global function: the key it looks for finds no room on the tap's stack.
///
/// # Safety
/// `flow` is live.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn listener_of(flow: *const FlowKey) -> u64 {
    // SAFETY: the caller's promise; live map values of plain integers.
    unsafe {
        if flow.is_null() {
            return 0;
        }
        let mut key = ListenerKey {
            netns: (*flow).netns,
            port: (*flow).server_port,
            pad: 0,
            addr: (*flow).server,
        };
        let v4 = key.addr[0] == 0 && key.addr[1] == 0 && key.addr[2] == u32::from_be(0xffff);
        let mut turn = 0;
        while turn < 3 {
            if let Some(found) = LISTENERS.get_ptr(key) {
                return (*found).workload as u64 | ((*found).mode as u64) << 32;
            }
            // The wildcard of its family, then that of both.
            if turn == 0 && v4 {
                key.addr[3] = 0;
            } else {
                key.addr = [0; 4];
            }
            turn += 1;
        }
        0
    }
}

/// The listener that a connection reaches.
#[inline(always)]
pub fn listener(flow: &FlowKey) -> Option<Reached> {
    // SAFETY: a reference is live.
    let found = unsafe { listener_of(flow) };
    (found != 0).then_some(Reached {
        workload: found as u32,
        mode: (found >> 32) as u32,
    })
}

/// A listener that a connection reaches.
pub struct Reached {
    /// Its workload; 0 = none.
    pub workload: u32,
    /// What is done with its connections.
    pub mode: u32,
}

/// Where a new flow begins.
pub struct Birth {
    /// Next byte of the client, if known.
    pub request_seq: Option<u32>,
    /// Next byte of the server, if known.
    pub reply_seq: Option<u32>,
    /// The connection is older than the tap.
    pub adopted: bool,
    /// Workload of the listener.
    pub workload: u32,
}

/// Makes a flow; `None` when there was no room or it exists already.
#[inline(always)]
pub fn create(key: &FlowKey, birth: &Birth) -> Option<*mut Flow> {
    let empty = FLOW_NEW.get_ptr(0)?;
    // SAFETY: `empty` is a live map value.
    let empty: &Flow = unsafe { &*empty };
    if FLOWS.insert(key, empty, NO_EXIST).is_err() {
        if FLOWS.get_ptr(key).is_none() {
            bump(&FLOWS_DROPPED, dropped::TABLE_FULL);
        }
        return None;
    }
    let f = FLOWS.get_ptr_mut(key)?;
    let seq = FLOW_SEQ.get_ptr_mut(0)?;
    // SAFETY: live map values; nobody uses the flow before its key is set, which comes last.
    unsafe {
        (*f).id = add(seq, 1) + 1;
        let t = now();
        (*f).created_ns = t;
        (*f).seen_ns = t;
        (*f).workload = birth.workload;
        begin_dir(&raw mut (*f).requests, birth.request_seq, birth.adopted);
        begin_dir(&raw mut (*f).replies, birth.reply_seq, birth.adopted);
        if birth.adopted {
            (*f).flags = flow_flag::ADOPTED;
        }
        core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
        core::ptr::write_volatile(&raw mut (*f).key, *key);
    }
    Some(f)
}

#[inline(always)]
unsafe fn begin_dir(d: *mut Dir, seq: Option<u32>, adopted: bool) {
    // SAFETY: the caller made the flow and nobody else uses it yet.
    unsafe {
        if let Some(seq) = seq {
            (*d).next_seq = seq;
            (*d).acked = seq;
            (*d).flags = dir_flag::SEQ;
        }
        (*d).state = if adopted {
            state::UNSYNCED
        } else {
            state::IDLE
        };
    }
}

struct Try {
    lock: *mut u64,
}

unsafe extern "C" fn try_lock(_: u32, ctx: *mut c_void) -> i64 {
    // SAFETY: the loop passes the address of a `Try` on its caller's stack.
    let lock = unsafe { (*(ctx as *const Try)).lock };
    // SAFETY: a lock word in a live map value.
    if unsafe { cas(lock, 0, 1) } { 1 } else { 0 }
}

/// Takes a direction's lock; false when it was held for too long.
///
/// # Safety
/// `d` is live.
#[inline(always)]
pub unsafe fn lock(d: *mut Dir) -> bool {
    // SAFETY: a lock word in a live map value.
    unsafe {
        let word = &raw mut (*d).lock;
        if cas(word, 0, 1) {
            return true;
        }
        let mut ctx = Try { lock: word };
        let turns = bpf_loop(
            LOCK_TRIES,
            try_lock as *mut c_void,
            &raw mut ctx as *mut c_void,
            0,
        );
        turns >= 0 && turns < LOCK_TRIES as i64
    }
}

/// Gives a direction's lock back.
///
/// # Safety
/// `d` is live and its lock is held by the caller.
#[inline(always)]
pub unsafe fn unlock(d: *mut Dir) {
    // SAFETY: a lock word in a live map value.
    unsafe { swap(&raw mut (*d).lock, 0) };
}

/// Whether the flow is still the one with this key: an element that was deleted may have been
/// given to another.
///
/// # Safety
/// `f` is live.
#[inline(always)]
pub unsafe fn is(f: *const Flow, key: &FlowKey) -> bool {
    // SAFETY: a live map value of plain integers.
    unsafe { (*f).key == *key }
}

/// Counters of a workload.
#[inline(always)]
pub fn work(workload: u32) -> Option<*mut Workload> {
    if workload == 0 {
        None
    } else {
        WORK.get_ptr_mut(workload)
    }
}

/// The kernel's own socket of this tuple was seen: what was held back is counted now.
///
/// # Safety
/// `f` is live.
#[inline(always)]
pub unsafe fn confirm(f: *mut Flow) {
    // SAFETY: live map values, changed by atomics only.
    unsafe {
        swap(&raw mut (*f).confirmed, 1);
        count_connection(f);
        release(f);
        count_unparsed(f);
    }
}

/// Counts what was found unreadable; each finding is taken by one caller only.
///
/// # Safety
/// `f` is live.
#[inline(always)]
pub unsafe fn count_unparsed(f: *mut Flow) {
    // SAFETY: live map values, changed by atomics only.
    unsafe {
        if (*f).unparsed == 0 {
            return;
        }
        let reason = swap(&raw mut (*f).unparsed, 0);
        if reason != 0 {
            bump(&UNPARSED, reason as u32 - 1);
            if let Some(w) = work((*f).workload) {
                add(&raw mut (*w).unparsed, 1);
            }
        }
    }
}

/// Counts the connection once, when its workload is known and it is confirmed.
///
/// # Safety
/// `f` is live.
#[inline(always)]
pub unsafe fn count_connection(f: *mut Flow) {
    // SAFETY: live map values, changed by atomics only.
    unsafe {
        if let Some(w) = work((*f).workload)
            && (*f).confirmed != 0
            && cas(&raw mut (*f).counted, 0, 1)
        {
            add(&raw mut (*w).connections, 1);
        }
    }
}

/// Counts the requests that began before the flow was confirmed; each is taken by one caller only.
///
/// # Safety
/// `f` is live.
#[inline(always)]
pub unsafe fn release(f: *mut Flow) {
    // SAFETY: live map values, changed by atomics only.
    unsafe {
        if (*f).uncounted == 0 {
            return;
        }
        let n = swap(&raw mut (*f).uncounted, 0);
        if n != 0
            && let Some(w) = work((*f).workload)
        {
            add(&raw mut (*w).started, n);
        }
    }
}
