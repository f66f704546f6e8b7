//! One clock for every end: CLOCK_MONOTONIC in nanoseconds, the same that the
//! kernel's `bpf_ktime_get_ns` reads, so stamps of all processes compare.

use nix::time::{ClockId, clock_gettime};

/// Now, in nanoseconds of CLOCK_MONOTONIC.
pub fn now_ns() -> u64 {
    let t = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("CLOCK_MONOTONIC is always there");
    t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64
}

/// Seconds between two stamps, negative when `to` is before `from`.
pub fn seconds(from: u64, to: u64) -> f64 {
    (to as i64 - from as i64) as f64 / 1e9
}
