//! Connections that are older than the tap.

use super::tap::Tap;
use super::{GET, chunk, post, unary};
use crate::abi::flow::request_flag;
use crate::stream::Ending;

#[test]
fn a_reply_under_way_is_one_request_that_was_not_observed() {
    let mut tap = Tap::adopted();
    for at in [5, 6, 7] {
        tap.replies(&chunk(b"data: 1\n\n"), at);
        tap.take_over(at);
    }
    assert_eq!(tap.said().begun.len(), 1);
    assert_ne!(tap.said().begun[0].flags & request_flag::ADOPTED, 0);
    let seen = tap.seen();
    let e = seen.only();
    assert_eq!(
        (e.ending, e.start, e.at, e.events),
        (Ending::Unobserved, 1, 5, 0)
    );
}

#[test]
fn the_request_after_it_is_counted_in_full() {
    let mut tap = Tap::adopted();
    tap.replies(b"0\r\n\r\n", 5);
    tap.take_over(5);
    tap.requests(&post(b"abc"), 6);
    tap.replies(&unary(200, b"de"), 7);
    tap.take_over(7);
    let ends: Vec<(u32, Ending, u32)> = tap
        .said()
        .ended
        .iter()
        .map(|e| (e.number, e.ending, e.status))
        .collect();
    assert_eq!(
        ends,
        [(1, Ending::Unobserved, 0), (2, Ending::Complete, 200)]
    );
}

#[test]
fn an_idle_connection_has_missed_nothing() {
    let mut tap = Tap::adopted();
    tap.requests(GET, 5);
    tap.replies(&unary(200, b"abc"), 6);
    tap.take_over(6);
    let seen = tap.seen();
    assert_eq!(seen.only().status, 200);
    assert_eq!(seen.begun.len(), 1);
}

#[test]
fn the_end_of_a_request_under_way_is_no_request() {
    let mut tap = Tap::adopted();
    tap.requests(b"the last bytes of a prompt", 5);
    tap.replies(&unary(200, b"abc"), 6);
    tap.take_over(6);
    let seen = tap.seen();
    assert_eq!(seen.only().ending, Ending::Unobserved);
    tap.requests(GET, 7);
    tap.replies(&unary(404, b"abc"), 8);
    assert_eq!(tap.said().ended[1].status, 404);
}
