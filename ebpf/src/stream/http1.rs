//! First lines and the header lines that decide the framing.

use super::line::{byte, folded};
use crate::abi::counters::unparsed;
use crate::abi::flow::{Dir, dir_flag as flag};

/// Methods, as stored in `Dir::code` of a request.
pub mod method {
    /// Any method but the two below.
    pub const OTHER: u32 = 1;
    /// HEAD: the reply has no body.
    pub const HEAD: u32 = 2;
    /// CONNECT: a 2xx reply opens a tunnel.
    pub const CONNECT: u32 = 3;
}

const fn word4(text: &[u8; 4]) -> u32 {
    u32::from_le_bytes(*text)
}

const fn word8(text: &[u8; 8]) -> u64 {
    u64::from_le_bytes(*text)
}

/// Which method a request line begins with, from its first four bytes: three or more capitals. The
/// error is a reason of `counters::unparsed`.
#[inline(always)]
pub fn method_of(first: u32) -> Result<u32, u32> {
    const HEAD: u32 = word4(b"HEAD");
    const CONNECT: u32 = word4(b"CONN");
    const PRI: u32 = word4(b"PRI ");
    if first == HEAD {
        return Ok(method::HEAD);
    }
    if first == CONNECT {
        return Ok(method::CONNECT);
    }
    if first == PRI {
        return Err(unparsed::HTTP2);
    }
    if first & 0xffff == 0x0316 {
        return Err(unparsed::TLS);
    }
    let upper = |shift: u32| ((first >> shift) as u8).wrapping_sub(b'A') < 26;
    if upper(0) && upper(8) && upper(16) && (upper(24) || first >> 24 == b' ' as u32) {
        return Ok(method::OTHER);
    }
    Err(unparsed::NOT_HTTP)
}

/// The method whose first four bytes are those of `found`, if it goes on as that does: HEADERS is no
/// HEAD.
///
/// # Safety
/// `d` is live.
#[inline(always)]
pub unsafe fn whole_method(d: *const Dir, found: u32) -> u32 {
    const REST: u32 = word4(b"ECT ");
    // SAFETY: the line has 64 bytes and is aligned to 4.
    let next = unsafe { (&raw const (*d).line as *const u32).add(1).read() };
    let same = match found {
        method::HEAD => next & 0xff == b' ' as u32,
        method::CONNECT => next == REST,
        _ => true,
    };
    if same { found } else { method::OTHER }
}

/// The first four bytes of the line.
///
/// # Safety
/// `d` is live.
#[inline(always)]
pub unsafe fn first4(d: *const Dir) -> u32 {
    // SAFETY: the line has 64 bytes and is aligned to 4.
    unsafe { (&raw const (*d).line as *const u32).read() }
}

/// The status of a status line, 0 when it is none.
///
/// # Safety
/// `d` is live.
#[inline(always)]
pub unsafe fn status_of(d: *const Dir, len: u32) -> u32 {
    const HTTP1: u64 = word8(b"HTTP/1.\0");
    // SAFETY: indices are constants below the line's length.
    unsafe {
        let first = (&raw const (*d).line as *const u64).read();
        if len < 12 || first & 0x00ff_ffff_ffff_ffff != HTTP1 || byte(d, 8) != b' ' {
            return 0;
        }
        let (a, b, c) = (
            byte(d, 9).wrapping_sub(b'0') as u32,
            byte(d, 10).wrapping_sub(b'0') as u32,
            byte(d, 11).wrapping_sub(b'0') as u32,
        );
        if !(1..=9).contains(&a) || b > 9 || c > 9 {
            return 0;
        }
        a * 100 + b * 10 + c
    }
}

/// Index of the first byte of a value that is no blank, at most 16 further.
#[inline(always)]
unsafe fn value_at(d: *const Dir, from: u32) -> u32 {
    let mut i = from;
    while i < from + 16 {
        // SAFETY: `byte` masks the index.
        let b = unsafe { byte(d, i) };
        if b != b' ' && b != b'\t' {
            break;
        }
        i += 1;
    }
    i
}

/// Eight bytes at any index, letters folded.
#[inline(always)]
unsafe fn folded_at(d: *const Dir, at: u32) -> u64 {
    let mut word = 0u64;
    let mut i = 0;
    while i < 8 {
        // SAFETY: `byte` masks the index.
        word |= (unsafe { byte(d, at + i) } as u64 | 0x20) << (8 * i);
        i += 1;
    }
    word
}

