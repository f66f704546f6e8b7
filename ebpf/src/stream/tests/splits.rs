//! A stream means the same however it is cut.

use super::noise::Noise;
use super::tap::{Facts, Tap};
use super::{GET, STREAM, chunk, post, unary};

/// Requests and their replies, between them every part of a message.
fn exchanges() -> Vec<(Vec<u8>, Vec<u8>)> {
    let long = "a".repeat(150);
    let fields = format!(
        "POST /{long} HTTP/1.1\r\nX-{long}: b\r\nX: {}\r\nContent-Length: 5\r\n\r\nhello",
        "c".repeat(61)
    );
    let trailers = format!(
        "PUT / HTTP/1.1\nTRANSFER-ENCODING: chunked\n\n5 ;{long}\nhello\nA\n0123456789\n0\nT: {long}\n\n"
    );
    let events: Vec<u8> = [
        chunk(b"data: a\n\n"),
        chunk(b"data: b\r\n\r\ndata: c\n"),
        chunk(b"\n: ping\n\nevent: x\nda"),
        chunk(format!("ta:{long}\n\ndata\n\n").as_bytes()),
        chunk(b"data: [DONE]\n\n"),
        b"0\r\n\r\n".to_vec(),
    ]
    .concat();
    let ndjson = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nContent-Length: 11\r\n\r\n{}\n{}\r\n\n{}\n";
    vec![
        (fields.into_bytes(), unary(200, b"0123456789")),
        (trailers.into_bytes(), [STREAM, &events].concat()),
        (
            [GET, b"HEAD / HTTP/1.1\r\n\r\n", &post(b"x")].concat(),
            [
                b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n"
                    .to_vec(),
                unary(404, b""),
                b"HTTP/1.1 200 OK\r\nContent-Length: 77\r\n\r\n".to_vec(),
                ndjson.to_vec(),
            ]
            .concat(),
        ),
        (
            b"GET / HTTP/1.0\r\n\r\n".to_vec(),
            b"HTTP/1.0 200 OK\r\n\r\nuntil the end".to_vec(),
        ),
        (b"\x16\x03\x01\x00\x05hello".to_vec(), Vec::new()),
        (b"PRI * HTTP/2.0\r\n\r\n".to_vec(), Vec::new()),
        (
            b"CONNECT a:1 HTTP/1.1\r\n\r\n".to_vec(),
            b"HTTP/1.1 200 OK\r\n\r\n\x16\x03\x01".to_vec(),
        ),
        (
            GET.to_vec(),
            b"HTTP/1.1 101 Switching Protocols\r\n\r\nframes".to_vec(),
        ),
        (GET.to_vec(), [STREAM, b"5\r\nhello5\r\n"].concat()),
        (
            b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n".to_vec(),
            Vec::new(),
        ),
    ]
}

fn read<'a>(
    requests: impl IntoIterator<Item = &'a [u8]>,
    replies: impl IntoIterator<Item = &'a [u8]>,
) -> Facts {
    let mut tap = Tap::new();
    requests.into_iter().for_each(|part| tap.requests(part, 1));
    replies.into_iter().for_each(|part| tap.replies(part, 2));
    tap.fin(3);
    tap.said().facts()
}

fn whole(request: &[u8], reply: &[u8]) -> Facts {
    read([request], [reply])
}

#[test]
fn every_cut_in_two_reads_the_same() {
    for (request, reply) in exchanges() {
        let expected = whole(&request, &reply);
        for cut in 0..=request.len() {
            let (a, b) = request.split_at(cut);
            assert_eq!(read([a, b], [&reply[..]]), expected, "request cut at {cut}");
        }
        for cut in 0..=reply.len() {
            let (a, b) = reply.split_at(cut);
            assert_eq!(read([&request[..]], [a, b]), expected, "reply cut at {cut}");
        }
    }
}

#[test]
fn segments_of_any_one_size_read_the_same() {
    for (request, reply) in exchanges() {
        let expected = whole(&request, &reply);
        for size in 1..=130 {
            let cut = read(request.chunks(size), reply.chunks(size));
            assert_eq!(cut, expected, "segments of {size} bytes");
        }
    }
}

#[test]
fn a_first_read_of_24_bytes_reads_the_same() {
    for (request, reply) in exchanges() {
        let (a, b) = request.split_at(24.min(request.len()));
        let (c, d) = reply.split_at(24.min(reply.len()));
        assert_eq!(read([a, b], [c, d]), whole(&request, &reply));
    }
}

#[test]
fn random_cuts_read_the_same() {
    for seed in 0..100 {
        let mut noise = Noise::new(seed);
        for (request, reply) in exchanges() {
            let mut parts = |bytes: &[u8]| {
                let mut rest = bytes.to_vec();
                let mut parts = Vec::new();
                for n in noise.cuts(bytes.len()) {
                    let after = rest.split_off(n);
                    parts.push(core::mem::replace(&mut rest, after));
                }
                parts
            };
            let (asked, said) = (parts(&request), parts(&reply));
            let cut = read(asked.iter().map(|p| &p[..]), said.iter().map(|p| &p[..]));
            assert_eq!(cut, whole(&request, &reply), "seed {seed}");
        }
    }
}

#[test]
fn what_the_exchanges_hold_is_what_is_read() {
    let read: Vec<Facts> = exchanges().iter().map(|(a, b)| whole(a, b)).collect();
    assert_eq!(
        read[0].ended,
        [(
            1,
            200,
            5,
            10 + "HTTP/1.1 200 X\r\nContent-Length: 10\r\n\r\n".len() as u64,
            10,
            0,
            false
        )]
    );
    let (_, status, request_body, _, _, events, done) = read[1].ended[0];
    assert_eq!((status, request_body, events, done), (200, 15, 6, true));
    let statuses: Vec<(u32, u32)> = read[2].ended.iter().map(|e| (e.1, e.5)).collect();
    assert_eq!(statuses, [(404, 0), (200, 0), (200, 3)]);
    assert_eq!(read[3].ended[0].4, 13);
}
