//! What the kernel's stall clocks say: how long a part of a request was held up, and how long the
//! processes of a role were.

mod gil;

use std::collections::BTreeMap;
use std::time::Duration;

use enginetap_ebpf::abi::record::{End, Piece};
use enginetap_ebpf::abi::stall::{Clock, LOOP_NS, UNION, between, cause, reading};

use crate::vocab::{StallCause, WorkloadId};

pub use gil::Interpreters;

/// Nanoseconds by cause, in the order of [`StallCause`].
pub type ByCause = [u64; cause::COUNT as usize];

const _: () = assert!(StallCause::ALL.len() == cause::COUNT as usize);

/// How long something was held up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stall {
    /// By the host, whatever the cause.
    pub host_ns: u64,
    /// By each cause.
    pub by_cause: ByCause,
}

impl Stall {
    /// What passed on a clock from one moment to another: at most the time between them.
    fn between(from: &Clock, from_ns: u64, to: &Clock, to_ns: u64) -> Stall {
        let most = to_ns.saturating_sub(from_ns);
        let passed = |at: usize| {
            let (a, b) = (
                reading(from.words[at], from_ns),
                reading(to.words[at], to_ns),
            );
            between(a, b).min(most)
        };
        let mut by_cause = ByCause::default();
        for (at, ns) in by_cause.iter_mut().enumerate() {
            *ns = passed(at);
        }
        // A turn that is under way is on the clock and taken off again if it turns out short.
        let turn = &mut by_cause[cause::EVENT_LOOP as usize];
        if *turn < LOOP_NS {
            *turn = 0;
        }
        Stall {
            host_ns: passed(UNION),
            by_cause,
        }
    }
}

/// What held up a part of a request, and how long that part was.
#[derive(Clone, Copy, Debug)]
pub struct Charge {
    /// What held it up.
    pub stall: Stall,
    /// How long it was.
    pub of: Duration,
}

impl Charge {
    /// The whole of a request; `None` when it has no clocks.
    pub fn of(end: &End) -> Option<Charge> {
        (end.set != 0).then(|| Charge {
            stall: Stall::between(&end.clock_start, end.start_ns, &end.clock_end, end.end_ns),
            of: Duration::from_nanos(end.end_ns.saturating_sub(end.start_ns)),
        })
    }
}

/// The clocks of a request when its first token passed.
#[derive(Clone, Copy, Debug)]
pub struct FirstToken {
    set: u32,
    at_ns: u64,
    start: Clock,
    now: Clock,
}

impl FirstToken {
    /// From the piece that completed it; `None` when the request has no clocks.
    pub fn of(piece: &Piece) -> Option<FirstToken> {
        (piece.set != 0).then_some(FirstToken {
            set: piece.set,
            at_ns: piece.ts_ns,
            start: piece.clock_start,
            now: piece.clock,
        })
    }

    /// What held it up since the request began.
    pub fn since(&self, start_ns: u64, at_ns: u64) -> Stall {
        Stall::between(&self.start, start_ns, &self.now, at_ns)
    }

    /// What held up the rest of the request; `None` when its clocks became others.
    pub fn until(&self, end: &End) -> Option<Charge> {
        (end.set == self.set).then(|| Charge {
            stall: Stall::between(&self.now, self.at_ns, &end.clock_end, end.end_ns),
            of: Duration::from_nanos(end.end_ns.saturating_sub(self.at_ns)),
        })
    }
}

/// The clock of one role of a workload.
#[derive(Debug)]
struct RoleClock {
    set: u32,
    last: ByCause,
    total: ByCause,
}

/// How long processes were held up, by workload and role.
#[derive(Debug, Default)]
pub struct RoleClocks {
    roles: BTreeMap<(WorkloadId, &'static str), RoleClock>,
}

impl RoleClocks {
    /// A role has a set of its own now, whose clock stands at 0.
    pub fn know(&mut self, workload: WorkloadId, role: &'static str, set: u32) {
        self.roles.entry((workload, role)).or_insert(RoleClock {
            set,
            last: ByCause::default(),
            total: ByCause::default(),
        });
    }

    /// Takes in what the clocks say.
    pub fn fold(&mut self, now_ns: u64, read: impl Fn(u32) -> Option<Clock>) {
        for role in self.roles.values_mut() {
            let Some(clock) = read(role.set) else {
                continue;
            };
            for (at, total) in role.total.iter_mut().enumerate() {
                let reading = reading(clock.words[at], now_ns);
                let more = between(role.last[at], reading);
                if more > 0 {
                    role.last[at] = reading;
                    *total += more;
                }
            }
        }
    }

    /// The totals of a workload by role.
    pub fn of(&self, workload: WorkloadId) -> Vec<(&'static str, ByCause)> {
        let of = |((id, role), clock): (&(WorkloadId, &'static str), &RoleClock)| {
            (*id == workload).then_some((*role, clock.total))
        };
        self.roles.iter().filter_map(of).collect()
    }

    /// Forgets a workload.
    pub fn forget(&mut self, workload: WorkloadId) {
        self.roles.retain(|(id, _), _| *id != workload);
    }
}

#[cfg(test)]
mod tests {
    use enginetap_ebpf::abi::stall::{TIME, TIME_BITS};

    use super::*;

    /// A word of a clock that runs since `since` and stood at `before` then.
    fn running(before: u64, since: u64) -> u64 {
        1 << TIME_BITS | (before.wrapping_sub(since) & TIME)
    }

    fn clock(at: usize, word: u64) -> Clock {
        let mut clock = Clock::default();
        clock.words[at] = word;
        clock
    }

    #[test]
    fn an_open_stall_counts_and_is_at_most_the_time_that_passed() {
        let from = clock(UNION, 100);
        let to = clock(UNION, running(100, 1_500));
        let stall = Stall::between(&from, 1_000, &to, 2_000);
        assert_eq!(stall.host_ns, 500);
        let before = clock(UNION, running(0, 10));
        assert_eq!(Stall::between(&before, 1_000, &to, 2_000).host_ns, 0);
        let much = clock(UNION, 900_000);
        assert_eq!(Stall::between(&from, 1_000, &much, 2_000).host_ns, 1_000);
    }

    #[test]
    fn a_short_turn_of_a_loop_is_no_stall() {
        let at = cause::EVENT_LOOP as usize;
        let zero = Clock::default();
        let short = Stall::between(&zero, 0, &clock(at, LOOP_NS - 1), 1 << 40);
        assert_eq!(short.by_cause[at], 0);
        let long = Stall::between(&zero, 0, &clock(at, LOOP_NS), 1 << 40);
        assert_eq!(long.by_cause[at], LOOP_NS);
    }

    #[test]
    fn totals_of_a_role_never_go_down() {
        let mut clocks = RoleClocks::default();
        let id = WorkloadId(3);
        clocks.know(id, "api", 7);
        for (now, word, total) in [
            (1_000, running(0, 400), 600),
            (2_000, 1_600, 1_600),
            (2_100, 1_500, 1_600),
            (2_200, 1_700, 1_700),
        ] {
            clocks.fold(now, |set| (set == 7).then(|| clock(0, word)));
            assert_eq!(clocks.of(id)[0].1[0], total);
        }
        clocks.forget(id);
        assert_eq!(clocks.of(id), []);
    }
}
