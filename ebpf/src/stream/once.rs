//! The loops of the machine. In the object each is a global function: the kernel verifies it once,
//! for any argument, and not again on every path that calls it; its result is one unknown number
//! and not one path per value. Without this the tap would be too large to be verified.

use super::line::newline_in;
use super::{Cursor, WINDOW, http1};
use crate::abi::flow::{Dir, LINE, Reply};
use crate::hist::gap_bucket;

/// Declares functions that are global in the object and inlined on the host.
macro_rules! global {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) -> $out:ty $body:block)+) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// The pointer is live, and what it points to is not written by others meanwhile.
            #[cfg_attr(target_arch = "bpf", unsafe(no_mangle))]
            #[cfg_attr(target_arch = "bpf", inline(never))]
            pub unsafe extern "C" fn $name($($arg: $ty),*) -> $out $body
        )+
    };
}

global! {
    /// Index of the first newline in the direction's line buffer, `LINE` when there is none.
    fn line_newline(d: *const Dir) -> u32 {
        if d.is_null() {
            return LINE as u32;
        }
        let mut i = 0;
        while i < LINE / 8 {
            // SAFETY: the index is below the array's length.
            let hit = newline_in(unsafe { (&raw const (*d).line as *const u64).add(i).read() });
            if hit < 8 {
                return i as u32 * 8 + hit;
            }
            i += 1;
        }
        LINE as u32
    }

    /// Index of the first newline in the cursor's window, `WINDOW` when there is none.
    fn window_newline(c: *const Cursor) -> u32 {
        if c.is_null() {
            return WINDOW as u32;
        }
        let mut i = 0;
        while i < WINDOW / 8 {
            // SAFETY: the index is below the array's length.
            let hit = newline_in(unsafe { (&raw const (*c).window as *const u64).add(i).read() });
            if hit < 8 {
                return i as u32 * 8 + hit;
            }
            i += 1;
        }
        WINDOW as u32
    }

    /// Takes a header line of `len` bytes into the direction; 0 when its framing is not valid.
    fn line_header(d: *mut Dir, len: u32) -> u32 {
        if d.is_null() {
            return 0;
        }
        // SAFETY: the caller's promise.
        u32::from(unsafe { http1::header(d, len) })
    }

    /// The number of a chunk-size line of `len` bytes; `u64::MAX` when it has none.
    fn line_chunk_size(d: *const Dir, len: u32) -> u64 {
        if d.is_null() {
            return u64::MAX;
        }
        // SAFETY: the caller's promise.
        unsafe { http1::chunk_size(d, len) }.unwrap_or(u64::MAX)
    }

    /// Adds a gap to the reply's histogram.
    fn reply_add_gap(r: *mut Reply, gap: u64) -> u32 {
        if r.is_null() {
            return 0;
        }
        // SAFETY: `gap_bucket` is below the array's length.
        unsafe {
            (*r).gap_sum_ns += gap;
            let cell = (&raw mut (*r).gaps as *mut u32).add(gap_bucket(gap));
            *cell += 1;
        }
        1
    }

    /// Forgets the reply before and begins a new one at `now`.
    fn reply_reset(r: *mut Reply, now: u64) -> u32 {
        if r.is_null() {
            return 0;
        }
        // SAFETY: the index is below the array's length.
        unsafe {
            (*r).head_ns = now;
            (*r).event_ns = 0;
            (*r).held_gap_ns = 0;
            (*r).gap_sum_ns = 0;
            (*r).progress_ns = now;
            (*r).events = 0;
            (*r).events_reported = 0;
            (*r).events_captured = 0;
            (*r).done = 0;
            let gaps = &raw mut (*r).gaps as *mut u32;
            let mut i = 0;
            while i < crate::hist::GAP_BUCKETS {
                *gaps.add(i) = 0;
                i += 1;
            }
        }
        1
    }
}
