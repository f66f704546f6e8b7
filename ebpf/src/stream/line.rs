//! Lines of heads, chunk sizes and trailers: collected up to 64 bytes in the direction, so that any
//! split gives the same line; what follows is skipped.

use super::once::line_newline;
use super::{Cursor, Env};
use crate::abi::flow::{Dir, LINE, dir_flag as flag};

/// What a step over a line found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// The packet ended inside the line.
    More,
    /// The first 64 bytes are there and the line goes on: interpret them now.
    Prefix,
    /// The line ended; it has this many bytes before the newline.
    Whole(u32),
    /// A long line, already interpreted, ended.
    Rest,
    /// Bytes could not be read.
    Unreadable,
}

/// Index of the first newline in eight bytes, 8 when there is none.
#[inline(always)]
pub fn newline_in(word: u64) -> u32 {
    let x = word ^ 0x0a0a_0a0a_0a0a_0a0a;
    let hit = x.wrapping_sub(0x0101_0101_0101_0101) & !x & 0x8080_8080_8080_8080;
    if hit == 0 {
        8
    } else {
        hit.trailing_zeros() >> 3
    }
}

/// Takes bytes of the current line.
#[inline(always)]
pub unsafe fn line_step<E: Env>(e: &mut E, d: *mut Dir, c: *mut Cursor) -> Line {
    // SAFETY: the caller holds the direction's lock, so `d` and `c` are live and ours alone; all
    // indices are masked or compared with the array's length before use.
    unsafe {
        let pos = (*c).pos;
        let avail = (*c).stop() - pos;
        let long = (*d).flags & flag::LONG_LINE != 0;
        let have = if long {
            0
        } else {
            (*d).line_len & (LINE as u32 - 1)
        };
        let room = LINE as u32 - have;
        let take = if avail < room { avail } else { room };
        let line = &raw mut (*d).line as *mut u8;
        if !e.load::<{ LINE as u32 }>(pos, line.add(have as usize), take) {
            return Line::Unreadable;
        }
        let stop = have + take;
        let at = line_newline(d);
        if at < stop && at >= have {
            let used = at - have + 1;
            (*c).pos = pos + used;
            (*d).message_bytes += used as u64;
            (*d).line_len = 0;
            if long {
                (*d).flags &= !flag::LONG_LINE;
                return Line::Rest;
            }
            return Line::Whole(at);
        }
        (*c).pos = pos + take;
        (*d).message_bytes += take as u64;
        if long {
            return Line::More;
        }
        (*d).line_len = stop;
        if stop == LINE as u32 {
            (*d).flags |= flag::LONG_LINE;
            return Line::Prefix;
        }
        Line::More
    }
}

/// The byte at `i` of the current line.
///
/// # Safety
/// `d` is live.
#[inline(always)]
pub unsafe fn byte(d: *const Dir, i: u32) -> u8 {
    // SAFETY: the index is masked to the array's length.
    unsafe { *(&raw const (*d).line as *const u8).add((i & (LINE as u32 - 1)) as usize) }
}

/// Eight aligned bytes of the current line with letters folded to lower case.
///
/// # Safety
/// `d` is live, `i` below 8.
#[inline(always)]
pub unsafe fn folded(d: *const Dir, i: usize) -> u64 {
    // SAFETY: the line has eight words.
    unsafe { (&raw const (*d).line as *const u64).add(i).read() | 0x2020_2020_2020_2020 }
}
