//! Times between events: what the agent reads from pieces and what the kernel adds up make one
//! whole.

use super::tap::{Ended, Seen, Tap};
use super::verdict::pieces_of;
use super::{GET, STREAM, chunk};
use crate::hist::{GAP_BOUNDS_NS, GAP_BUCKETS, gap_bucket};
use crate::stream::{Ending, PROGRESS_NS};

const EVENT: &[u8] = b"data: x\n\n";
const DONE: &[u8] = b"data: [DONE]\n\n";

/// More than the first KiB, which is captured of any body: after it, what is captured depends on
/// the agent.
fn filler() -> Vec<u8> {
    chunk(&b": x\n".repeat(300))
}

/// A stream whose events come at these times; the agent has seen enough after `told` of them.
fn stream_of(times: &[u64], told: usize, done: bool) -> Seen {
    let mut tap = Tap::new();
    tap.requests(GET, 1);
    tap.replies(STREAM, 2);
    tap.replies(&filler(), 3);
    for (i, &at) in times.iter().enumerate() {
        if i == told {
            tap.tell();
        }
        tap.replies(&chunk(EVENT), at);
    }
    let end = times.last().copied().unwrap_or(2) + 1;
    if done {
        tap.replies(&chunk(DONE), end);
    }
    tap.replies(b"0\r\n\r\n", end + 1);
    tap.seen()
}

/// Gaps between the events that the pieces hold, as an agent would read them.
fn agent_gaps(seen: &Seen) -> (u32, Vec<u64>) {
    let (mut text, mut times) = (Vec::new(), Vec::new());
    for p in pieces_of(seen, true, 1) {
        for b in &p.data {
            text.push(*b);
            if text.ends_with(b"\n\n") {
                let done = text.ends_with(b"[DONE]\n\n");
                times.push((p.at, done));
            }
        }
    }
    let told: Vec<u64> = times.iter().filter(|t| !t.1).map(|t| t.0).collect();
    (
        times.len() as u32,
        told.windows(2).map(|w| w[1] - w[0]).collect(),
    )
}

fn add_up(seen: &Seen, times: &[u64]) {
    let e = seen.only();
    let (captured, agent) = agent_gaps(seen);
    assert_eq!(captured, e.captured);
    let mut buckets = e.gaps;
    let mut sum = e.gap_sum + e.held;
    let mut count = e.gaps.iter().sum::<u32>() + u32::from(e.held != 0);
    if e.held != 0 {
        buckets[gap_bucket(e.held)] += 1;
    }
    for gap in agent {
        buckets[gap_bucket(gap)] += 1;
        sum += gap;
        count += 1;
    }
    assert_eq!(
        count as usize,
        times.len().saturating_sub(1),
        "each gap once"
    );
    assert_eq!(
        sum,
        times.last().unwrap_or(&0) - times.first().unwrap_or(&0),
        "exact sum"
    );
    let mut expected = [0; GAP_BUCKETS];
    times
        .windows(2)
        .for_each(|w| expected[gap_bucket(w[1] - w[0])] += 1);
    assert_eq!(buckets, expected);
}

#[test]
fn a_gap_on_a_bound_is_in_that_bounds_bucket() {
    for (i, &bound) in GAP_BOUNDS_NS.iter().enumerate() {
        for (gap, bucket) in [(bound - 1, i), (bound, i), (bound + 1, i + 1)] {
            let seen = stream_of(&[10, 10 + gap, 11 + gap], 0, false);
            let mut expected = [0; GAP_BUCKETS];
            expected[bucket] = 1;
            assert_eq!(seen.only().gaps, expected, "a gap of {gap}");
            assert_eq!((seen.only().gap_sum, seen.only().held), (gap, 1));
        }
    }
}

#[test]
fn the_last_gap_is_held_back() {
    let none = stream_of(&[10], 0, false);
    assert_eq!(
        (none.only().held, none.only().gap_sum, none.only().event),
        (0, 0, 10)
    );
    let one = stream_of(&[10, 15], 0, false);
    assert_eq!(
        (one.only().held, one.only().gap_sum, one.only().event),
        (5, 0, 15)
    );
    let two = stream_of(&[10, 15, 22], 0, false);
    assert_eq!(
        (two.only().held, two.only().gap_sum, two.only().event),
        (7, 5, 22)
    );
}

#[test]
fn done_ends_no_gap() {
    for told in 0..5 {
        let seen = stream_of(&[10, 15, 22, 30], told, true);
        let e = seen.only();
        assert_eq!(
            (e.events, e.done, e.event),
            (5, true, 30),
            "told after {told}"
        );
        add_up(&seen, &[10, 15, 22, 30]);
    }
}

