//! The stream machine in the tap: it reads from the packet, or from a segment that was held back,
//! and says what it finds to the counters and the ring.

use core::ffi::c_void;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::generated::{bpf_loop, bpf_probe_read_kernel, bpf_skb_load_bytes};
use enginetap_ebpf::abi::counters::lost;
use enginetap_ebpf::abi::flow::{Dir, Flow, dir_flag, state};
use enginetap_ebpf::stream::{Cursor, Ending, Env, end_all, gap, step};

use super::account;
use super::ahead::ahead_next;
use super::maps::{EVENTS_LOST, bump};
use super::packet::bounded;

/// Steps of the machine in one packet: more than a 64 KiB packet of the shortest events takes. What
/// is left after that is a gap.
const STEPS: u32 = 20_000;

/// The machine's surroundings in a tap; lives on the program's stack and holds pointers only.
#[derive(Clone, Copy)]
pub struct Tap {
    /// The program's context.
    pub skb: *mut __sk_buff,
    /// The flow, whose direction is locked.
    pub flow: *mut Flow,
    /// This CPU's cursor.
    pub cursor: *mut Cursor,
}

impl Env for Tap {
    #[inline(always)]
    unsafe fn load<const MAX: u32>(&mut self, off: u32, dst: *mut u8, len: u32) -> bool {
        if len == 0 || len > MAX {
            return false;
        }
        // SAFETY: `dst` has room for MAX bytes, and the length is at most that; a held segment is
        // read by a helper that checks its source.
        unsafe {
            if (*self.cursor).held != 0 {
                let from = (*self.cursor).held_at(off, len);
                let len = bounded::<MAX>(len);
                return from != 0
                    && bpf_probe_read_kernel(dst as *mut c_void, len, from as *const c_void) == 0;
            }
            let len = bounded::<MAX>(len);
            bpf_skb_load_bytes(self.skb as *const c_void, off, dst as *mut c_void, len) == 0
        }
    }

    #[inline(always)]
    unsafe fn piece(
        &mut self,
        f: *mut Flow,
        off: u32,
        len: u32,
        offset: u64,
        flags: u32,
        now: u64,
    ) -> bool {
        // SAFETY: the caller's promise; the cursor is this CPU's.
        unsafe {
            (*self.cursor).piece_offset = offset;
            (*self.cursor).now = now;
            account::hand_over(
                self.skb,
                f,
                off,
                (flags as u64) << 32 | len as u64,
                self.cursor,
            ) != 0
        }
    }

    #[inline(always)]
    unsafe fn started(&mut self, f: *mut Flow, slot: u32) {
        // SAFETY: the caller's promise.
        unsafe { account::started(f, slot) }
    }

    #[inline(always)]
    unsafe fn ended(
        &mut self,
        f: *mut Flow,
        slot: u32,
        ending: Ending,
        now: u64,
        excess: u32,
    ) -> bool {
        // SAFETY: the caller's promise.
        unsafe { account::end_request(f, slot, ending as u32, now, excess) != 0 }
    }

    #[inline(always)]
    unsafe fn unparsed(&mut self, f: *mut Flow, reason: u32) {
        // SAFETY: the caller's promise.
        unsafe { account::unparsed(f, reason) }
    }

    #[inline(always)]
    unsafe fn missed(&mut self, f: *mut Flow) {
        // SAFETY: the caller's promise.
        if unsafe { (*f).confirmed } != 0 {
            bump(&EVENTS_LOST, lost::GAP);
        }
    }
}

unsafe extern "C" fn step_requests(_: u32, ctx: *mut c_void) -> i64 {
    // SAFETY: the loop passes the address of a `Tap` on its caller's stack.
    unsafe {
        let mut tap = *(ctx as *const Tap);
        let (f, c) = (tap.flow, tap.cursor);
        if step::<Tap, false>(&mut tap, f, c) {
            return 0;
        }
        if (*f).ahead == 0 || ahead_next(f, c, 1) == 0 {
            return 1;
        }
        let d = &raw mut (*f).requests;
        if (*d).state == state::UNSYNCED && (*c).pos == 0 {
            resync::<false>(&mut tap, d);
        }
        0
    }
}

unsafe extern "C" fn step_replies(_: u32, ctx: *mut c_void) -> i64 {
    // SAFETY: as above.
    unsafe {
        let mut tap = *(ctx as *const Tap);
        let (f, c) = (tap.flow, tap.cursor);
        if step::<Tap, true>(&mut tap, f, c) {
            0
        } else {
            1
        }
    }
}

/// Takes the bytes from the cursor's position to its end, and of requests also what was held and
/// follows them.
///
/// # Safety
/// All of `tap` is live and the direction's lock is held.
#[inline(always)]
pub unsafe fn run<const REPLY: bool>(tap: &mut Tap) {
    // SAFETY: the caller's promise.
    unsafe {
        let (f, c) = (tap.flow, tap.cursor);
        let callback = if REPLY { step_replies } else { step_requests };
        bpf_loop(
            STEPS,
            callback as *mut c_void,
            tap as *mut Tap as *mut c_void,
            0,
        );
        let (pos, end) = ((*c).pos, (*c).end);
        if pos < end {
            (*c).pos = end;
            gap::<Tap, REPLY>(tap, f, c, end - pos);
        }
        if !REPLY && (*c).held != 0 {
            ahead_next(f, c, 0);
        }
    }
}

/// A direction that lost its place looks for a first line at the cursor, which is at the start of a
/// segment.
///
/// # Safety
/// As for [`run`].
#[inline(always)]
pub unsafe fn resync<const REPLY: bool>(tap: &mut Tap, d: *mut Dir) {
    // SAFETY: the caller's promise.
    unsafe {
        let (f, c) = (tap.flow, tap.cursor);
        let mut b = [0u8; 8];
        if (*c).end - (*c).pos < 8 || !tap.load::<8>((*c).pos, &raw mut b as *mut u8, 8) {
            return;
        }
        if REPLY {
            if b[0] != b'H'
                || b[1] != b'T'
                || b[2] != b'T'
                || b[3] != b'P'
                || b[4] != b'/'
                || b[5] != b'1'
            {
                return;
            }
            let upto = (*f).lost_upto;
            end_all(tap, f, Ending::Unobserved, upto, (*c).now);
            if (*f).started != (*f).ended {
                (*d).state = state::IDLE;
            }
            return;
        }
        let idle = matches!((*f).replies.state, state::IDLE | state::UNSYNCED);
        let upper = |x: u8| x.is_ascii_uppercase();
        let verb = (upper(b[0]) && upper(b[1]) && upper(b[2]))
            && (b[3] == b' ' && b[4] == b'/'
                || upper(b[3]) && (b[4] == b' ' && b[5] == b'/' || upper(b[4])));
        if idle && verb {
            (*f).lost_upto = (*f).started;
            (*d).state = state::IDLE;
        }
    }
}

/// A FIN is next in the stream; true when it is the first.
///
/// # Safety
/// `d` is live and its lock is held.
#[inline(always)]
pub unsafe fn take_fin(d: *mut Dir) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        if (*d).flags & dir_flag::FIN != 0 {
            return false;
        }
        (*d).flags |= dir_flag::FIN;
        (*d).next_seq = (*d).next_seq.wrapping_add(1);
        true
    }
}
