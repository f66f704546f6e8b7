//! Bytes that pass unseen: where the framing tells what they were the message goes on, marked.

use super::tap::Tap;
use super::{GET, STREAM, chunk, post, unary};
use crate::abi::flow::{dir_flag, state};
use crate::stream::Ending;

fn asked() -> Tap {
    let mut tap = Tap::new();
    tap.requests(GET, 1);
    tap
}

#[test]
fn a_hole_inside_a_body_of_known_length_is_marked_and_hopped_over() {
    let reply = unary(200, &[b'x'; 1000]);
    let head = reply.len() - 1000;
    for (seen, lost) in [(0, 1), (0, 999), (1, 500), (500, 499)] {
        let mut tap = asked();
        tap.replies(&reply[..head + seen], 2);
        tap.lose::<true>(lost, 3);
        tap.replies(&reply[head + seen + lost as usize..], 4);
        let all = tap.seen();
        let e = all.only();
        assert_eq!(
            (e.status, e.reply_body, e.at, e.ending),
            (200, 1000, 4, Ending::Complete)
        );
        assert_ne!(e.flags & dir_flag::GAP, 0);
        assert_eq!(all.missed, 1);
    }
}

#[test]
fn a_hole_up_to_the_end_of_a_body_ends_it() {
    let reply = unary(200, &[b'x'; 1000]);
    let mut tap = asked();
    tap.replies(&reply[..reply.len() - 300], 2);
    tap.lose::<true>(300, 3);
    let all = tap.seen();
    assert_eq!(
        (all.only().at, all.only().reply_body, all.only().excess),
        (3, 1000, 0)
    );
    tap.requests(GET, 4);
    tap.replies(&unary(201, b""), 5);
    assert_eq!(tap.said().ended[1].status, 201);
    assert_eq!(
        tap.said().ended[1].flags & dir_flag::GAP,
        0,
        "the next reply is whole"
    );
}

#[test]
fn a_hole_beyond_a_body_loses_the_place() {
    let reply = unary(200, &[b'x'; 1000]);
    let mut tap = asked();
    tap.replies(&reply[..reply.len() - 300], 2);
    tap.lose::<true>(301, 3);
    assert_eq!(tap.dir::<true>().state, state::UNSYNCED);
    assert_eq!(tap.flow.lost_upto, 1);
    assert!(tap.said().ended.is_empty());
}

#[test]
fn a_hole_inside_a_chunk_is_hopped_over_and_across_its_end_is_not() {
    for (lost, known) in [
        (1, true),
        (50, true),
        (99, true),
        (100, true),
        (101, false),
        (103, false),
    ] {
        let mut tap = asked();
        tap.replies(STREAM, 2);
        tap.replies(b"64\r\n", 3);
        tap.lose::<true>(lost, 4);
        if known {
            let rest = vec![b'\n'; 100 - lost as usize];
            tap.replies(&[&rest[..], b"\r\n0\r\n\r\n"].concat(), 5);
            assert_eq!(tap.seen().only().reply_body, 100, "{lost} bytes lost");
        } else {
            assert_eq!(
                tap.dir::<true>().state,
                state::UNSYNCED,
                "{lost} bytes lost"
            );
            assert_eq!(tap.flow.lost_upto, 1);
        }
    }
}

#[test]
fn a_hole_in_a_head_or_between_messages_loses_the_place() {
    for n in 1..GET.len() {
        let mut tap = Tap::new();
        tap.requests(&GET[..n], 1);
        tap.lose::<false>(1, 2);
        assert_eq!(tap.dir::<false>().state, state::UNSYNCED, "after {n} bytes");
        assert!(tap.said().begun.is_empty());
    }
    let reply = unary(200, b"");
    for n in 0..reply.len() {
        let mut tap = asked();
        tap.replies(&reply[..n], 2);
        tap.lose::<true>(1, 3);
        assert_eq!(tap.dir::<true>().state, state::UNSYNCED, "after {n} bytes");
        assert_eq!(tap.flow.lost_upto, 1);
    }
}

#[test]
fn a_place_is_found_again_at_a_first_line_and_what_was_lost_is_unobserved() {
    let mut tap = asked();
    tap.replies(b"HTTP/1.1 200 OK\r\n", 2);
    tap.lose::<true>(500, 3);
    tap.replies(b"HTTP would be a fine first word of a body", 4);
    assert_eq!(tap.dir::<true>().state, state::UNSYNCED);
    tap.requests(GET, 5);
    tap.replies(&unary(201, b"ok"), 6);
    let ended: Vec<(u32, u32, Ending)> = tap
        .said()
        .ended
        .iter()
        .map(|e| (e.number, e.status, e.ending))
        .collect();
    assert_eq!(
        ended,
        [(1, 0, Ending::Unobserved), (2, 201, Ending::Complete)]
    );
    assert_eq!(tap.said().ended[1].flags & dir_flag::GAP, 0);
}

