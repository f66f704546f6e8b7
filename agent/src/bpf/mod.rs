//! Everything that speaks to the kernel's BPF side; the only modules of the agent with `unsafe`.

#![expect(
    unsafe_code,
    reason = "raw system calls and plain-data casts that no safe crate offers"
)]

pub mod bench;
/// Gives memory back that only loading needed (the kernel's type information, the object).
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call has no precondition; it only asks the allocator to return free pages.
    unsafe {
        libc::malloc_trim(0);
    }
}

pub mod btf;
pub mod control;
pub mod load;
pub mod lookup;
pub mod ring;
pub mod tables;
pub mod tap;
