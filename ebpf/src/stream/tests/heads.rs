//! Heads: which requests begin, which replies have a body, and what is no HTTP/1.1.

use super::tap::{Seen, Tap};
use super::{GET, exchange, post, unary};
use crate::abi::counters::unparsed;
use crate::abi::flow::state;
use crate::stream::{Ending, HEAD_MAX};

/// What becomes of a connection whose client sends this, whole and byte by byte.
fn refused(request: &[u8]) -> Vec<u32> {
    let mut whole = Tap::new();
    whole.requests(request, 1);
    let mut bytes = Tap::new();
    for b in request {
        bytes.requests(&[*b], 1);
    }
    assert_eq!(whole.said().facts(), bytes.said().facts());
    whole.seen().unparsed
}

fn with_field(field: &str, body: &str) -> Vec<u8> {
    format!("POST / HTTP/1.1\r\n{field}\r\n\r\n{body}").into_bytes()
}

/// Body bytes of the only request in `bytes`; the next request must be found behind it.
fn body_of(bytes: &[u8]) -> u64 {
    let mut tap = Tap::new();
    tap.requests(&[bytes, GET].concat(), 1);
    let seen = tap.seen();
    assert_eq!(seen.unparsed, [], "{}", String::from_utf8_lossy(bytes));
    assert_eq!(seen.begun.len(), 2, "{}", String::from_utf8_lossy(bytes));
    tap.flow.open[1].body_bytes
}

#[test]
fn every_method_begins_a_request() {
    for method in [
        "GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "HEAD", "CONNECT", "PROPFIND",
        "BREW",
    ] {
        assert_eq!(
            refused(format!("{method} / HTTP/1.1\r\n\r\n").as_bytes()),
            [],
            "{method}"
        );
    }
    assert_eq!(refused(b"SSH-2.0-x\r\n"), [unparsed::NOT_HTTP]);
    assert_eq!(refused(b"get / HTTP/1.1\r\n\r\n"), [unparsed::NOT_HTTP]);
}

#[test]
fn what_is_not_http1_is_said_once_with_its_reason() {
    assert_eq!(
        refused(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
        [unparsed::TLS]
    );
    assert_eq!(
        refused(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        [unparsed::HTTP2]
    );
    assert_eq!(refused(b"\x00\xff garbage"), [unparsed::NOT_HTTP]);
    assert_eq!(refused(b"A\n"), [unparsed::NOT_HTTP]);
    assert_eq!(refused(&[b'z'; 3000]), [unparsed::NOT_HTTP]);
    let reply = exchange(GET, b"SSH-2.0-OpenSSH\r\n");
    assert_eq!(reply.unparsed, [unparsed::REPLY_NOT_HTTP]);
    assert_eq!(
        exchange(GET, b"HTTP/2 200\r\n\r\n").unparsed,
        [unparsed::REPLY_NOT_HTTP]
    );
    assert_eq!(
        exchange(GET, b"HTTP/1.1 2x0 OK\r\n\r\n").unparsed,
        [unparsed::REPLY_NOT_HTTP]
    );
    assert_eq!(
        exchange(GET, b"HTTP/1.1 099 OK\r\n\r\n").unparsed,
        [unparsed::REPLY_NOT_HTTP]
    );
}

#[test]
fn half_a_head_begins_nothing() {
    for n in 1..GET.len() {
        let mut tap = Tap::new();
        tap.requests(&GET[..n], 1);
        assert!(tap.said().begun.is_empty(), "after {n} bytes");
        assert_eq!(refused(&GET[..n]), []);
    }
}

#[test]
fn a_request_begins_with_its_first_byte() {
    let mut tap = Tap::new();
    tap.requests(&GET[..1], 500);
    tap.requests(&GET[1..], 900);
    assert_eq!(tap.said().begun[0].at, 500);
}

#[test]
fn blank_lines_before_a_request_are_no_part_of_its_time() {
    let mut tap = Tap::new();
    tap.requests(b"\r\n", 500);
    tap.requests(b"\n", 600);
    assert!(tap.said().begun.is_empty());
    tap.requests(&GET[..3], 700);
    tap.requests(&GET[3..], 900);
    assert_eq!(tap.said().begun[0].at, 700);
}

#[test]
fn a_request_line_of_any_length_is_followed() {
    for n in 0..400 {
        let line = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(n));
        assert_eq!(refused(line.as_bytes()), [], "a path of {n} bytes");
        assert_eq!(body_of(line.as_bytes()), 0);
    }
}

#[test]
fn a_head_of_64_kib_is_followed_and_a_longer_one_is_not() {
    let head = |len: usize| {
        let frame = "GET / HTTP/1.1\r\n\r\n".len();
        format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(len - frame)).into_bytes()
    };
    assert_eq!(refused(&head(HEAD_MAX as usize)), []);
    assert_eq!(
        refused(&head(HEAD_MAX as usize + 1)),
        [unparsed::HEAD_TOO_LONG]
    );
    let fields = format!("GET / HTTP/1.1\r\n{}", "X-A: b\r\n".repeat(9000));
    assert_eq!(refused(fields.as_bytes()), [unparsed::HEAD_TOO_LONG]);
    let reply = format!("HTTP/1.1 200 OK\r\nX-A: {}", "b".repeat(70_000));
    assert_eq!(
        exchange(GET, reply.as_bytes()).unparsed,
        [unparsed::HEAD_TOO_LONG]
    );
}

