//! The only place that knows how atomic operations are spelled on each target.
//!
//! rustc offers no atomic compare-and-exchange for bpfel, so the kernel side uses the intrinsics
//! (they need `-C target-cpu=v3`, kernel 5.12); the host side uses the standard library. All
//! operations are sequentially consistent and work on aligned `u64`.

#[cfg(target_arch = "bpf")]
mod imp {
    use core::intrinsics::{AtomicOrdering as O, atomic_cxchg, atomic_xadd, atomic_xchg};

    #[inline(always)]
    pub unsafe fn add(p: *mut u64, n: u64) -> u64 {
        // SAFETY: the caller passes a pointer to an aligned u64 in a map value.
        unsafe { atomic_xadd::<u64, u64, { O::SeqCst }>(p, n) }
    }

    #[inline(always)]
    pub unsafe fn swap(p: *mut u64, n: u64) -> u64 {
        // SAFETY: as above.
        unsafe { atomic_xchg::<u64, { O::SeqCst }>(p, n) }
    }

    #[inline(always)]
    pub unsafe fn cas(p: *mut u64, old: u64, new: u64) -> bool {
        // SAFETY: as above.
        unsafe { atomic_cxchg::<u64, { O::SeqCst }, { O::SeqCst }>(p, old, new).1 }
    }
}

#[cfg(not(target_arch = "bpf"))]
mod imp {
    use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

    pub unsafe fn add(p: *mut u64, n: u64) -> u64 {
        // SAFETY: the caller passes a pointer to an aligned u64 that lives long enough.
        unsafe { AtomicU64::from_ptr(p) }.fetch_add(n, SeqCst)
    }

    pub unsafe fn swap(p: *mut u64, n: u64) -> u64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(p) }.swap(n, SeqCst)
    }

    pub unsafe fn cas(p: *mut u64, old: u64, new: u64) -> bool {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(p) }
            .compare_exchange(old, new, SeqCst, SeqCst)
            .is_ok()
    }
}

/// Adds `n` and returns the value before.
///
/// # Safety
/// `p` points to an aligned, live `u64`.
#[inline(always)]
pub unsafe fn add(p: *mut u64, n: u64) -> u64 {
    // SAFETY: as promised by the caller.
    unsafe { imp::add(p, n) }
}

/// Stores `n` and returns the value before.
///
/// # Safety
/// `p` points to an aligned, live `u64`.
#[inline(always)]
pub unsafe fn swap(p: *mut u64, n: u64) -> u64 {
    // SAFETY: as promised by the caller.
    unsafe { imp::swap(p, n) }
}

/// Stores `new` if the value is `old`; tells whether it did.
///
/// # Safety
/// `p` points to an aligned, live `u64`.
#[inline(always)]
pub unsafe fn cas(p: *mut u64, old: u64, new: u64) -> bool {
    // SAFETY: as promised by the caller.
    unsafe { imp::cas(p, old, new) }
}
