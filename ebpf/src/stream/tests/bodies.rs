//! Bodies: where they end.

use super::tap::Tap;
use super::{GET, chunk, exchange, post, unary};
use crate::abi::counters::unparsed;
use crate::abi::flow::state;

fn chunked(body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}").into_bytes()
}

#[test]
fn chunk_sizes_come_in_either_case_with_extensions_and_trailers() {
    let data = "x".repeat(0xab);
    for size in [
        "ab",
        "AB",
        "aB",
        "000000ab",
        "ab;a=b",
        "ab ;a",
        "ab\t",
        "00000000000000ab",
    ] {
        let seen = exchange(GET, &chunked(&format!("{size}\r\n{data}\r\n0\r\n\r\n")));
        assert_eq!(seen.only().reply_body, 0xab, "{size}");
        assert_eq!(seen.only().excess, 0);
    }
    for n in 50..300 {
        let ext = "e".repeat(n);
        let seen = exchange(
            GET,
            &chunked(&format!(
                "ab;{ext}\r\n{data}\r\n0;{ext}\r\nT: {ext}\r\n\r\n"
            )),
        );
        assert_eq!(seen.only().reply_body, 0xab, "an extension of {n} bytes");
    }
}

#[test]
fn the_zero_chunk_and_its_trailers_end_a_body() {
    let reply = chunked("2\r\nab\r\n0\r\nA: b\r\nContent-Length: 9\r\n\r\n");
    let mut tap = Tap::new();
    tap.requests(GET, 1);
    for (i, b) in reply.iter().enumerate() {
        assert!(tap.said().ended.is_empty(), "ended before byte {i}");
        tap.replies(&[*b], 10 + i as u64);
    }
    let seen = tap.seen();
    assert_eq!(seen.only().at, 9 + reply.len() as u64);
    assert_eq!(seen.only().reply_bytes as usize, reply.len());
}

#[test]
fn bare_newlines_end_lines_too() {
    let reply = b"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n2\nab\n0\nA: b\n\n";
    assert_eq!(exchange(b"GET / HTTP/1.1\n\n", reply).only().reply_body, 2);
}

#[test]
fn chunks_that_are_none_end_the_reading() {
    for body in [
        "g\r\n",
        "\r\n",
        "-1\r\n",
        "0x5\r\nhello\r\n",
        "5:\r\nhello\r\n",
        "00000000000000005\r\nhello\r\n",
        "5\r\nhello!\r\n",
        "5\r\nhello\r!\n",
        "5\r\nhello0\r\n\r\n",
    ] {
        let seen = exchange(GET, &chunked(body));
        assert_eq!(seen.unparsed, [unparsed::BAD_FRAMING], "{body:?}");
        assert!(seen.ended.is_empty());
    }
    let endless = exchange(GET, &chunked(&format!("1\r\na{}", "b".repeat(100))));
    assert_eq!(endless.unparsed, [unparsed::BAD_FRAMING]);
}

#[test]
fn the_largest_chunk_overflows_nothing() {
    let mut tap = Tap::new();
    tap.requests(GET, 1);
    tap.replies(&chunked("fffffffffffffffe\r\n"), 2);
    assert_eq!(tap.said().unparsed, []);
    tap.replies(&[b'x'; 60_000], 3);
    tap.lose::<true>(u32::MAX, 4);
    assert_eq!(tap.dir::<true>().state, state::CHUNK_DATA);
    assert_eq!(tap.dir::<true>().body_bytes, 60_000 + u64::from(u32::MAX));
}

#[test]
fn a_megabyte_in_one_reply_is_hopped_over() {
    let reply = unary(200, &vec![b'\n'; 1 << 20]);
    let mut tap = Tap::new();
    tap.requests(GET, 1);
    for (i, part) in reply.chunks(1448).enumerate() {
        tap.replies(part, 2 + i as u64);
    }
    let seen = tap.seen();
    assert_eq!(seen.only().reply_body, 1 << 20);
    assert_eq!(seen.only().at as usize, 1 + reply.len().div_ceil(1448));
}

#[test]
fn a_prompt_of_four_megabytes_is_hopped_over() {
    let mut prompt = b"GET / HTTP/1.1\r\n\r\n".repeat(250_000);
    prompt.truncate(4 << 20);
    for size in [1448, 65_000] {
        let mut tap = Tap::new();
        for part in post(&prompt).chunks(size) {
            tap.requests(part, 1);
        }
        tap.requests(GET, 2);
        tap.replies(&[unary(200, b"a"), unary(200, b"b")].concat(), 3);
        let seen = tap.seen();
        let bodies: Vec<u64> = seen.ended.iter().map(|e| e.request_body).collect();
        assert_eq!(bodies, [4 << 20, 0]);
    }
}

#[test]
fn request_lines_inside_a_body_begin_nothing() {
    let body = b"GET / HTTP/1.1\r\n\r\nPOST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n";
    let mut bytes = post(body);
    let one = bytes.len();
    bytes.extend_from_slice(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
    bytes.extend(chunk(body));
    bytes.extend_from_slice(b"0\r\n\r\n");
    for cut in 1..bytes.len() {
        let mut tap = Tap::new();
        tap.requests(&bytes[..cut], 1);
        tap.requests(&bytes[cut..], 2);
        let begun: Vec<(u32, u64)> = tap.said().begun.iter().map(|b| (b.number, b.at)).collect();
        assert_eq!(begun, [(1, 1), (2, if cut <= one { 2 } else { 1 })]);
        assert_eq!(tap.flow.open[2].body_bytes as usize, body.len());
    }
}

#[test]
fn a_reply_may_end_before_its_request() {
    let bytes = post(&[b'x'; 5000]);
    let mut tap = Tap::new();
    tap.requests(&bytes[..1000], 1);
    tap.replies(&unary(413, b"too long"), 2);
    tap.requests(&bytes[1000..], 3);
    tap.requests(GET, 4);
    tap.replies(&unary(200, b"ok"), 5);
    let seen = tap.seen();
    let ended: Vec<(u32, u32)> = seen.ended.iter().map(|e| (e.number, e.status)).collect();
    assert_eq!(ended, [(1, 413), (2, 200)]);
    assert!(seen.ended[0].request_body < 1000);
    assert_eq!(seen.begun[1].at, 4);
}
