//! Why serving threads do not run: hooks on the scheduler, on reclaim and on the end of threads,
//! which move the union clocks of the sets a thread belongs to.
//!
//! A task that is not watched costs two tests of a bit. The hooks of one thread follow each other:
//! it leaves one processor before it is woken, and is woken before another takes it up.

use core::ffi::c_void;

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::task_struct;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::generated::{bpf_probe_read_kernel, bpf_task_pt_regs};
use aya_ebpf::macros::btf_tracepoint;
use aya_ebpf::programs::BtfTracePointContext;
use enginetap_ebpf::abi::flow::{Flow, Request};
use enginetap_ebpf::abi::offsets::MISSING;
use enginetap_ebpf::abi::process::ProcessKey;
use enginetap_ebpf::abi::stall::{
    Clock, LOOP_NS, SETS_OF_THREAD, TIME, TIME_BITS, Thread, UNION, WORDS, cause, serve,
    thread_flag,
};
use enginetap_ebpf::atomics::cas;

use super::flows::{change_bits, set_bits};
use super::kernel::{now, offset, read};
use super::maps::{CLOCKS, SERVING, SET_OF, THREADS};

const NO_EXIST: u64 = 1;
/// Attempts to move a word that others move too.
const TRIES: u32 = 32;
/// Threads that a word can count.
const COUNT_MOST: u64 = u64::MAX >> TIME_BITS;

const INTERRUPTIBLE: u32 = 1;
const UNINTERRUPTIBLE: u32 = 2;
/// Stopped by a signal (4) or traced (8).
const STOPPED: u32 = 4 | 8;
/// The state of a frozen task, since 6.1.
const FROZEN: u32 = 0x8000;
/// A bit of `jobctl`: the task waits in the freezer of control groups v2.
const TRAP_FREEZE: u64 = 1 << 23;

/// Words of [`TASKS`]: Linux numbers 4 Mi tasks at most.
const TASK_WORDS: usize = 1 << 16;

/// Tasks that serve, one bit each, by their number. Changed by atomics. A variable of the object and
/// no map of its own: every switch of tasks reads two words here, without a call or a comparison.
#[unsafe(no_mangle)]
static mut TASKS: [u64; TASK_WORDS] = [0; TASK_WORDS];

/// The word and the bit of a task.
#[inline(always)]
fn task_bit(pid: u32) -> (*mut u64, u64) {
    let at = (pid >> 6) as usize & (TASK_WORDS - 1);
    // SAFETY: the index is masked.
    let word = unsafe { (&raw mut TASKS as *mut u64).add(at) };
    (word, 1u64 << (pid & 63))
}

#[inline(always)]
fn watched(pid: u32) -> bool {
    let (word, bit) = task_bit(pid);
    // SAFETY: a live word; others change it by atomics.
    unsafe { word.read_volatile() & bit != 0 }
}

/// Marks a task as watched.
#[inline(always)]
pub fn watch_task(pid: u32) {
    let (word, bit) = task_bit(pid);
    // SAFETY: a live word.
    unsafe { set_bits(word, bit) };
}

/// Leaves a task alone again.
#[inline(always)]
pub fn leave_task(pid: u32) {
    let (word, bit) = task_bit(pid);
    // SAFETY: a live word.
    unsafe { change_bits(word, 0, bit) };
}

/// A change of a word.
struct Turn {
    word: *mut u64,
    now: u64,
    back: u64,
    add: i64,
}

