//! Dumps over netlink, hand-encoded.
//!
//! The packet crates parse every attribute of a message strictly, so that a newer kernel's
//! attribute fails a whole dump; we need five fields and skip the rest. A dump that was
//! interrupted (`NLM_F_DUMP_INTR`), overflowed or cut is taken again from its start.

use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result, anyhow, bail};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, sendto,
    setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_DUMP_INTR: u16 = 0x10;
const HEADER: usize = 16;
/// The kernel fills at most 32 KiB per message of a dump unless it is told of more room.
const FIRST_BUFFER: usize = 64 << 10;
const LARGEST_BUFFER: usize = 4 << 20;
const ATTEMPTS: usize = 8;
/// Longest silence of the kernel within one dump.
const SILENCE_SECONDS: i64 = 5;

/// One message of a dump.
pub(super) struct Message<'a> {
    /// Its type.
    pub kind: u16,
    /// What follows the header.
    pub body: &'a [u8],
}

/// How one attempt at a dump went.
enum Attempt {
    Complete,
    Again,
    Grow(usize),
}

/// Opens a netlink socket of the calling thread's namespace; it joins these multicast groups.
pub(super) fn open(protocol: SockProtocol, flags: SockFlag, groups: u32) -> Result<OwnedFd> {
    let fd = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC | flags,
        protocol,
    )
    .with_context(|| format!("open a {protocol:?} socket"))?;
    bind(fd.as_raw_fd(), &NetlinkAddr::new(0, groups))
        .with_context(|| format!("bind a {protocol:?} socket"))?;
    Ok(fd)
}

/// Dumps into a vector: `take` turns the messages it wants into items.
pub(super) fn dump<T>(
    protocol: SockProtocol,
    kind: u16,
    request: &[u8],
    mut take: impl FnMut(Message<'_>) -> Option<T>,
) -> Result<Vec<T>> {
    let mut size = FIRST_BUFFER;
    for sequence in 1..=ATTEMPTS as u32 {
        let mut items = Vec::new();
        let mut keep = |message: Message<'_>| items.extend(take(message));
        // A socket per attempt: what is left of a broken dump goes with its socket.
        let fd = open(protocol, SockFlag::empty(), 0)?;
        setsockopt(
            &fd,
            sockopt::ReceiveTimeout,
            &TimeVal::seconds(SILENCE_SECONDS),
        )
        .context("set the timeout of a netlink socket")?;
        send(&fd, kind, sequence, request)?;
        match receive(&fd, sequence, size, &mut keep)? {
            Attempt::Complete => return Ok(items),
            Attempt::Again => {}
            Attempt::Grow(needed) if needed <= LARGEST_BUFFER => size = needed,
            Attempt::Grow(needed) => bail!("a {protocol:?} message of {needed} bytes is too large"),
        }
    }
    bail!("the {protocol:?} dump was interrupted {ATTEMPTS} times")
}

fn send(fd: &OwnedFd, kind: u16, sequence: u32, request: &[u8]) -> Result<()> {
    let mut message = Vec::with_capacity(HEADER + request.len());
    message.extend_from_slice(&((HEADER + request.len()) as u32).to_ne_bytes());
    message.extend_from_slice(&kind.to_ne_bytes());
    message.extend_from_slice(&(NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    message.extend_from_slice(&sequence.to_ne_bytes());
    message.extend_from_slice(&0u32.to_ne_bytes());
    message.extend_from_slice(request);
    sendto(
        fd.as_raw_fd(),
        &message,
        &NetlinkAddr::new(0, 0),
        MsgFlags::empty(),
    )
    .context("send a netlink request")?;
    Ok(())
}

/// Reads one dump to its end, or to the point where it is broken.
fn receive(
    fd: &OwnedFd,
    sequence: u32,
    size: usize,
    keep: &mut dyn FnMut(Message<'_>),
) -> Result<Attempt> {
    let mut buffer = vec![0u8; size];
    let mut outcome = Attempt::Complete;
    loop {
        let length = match recv(fd.as_raw_fd(), &mut buffer, MsgFlags::MSG_TRUNC) {
            Ok(length) => length,
            Err(Errno::EINTR) => continue,
            Err(Errno::ENOBUFS) => return Ok(Attempt::Again),
            Err(Errno::EAGAIN) => bail!("the kernel left a netlink dump unfinished"),
            Err(error) => return Err(error).context("receive a netlink dump"),
        };
        if length > size {
            return Ok(Attempt::Grow(length.next_power_of_two()));
        }
        let mut rest = &buffer[..length];
        while let Some((header, message)) = split(&mut rest) {
            if header.sequence != sequence {
                continue;
            }
            if header.flags & NLM_F_DUMP_INTR != 0 {
                outcome = Attempt::Again;
            }
            match message.kind {
                NLMSG_DONE | NLMSG_ERROR => {
                    let code = i32_at(message.body, 0).unwrap_or(0);
                    return match Errno::from_raw(-code) {
                        _ if code == 0 => Ok(outcome),
                        Errno::EINTR | Errno::EAGAIN | Errno::EBUSY => Ok(Attempt::Again),
                        error => Err(anyhow!(error).context("the kernel refused a netlink dump")),
                    };
                }
                _ => keep(message),
            }
        }
    }
}

struct Header {
    flags: u16,
    sequence: u32,
}

/// Takes the next message off; `None` at the end or at a length that cannot be.
fn split<'a>(rest: &mut &'a [u8]) -> Option<(Header, Message<'a>)> {
    let length = u32_at(rest, 0)? as usize;
    let kind = u16_at(rest, 4)?;
    let header = Header {
        flags: u16_at(rest, 6)?,
        sequence: u32_at(rest, 8)?,
    };
    let body = rest.get(HEADER..length)?;
    *rest = rest.get(align(length)..).unwrap_or_default();
    Some((header, Message { kind, body }))
}

/// The attributes of a message body from `offset` on, as (type, payload).
pub(super) fn attributes(body: &[u8], offset: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body.get(offset..).unwrap_or_default();
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(rest, 0)?);
        // The two highest bits are flags (nested, byte order).
        let kind = u16_at(rest, 2)? & 0x3fff;
        let payload = rest.get(4..length)?;
        rest = rest.get(align(length)..).unwrap_or_default();
        Some((kind, payload))
    })
}

