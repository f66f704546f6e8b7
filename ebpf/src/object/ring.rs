//! The ring to the agent: room in it, when its reader is woken, when pieces are refused.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::{bpf_ringbuf_query, bpf_ringbuf_reserve, bpf_ringbuf_submit};

use super::maps::RING;

const NO_WAKEUP: u64 = 1;
/// Wakes the reader at once.
pub const WAKEUP: u64 = 2;
/// Bytes in the ring from which the reader is woken.
const FILL: u64 = 1024 * 1024;
/// Bytes in the ring from which pieces are refused, so that ends still find room.
const PIECES: u64 = 5 * 1024 * 1024;

/// Flags with which a record is submitted: the reader is left alone until the ring fills up, and
/// comes by itself every 50 ms.
#[inline(always)]
pub fn submit_flags() -> u64 {
    // SAFETY: the helper takes the address of a ring map.
    let held = unsafe { bpf_ringbuf_query(&raw const RING as *mut c_void, 0) };
    if held > FILL { WAKEUP } else { NO_WAKEUP }
}

/// Whether the ring is so full that pieces are refused.
#[inline(always)]
pub fn crowded() -> bool {
    // SAFETY: the helper takes the address of a ring map.
    unsafe { bpf_ringbuf_query(&raw const RING as *mut c_void, 0) > PIECES }
}

/// Room for a `T` in the ring, null when there is none.
///
/// # Safety
/// What it gives is written in full and submitted.
#[inline(always)]
pub unsafe fn reserve<T>() -> *mut u8 {
    // SAFETY: the helper takes the address of a ring map and a constant size.
    unsafe {
        bpf_ringbuf_reserve(
            &raw const RING as *mut c_void,
            core::mem::size_of::<T>() as u64,
            0,
        ) as *mut u8
    }
}

/// Gives a record to the reader.
///
/// # Safety
/// It was reserved and is written in full.
#[inline(always)]
pub unsafe fn submit(record: *mut u8) {
    // SAFETY: the caller reserved it.
    unsafe { bpf_ringbuf_submit(record as *mut c_void, submit_flags()) }
}

/// Puts a record that is written whole into the ring; false when there is no room.
#[inline(always)]
pub fn emit<T: Copy + 'static>(record: T, flags: u64) -> bool {
    // SAFETY: the record is written in full before it is submitted.
    unsafe {
        let p = reserve::<T>();
        if p.is_null() {
            return false;
        }
        (p as *mut T).write(record);
        bpf_ringbuf_submit(p as *mut c_void, flags);
        true
    }
}