/// Tries once. Arithmetic instead of branches: the verifier follows each of those in every attempt.
#[inline(always)]
unsafe fn try_turn(t: &Turn) -> bool {
    // SAFETY: a live, aligned word of a map value.
    unsafe {
        let old = t.word.read_volatile();
        let n = old >> TIME_BITS;
        // One that was never counted is not taken off, and a full number stays: a word that came
        // round would run for ever.
        let refused = ((n == 0) & (t.add < 0)) | ((n == COUNT_MOST) & (t.add > 0));
        let add = (t.add as u64).wrapping_mul(!refused as u64);
        let count = n.wrapping_add(add);
        // The clock begins to run when the number leaves 0, and stands when it returns to it.
        let begins = ((n == 0) & (count != 0)) as u64;
        let ends = ((n != 0) & (count == 0)) as u64;
        let moved = t.now.wrapping_mul(ends.wrapping_sub(begins));
        let time = (old & TIME).wrapping_add(moved).wrapping_sub(t.back) & TIME;
        cas(t.word, old, count << TIME_BITS | time)
    }
}

/// One more (`add` 1) or one less (-1) thread is in a word's cause, or `back` ns are taken back.
///
/// A global function: the kernel verifies it once.
///
/// # Safety
/// `clock` is a live map value.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn stall_turn(
    clock: *mut Clock,
    at: u32,
    add: i64,
    back: u64,
    now: u64,
) -> u64 {
    if clock.is_null() || at as usize >= WORDS {
        return 0;
    }
    // SAFETY: the caller's promise; `at` is within the words.
    unsafe {
        let t = Turn {
            word: (&raw mut (*clock).words as *mut u64).add(at as usize),
            now,
            back,
            add,
        };
        let mut i = 0;
        while i < TRIES {
            if try_turn(&t) {
                return 1;
            }
            i += 1;
        }
    }
    0
}

/// A thread changes its cause: both clocks of each of its sets are moved.
///
/// A global function: the kernel verifies it once.
///
/// # Safety
/// `t` is a live map value.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn stall_shift(t: *mut Thread, to: u32, now: u64) -> u64 {
    if t.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let from = (*t).cause;
        if from == to {
            return 0;
        }
        let host = (from < cause::HOST, to < cause::HOST);
        let mut i = 0;
        while i < SETS_OF_THREAD {
            let set = (*t).serving.sets[i];
            if set != 0
                && let Some(clock) = CLOCKS.get_ptr_mut(set)
            {
                if to < cause::COUNT {
                    stall_turn(clock, to, 1, 0, now);
                }
                if host.1 && !host.0 {
                    stall_turn(clock, UNION as u32, 1, 0, now);
                }
                if from < cause::COUNT {
                    stall_turn(clock, from, -1, 0, now);
                }
                if host.0 && !host.1 {
                    stall_turn(clock, UNION as u32, -1, 0, now);
                }
            }
            i += 1;
        }
        if from == cause::EVENT_LOOP {
            (*t).turn_ns += now.wrapping_sub((*t).since_ns);
        }
        (*t).cause = to;
        (*t).since_ns = now;
        0
    }
}

/// A thread of a loop has come back to its poll call: what a short turn took is no stall.
#[inline(always)]
unsafe fn end_turn(t: *mut Thread, now: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        let ns = (*t).turn_ns;
        (*t).turn_ns = 0;
        (*t).flags &= !thread_flag::TURN;
        if ns == 0 || ns >= LOOP_NS {
            return;
        }
        let mut i = 0;
        while i < SETS_OF_THREAD {
            let set = (*t).serving.sets[i];
            if set != 0
                && let Some(clock) = CLOCKS.get_ptr_mut(set)
            {
                stall_turn(clock, cause::EVENT_LOOP, 0, ns, now);
            }
            i += 1;
        }
    }
}

/// A bit of a task, as the offset of the field says.
#[inline(always)]
fn flag(task: *const u8, at: u32) -> bool {
    if at == MISSING {
        return false;
    }
    let byte: u8 = read(task, at as usize >> 3);
    byte >> (at & 7) & 1 != 0
}

/// The number of a task.
///
/// # Safety
/// A task that a hook was given: the kernel lets its fields be read as they are.
#[inline(always)]
unsafe fn pid_of(task: *const u8) -> u32 {
    // Constant once the object is loaded.
    let at = offset!(task_pid);
    // SAFETY: the caller's promise.
    unsafe { *(task.wrapping_add(at) as *const u32) }
}