const fn align(length: usize) -> usize {
    (length + 3) & !3
}

fn array<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset + N)?.try_into().ok()
}

/// A number in host order.
pub(super) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    array(bytes, offset).map(u16::from_ne_bytes)
}

/// A number in host order.
pub(super) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    array(bytes, offset).map(u32::from_ne_bytes)
}

fn i32_at(bytes: &[u8], offset: usize) -> Option<i32> {
    array(bytes, offset).map(i32::from_ne_bytes)
}

/// An address or port in network order, as it stands.
pub(super) fn bytes_at<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    array(bytes, offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let mut out = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        out.extend(kind.to_ne_bytes());
        out.extend(flags.to_ne_bytes());
        out.extend(sequence.to_ne_bytes());
        out.extend([0; 4]);
        out.extend(body);
        out.resize(align(out.len()), 0);
        out
    }

    #[test]
    fn messages_are_split_at_aligned_lengths() {
        let mut bytes = message(20, 2, 7, &[1, 2, 3]);
        bytes.extend(message(21, 2, 8, &[4]));
        let mut rest = &bytes[..];
        let (header, first) = split(&mut rest).unwrap();
        assert_eq!(
            (first.kind, first.body, header.sequence),
            (20, &[1u8, 2, 3][..], 7)
        );
        let (header, second) = split(&mut rest).unwrap();
        assert_eq!(
            (second.kind, second.body, header.sequence),
            (21, &[4u8][..], 8)
        );
        assert!(split(&mut rest).is_none());
    }

    #[test]
    fn a_length_that_cannot_be_ends_the_walk() {
        for length in [0u32, 3, 15, 17, u32::MAX] {
            let mut bytes = message(20, 0, 1, &[]);
            bytes[..4].copy_from_slice(&length.to_ne_bytes());
            assert!(split(&mut &bytes[..]).is_none(), "{length}");
        }
        for length in [0u16, 3, 9, u16::MAX] {
            let mut bytes = length.to_ne_bytes().to_vec();
            bytes.extend([0; 6]);
            assert_eq!(attributes(&bytes, 0).count(), 0, "{length}");
        }
    }

    #[test]
    fn a_message_cut_by_its_buffer_asks_for_a_larger_one() {
        let fd = open(SockProtocol::NetlinkRoute, SockFlag::empty(), 0).unwrap();
        send(&fd, 18, 1, &[0; 16]).unwrap();
        let outcome = receive(&fd, 1, 64, &mut |_| {});
        assert!(matches!(outcome, Ok(Attempt::Grow(size)) if size > 64));
    }
}
