//! Chunked bodies: against what was encoded, and in any pieces.

use proptest::prelude::*;

use super::{Bytes, check, cuts, fuzz, noise, sizes};
use crate::protocol::chunked::{Dechunker, dechunk, dechunk_tail};

fn in_pieces(raw: &[u8], size: usize) -> (Vec<u8>, bool, bool) {
    let (mut body, mut dechunker) = (Vec::new(), Dechunker::default());
    for piece in raw.chunks(size) {
        dechunker.feed(piece, |bytes| body.extend_from_slice(bytes));
    }
    (body, dechunker.done(), dechunker.broken())
}

fn property(raw: &[u8]) {
    let whole = in_pieces(raw, raw.len().max(1));
    assert!(whole.0.len() <= raw.len() && !(whole.1 && whole.2));
    assert_eq!((whole.0.clone(), whole.1), dechunk(raw));
    for size in sizes() {
        assert_eq!(in_pieces(raw, size), whole, "in pieces of {size}");
    }
    for cut in cuts(raw) {
        assert!(whole.0.starts_with(&dechunk(&raw[..cut]).0), "cut at {cut}");
        assert!(dechunk_tail(&raw[cut..]).0.len() <= raw.len() - cut);
    }
}

/// A chunk's data and how its size line is written.
type Chunk = (Vec<u8>, u8, usize);

fn encoded(chunks: &[Chunk]) -> Vec<u8> {
    let mut raw = Vec::new();
    for (data, form, zeros) in chunks.iter().filter(|(data, ..)| !data.is_empty()) {
        let zeros = "0".repeat(*zeros);
        let line = match form {
            0 => format!("{zeros}{:x}\r\n", data.len()),
            1 => format!("{zeros}{:X} \t\r\n", data.len()),
            2 => format!("{zeros}{:x};a=\"b\"\r\n", data.len()),
            _ => format!("{zeros}{:x}\n", data.len()),
        };
        raw.extend_from_slice(line.as_bytes());
        raw.extend_from_slice(data);
        raw.extend_from_slice(b"\r\n");
    }
    raw.extend_from_slice(b"0\r\nX: y\r\n\r\n");
    raw
}

#[test]
fn chunked_bodies_of_any_bytes_are_read_the_same_in_any_pieces() {
    fuzz("chunked", property);
}

#[test]
fn what_was_chunked_is_what_is_read() {
    let chunk = (noise(60), 0_u8..4, 0_usize..40);
    check(800, &prop::collection::vec(chunk, 0..8), |chunks| {
        let body: Vec<u8> = chunks.iter().flat_map(|(data, ..)| data.clone()).collect();
        let raw = encoded(&chunks);
        assert_eq!(dechunk(&raw), (body, true), "{:?}", Bytes(raw.clone()));
        property(&raw);
    });
}

#[test]
fn a_tail_ends_as_the_body_ends() {
    let data = prop::collection::vec(prop::sample::select(b"{}\":,ab c\n0".as_slice()), 1..80);
    check(800, &prop::collection::vec(data, 1..6), |pieces| {
        let chunks: Vec<Chunk> = pieces.iter().map(|data| (data.clone(), 0, 0)).collect();
        let (raw, body) = (encoded(&chunks), pieces.concat());
        // Without a CR in the data no line of it can be taken for a size line.
        let last = pieces.last().map_or(0, Vec::len);
        let framed = b"0\r\nX: y\r\n\r\n".len() + 2;
        for cut in cuts(&raw[..raw.len() - last - framed]) {
            let (tail, done) = dechunk_tail(&raw[cut..]);
            assert!(done, "cut at {cut}");
            let own = &body[body.len() - last..];
            assert!(
                tail.ends_with(own),
                "cut at {cut} of {:?}: {:?}",
                Bytes(raw.clone()),
                Bytes(tail)
            );
        }
    });
}
