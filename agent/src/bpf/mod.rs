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

/// Nice value of the threads that hear of new servers: what they do is little and cannot wait, since
/// a server may serve within milliseconds of its start.
const NICE: libc::c_int = -10;

/// The calling thread runs before others of its control group when both could. Without CAP_SYS_NICE
/// it does not; nothing else depends on it.
pub fn come_first() {
    // SAFETY: a plain system call; on Linux `who` 0 is the calling thread.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) } != 0 {
        tracing::debug!("threads keep their nice value (CAP_SYS_NICE is missing)");
    }
}
