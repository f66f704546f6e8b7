//! Segments that no client sent, in the name of one that is connected.

use super::faults::Draw;
use super::frame::{ETHERNET, Segment, complete, flag, put};

/// A forged segment from the client to the server. None of them is acceptable to the server's TCP,
/// which drops them, with an answer or without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoof {
    /// RST far outside the window.
    ResetOutside,
    /// RST inside the window, not at its start: the server asks back (RFC 5961).
    ResetInside,
    /// RST at the right place with a wrong checksum.
    ResetUnsummed,
    /// A request far ahead of the window.
    DataAhead,
    /// A request far behind.
    DataBehind,
    /// FIN ahead of the window.
    FinAhead,
    /// FIN at the right place with a wrong checksum.
    FinUnsummed,
    /// SYN with another initial sequence number.
    Syn,
    /// SYN that carries a request right where the next byte belongs.
    SynWithData,
    /// A request at the right place with a wrong checksum.
    DataUnsummed,
    /// The same, a little ahead inside the window.
    AheadUnsummed,
    /// A request at the right place, without the flag ACK.
    DataWithoutAck,
    /// A request at the right place that acknowledges what was never sent.
    DataAckAhead,
    /// A request at the right place with an old timestamp.
    DataOld,
    /// A segment at the right place whose header length is less than a header.
    HeaderShort,
    /// A packet longer by its own account than its frame.
    PacketCut,
    /// An IPv4 packet with a wrong header checksum, a request at the right place inside.
    PacketUnsummed,
    /// Noise behind the ports.
    Noise,
}

/// What a forger knows of a connection.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// The client's latest frame without its payload, and where things lie in it.
    pub header: (Vec<u8>, Segment),
    /// Next byte of the client.
    pub client_next: u32,
    /// Next byte of the server.
    pub server_next: u32,
}

const REQUEST: &[u8] =
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: forged\r\nContent-Length: 2\r\n\r\n{}";
/// Further than any window opens.
const FAR: u32 = 0x2000_0000;

impl Spoof {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::ResetOutside,
        Self::ResetInside,
        Self::ResetUnsummed,
        Self::DataAhead,
        Self::DataBehind,
        Self::FinAhead,
        Self::FinUnsummed,
        Self::Syn,
        Self::SynWithData,
        Self::DataUnsummed,
        Self::AheadUnsummed,
        Self::DataWithoutAck,
        Self::DataAckAhead,
        Self::DataOld,
        Self::HeaderShort,
        Self::PacketCut,
        Self::PacketUnsummed,
        Self::Noise,
    ];

    /// The frame for one connection; `None` when it cannot be made for it.
    pub(super) fn forge(self, k: &Known, draw: &mut Draw) -> Option<Vec<u8>> {
        let (ack, next) = (flag::ACK, k.client_next);
        let data = ack | flag::PSH;
        let (seq, flags, bytes): (u32, u8, &[u8]) = match self {
            Self::ResetOutside => (next.wrapping_add(FAR), flag::RST | ack, b""),
            Self::ResetInside => (next.wrapping_add(100), flag::RST | ack, b""),
            Self::ResetUnsummed => (next, flag::RST | ack, b""),
            Self::DataAhead => (next.wrapping_add(FAR), data, REQUEST),
            Self::DataBehind => (next.wrapping_sub(FAR), data, REQUEST),
            Self::FinAhead => (next.wrapping_add(FAR), flag::FIN | ack, b""),
            Self::FinUnsummed => (next, flag::FIN | ack, b""),
            Self::Syn => (next.wrapping_add(FAR), flag::SYN, b""),
            Self::SynWithData => (next.wrapping_sub(1), flag::SYN, REQUEST),
            Self::AheadUnsummed => (next.wrapping_add(16), data, REQUEST),
            Self::DataWithoutAck => (next, flag::PSH, REQUEST),
            _ => (next, data, REQUEST),
        };
        let (mut frame, s) = k.header.clone();
        frame.extend_from_slice(bytes);
        put(&mut frame, s.tcp + 4, seq.to_be_bytes());
        let acked = match self {
            Self::DataAckAhead => k.server_next.wrapping_add(FAR),
            _ => k.server_next,
        };
        put(&mut frame, s.tcp + 8, acked.to_be_bytes());
        frame[s.tcp + 13] = flags;
        if self == Self::DataOld {
            age(&mut frame[s.tcp + 20..s.payload])?;
        }
        if self == Self::HeaderShort {
            frame[s.tcp + 12] &= 0x0f;
        }
        if self == Self::Noise {
            for byte in &mut frame[s.tcp + 4..] {
                *byte = draw.next() as u8;
            }
        }
        let whole = Segment {
            end: frame.len(),
            ..s
        };
        complete(&mut frame, &whole);
        match self {
            Self::ResetUnsummed | Self::FinUnsummed | Self::DataUnsummed | Self::AheadUnsummed => {
                frame[s.tcp + 16] ^= 0x55;
            }
            Self::PacketUnsummed if !s.v6 => frame[ETHERNET + 10] ^= 0x55,
            Self::PacketUnsummed => return None,
            Self::PacketCut => frame.truncate(frame.len() - 10),
            _ => {}
        }
        Some(frame)
    }
}

/// Sets back the timestamp among the options.
fn age(options: &mut [u8]) -> Option<()> {
    let mut at = 0;
    loop {
        match *options.get(at)? {
            0 => return None,
            1 => at += 1,
            8 => {
                let stamp = options.get_mut(at + 2..at + 6)?;
                let now = u32::from_be_bytes([stamp[0], stamp[1], stamp[2], stamp[3]]);
                stamp.copy_from_slice(&now.wrapping_sub(1_000_000).to_be_bytes());
                return Some(());
            }
            _ => at += usize::from(*options.get(at + 1)?).max(2),
        }
    }
}
