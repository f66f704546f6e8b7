//! Lives of processes: exec of any, fork and exit of those that read from watched connections.

use aya_ebpf::macros::btf_tracepoint;
use aya_ebpf::programs::BtfTracePointContext;
use enginetap_ebpf::abi::process::ProcessKey;
use enginetap_ebpf::abi::record::{Life, kind, life};
use enginetap_ebpf::atomics::swap;

use super::kernel::{current_process, ending_signal, live_threads, process_of};
use super::maps::PROCS;
use super::ring::{WAKEUP, emit};

#[inline(always)]
fn tell(what: u32, process: ProcessKey) {
    emit(
        Life {
            kind: kind::LIFE,
            what,
            process,
        },
        WAKEUP,
    );
}

/// Hook: `sched_process_exec(task, old_pid, bprm)`, since 3.4.
#[btf_tracepoint(function = "sched_process_exec")]
pub fn life_exec(_ctx: BtfTracePointContext) -> i32 {
    // At once: a program in a namespace that is not tapped may listen within milliseconds.
    emit(
        Life {
            kind: kind::LIFE,
            what: life::EXEC,
            process: current_process(),
        },
        WAKEUP,
    );
    0
}

/// Hook: `sched_process_fork(parent, child)`, since 2.6.
#[btf_tracepoint(function = "sched_process_fork")]
pub fn life_fork(ctx: BtfTracePointContext) -> i32 {
    let key = current_process();
    if PROCS.get_ptr(key).is_some() {
        let child = process_of(ctx.arg(1));
        if child.tgid != key.tgid {
            tell(life::FORK, child);
        }
    }
    0
}

/// Hook: `sched_process_exit(task)`, since 2.6. It comes before the sockets of the process close,
/// so it only marks the slot.
#[btf_tracepoint(function = "sched_process_exit")]
pub fn life_exit(_ctx: BtfTracePointContext) -> i32 {
    let key = current_process();
    let Some(p) = PROCS.get_ptr_mut(key) else {
        return 0;
    };
    if live_threads() != 0 {
        return 0;
    }
    // SAFETY: a live map value, changed by atomics.
    unsafe { swap(&raw mut (*p).exited, 1 + ending_signal() as u64) };
    tell(life::EXIT, key);
    0
}