#[inline(always)]
fn control(task: *const u8) -> u64 {
    read(task, offset!(task_jobctl))
}

#[inline(always)]
fn in_memstall(task: *const u8) -> bool {
    flag(task, offset!(task_in_memstall) as u32)
}

#[inline(always)]
fn in_iowait(task: *const u8) -> bool {
    flag(task, offset!(task_in_iowait) as u32)
}

#[inline(always)]
fn call_of(regs: *const u8) -> u64 {
    read(regs, offset!(regs_call))
}

#[inline(always)]
fn first_argument(regs: *const u8) -> u64 {
    read(regs, offset!(regs_first))
}

/// Whether the control group of a task has no quota left.
#[inline(always)]
fn throttled(task: *const u8) -> bool {
    if offset!(cfs_rq_throttle_count) as u32 == MISSING || offset!(task_cfs_rq) as u32 == MISSING {
        return false;
    }
    let queue: u64 = read(task, offset!(task_cfs_rq));
    if queue == 0 {
        return false;
    }
    let count: i32 = read(queue as *const u8, offset!(cfs_rq_throttle_count));
    count > 0
}

/// Why a task that is ready does not run.
#[inline(always)]
unsafe fn ready(t: *const Thread, task: *const u8) -> u32 {
    if throttled(task) {
        cause::THROTTLED
    // SAFETY: the caller's thread is live.
    } else if unsafe { (*t).flags } & thread_flag::RECLAIMS != 0 {
        cause::RECLAIM
    } else {
        cause::RUNQUEUE
    }
}

/// System calls in which a loop waits for its events.
#[inline(always)]
fn is_poll(call: u64) -> bool {
    // poll, select, epoll_wait, pselect6, ppoll, epoll_pwait, epoll_pwait2
    matches!(call, 7 | 23 | 232 | 270 | 271 | 281 | 441)
}

/// futex, futex_waitv, futex_wait
#[inline(always)]
fn is_futex(call: u64) -> bool {
    matches!(call, 202 | 449 | 455)
}

/// Hook: `sched_switch(preempt, prev, next, prev_state)`, the state since 5.18.
#[btf_tracepoint(function = "sched_switch")]
pub fn stall_switch(ctx: BtfTracePointContext) -> i32 {
    let (prev, next): (*const u8, *const u8) = (ctx.arg(1), ctx.arg(2));
    // SAFETY: tasks that the hook is given.
    let (prev, next) = unsafe { (pid_of(prev), pid_of(next)) };
    if watched(prev) || watched(next) {
        // SAFETY: the hook's own context.
        unsafe { switch(ctx.as_ptr(), prev, next) };
    }
    0
}

/// A switch that concerns a watched task; kept apart, so that others save no registers for it.
#[inline(never)]
unsafe fn switch(ctx: *mut c_void, prev_pid: u32, next_pid: u32) {
    // SAFETY: the caller's promise; live map values.
    unsafe {
        let ctx = BtfTracePointContext::new(ctx);
        if watched(prev_pid)
            && let Some(t) = THREADS.get_ptr_mut(prev_pid)
        {
            let prev: *const u8 = ctx.arg(1);
            let (preempted, state): (u64, u32) = (ctx.arg(0), ctx.arg(3));
            let regs = bpf_task_pt_regs(prev as *mut task_struct) as *const u8;
            switch_out(t, prev, regs, preempted & 0xff != 0, state);
        }
        if watched(next_pid)
            && let Some(t) = THREADS.get_ptr_mut(next_pid)
        {
            switch_in(t);
        }
    }
}

