//! Heads, against `httparse`.

use super::{cuts, fuzz};
use crate::protocol::framing::Framing;
use crate::protocol::head::{parse_request_head, parse_response_head};

const LINES: usize = 512;

/// Framing as its headers say, read plainly.
fn framing(headers: &[httparse::Header<'_>]) -> (Option<u64>, bool) {
    let values = |name: &'static str| {
        let own = headers
            .iter()
            .filter(move |h| h.name.eq_ignore_ascii_case(name));
        own.map(|h| String::from_utf8_lossy(h.value).into_owned())
    };
    let chunked = values("transfer-encoding").any(|v| {
        v.rsplit(',')
            .next()
            .is_some_and(|last| last.trim().eq_ignore_ascii_case("chunked"))
    });
    let lengths: Vec<Option<u64>> = values("content-length")
        .flat_map(|v| v.split(',').map(|n| digits(n.trim())).collect::<Vec<_>>())
        .collect();
    let same = lengths.windows(2).all(|pair| pair[0] == pair[1]);
    let length = lengths
        .first()
        .copied()
        .flatten()
        .filter(|_| same && !chunked);
    (length, chunked)
}

/// A length; the largest number of 64 bits is none.
fn digits(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|&n| plain && n != u64::MAX)
}

fn assert_framing(framing: &Framing, (length, chunked): (Option<u64>, bool)) {
    assert_eq!((framing.content_length, framing.chunked), (length, chunked));
}

fn request(bytes: &[u8]) {
    let head = parse_request_head(bytes);
    if let Some(head) = &head {
        assert!(head.head_len <= bytes.len());
        assert!(head.path.len() <= 3 * 512 && !head.path.contains(['?', '#', '\n', ' ']));
        for cut in cuts(bytes) {
            let part = parse_request_head(&bytes[..cut]);
            assert!(
                part.is_none_or(|part| part.path == head.path && part.method == head.method),
                "cut at {cut}"
            );
        }
    }
    let mut lines = [httparse::EMPTY_HEADER; LINES];
    let mut theirs = httparse::Request::new(&mut lines);
    let Ok(httparse::Status::Complete(length)) = theirs.parse(bytes) else {
        return;
    };
    let (method, target) = (
        theirs.method.unwrap_or_default(),
        theirs.path.unwrap_or_default(),
    );
    let ours = |b: u8| b.is_ascii_uppercase() || b == b'-' || b == b'_';
    if method.len() > 24
        || !method.bytes().all(ours)
        || target.bytes().any(|b| b <= b' ' || b == 0x7f)
    {
        return;
    }
    let head = head.expect("a whole head");
    assert_eq!(
        (head.complete, head.head_len, head.minor),
        (true, length, theirs.version)
    );
    if target.starts_with('/') {
        let path = target.split(['?', '#']).next().unwrap_or_default();
        let cut = String::from_utf8_lossy(&path.as_bytes()[..path.len().min(512)]).into_owned();
        assert_eq!(head.path, cut);
    }
    assert_framing(&head.framing, framing(theirs.headers));
}

fn reply(bytes: &[u8]) {
    let head = parse_response_head(bytes);
    if let Some(head) = &head {
        assert!(head.head_len <= bytes.len() && (100..1_000).contains(&head.status));
    }
    let mut start = 0;
    loop {
        let mut lines = [httparse::EMPTY_HEADER; LINES];
        let mut theirs = httparse::Response::new(&mut lines);
        let Ok(httparse::Status::Complete(length)) = theirs.parse(&bytes[start..]) else {
            return;
        };
        let status = theirs.code.unwrap_or_default();
        if status < 100 {
            return;
        }
        start += length;
        if (100..200).contains(&status) && status != 101 && bytes[start..].starts_with(b"HTTP/1.") {
            continue;
        }
        let head = head.expect("a whole head");
        assert_eq!(
            (head.complete, head.status, head.head_len),
            (true, status, start)
        );
        assert_eq!(Some(head.minor), theirs.version);
        assert_framing(&head.framing, framing(theirs.headers));
        return;
    }
}

#[test]
fn request_heads_are_those_that_another_parser_reads() {
    fuzz("request_head", request);
}

#[test]
fn reply_heads_are_those_that_another_parser_reads() {
    fuzz("reply_head", reply);
}
