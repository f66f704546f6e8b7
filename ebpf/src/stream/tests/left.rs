//! Clients that close their side before the reply is complete: some have left, some still read.

use super::tap::Tap;
use super::{GET, STREAM, chunk, unary};
use crate::abi::flow::{closer, dir_flag, state};
use crate::stream::Ending;

/// A request whose client closes its side before anything is sent to it.
fn asked_and_closed() -> Tap {
    let mut tap = Tap::new();
    tap.requests(GET, 1);
    tap.client_fin();
    tap
}

#[test]
fn a_half_closed_client_that_takes_the_reply_is_complete_at_the_last_byte() {
    let mut tap = asked_and_closed();
    tap.replies(&unary(200, b"abc"), 5);
    assert_eq!(tap.said().ended.len(), 0, "its word is awaited");
    tap.client_acks();
    let seen = tap.seen();
    let e = seen.only();
    assert_eq!((e.ending, e.at, e.status), (Ending::Complete, 5, 200));
    assert_eq!(tap.flow.replies.state, state::IDLE);
}

#[test]
fn an_acknowledgement_of_a_part_decides_nothing() {
    let mut tap = asked_and_closed();
    let reply = unary(200, b"abc");
    tap.replies(&reply[..10], 4);
    let part = tap.flow.replies.next_seq;
    tap.replies(&reply[10..], 5);
    tap.client_acks_upto(part);
    assert_eq!(tap.said().ended.len(), 0);
    tap.client_acks_upto(tap.flow.replies.next_seq.wrapping_add(1));
    assert_eq!(
        tap.said().ended.len(),
        0,
        "nobody acknowledges what was not sent"
    );
    tap.client_acks();
    assert_eq!(tap.seen().only().ending, Ending::Complete);
}

#[test]
fn a_client_that_resets_the_reply_has_left() {
    for who in [closer::PEER_RST, closer::PEER_TIMEOUT] {
        let mut tap = asked_and_closed();
        tap.replies(&unary(200, b"abc"), 5);
        tap.flow.closer = who;
        tap.end(Ending::Closed, u32::MAX, 9);
        let seen = tap.seen();
        let e = seen.only();
        assert_eq!((e.ending, e.at), (Ending::Closed, 5));
        assert_ne!(e.flags & dir_flag::AFTER_FIN, 0, "before the head");
    }
}

#[test]
fn a_client_that_closes_in_mid_stream_has_left_after_the_head() {
    let mut tap = Tap::new();
    tap.requests(GET, 1);
    tap.replies(STREAM, 2);
    tap.replies(&chunk(b"data: 1\n\n"), 3);
    tap.client_fin();
    tap.replies(&[chunk(b"data: 2\n\n"), b"0\r\n\r\n".to_vec()].concat(), 4);
    tap.flow.closer = closer::PEER_RST;
    tap.end(Ending::Closed, u32::MAX, 9);
    let seen = tap.seen();
    let e = seen.only();
    assert_eq!((e.ending, e.status, e.events), (Ending::Closed, 200, 2));
    assert_eq!(e.flags & dir_flag::AFTER_FIN, 0);
}

#[test]
fn a_close_without_a_reset_leaves_the_reply_complete() {
    let mut tap = asked_and_closed();
    tap.replies(&unary(200, b"abc"), 5);
    tap.server_fin(false, 6);
    assert_eq!(tap.said().ended.len(), 0);
    tap.end(Ending::Closed, u32::MAX, 9);
    let seen = tap.seen();
    let e = seen.only();
    assert_eq!((e.ending, e.at), (Ending::Complete, 5));
}

#[test]
fn a_body_until_close_waits_for_the_client_that_closed_its_side() {
    let mut tap = asked_and_closed();
    tap.replies(b"HTTP/1.1 200 OK\r\n\r\nabc", 5);
    tap.flow.replies.next_seq = tap.flow.replies.next_seq.wrapping_add(1);
    tap.server_fin(false, 6);
    assert_eq!(tap.said().ended.len(), 0);
    tap.client_acks();
    let seen = tap.seen();
    let e = seen.only();
    assert_eq!((e.ending, e.at, e.reply_body), (Ending::Complete, 6, 3));
}

#[test]
fn the_next_reply_or_a_hole_ends_the_waiting_one() {
    let mut tap = Tap::new();
    tap.requests(&GET.repeat(2), 1);
    tap.client_fin();
    tap.replies(&unary(200, b"abc"), 5);
    tap.replies(&unary(404, b"de"), 6);
    assert_eq!(tap.said().ended.len(), 1);
    tap.lose::<true>(3, 7);
    let ends: Vec<(u32, u64, Ending)> = tap
        .said()
        .ended
        .iter()
        .map(|e| (e.status, e.at, e.ending))
        .collect();
    assert_eq!(
        ends,
        [(200, 5, Ending::Complete), (404, 6, Ending::Complete)]
    );
}

#[test]
fn a_server_that_closes_without_a_reply_to_a_client_that_closed_ends_it_at_once() {
    let mut tap = asked_and_closed();
    tap.server_fin(false, 6);
    let seen = tap.seen();
    let e = seen.only();
    assert_eq!((e.ending, e.at, e.status), (Ending::Closed, 6, 0));
}
