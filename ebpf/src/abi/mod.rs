//! Keys, values and records that cross the boundary between kernel and agent. No logic.
//!
//! Every type is `repr(C)`, holds fixed-width fields only, spells out its padding and is valid for
//! any bit pattern; a const assertion pins its size. `Pod` is implemented beside it for the host.

pub mod control;
pub mod counters;
pub mod flow;
pub mod listener;
pub mod offsets;
pub mod process;
pub mod record;
pub mod stall;

/// Pins the size of a shared type and marks it as plain data for the host side.
macro_rules! pod {
    ($ty:ty, $size:expr) => {
        const _: () = assert!(core::mem::size_of::<$ty>() == $size);
        const _: () = assert!(core::mem::align_of::<$ty>() <= 8);
        // SAFETY: the type is `repr(C)`, `Copy`, holds only integers and arrays of integers, and
        // the asserted size equals the sum of its fields, so it has no hidden padding.
        #[cfg(not(target_arch = "bpf"))]
        unsafe impl aya::Pod for $ty {}
    };
}
pub(crate) use pod;