#[inline(always)]
unsafe fn switch_out(
    t: *mut Thread,
    task: *const u8,
    regs: *const u8,
    preempted: bool,
    state: u32,
) {
    let at = now();
    // SAFETY: the caller's promise.
    unsafe {
        if preempted || state == 0 {
            stall_shift(t, ready(t, task), at);
            return;
        }
        (*t).flags |= thread_flag::ASLEEP;
        if state & (STOPPED | FROZEN) != 0 || control(task) & TRAP_FREEZE != 0 {
            stall_shift(t, cause::STOPPED, at);
            return;
        }
        if (*t).flags & thread_flag::RECLAIMS != 0 || in_memstall(task) {
            stall_shift(t, cause::RECLAIM, at);
            return;
        }
        // Of an exception, as a page fault is one, there is no system call.
        let call = call_of(regs);
        if call as i64 == -1 && (state & UNINTERRUPTIBLE != 0) {
            stall_shift(t, cause::PAGE_FAULT, at);
            return;
        }
        if in_iowait(task) {
            stall_shift(t, cause::BLOCK_IO, at);
            return;
        }
        let turn = (*t).flags & thread_flag::TURN != 0;
        if is_futex(call) {
            let at_word = first_argument(regs);
            let gil = (*t).serving.gil;
            let to = if gil[0] != 0 && at_word >= gil[0] && at_word < gil[1] {
                cause::GIL
            } else if turn {
                cause::LOCK
            } else {
                cause::COUNT
            };
            stall_shift(t, to, at);
        } else if is_poll(call) && state & INTERRUPTIBLE != 0 {
            stall_shift(t, cause::COUNT, at);
            end_turn(t, at);
            (*t).flags |= thread_flag::POLLS;
        } else {
            let to = if turn {
                cause::EVENT_LOOP
            } else {
                cause::COUNT
            };
            stall_shift(t, to, at);
        }
    }
}

#[inline(always)]
unsafe fn switch_in(t: *mut Thread) {
    // SAFETY: the caller's promise.
    unsafe {
        let flags = (*t).flags;
        if flags & thread_flag::POLLS != 0 && (*t).serving.flags & serve::LOOP != 0 {
            (*t).flags |= thread_flag::TURN;
        }
        (*t).flags &= !(thread_flag::ASLEEP | thread_flag::POLLS);
        let to = if flags & thread_flag::RECLAIMS != 0 {
            cause::RECLAIM
        } else if (*t).flags & thread_flag::TURN != 0 {
            cause::EVENT_LOOP
        } else {
            cause::COUNT
        };
        stall_shift(t, to, now());
    }
}

/// Hook: `sched_wakeup(task)`, since 4.x with this argument first.
#[btf_tracepoint(function = "sched_wakeup")]
pub fn stall_wakeup(ctx: BtfTracePointContext) -> i32 {
    let task: *const u8 = ctx.arg(0);
    // SAFETY: as in `stall_switch`.
    let pid = unsafe { pid_of(task) };
    if watched(pid)
        && let Some(t) = THREADS.get_ptr_mut(pid)
    {
        // SAFETY: a live map value.
        unsafe {
            if (*t).flags & thread_flag::ASLEEP != 0 {
                (*t).flags &= !thread_flag::ASLEEP;
                stall_shift(t, ready(t, task), now());
            }
        }
    }
    0
}

/// The running task begins or ceases to free memory.
#[inline(always)]
fn reclaims(begins: bool) {
    let pid = bpf_get_current_pid_tgid() as u32;
    if !watched(pid) {
        return;
    }
    let Some(t) = THREADS.get_ptr_mut(pid) else {
        return;
    };
    // SAFETY: a live map value; the task runs.
    unsafe {
        if begins {
            (*t).flags |= thread_flag::RECLAIMS;
            stall_shift(t, cause::RECLAIM, now());
        } else {
            (*t).flags &= !thread_flag::RECLAIMS;
            switch_in(t);
        }
    }
}

/// Hook: `mm_vmscan_direct_reclaim_begin`, since 3.2.
#[btf_tracepoint(function = "mm_vmscan_direct_reclaim_begin")]
pub fn reclaim_on(_ctx: BtfTracePointContext) -> i32 {
    reclaims(true);
    0
}