#[test]
fn a_provisional_reply_is_not_the_reply() {
    for status in [100, 102, 103] {
        let interim = format!("HTTP/1.1 {status} Wait\r\nContent-Length: 9\r\nX: y\r\n\r\n");
        let mut tap = Tap::new();
        tap.requests(&post(b"hello"), 1_000);
        tap.replies(interim.as_bytes(), 2_000);
        assert!(tap.said().ended.is_empty());
        tap.replies(&unary(200, b"ok"), 3_000);
        let seen = tap.seen();
        let e = seen.only();
        assert_eq!((e.status, e.head, e.reply_body), (200, 3_000, 2));
        let both = [interim.as_bytes(), &unary(201, b"ok")].concat();
        assert_eq!(exchange(GET, &both).only().status, 201);
    }
}

#[test]
fn replies_without_a_body_end_with_their_head() {
    let long = "Content-Length: 500\r\n\r\n";
    let one = |request: &[u8], status: u32| {
        let reply = format!("HTTP/1.1 {status} X\r\n{long}");
        let mut tap = Tap::new();
        tap.requests(&[request, GET].concat(), 1);
        tap.replies(&[reply.as_bytes(), &unary(200, b"next")].concat(), 2);
        let seen = tap.seen();
        assert_eq!(seen.ended.len(), 2, "{status}");
        assert_eq!(
            (seen.ended[0].status, seen.ended[0].reply_body),
            (status, 0)
        );
        assert_eq!(seen.ended[0].excess as usize, unary(200, b"next").len());
    };
    one(b"HEAD / HTTP/1.1\r\n\r\n", 200);
    one(GET, 204);
    one(GET, 304);
    assert_eq!(exchange(GET, &unary(200, b"")).only().reply_body, 0);
}

#[test]
fn a_reply_without_a_length_ends_with_its_connection() {
    let mut tap = Tap::new();
    tap.requests(GET, 1);
    tap.replies(b"HTTP/1.0 200 OK\r\n\r\nsome", 2);
    tap.replies(b" text", 3);
    assert!(tap.said().ended.is_empty());
    tap.fin(4);
    let seen = tap.seen();
    let e = seen.only();
    assert_eq!((e.ending, e.at, e.reply_body), (Ending::Complete, 4, 9));
}

#[test]
fn an_upgrade_ends_its_request_and_the_reading() {
    let mut tap = Tap::new();
    tap.requests(GET, 1);
    tap.replies(b"HTTP/1.1 101 Switching Protocols\r\n\r\n\x81\x05hello", 2);
    tap.requests(b"\x81\x85mask!", 3);
    let seen = tap.seen();
    assert_eq!(
        (seen.only().status, seen.only().ending),
        (101, Ending::Complete)
    );
    assert_eq!(seen.unparsed, [unparsed::UPGRADED]);
    assert_eq!(tap.dir::<false>().state, state::DEAD);
    assert_eq!(tap.dir::<true>().state, state::DEAD);
}

