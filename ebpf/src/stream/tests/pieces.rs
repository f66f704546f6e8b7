//! What is handed over: the beginning of each message without a hole, and the end of a body whose
//! length is known.

use super::fuzz::seeds;
use super::reference;
use super::tap::{Piece, Tap};
use super::verdict::{pieces_hold, pieces_of};
use super::{GET, STREAM, chunk, post};
use crate::stream::{BODY_CAPTURE, HEAD_CAPTURE, STREAM_CAPTURE, TAIL_PIECES};

/// A POST whose head has `head` bytes.
fn post_of(head: usize, body: usize) -> Vec<u8> {
    let first = "POST / HTTP/1.1\r\n";
    let last = format!("Content-Length: {body}\r\n\r\n");
    let mut text = String::from(first);
    let mut left = head - first.len() - last.len();
    while left > 0 {
        let n = if left > 200 { 100 } else { left };
        text += &format!("X:{}\r\n", "h".repeat(n - 4));
        left -= n;
    }
    let body: Vec<u8> = (0..body)
        .map(|i| b"0123456789abcdef"[(i * 7 + i / 16) % 16])
        .collect();
    let bytes = [text.as_bytes(), last.as_bytes(), &body].concat();
    assert_eq!(bytes.len(), head + body.len());
    bytes
}

/// The pieces of a request that comes in segments of `size`, checked against its bytes.
fn pieces(bytes: &[u8], size: usize) -> (Vec<Piece>, Vec<Piece>) {
    let mut tap = Tap::new();
    bytes.chunks(size).for_each(|part| tap.requests(part, 1));
    let seen = tap.seen();
    let message = &reference::requests(bytes)[0];
    pieces_hold(&pieces_of(&seen, false, 1), message, bytes, None);
    seen.pieces.into_iter().partition(|p| !p.tail)
}

/// Bytes of the run of tail pieces that reaches the end.
fn run(tail: &[Piece]) -> usize {
    let mut from = tail.last().map_or(0, |p| p.offset + p.data.len() as u64);
    let mut len = 0;
    for p in tail.iter().rev() {
        if p.offset + p.data.len() as u64 != from {
            break;
        }
        from = p.offset;
        len += p.data.len();
    }
    len
}

#[test]
fn a_small_message_is_handed_over_whole_in_any_segments() {
    let bytes = post_of(200, 900);
    for size in (1..40).chain([100, 500, 1000, 1024, 1025, 2000]) {
        let (start, _) = pieces(&bytes, size);
        let joined: Vec<u8> = start.iter().flat_map(|p| p.data.clone()).collect();
        assert_eq!(joined, bytes, "segments of {size}");
    }
}

#[test]
fn a_head_and_a_kibibyte_of_its_body_are_handed_over_without_a_hole() {
    for head in [
        60, 200, 1000, 1023, 1024, 1025, 2000, 3071, 3500, 4095, 4096,
    ] {
        let bytes = post_of(head, 100_000);
        for size in [100, 1000, 1024, 1448, 4096, 16_000, 65_000] {
            let (start, _) = pieces(&bytes, size);
            let total: usize = start.iter().map(|p| p.data.len()).sum();
            assert_eq!(
                total,
                head + BODY_CAPTURE as usize,
                "head of {head} in segments of {size}"
            );
        }
    }
}

#[test]
fn of_a_long_head_four_kibibytes_are_handed_over() {
    for head in [4097, 5000, 5120, 9000, 60_000] {
        let bytes = post_of(head, 10_000);
        for size in [100, 1448, 65_000] {
            let (start, _) = pieces(&bytes, size);
            let of_head: usize = start
                .iter()
                .map(|p| p.data.len().min(head.saturating_sub(p.offset as usize)))
                .sum();
            let total: usize = start.iter().map(|p| p.data.len()).sum();
            assert_eq!(
                of_head, HEAD_CAPTURE as usize,
                "head of {head} in segments of {size}"
            );
            assert_eq!(total, (HEAD_CAPTURE + BODY_CAPTURE) as usize);
        }
    }
}

#[test]
fn the_last_kibibyte_of_a_body_is_handed_over() {
    for body in [1500, 2000, 2048, 3000, 5000, 100_000] {
        let bytes = post_of(200, body);
        for size in [64, 65, 100, 500, 1000, 1024, 1448, 4000, 65_000] {
            let (start, tail) = pieces(&bytes, size);
            let reach = start.iter().map(|p| p.data.len()).sum::<usize>();
            let rest = bytes.len() - reach;
            let wanted = rest.min(960);
            assert!(
                run(&tail) >= wanted,
                "{body} in segments of {size}: {} bytes",
                run(&tail)
            );
            assert!(tail.len() <= TAIL_PIECES as usize);
        }
    }
}

