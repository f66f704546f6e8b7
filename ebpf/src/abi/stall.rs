//! Stall clocks: how long the serving threads of a set could not run, by cause.

use super::pod;

/// Why a thread does not run. A thread is in one cause at a time.
pub mod cause {
    /// Ready, and another task has the processor.
    pub const RUNQUEUE: u32 = 0;
    /// Ready, and its control group has used up its quota.
    pub const THROTTLED: u32 = 1;
    /// Stopped by a signal, traced or frozen.
    pub const STOPPED: u32 = 2;
    /// Waits for a disk.
    pub const BLOCK_IO: u32 = 3;
    /// Waits for a page of its memory.
    pub const PAGE_FAULT: u32 = 4;
    /// Frees memory for itself, or waits for that.
    pub const RECLAIM: u32 = 5;
    /// Waits for the interpreter's lock.
    pub const GIL: u32 = 6;
    /// A loop's thread waits for another lock.
    pub const LOCK: u32 = 7;
    /// A loop's thread has not come back to its poll call.
    pub const EVENT_LOOP: u32 = 8;
    /// Number of causes, and "in none".
    pub const COUNT: u32 = 9;
    /// Causes from 0 on that are the host's.
    pub const HOST: u32 = 6;
}

/// Words of a clock: one per cause, then the union of the host's causes.
pub const WORDS: usize = cause::COUNT as usize + 1;
/// Where the union of the host's causes is.
pub const UNION: usize = cause::COUNT as usize;
/// Bits of a word that hold nanoseconds; the rest counts threads.
pub const TIME_BITS: u32 = 54;
/// Those bits.
pub const TIME: u64 = (1 << TIME_BITS) - 1;
/// Sets of threads that have clocks; number 0 stands for "none".
pub const SETS: u32 = 4096;
/// Sets a thread belongs to at most.
pub const SETS_OF_THREAD: usize = 2;
/// A loop's thread that comes back within this time was not blocked.
pub const LOOP_NS: u64 = 10_000_000;

/// Union clocks of a set. A word is the number of threads that are in the cause now, and a time:
/// that which the cause lasted, less the moment it began when the number is not 0. So one load reads
/// a clock, one compare-and-exchange moves it, and it never runs faster than time.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// See the type.
    pub words: [u64; WORDS],
}
pod!(Clock, 8 * WORDS);

/// What a word says at `now`, modulo 2^54 ns (208 days).
pub const fn reading(word: u64, now: u64) -> u64 {
    let time = word & TIME;
    if word >> TIME_BITS == 0 {
        time
    } else {
        time.wrapping_add(now) & TIME
    }
}

/// What passed between two readings, 0 when the first is the later.
pub const fn between(from: u64, to: u64) -> u64 {
    let n = to.wrapping_sub(from) & TIME;
    if n >> (TIME_BITS - 1) == 0 { n } else { 0 }
}

/// What a thread of a process is looked at for.
pub mod serve {
    /// Threads that poll are an event loop's.
    pub const LOOP: u32 = 1;
}

/// What is known of the threads of a process that serve.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Serving {
    /// Sets its threads belong to; 0 = none. The last is the one its requests are charged from.
    pub sets: [u32; SETS_OF_THREAD],
    /// See [`serve`].
    pub flags: u32,
    /// Explicit padding.
    pub pad: u32,
    /// Where the interpreter's lock lies, first byte and the one behind the last; 0 = nowhere.
    pub gil: [u64; 2],
}
pod!(Serving, 32);

/// Flags of a thread.
pub mod thread_flag {
    /// It sleeps; what wakes it makes it ready.
    pub const ASLEEP: u32 = 1;
    /// It sleeps in a poll call.
    pub const POLLS: u32 = 1 << 1;
    /// It is a loop's and has come back from its poll call.
    pub const TURN: u32 = 1 << 2;
    /// It frees memory.
    pub const RECLAIMS: u32 = 1 << 3;
}

/// A thread that serves. Written by the hooks of the scheduler, which follow each other per thread.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Thread {
    /// What is known of its process.
    pub serving: Serving,
    /// Since when it is in its cause.
    pub since_ns: u64,
    /// What this turn of its loop has added to [`cause::EVENT_LOOP`].
    pub turn_ns: u64,
    /// See [`cause`].
    pub cause: u32,
    /// See [`thread_flag`].
    pub flags: u32,
}
pod!(Thread, 56);

impl Thread {
    /// A thread that is in no cause.
    pub const fn new(serving: Serving) -> Thread {
        Thread {
            serving,
            since_ns: 0,
            turn_ns: 0,
            cause: cause::COUNT,
            flags: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_read_while_it_runs_and_while_it_stands() {
        assert_eq!(reading(7, 1_000), 7);
        let running = 1 << TIME_BITS | (7u64.wrapping_sub(900) & TIME);
        assert_eq!(reading(running, 1_000), 107);
        assert_eq!(reading(running, 900), 7);
    }

    #[test]
    fn a_clock_that_came_round_or_was_set_back_is_read_as_it_is() {
        assert_eq!(between(TIME - 4, 5), 10);
        assert_eq!(between(100, 90), 0);
        assert_eq!(between(90, 100), 10);
    }
}