/// Hook: `mm_vmscan_direct_reclaim_end`, since 3.2.
#[btf_tracepoint(function = "mm_vmscan_direct_reclaim_end")]
pub fn reclaim_off(_ctx: BtfTracePointContext) -> i32 {
    reclaims(false);
    0
}

/// Hook: `mm_vmscan_memcg_reclaim_begin`, since 3.2.
#[btf_tracepoint(function = "mm_vmscan_memcg_reclaim_begin")]
pub fn memcg_on(_ctx: BtfTracePointContext) -> i32 {
    reclaims(true);
    0
}

/// Hook: `mm_vmscan_memcg_reclaim_end`, since 3.2.
#[btf_tracepoint(function = "mm_vmscan_memcg_reclaim_end")]
pub fn memcg_off(_ctx: BtfTracePointContext) -> i32 {
    reclaims(false);
    0
}

/// Hook: `mm_compaction_begin`, since 3.19.
#[btf_tracepoint(function = "mm_compaction_begin")]
pub fn compact_on(_ctx: BtfTracePointContext) -> i32 {
    reclaims(true);
    0
}

/// Hook: `mm_compaction_end`, since 3.19.
#[btf_tracepoint(function = "mm_compaction_end")]
pub fn compact_off(_ctx: BtfTracePointContext) -> i32 {
    reclaims(false);
    0
}

/// Hook: `sched_process_exit(task)`: a thread ends.
#[btf_tracepoint(function = "sched_process_exit")]
pub fn stall_exit(_ctx: BtfTracePointContext) -> i32 {
    let pid = bpf_get_current_pid_tgid() as u32;
    if !watched(pid) {
        return 0;
    }
    leave_task(pid);
    if let Some(t) = THREADS.get_ptr_mut(pid) {
        // SAFETY: a live map value.
        unsafe {
            stall_shift(t, cause::COUNT, now());
            end_turn(t, now());
        }
        let _ = THREADS.remove(pid);
    }
    0
}

/// The running thread read from a watched connection of `process`: it serves from now on.
#[inline(always)]
pub fn serves(process: ProcessKey) {
    let pid = bpf_get_current_pid_tgid() as u32;
    if watched(pid) {
        return;
    }
    let Some(known) = SERVING.get_ptr(process) else {
        return;
    };
    // SAFETY: a live map value of plain integers.
    let fresh = Thread::new(unsafe { *known });
    if THREADS.insert(pid, fresh, NO_EXIST).is_ok() {
        watch_task(pid);
    }
}

/// Takes a reading of the clocks that a request is charged from.
///
/// A global function: it is called from deep in the stack.
///
/// # Safety
/// `f` and `r` are live.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn clock_in(f: *const Flow, r: *mut Request) -> u64 {
    if f.is_null() || r.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let set = set_of(f);
        if set == 0 {
            return 0;
        }
        let Some(clock) = CLOCKS.get_ptr(set) else {
            return 0;
        };
        copy(&raw mut (*r).clock, clock);
        (*r).set = set;
        1
    }
}

/// The set that a flow's requests are charged from; 0 = not known.
#[inline(always)]
pub unsafe fn set_of(f: *const Flow) -> u32 {
    // SAFETY: the caller's flow is live.
    unsafe {
        if (*f).owner_tgid != 0 {
            let key = super::account::owner(f);
            if let Some(s) = SERVING.get_ptr(key) {
                return (*s).sets[SETS_OF_THREAD - 1];
            }
        }
        SET_OF.get_ptr((*f).workload).map_or(0, |s| *s)
    }
}

/// Copies a clock's words.
#[inline(always)]
pub unsafe fn copy(to: *mut Clock, from: *const Clock) {
    // SAFETY: both are of that size.
    unsafe {
        bpf_probe_read_kernel(
            to as *mut c_void,
            core::mem::size_of::<Clock>() as u32,
            from as *const c_void,
        );
    }
}
