//! Several requests on a connection: each begins once and ends once, in order.

use super::tap::Tap;
use super::{GET, post, unary};
use crate::abi::counters::unparsed;
use crate::stream::Ending;

fn ended(tap: &Tap) -> Vec<(u32, u32)> {
    tap.said()
        .ended
        .iter()
        .map(|e| (e.number, e.status))
        .collect()
}

#[test]
fn up_to_four_requests_may_be_open() {
    for n in 2..=4u32 {
        let mut tap = Tap::new();
        let all: Vec<u8> = (0..n)
            .flat_map(|i| post(&vec![b'x'; i as usize * 10]))
            .collect();
        tap.requests(&all, 1);
        assert_eq!(tap.said().begun.len() as u32, n);
        let replies: Vec<u8> = (0..n).flat_map(|i| unary(200 + i, b"abc")).collect();
        tap.replies(&replies, 2);
        assert_eq!(
            ended(&tap),
            (0..n).map(|i| (i + 1, 200 + i)).collect::<Vec<_>>()
        );
        let bodies: Vec<u64> = tap.said().ended.iter().map(|e| e.request_body).collect();
        assert_eq!(
            bodies,
            (0..u64::from(n)).map(|i| i * 10).collect::<Vec<_>>()
        );
    }
}

#[test]
fn a_fifth_open_request_ends_the_reading_of_requests_only() {
    let mut tap = Tap::new();
    tap.requests(&GET.repeat(5), 1);
    tap.requests(GET, 2);
    assert_eq!(tap.said().unparsed, [unparsed::PIPELINED]);
    assert_eq!(tap.said().begun.len(), 4);
    for i in 1..=4 {
        tap.replies(&unary(200, b"abc"), 2);
        assert_eq!(tap.said().ended.len(), i);
    }
    tap.replies(&unary(200, b"abc"), 3);
    assert_eq!(
        tap.said().ended.len(),
        4,
        "the fifth reply belongs to no request that is known"
    );
}

#[test]
fn a_connection_that_is_kept_alive_counts_every_request() {
    let mut tap = Tap::new();
    for i in 0..100u64 {
        tap.requests(&post(&vec![b'x'; i as usize]), 10 * i + 1);
        tap.replies(&unary(200, b"abc"), 10 * i + 2);
    }
    assert_eq!(ended(&tap), (1..=100).map(|i| (i, 200)).collect::<Vec<_>>());
    for (i, e) in tap.said().ended.iter().enumerate() {
        assert_eq!(e.request_body, i as u64);
        assert_eq!(
            (e.start, e.head, e.at),
            (10 * i as u64 + 1, 10 * i as u64 + 2, 10 * i as u64 + 2)
        );
    }
}

#[test]
fn the_numbers_of_requests_may_wrap() {
    let mut tap = Tap::new();
    tap.flow.started = u32::MAX - 1;
    tap.flow.ended = u32::MAX - 1;
    for _ in 0..4 {
        tap.requests(&GET.repeat(2), 1);
        tap.replies(&unary(200, b"abc").repeat(2), 2);
    }
    assert_eq!(tap.said().ended.len(), 8);
    assert_eq!((tap.flow.started, tap.flow.ended), (6, 6));
}

#[test]
fn what_is_open_at_the_end_ends_once() {
    let mut tap = Tap::new();
    tap.requests(&GET.repeat(3), 1);
    tap.replies(
        &[
            unary(200, b"abc"),
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf".to_vec(),
        ]
        .concat(),
        2,
    );
    tap.end(Ending::Closed, u32::MAX, 3);
    tap.end(Ending::Closed, u32::MAX, 4);
    let seen = tap.seen();
    let facts: Vec<(u32, u32, Ending)> = seen
        .ended
        .iter()
        .map(|e| (e.number, e.status, e.ending))
        .collect();
    assert_eq!(
        facts,
        [
            (1, 200, Ending::Complete),
            (2, 200, Ending::Closed),
            (3, 0, Ending::Closed)
        ]
    );
    assert_eq!(
        seen.ended[2].reply_bytes, 0,
        "the half reply belongs to the second request"
    );
}

#[test]
fn ending_up_to_a_number_leaves_the_others_open() {
    let mut tap = Tap::new();
    tap.requests(&GET.repeat(4), 1);
    tap.end(Ending::Unobserved, 0, 2);
    assert!(tap.said().ended.is_empty());
    tap.end(Ending::Unobserved, 2, 2);
    assert_eq!(ended(&tap), [(1, 0), (2, 0)]);
    tap.replies(&unary(200, b"abc"), 3);
    assert_eq!(ended(&tap)[2], (3, 200));
}