/// Takes a header line of `len` bytes into the direction; false when its framing is not valid.
///
/// # Safety
/// `d` is live and its lock is held.
#[inline(always)]
pub unsafe fn header(d: *mut Dir, len: u32) -> bool {
    const CONTENT: u64 = word8(b"content-");
    const LENGTH: u64 = word8(b"length:\0");
    const TYPE: u64 = word8(b"type:\0\0\0");
    const TRANSFER: u64 = word8(b"transfer");
    const ENCODING: u64 = word8(b"-encodin");
    const CHUNKED: u64 = word8(b"\0chunked") >> 8;
    const TEXT_EVE: u64 = word8(b"text/eve");
    const NT_STREA: u64 = word8(b"nt-strea");
    const APPLICAT: u64 = word8(b"applicat");
    const ION_X_ND: u64 = word8(b"ion/x-nd");
    const ION_NDJS: u64 = word8(b"ion/ndjs");
    const ION_JSONL: u64 = word8(b"ion/json");
    // SAFETY: word indices are constants below 8; byte indices are masked.
    unsafe {
        let first = folded(d, 0);
        if first == CONTENT && len > 13 {
            let second = folded(d, 1);
            if second & 0x00ff_ffff_ffff_ffff == LENGTH {
                return content_length(d, len);
            }
            if second & 0x00ff_ffff_ffff == TYPE {
                let at = value_at(d, 13);
                let (a, b) = (folded_at(d, at), folded_at(d, at + 8));
                if a == TEXT_EVE && b == NT_STREA {
                    (*d).flags |= flag::SSE;
                } else if a == APPLICAT
                    && (b == ION_X_ND
                        || b == ION_NDJS
                        || (b == ION_JSONL && byte(d, at + 16) | 0x20 == b'l'))
                {
                    (*d).flags |= flag::NDJSON;
                }
            }
            return true;
        }
        if first == TRANSFER && len > 24 && folded(d, 1) == ENCODING && byte(d, 17) == b':' {
            let mut end = len;
            let mut i = 0;
            while i < 8 {
                let last = byte(d, end.wrapping_sub(1));
                if end < 24 || (last != b'\r' && last != b' ' && last != b'\t') {
                    break;
                }
                end -= 1;
                i += 1;
            }
            let last7 = folded_at(d, end.wrapping_sub(7)) & 0x00ff_ffff_ffff_ffff;
            if last7 == CHUNKED {
                (*d).flags |= flag::CHUNKED;
            }
        }
        true
    }
}

#[inline(always)]
unsafe fn content_length(d: *mut Dir, len: u32) -> bool {
    // SAFETY: `byte` masks the index.
    unsafe {
        let start = value_at(d, 15);
        let mut value = 0u64;
        let mut i = 0;
        while i < 19 {
            let at = start + i;
            if at >= len {
                break;
            }
            let digit = byte(d, at).wrapping_sub(b'0') as u64;
            if digit > 9 {
                break;
            }
            value = value * 10 + digit;
            i += 1;
        }
        let next = byte(d, start + i);
        let ended = start + i >= len || next == b'\r' || next == b' ' || next == b'\t';
        let repeated = (*d).flags & flag::LENGTH != 0 && (*d).length != value;
        if i == 0 || !ended || repeated {
            return false;
        }
        (*d).flags |= flag::LENGTH;
        (*d).length = value;
        true
    }
}

/// The number of a chunk-size line of `len` bytes; `None` when it has none.
///
/// # Safety
/// `d` is live.
#[inline(always)]
pub unsafe fn chunk_size(d: *const Dir, len: u32) -> Option<u64> {
    let mut value = 0u64;
    let mut i = 0;
    while i < 16 {
        if i >= len {
            break;
        }
        // SAFETY: `byte` masks the index.
        let b = unsafe { byte(d, i) };
        let decimal = b.wrapping_sub(b'0');
        let letter = (b | 0x20).wrapping_sub(b'a');
        let digit = if decimal < 10 {
            decimal
        } else if letter < 6 {
            letter + 10
        } else {
            break;
        };
        value = value << 4 | digit as u64;
        i += 1;
    }
    // SAFETY: as above.
    let next = unsafe { byte(d, i) };
    let ended = i >= len || next == b'\r' || next == b';' || next == b' ' || next == b'\t';
    if i == 0 || !ended { None } else { Some(value) }
}