#[test]
fn the_tail_reaches_the_end_even_in_the_smallest_segments() {
    for body in [1500, 3000, 5000] {
        let bytes = post_of(200, body);
        for size in 1..64 {
            let (start, tail) = pieces(&bytes, size);
            // `pieces` has checked that the last piece ends the message.
            let rest = bytes.len() - start.iter().map(|p| p.data.len()).sum::<usize>();
            let least = (TAIL_PIECES as usize - 1) * size;
            assert!(
                run(&tail) >= least.min(rest),
                "segments of {size}: {}",
                run(&tail)
            );
        }
    }
}

#[test]
fn segments_of_mixed_sizes_end_in_a_tail_that_reaches_the_end() {
    seeds(200, |_, noise| {
        let (head, body) = (noise.within(60, 5000), noise.within(0, 6000));
        let bytes = post_of(head.max(60).next_multiple_of(4), body);
        let mut tap = Tap::new();
        let mut from = 0;
        while from < bytes.len() {
            let most = noise.pick(&[1, 20, 100, 1448]);
            let n = noise.within(1, most).min(bytes.len() - from);
            tap.requests(&bytes[from..from + n], 1);
            from += n;
        }
        let message = &reference::requests(&bytes)[0];
        pieces_hold(&pieces_of(tap.said(), false, 1), message, &bytes, None);
    });
}

#[test]
fn a_stream_is_handed_over_without_a_hole_up_to_its_limits() {
    for (event, size) in [
        (10, 1448),
        (100, 1448),
        (700, 1448),
        (700, 65_000),
        (3000, 60_000),
    ] {
        let text = format!("data: {}\n\n", "x".repeat(event));
        let body: Vec<u8> = (0..200).flat_map(|_| chunk(text.as_bytes())).collect();
        let bytes = [STREAM, &body, b"0\r\n\r\n"].concat();
        let mut tap = Tap::new();
        tap.requests(GET, 1);
        bytes.chunks(size).for_each(|part| tap.replies(part, 2));
        let seen = tap.seen();
        let asked = reference::requests(GET);
        let (_, message) = &reference::replies(&bytes, &asked)[0];
        pieces_hold(
            &pieces_of(&seen, true, 1),
            message,
            &bytes,
            Some(seen.only()),
        );
        let total: usize = seen
            .pieces
            .iter()
            .filter(|p| p.reply)
            .map(|p| p.data.len())
            .sum();
        assert!(total <= STREAM_CAPTURE as usize);
        assert!(seen.only().captured >= 64 || total == STREAM_CAPTURE as usize);
    }
}

#[test]
fn a_stream_that_was_told_hands_over_no_more_than_any_body() {
    let mut tap = Tap::new();
    tap.requests(GET, 1);
    tap.replies(STREAM, 2);
    tap.tell();
    for i in 0..500 {
        tap.replies(&chunk(b"data: some text that fills up the body\n\n"), 3 + i);
    }
    let total: usize = tap
        .said()
        .pieces
        .iter()
        .filter(|p| p.reply)
        .map(|p| p.data.len())
        .sum();
    assert_eq!(total, STREAM.len() + BODY_CAPTURE as usize);
}

#[test]
fn nothing_of_a_message_that_is_not_http_is_handed_over_twice() {
    let mut tap = Tap::new();
    tap.requests(b"\x16\x03\x01", 1);
    for _ in 0..100 {
        tap.requests(&[0x17; 1448], 2);
    }
    let total: usize = tap.said().pieces.iter().map(|p| p.data.len()).sum();
    assert!(total <= 3 + 1024, "{total} bytes");
}

#[test]
fn a_piece_belongs_to_its_request_by_number_and_offset() {
    let (a, b) = (post(b"first"), post(b"second"));
    let mut tap = Tap::new();
    tap.requests(&a, 1);
    tap.requests(&b[..30], 2);
    tap.requests(&b[30..], 3);
    let seen = tap.seen();
    let lies: Vec<(u32, u64, usize)> = seen
        .pieces
        .iter()
        .map(|p| (p.number, p.offset, p.data.len()))
        .collect();
    assert_eq!(lies, [(1, 0, a.len()), (2, 0, 30), (2, 30, b.len() - 30)]);
}