#[test]
fn a_connect_opens_a_tunnel_only_when_it_succeeds() {
    let connect = b"CONNECT a:1 HTTP/1.1\r\n\r\n";
    let seen = exchange(
        connect,
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n\x16\x03",
    );
    assert_eq!((seen.only().status, seen.only().reply_body), (200, 0));
    assert_eq!(seen.unparsed, [unparsed::UPGRADED]);
    let seen = exchange(connect, &unary(403, b"no"));
    assert_eq!((seen.only().status, seen.only().reply_body), (403, 2));
    assert_eq!(seen.unparsed, []);
}

#[test]
fn field_names_and_values_come_in_any_case_with_any_blanks() {
    for field in [
        "Content-Length: 5",
        "content-length:5",
        "CONTENT-LENGTH:\t5 ",
        "cOnTeNt-LeNgTh:                5\t",
        "Content-Length: 0000000000000000005",
    ] {
        assert_eq!(body_of(&with_field(field, "hello")), 5, "{field}");
    }
    for field in [
        "Transfer-Encoding: chunked",
        "transfer-encoding:chunked",
        "TRANSFER-ENCODING:\t CHUNKED \t",
        "Transfer-Encoding: gzip, Chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 3",
        "Content-Length: 3\r\nTransfer-Encoding: chunked",
    ] {
        assert_eq!(
            body_of(&with_field(field, "5\r\nhello\r\n0\r\n\r\n")),
            5,
            "{field}"
        );
    }
}

#[test]
fn names_that_only_look_alike_frame_nothing() {
    for field in [
        "X-Content-Length: 5",
        "Content-Length-X: 5",
        concat!("Content-Leng", "t: 5"),
        "Content-: 5",
        "Content",
        "Transfer-Encoding-X: chunked",
        "X: Content-Length: 5",
        "",
    ] {
        assert_eq!(body_of(&with_field(field, "")), 0, "{field}");
    }
}

#[test]
fn a_length_that_is_no_number_or_two_numbers_ends_the_reading() {
    for field in [
        "Content-Length: ",
        "Content-Length: x",
        "Content-Length: -5",
        "Content-Length: +5",
        "Content-Length: 5x",
        "Content-Length: 5, 5",
        "Content-Length: 99999999999999999999",
        "Content-Length: 5\r\nContent-Length: 6",
    ] {
        assert_eq!(
            refused(&with_field(field, "hello")),
            [unparsed::BAD_FRAMING],
            "{field}"
        );
    }
    let same = with_field("Content-Length: 5\r\nContent-Length: 5", "hello");
    assert_eq!(body_of(&same), 5, "the same length twice is one length");
}

#[test]
fn lines_about_as_long_as_a_kept_line_hide_nothing() {
    for newline in ["\r\n", "\n"] {
        for n in 40..200 {
            let fill = format!("X-Fill: {}", "a".repeat(n - 8));
            let head = format!("POST / HTTP/1.1{newline}{fill}{newline}Content-Length: 5{newline}");
            let text = format!("{head}{fill}{newline}{newline}hello");
            assert_eq!(body_of(text.as_bytes()), 5, "a line of {n} bytes");
        }
        // The value of a field up to the last byte that is kept.
        for n in 27..=64 - newline.len() + 1 {
            let codings = format!("Transfer-Encoding: {},chunked", "x".repeat(n - 27));
            let body = format!("5{newline}hello{newline}0{newline}{newline}");
            let text = format!("POST / HTTP/1.1{newline}{codings}{newline}{newline}{body}");
            assert_eq!(body_of(text.as_bytes()), 5, "a line of {n} bytes");
        }
        for n in 16..60 {
            let padded = format!("Content-Length: {}{}", "5", " ".repeat(n));
            let text = format!("POST / HTTP/1.1{newline}{padded}{newline}{newline}hello");
            assert_eq!(body_of(text.as_bytes()), 5, "{n} blanks behind a length");
        }
    }
}

#[test]
fn a_reply_to_nobody_is_left_alone() {
    let mut tap = Tap::new();
    tap.replies(&unary(408, b"too slow"), 1);
    assert_eq!(tap.dir::<true>().state, state::UNSYNCED);
    tap.requests(GET, 2);
    tap.replies(&unary(200, b"ok"), 3);
    let seen: Seen = tap.seen();
    assert_eq!(
        (seen.only().status, seen.only().ending),
        (200, Ending::Complete)
    );
    assert_eq!(seen.unparsed, []);
}
