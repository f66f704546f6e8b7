//! Chunked transfer coding of captures: pushed piece by piece, from the start of a body, or from
//! an unknown place near its end. Bare LF after a size is accepted; chunk extensions and trailers
//! are dropped. A body that breaks the coding yields what came before the break.

/// Most hexadecimal digits of a chunk size, zeros in front of it not counted.
const SIZE_DIGITS: u32 = 15;

/// How much of a tail is read, in bytes; captures are far below it, and the search is quadratic.
const TAIL_BYTES: usize = 8 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Size,
    Extension,
    Data,
    AfterData,
    Trailer,
    Done,
    Broken,
}

/// Takes the chunked coding off a body that arrives in pieces.
#[derive(Clone, Debug)]
pub struct Dechunker {
    state: State,
    left: u64,
    digits: u32,
    sized: bool,
    line_empty: bool,
}

impl Default for Dechunker {
    fn default() -> Dechunker {
        Dechunker {
            state: State::Size,
            left: 0,
            digits: 0,
            sized: false,
            line_empty: true,
        }
    }
}

impl Dechunker {
    /// Feeds raw bytes; `sink` gets the body bytes in them, in order.
    pub fn feed(&mut self, mut raw: &[u8], mut sink: impl FnMut(&[u8])) {
        while let Some(&byte) = raw.first() {
            if self.state == State::Data {
                let n = usize::try_from(self.left)
                    .unwrap_or(usize::MAX)
                    .min(raw.len());
                sink(&raw[..n]);
                raw = &raw[n..];
                self.left -= n as u64;
                if self.left == 0 {
                    self.state = State::AfterData;
                }
                continue;
            }
            self.step(byte);
            raw = &raw[1..];
            if matches!(self.state, State::Done | State::Broken) {
                return;
            }
        }
    }

    /// Whether the zero chunk and its blank line have been read.
    pub fn done(&self) -> bool {
        self.state == State::Done
    }

    /// Whether the bytes were not chunked coding.
    pub fn broken(&self) -> bool {
        self.state == State::Broken
    }

    fn step(&mut self, byte: u8) {
        match (self.state, byte) {
            (State::Size, b'\n') => self.end_of_size(),
            (State::Size, b'\r' | b' ' | b'\t') => {}
            (State::Size, b';') => self.state = State::Extension,
            (State::Size, _) => match (byte as char).to_digit(16) {
                Some(digit) if self.digits < SIZE_DIGITS => {
                    self.left = self.left << 4 | u64::from(digit);
                    self.digits += u32::from(self.left != 0);
                    self.sized = true;
                }
                _ => self.state = State::Broken,
            },
            (State::Extension, b'\n') => self.end_of_size(),
            (State::AfterData, b'\n') => {
                self.state = State::Size;
                self.digits = 0;
                self.sized = false;
            }
            (State::AfterData, b'\r') => {}
            (State::AfterData, _) => self.state = State::Broken,
            (State::Trailer, b'\n') if self.line_empty => self.state = State::Done,
            (State::Trailer, b'\n') => self.line_empty = true,
            (State::Trailer, b'\r') => {}
            (State::Trailer, _) => self.line_empty = false,
            _ => {}
        }
    }

    fn end_of_size(&mut self) {
        self.line_empty = true;
        self.state = match (self.sized, self.left) {
            (false, _) => State::Broken,
            (_, 0) => State::Trailer,
            _ => State::Data,
        };
    }
}

/// The body bytes of a capture that starts at the body's start, and whether its end is in it.
pub fn dechunk(raw: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::with_capacity(raw.len());
    let mut dechunker = Dechunker::default();
    dechunker.feed(raw, |bytes| body.extend_from_slice(bytes));
    (body, dechunker.done())
}

/// The body bytes of a capture that starts anywhere and runs to the last captured byte, and
/// whether the body's end is in it.
///
/// A size line is believed only if it ends in CRLF and every size line after it stands where the one
/// before it says, preferably down to the zero chunk. Without one all bytes are taken for the inside of a chunk.
pub fn dechunk_tail(raw: &[u8]) -> (Vec<u8>, bool) {
    let raw = &raw[raw.len().saturating_sub(TAIL_BYTES)..];
    let mut open = None;
    for (at, _) in raw
        .windows(2)
        .enumerate()
        .filter(|(_, pair)| *pair == b"\r\n")
    {
        match follow(raw, at) {
            Some(true) => return (collect(raw, at), true),
            Some(false) => open = open.or(Some(at)),
            None => {}
        }
    }
    (
        open.map_or_else(|| raw.to_vec(), |at| collect(raw, at)),
        false,
    )
}

/// Follows size lines from the line break at `at`: `None` if they do not fit, else whether they
/// lead to the zero chunk. The break and the size line must be whole.
fn follow(raw: &[u8], mut at: usize) -> Option<bool> {
    let mut proved = false;
    loop {
        let rest = raw.get(at..).unwrap_or_default();
        if rest.len() < 2 || !rest.starts_with(b"\r\n") {
            return (proved && (rest.is_empty() || rest == b"\r")).then_some(false);
        }
        let line = &rest[2..];
        let Some(end) = line.iter().position(|&b| b == b'\n') else {
            return (proved && (line.is_empty() || size_of(line).is_some())).then_some(false);
        };
        // Data may begin with a hexadecimal digit and a line feed; it hardly has the CR too.
        let size = size_of(line[..end].strip_suffix(b"\r")?)?;
        proved = true;
        if size == 0 {
            return trailer(&line[end + 1..]);
        }
        at = usize::try_from(size)
            .ok()
            .and_then(|size| (at + 2 + end + 1).checked_add(size))?;
    }
}

