//! Decodes the records of the ring. Lengths are checked before any cast; what does not fit is
//! counted and left out.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use anyhow::{Context, Result};
use aya::Ebpf;
use aya::maps::{MapData, RingBuf};
use enginetap_ebpf::abi::record::{End, FlowClosed, Life, Listen, Piece, kind};

/// A record, borrowed from the ring.
pub enum Record<'a> {
    /// Bytes of a message.
    Piece(Piece, &'a [u8]),
    /// A request ended; older and newer part of the tail.
    End(Box<End>, &'a [u8], &'a [u8]),
    /// A stream goes on.
    Progress(Box<End>),
    /// A flow's socket is gone.
    Closed(FlowClosed),
    /// A socket listens, or no longer.
    Listen(Listen),
    /// A process did something.
    Life(Life),
}

/// The reading end of the ring.
pub struct Ring {
    map: RingBuf<MapData>,
    /// Records that could not be decoded.
    pub rejected: u64,
}

fn cast<T: aya::Pod>(bytes: &[u8]) -> Option<T> {
    if bytes.len() < size_of::<T>() {
        return None;
    }
    // SAFETY: `T` is plain data, valid for any bit pattern, and the slice is long enough; the read
    // makes no demand on alignment.
    Some(unsafe { std::ptr::read_unaligned(bytes.as_ptr().cast()) })
}

/// Borrows the ring's descriptor for a thread that polls it. The ring lives as long as the agent,
/// which joins that thread before it drops the ring.
pub fn borrow(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: see above: the descriptor outlives every use of the borrow.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

impl Ring {
    /// Takes the ring out of the object.
    pub fn take(ebpf: &mut Ebpf) -> Result<Ring> {
        let map = ebpf
            .take_map("RING")
            .context("the object has no map RING")?;
        Ok(Ring {
            map: RingBuf::try_from(map)?,
            rejected: 0,
        })
    }

    /// Descriptor that becomes readable when records wait.
    pub fn fd(&self) -> RawFd {
        self.map.as_raw_fd()
    }

    /// Hands the next record to `take`; false when none waits.
    pub fn next(&mut self, take: impl FnOnce(Record<'_>)) -> bool {
        let Some(item) = self.map.next() else {
            return false;
        };
        match decode(&item) {
            Some(record) => take(record),
            None => self.rejected += 1,
        }
        true
    }
}

fn decode(bytes: &[u8]) -> Option<Record<'_>> {
    match cast::<u32>(bytes)? {
        kind::PIECE => {
            let head: Piece = cast(bytes)?;
            let data = bytes.get(size_of::<Piece>()..)?.get(..head.len as usize)?;
            Some(Record::Piece(head, data))
        }
        kind::END | kind::PROGRESS => {
            let end: End = cast(bytes)?;
            if end.kind == kind::PROGRESS {
                return Some(Record::Progress(Box::new(end)));
            }
            if end.len == 0 {
                return Some(Record::End(Box::new(end), &[], &[]));
            }
            let tail = bytes.get(size_of::<End>()..)?;
            let bank = enginetap_ebpf::abi::flow::TAIL_BANK;
            let first = end.tail_first as usize;
            let older = tail.get(..first)?;
            let newer = tail
                .get(bank..)?
                .get(..(end.len as usize).checked_sub(first)?)?;
            Some(Record::End(Box::new(end), older, newer))
        }
        kind::CLOSED => cast(bytes).map(Record::Closed),
        kind::LISTEN => cast(bytes).map(Record::Listen),
        kind::LIFE => cast(bytes).map(Record::Life),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_is_too_short_or_unknown_is_rejected() {
        assert!(decode(&[]).is_none());
        assert!(decode(&[1, 0, 0, 0]).is_none());
        assert!(decode(&[99; 400]).is_none());
        let mut piece = vec![0u8; size_of::<Piece>() + 4];
        piece[0] = kind::PIECE as u8;
        piece[4] = 5;
        assert!(decode(&piece).is_none(), "says five bytes and has four");
        piece[4] = 4;
        assert!(matches!(decode(&piece), Some(Record::Piece(_, data)) if data.len() == 4));
    }
}
