//! Which bytes of a stream are events.

use super::tap::{Ended, Tap};
use super::{GET, STREAM, chunk};

const NDJSON: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n";

/// The reply with this body, however it is cut: in one chunk, in chunks of one byte, in segments
/// of one byte.
fn stream(head: &[u8], body: &str) -> Ended {
    let mut first: Option<Ended> = None;
    for size in [usize::MAX, 1, 7] {
        let chunks: Vec<u8> = body
            .as_bytes()
            .chunks(size.min(body.len().max(1)))
            .flat_map(chunk)
            .collect();
        let bytes = [head, &chunks, b"0\r\n\r\n"].concat();
        for cut in [bytes.len(), 1, 24] {
            let mut tap = Tap::new();
            tap.requests(GET, 1);
            bytes.chunks(cut).for_each(|part| tap.replies(part, 2));
            let seen = tap.seen();
            let e = seen.only().clone();
            assert_eq!(seen.unparsed, []);
            if let Some(first) = &first {
                assert_eq!(
                    (e.events, e.done),
                    (first.events, first.done),
                    "{body:?} {size} {cut}"
                );
            }
            first = Some(e);
        }
    }
    first.unwrap()
}

fn events(body: &str) -> u32 {
    stream(STREAM, body).events
}

#[test]
fn an_event_counts_with_its_blank_line() {
    assert_eq!(events(""), 0);
    assert_eq!(events("data: a\n"), 0);
    assert_eq!(events("data: a\n\n"), 1);
    assert_eq!(events("data: a\r\n\r\n"), 1);
    assert_eq!(events("data: a\n\ndata: b\n\n"), 2);
    assert_eq!(events("data: a\n\ndata: b"), 1);
    assert_eq!(events("data: a\n\n\n\n\ndata: b\n\n"), 2);
    assert_eq!(events("\n\r\n\ndata: a\n\n"), 1);
}

#[test]
fn only_a_data_field_makes_an_event() {
    for other in [
        ": ping",
        ":",
        "event: ping",
        "id: 1",
        "retry: 5",
        "database: x",
        "Data: x",
        "data : x",
        " data: x",
        "dat",
        "dat: a",
        "x: data: y",
        "dataa",
    ] {
        assert_eq!(events(&format!("{other}\n\n")), 0, "{other}");
        assert_eq!(events(&format!("{other}\r\n\r\n")), 0, "{other}");
        assert_eq!(
            events(&format!("{other}\ndata: a\nid: 2\n\n{other}\n\n")),
            1,
            "{other}"
        );
    }
    for data in [
        "data",
        "data:",
        "data: ",
        "data:x",
        "data: x",
        "data:: x",
        "data:data:",
    ] {
        assert_eq!(events(&format!("{data}\n\n")), 1, "{data}");
        assert_eq!(events(&format!("{data}\r\n\r\n")), 1, "{data}");
    }
}

#[test]
fn several_data_lines_are_one_event() {
    assert_eq!(events("data: a\ndata: b\ndata: c\n\n"), 1);
    assert_eq!(
        events("event: x\r\ndata: a\r\ndata\r\n\r\ndata: b\r\n\r\n"),
        2
    );
}

#[test]
fn done_is_told_from_what_begins_like_it() {
    for done in ["data: [DONE]", "data:[DONE]"] {
        for end in ["\n", "\r\n"] {
            let e = stream(STREAM, &format!("data: a{end}{end}{done}{end}{end}"));
            assert_eq!((e.events, e.done), (2, true), "{done:?} {end:?}");
        }
    }
    for other in [
        "data: [D",
        "data: [D, a line that goes on",
        "data:[DOUBLE]",
        "data: DONE",
        "[DONE]",
    ] {
        assert!(!stream(STREAM, &format!("{other}\n\n")).done, "{other}");
    }
}

#[test]
fn lines_of_any_length_are_read() {
    for n in (0..400).chain([1000, 70_000]) {
        let text = "x".repeat(n);
        assert_eq!(
            stream_once(&format!("data:{text}\n\n:{text}\n\n{text}\ndata\n\n")),
            2,
            "{n}"
        );
    }
}

fn stream_once(body: &str) -> u32 {
    let mut tap = Tap::new();
    tap.requests(GET, 1);
    tap.replies(&[STREAM, &chunk(body.as_bytes()), b"0\r\n\r\n"].concat(), 2);
    tap.seen().only().events
}

#[test]
fn a_json_line_counts_with_its_newline() {
    let lines = |body: &str| stream(NDJSON, body).events;
    assert_eq!(lines("{}\n{}\r\n\n\r\n{}\n"), 3);
    assert_eq!(lines("{}\n{}"), 1);
    assert_eq!(lines("data: x\n\ndata: y\n\n"), 2);
    for kind in [
        "application/ndjson",
        "Application/X-NDJSON; charset=utf-8",
        "application/jsonl",
    ] {
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Type:{kind}\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert_eq!(stream(head.as_bytes(), "{}\n{}\n").events, 2, "{kind}");
    }
    let plain =
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(
        stream(plain, "{}\n{}\n").events,
        0,
        "plain JSON is no stream"
    );
}

#[test]
fn a_stream_may_have_a_length_or_end_with_its_connection() {
    let body = "data: a\n\ndata: [DONE]\n\n";
    let kind = "HTTP/1.1 200 OK\r\nContent-Type: TEXT/EVENT-STREAM";
    let length = format!("{kind}\r\nContent-Length: {}\r\n\r\n{body}HTTP", body.len());
    let mut tap = Tap::new();
    tap.requests(GET, 1);
    tap.replies(length.as_bytes(), 2);
    let seen = tap.seen();
    assert_eq!(
        (seen.only().events, seen.only().done, seen.only().excess),
        (2, true, 4)
    );
    let mut tap = Tap::new();
    tap.requests(GET, 1);
    tap.replies(format!("{kind}\r\n\r\n{body}").as_bytes(), 2);
    tap.fin(3);
    let seen = tap.seen();
    assert_eq!((seen.only().events, seen.only().done), (2, true));
}

#[test]
fn an_event_happens_when_the_byte_that_completes_it_passes() {
    let body = chunk(b"data: a\n\ndata: b\n\n");
    let mut tap = Tap::new();
    tap.requests(GET, 1);
    tap.replies(STREAM, 2);
    for (i, b) in body.iter().enumerate() {
        tap.replies(&[*b], 100 + i as u64);
        let size_line = 4;
        let expected = [9, 18].iter().filter(|&&n| i + 1 >= size_line + n).count();
        assert_eq!(tap.flow.reply.events as usize, expected, "after {i} bytes");
    }
    assert_eq!(tap.flow.reply.event_ns, 100 + 4 + 17);
}
