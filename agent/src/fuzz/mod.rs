//! Hostile input. Every target has a corpus, `agent/corpus/TARGET/`: real and hostile shapes, one a
//! file. Its property is held against each file, against what seeded mutations make of them, and
//! against noise; a failure is shrunk and printed, to be kept as another file of the corpus.
//! `ENGINETAP_FUZZ_SECONDS=N` goes on with new seeds for N seconds per target.

mod framing;
mod heads;
mod page;
mod streams;
mod targets;
mod values;

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

/// Cases per round of mutations.
const CASES: u32 = 1_500;
/// What parsers react to.
const WORDS: &[&[u8]] = &[
    b"\r\n",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b"\n\n",
    b" ",
    b"\t",
    b":",
    b",",
    b";",
    b"=",
    b"&",
    b"?",
    b"%",
    b"\0",
    b"\xff",
    b"\xc3",
    b"\xef\xbb\xbf",
    b"\xe2\x80\xae",
    b"{",
    b"}",
    b"[",
    b"]",
    b"\"",
    b"\\",
    b"\\\"",
    b"\\u0000",
    b"\\ud800",
    b"null",
    b"0",
    b"1",
    b"18446744073709551615",
    b"18446744073709551616",
    b"-1",
    b"1e9",
    b"data: ",
    b"data:",
    b"event: ",
    b"event: ping\n",
    b"event: error\n",
    b"[DONE]",
    b": x\n\n",
    b"0\r\n\r\n",
    b"5\r\nhello\r\n",
    b"ffffffffffffffff\r\n",
    b"00000000000000001\r\n",
    b"HTTP/1.1 ",
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"GET / HTTP/1.1\r\n",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"\"model\":\"evil\",",
    b"\"usage\":{\"prompt_tokens\":1}",
    b"\"error\":{\"code\":\"timeout\"}",
    b"\"choices\":[{\"delta\":{\"content\":\"x\"}}]",
    b"(deleted)",
    b")",
    b"(",
    b"/",
    b"--",
    b"-m",
    b"..",
];

/// Bytes that show what they are when a test fails.
#[derive(Clone)]
struct Bytes(Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}

/// The files of a corpus, by name.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut files: Vec<(String, Vec<u8>)> = entries
        .map(|entry| {
            let path = entry.expect("an entry of the corpus").path();
            let name = path
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            (name, std::fs::read(&path).expect("a file of the corpus"))
        })
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", dir.display());
    files
}

/// Runs `property` on each file of the target's corpus and on what grows from it.
fn fuzz(target: &str, property: impl Fn(&[u8])) {
    let files = corpus(target);
    for (name, bytes) in &files {
        println!("{target}/{name}");
        property(bytes);
    }
    let grown = grown(files.into_iter().map(|(_, bytes)| bytes).collect());
    check(CASES, &grown, |Bytes(bytes)| property(&bytes));
}

/// Runs `property` on values of `strategy`, from seeds that are the same every time.
fn check<S: Strategy>(cases: u32, strategy: &S, property: impl Fn(S::Value)) {
    let asked = std::env::var("ENGINETAP_FUZZ_SECONDS").ok();
    let seconds = asked.map_or(0, |text| {
        text.parse().expect("ENGINETAP_FUZZ_SECONDS is a number")
    });
    let end = Instant::now() + Duration::from_secs(seconds);
    for round in 0_u8.. {
        let config = Config {
            cases,
            failure_persistence: None,
            ..Config::default()
        };
        let mut seed = [round; 32];
        seed[..8].copy_from_slice(&(u64::from(round) << 8).to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        let run = TestRunner::new_with_rng(config, rng).run(strategy, |value| {
            property(value);
            Ok::<(), TestCaseError>(())
        });
        if let Err(failure) = run {
            panic!("round {round}: {failure}");
        }
        if Instant::now() >= end {
            return;
        }
    }
}

/// One change: what is done, where, how far, and with what.
type Change = (u8, Index, Index, Index, Vec<u8>);

/// Files of a corpus, changed in up to eight places; now and then pure noise.
fn grown(files: Vec<Vec<u8>>) -> impl Strategy<Value = Bytes> {
    let change = (
        0_u8..8,
        any::<Index>(),
        any::<Index>(),
        any::<Index>(),
        noise(24),
    );
    let changed = (
        any::<Index>(),
        any::<Index>(),
        prop::collection::vec(change, 0..8),
    )
        .prop_map(move |(one, other, changes)| {
            let mut bytes = one.get(&files).clone();
            for change in changes {
                let other: &Vec<u8> = other.get(&files);
                apply(&mut bytes, other, change);
            }
            Bytes(bytes)
        });
    prop_oneof![9 => changed, 1 => noise(400).prop_map(Bytes)]
}

/// Words that parsers react to between random bytes.
fn noise(most: usize) -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        3 => prop::sample::select(WORDS).prop_map(<[u8]>::to_vec),
        1 => prop::collection::vec(any::<u8>(), 1..4),
    ];
    prop::collection::vec(piece, 0..most / 4).prop_map(|pieces| pieces.concat())
}

fn apply(bytes: &mut Vec<u8>, other: &[u8], (kind, from, to, word, noise): Change) {
    let at = from.index(bytes.len() + 1);
    let end = at + to.index(bytes.len() - at + 1);
    match kind {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(..at)),
        2 => drop(bytes.drain(at..end)),
        3 => {
            let again = bytes[at..end.min(at + 2_000)].to_vec();
            bytes.splice(at..at, again);
        }
        4 => drop(bytes.splice(at..at, noise)),
        5 => drop(bytes.splice(at.., other[to.index(other.len() + 1)..].iter().copied())),
        6 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << (end % 8);
            }
        }
        _ => drop(bytes.splice(at..at, word.get(WORDS).iter().copied())),
    }
}

/// Where `bytes` are cut, made from the bytes themselves: every cut of short input, some of long.
fn cuts(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let step = bytes.len() / 48 + 1;
    (0..=bytes.len()).step_by(step)
}

/// `bytes` in pieces of one, seven and a thousand.
fn sizes() -> [usize; 3] {
    [1, 7, 1_000]
}