/// Whether `rest`, which follows a zero chunk, ends the message; `None` if it cannot follow one.
fn trailer(rest: &[u8]) -> Option<bool> {
    const TRAILER_BYTES: usize = 512;
    let ended = rest == b"\r\n" || rest.ends_with(b"\r\n\r\n");
    let fields = rest.split(|&b| b == b'\n').map(|line| line.trim_ascii());
    let plausible = rest.len() <= TRAILER_BYTES
        && fields
            .filter(|line| !line.is_empty())
            .all(|line| !ended || line.contains(&b':'));
    plausible.then_some(ended)
}

/// The number on a size line, without its line end.
fn size_of(line: &[u8]) -> Option<u64> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let digits = line
        .split(|&b| b == b';')
        .next()
        .unwrap_or_default()
        .trim_ascii();
    let zeros = digits.iter().take_while(|&&b| b == b'0').count();
    if digits.is_empty() || digits.len() - zeros > SIZE_DIGITS as usize {
        return None;
    }
    digits.iter().try_fold(0, |size, &b| {
        (b as char)
            .to_digit(16)
            .map(|digit| size << 4 | u64::from(digit))
    })
}

/// The data before the line break at `at`, and that of the chunks after it.
fn collect(raw: &[u8], at: usize) -> Vec<u8> {
    let mut body = Vec::with_capacity(raw.len());
    body.extend_from_slice(&raw[..at]);
    let mut dechunker = Dechunker::default();
    dechunker.feed(&raw[at + 2..], |bytes| body.extend_from_slice(bytes));
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::noise::Noise;

    fn chunk(pieces: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        for piece in pieces {
            out.extend_from_slice(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes());
        }
        out.extend_from_slice(b"0\r\n\r\n");
        out
    }

    #[test]
    fn any_split_gives_the_same_body() {
        let raw = chunk(&["data: {\"a\":1}\n\n", "x", "data: [DONE]\n\n"]);
        let (whole, done) = dechunk(&raw);
        assert!(done);
        assert_eq!(whole, b"data: {\"a\":1}\n\nxdata: [DONE]\n\n");
        for split in 0..raw.len() {
            let mut body = Vec::new();
            let mut dechunker = Dechunker::default();
            dechunker.feed(&raw[..split], |b| body.extend_from_slice(b));
            assert!(!dechunker.done());
            dechunker.feed(&raw[split..], |b| body.extend_from_slice(b));
            assert_eq!(body, whole, "split at {split}");
            assert!(dechunker.done());
        }
    }

    #[test]
    fn extensions_trailers_and_bare_line_feeds_are_tolerated() {
        let (body, done) = dechunk(b"3;x=y\nabc\n2 \r\nde\r\n0\r\nX-T: 1\r\n\r\n");
        assert_eq!((body.as_slice(), done), (&b"abcde"[..], true));
        let (body, done) = dechunk(b"00000000000000000003\r\nabc\r\n00000000000000000000\r\n\r\n");
        assert_eq!((body.as_slice(), done), (&b"abc"[..], true));
        let (body, done) = dechunk(b"zz\r\nabc");
        assert_eq!((body.len(), done), (0, false));
    }

    #[test]
    fn a_tail_cut_anywhere_ends_with_the_true_body() {
        let pieces = [
            "data: {\"t\":\"one\"}\n\n",
            "data: {\"t\":",
            "\"two\"}\n\n",
            "data: [DONE]\n\n",
        ];
        let raw = chunk(&pieces);
        let body = pieces.concat();
        for cut in 0..raw.len() {
            let (tail, done) = dechunk_tail(&raw[cut..]);
            let tail = String::from_utf8(tail).expect("text");
            // A cut inside a size line leaves its rest in front, which is a line of its own.
            let clean = tail
                .rsplit_once("\r\n")
                .map_or(tail.as_str(), |(_, last)| last);
            let clean = clean.strip_prefix('\n').unwrap_or(clean);
            if raw.len() - cut > 7 {
                assert!(done, "cut at {cut}: {tail:?}");
            }
            assert!(
                body.ends_with(clean) || clean.trim_end_matches(['0', '\r', '\n']).is_empty(),
                "cut at {cut}: {tail:?}"
            );
        }
    }

    #[test]
    fn a_false_size_line_inside_the_data_is_not_believed() {
        let raw = chunk(&["data: x\r\n\r\nadd\r\n\r\n", "data: y\r\n\r\n"]);
        let (body, done) = dechunk_tail(&raw[4..]);
        assert!(done);
        assert_eq!(
            body,
            b"data: x\r\n\r\nadd\r\n\r\ndata: y\r\n\r\n".as_slice()
        );
    }

    #[test]
    fn a_tail_without_an_end_is_still_cleaned() {
        let raw = chunk(&["data: {\"a\":1}\n\n", "data: {\"a\":2}\n\n"]);
        let (body, done) = dechunk_tail(&raw[6..raw.len() - 12]);
        assert!(!done);
        assert!(!body.contains(&b'\r'), "{body:?}");
    }

    #[test]
    fn noise_never_panics() {
        let mut noise = Noise::new(11);
        for _ in 0..20_000 {
            let bytes = noise.bytes(100);
            let _ = dechunk(&bytes);
            let _ = dechunk_tail(&bytes);
        }
    }
}