#[test]
fn a_ping_counts_and_ends_no_gap() {
    for ping in [
        "event: ping\ndata: {}\n\n",
        "event:ping\r\ndata: {}\r\n\r\n",
    ] {
        let mut tap = Tap::new();
        tap.requests(GET, 1);
        tap.replies(STREAM, 2);
        tap.replies(&filler(), 3);
        for (i, text) in [
            "data: a\n\n",
            ping,
            ping,
            "data: b\n\n",
            "data: c\n\n",
            ping,
        ]
        .iter()
        .enumerate()
        {
            if i == 2 {
                tap.tell();
            }
            tap.replies(&chunk(text.as_bytes()), 1_000 * (i as u64 + 1));
        }
        tap.replies(b"0\r\n\r\n", 9_000);
        let seen = tap.seen();
        let e = seen.only();
        assert_eq!((e.events, e.captured), (6, 2));
        assert_eq!((e.gap_sum, e.held, e.event), (3_000, 1_000, 5_000));
    }
}

#[test]
fn an_event_after_a_ping_is_no_ping() {
    for other in [
        "event: ping\n\ndata: x\n\n",
        "event: pinged by\ndata: x\n\n",
        "xevent: ping\ndata: x\n\n",
    ] {
        let mut tap = Tap::new();
        tap.requests(GET, 1);
        tap.replies(&[STREAM, &filler()].concat(), 2);
        tap.replies(&chunk(other.as_bytes()), 1_000);
        tap.replies(b"0\r\n\r\n", 2_000);
        assert_eq!(
            (tap.seen().only().events, tap.seen().only().event),
            (1, 1_000),
            "{other}"
        );
    }
}

#[test]
fn captured_and_counted_events_add_up_whenever_the_agent_has_seen_enough() {
    for n in 1..12u64 {
        let times: Vec<u64> = (0..n).map(|i| 1_000 + i * i * 7_000_003).collect();
        for told in 0..=n as usize {
            add_up(&stream_of(&times, told, false), &times);
        }
    }
}

#[test]
fn a_stream_that_nobody_waits_for_is_captured_to_its_limits_and_adds_up() {
    let times: Vec<u64> = (0..500).map(|i| 1_000 + i * 1_000_001).collect();
    let seen = stream_of(&times, usize::MAX, true);
    assert_eq!((seen.only().events, seen.only().captured), (501, 64));
    add_up(&seen, &times);
}

#[test]
fn events_of_one_segment_are_a_nanosecond_apart() {
    let mut tap = Tap::new();
    tap.requests(GET, 1);
    tap.replies(STREAM, 2);
    tap.replies(&filler(), 3);
    tap.tell();
    tap.replies(&chunk(&EVENT.repeat(4)), 10);
    tap.replies(b"0\r\n\r\n", 11);
    let e: Ended = tap.seen().only().clone();
    assert_eq!(
        (e.events, e.captured, e.held, e.gap_sum, e.gaps[0]),
        (4, 0, 1, 2, 2)
    );
}

#[test]
fn pieces_without_room_leave_all_later_events_to_the_kernel() {
    for full in 0..6 {
        let mut tap = Tap::new();
        tap.requests(GET, 1);
        tap.replies(STREAM, 2);
        for i in 0..6u64 {
            if i == full {
                tap.fill();
            }
            tap.replies(&chunk(EVENT), 1_000 * (i + 1));
        }
        tap.replies(b"0\r\n\r\n", 9_000);
        let seen = tap.seen();
        assert_eq!(u64::from(seen.only().captured), full);
        let times: Vec<u64> = (1..=6).map(|i| 1_000 * i).collect();
        add_up(&seen, &times);
    }
}

#[test]
fn an_event_split_between_pieces_and_counting_is_counted() {
    let mut tap = Tap::new();
    tap.requests(GET, 1);
    tap.replies(STREAM, 2);
    tap.replies(&chunk(EVENT), 1_000);
    tap.replies(b"9\r\ndata:", 2_000);
    tap.fill();
    tap.replies(b" x\n\n\r\n", 3_000);
    tap.replies(b"0\r\n\r\n", 4_000);
    let seen = tap.seen();
    assert_eq!((seen.only().events, seen.only().captured), (2, 1));
    add_up(&seen, &[1_000, 3_000]);
}

#[test]
fn a_long_stream_reports_each_event_once() {
    let times: Vec<u64> = (1..40).map(|i| i * PROGRESS_NS / 3).collect();
    let seen = stream_of(&times, 1, true);
    assert!(seen.progress.len() >= 8, "{} reports", seen.progress.len());
    assert!(
        seen.progress
            .iter()
            .all(|p| p.ending == Ending::Progress && p.number == 1)
    );
    let reported: u32 = seen.progress.iter().map(|p| p.unreported).sum();
    assert_eq!(reported + seen.only().unreported, 40);
    add_up(&seen, &times);
}

#[test]
fn a_reply_knows_nothing_of_the_one_before() {
    let mut tap = Tap::new();
    for i in 0..3u64 {
        let t = 1_000_000 * i;
        tap.requests(GET, t + 1);
        tap.replies(STREAM, t + 2);
        tap.replies(&filler(), t + 3);
        tap.tell();
        for k in 1..=3 {
            tap.replies(&chunk(EVENT), t + 1_000 * k);
        }
        tap.replies(b"0\r\n\r\n", t + 9_000);
    }
    for e in &tap.seen().ended {
        assert_eq!(
            (e.events, e.held, e.gap_sum, e.gaps[0], e.done),
            (3, 1_000, 1_000, 1, false)
        );
    }
}