#[test]
fn a_lost_request_head_is_skipped_and_the_next_request_is_found() {
    let mut tap = Tap::new();
    tap.requests(&GET[..10], 1);
    tap.lose::<false>(500, 2);
    tap.requests(b"\"prompt\": \"x\"}", 3);
    tap.requests(GET, 4);
    assert_eq!(tap.said().begun.len(), 1);
    assert_eq!(tap.said().begun[0].at, 4);
}

#[test]
fn a_hole_in_a_request_body_marks_that_request_only() {
    let body = post(&[b'x'; 1000]);
    let mut tap = Tap::new();
    tap.requests(&body[..100], 1);
    tap.lose::<false>(200, 2);
    tap.requests(&body[300..], 3);
    tap.requests(GET, 4);
    tap.lose::<false>(10, 5);
    tap.replies(&unary(200, b"").repeat(2), 6);
    let seen = tap.seen();
    let marks: Vec<(bool, u64)> = seen
        .ended
        .iter()
        .map(|e| (e.request_gap, e.request_body))
        .collect();
    assert_eq!(marks, [(true, 1000), (false, 0)]);
}

#[test]
fn a_hole_in_a_body_until_the_end_is_hopped_over() {
    let mut tap = asked();
    tap.replies(b"HTTP/1.0 200 OK\r\n\r\nab", 2);
    tap.lose::<true>(70_000, 3);
    tap.replies(b"cd", 4);
    tap.fin(5);
    let seen = tap.seen();
    assert_eq!(
        (seen.only().reply_body, seen.only().ending),
        (70_004, Ending::Complete)
    );
    assert_ne!(seen.only().flags & dir_flag::GAP, 0);
}

#[test]
fn bytes_that_cannot_be_read_are_a_hole() {
    let reply = unary(200, &[b'x'; 100]);
    let mut tap = asked();
    tap.hide_after(10);
    tap.replies(&reply, 2);
    assert_eq!(tap.dir::<true>().state, state::UNSYNCED);
    assert_eq!(tap.said().missed, 1);

    let mut tap = asked();
    tap.replies(STREAM, 2);
    tap.replies(b"12\r\n", 3);
    tap.hide_after(0);
    tap.replies(b"data: a\n\ndata", 4);
    assert_eq!(tap.dir::<true>().state, state::CHUNK_DATA);
    tap.replies(b": b\n\n\r\n0\r\n\r\n", 5);
    let seen = tap.seen();
    assert_eq!((seen.only().reply_body, seen.only().events), (18, 0));
    assert_ne!(seen.only().flags & dir_flag::GAP, 0);
}

#[test]
fn a_line_that_began_in_a_hole_is_not_read() {
    let mut tap = asked();
    tap.replies(STREAM, 2);
    tap.replies(b"1b\r\ndata: a\n\n", 3);
    tap.lose::<true>(4, 4);
    tap.replies(b"data: b\n\ndata: c\n\n"[4..].as_ref(), 5);
    tap.replies(b"\r\n0\r\n\r\n", 6);
    let seen = tap.seen();
    assert_eq!(
        seen.only().events,
        2,
        "the event whose field was cut is not counted"
    );
    assert_eq!(
        seen.only().captured,
        1,
        "after a hole no event counts as captured"
    );
}

#[test]
fn a_hole_in_a_connection_that_is_not_read_is_nothing_lost() {
    let mut tap = Tap::new();
    tap.requests(b"\x16\x03\x01\x00\x05hello", 1);
    tap.lose::<false>(100, 2);
    assert_eq!(tap.dir::<false>().state, state::DEAD);
    assert_eq!(tap.said().missed, 0);
}

#[test]
fn pieces_after_a_hole_say_so() {
    let mut tap = asked();
    tap.replies(STREAM, 2);
    tap.replies(b"64\r\n", 3);
    tap.lose::<true>(50, 4);
    tap.replies(&[b'x'; 50], 5);
    tap.replies(&[&b"\r\n"[..], &chunk(b"data: a\n\n")].concat(), 6);
    let after: Vec<bool> = tap
        .said()
        .pieces
        .iter()
        .filter(|p| p.reply && p.at > 4)
        .map(|p| p.broken)
        .collect();
    assert!(!after.is_empty() && after.iter().all(|&b| b), "{after:?}");
}
