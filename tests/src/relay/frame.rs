//! Ethernet frames with TCP inside: reading, cutting to size, checksums.

/// Bytes of an Ethernet header.
pub(super) const ETHERNET: usize = 14;
const TCP: u8 = 6;

/// Flags of a TCP segment.
pub(super) mod flag {
    pub const FIN: u8 = 1;
    pub const SYN: u8 = 2;
    pub const RST: u8 = 4;
    pub const PSH: u8 = 8;
    pub const ACK: u8 = 16;
}

/// Where things lie in a frame that holds a TCP segment, and what its header says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub v6: bool,
    /// Offset of the TCP header.
    pub tcp: usize,
    /// Offset of the payload.
    pub payload: usize,
    /// End of the payload: a short frame is padded behind it.
    pub end: usize,
    pub source: u16,
    pub target: u16,
    pub seq: u32,
    pub flags: u8,
}

impl Segment {
    /// Reads a frame; `None` when it holds no whole TCP header.
    pub fn read(frame: &[u8]) -> Option<Self> {
        let (v6, tcp, end) = match frame.get(12..14)? {
            [0x08, 0x00] => {
                let ip = frame.get(ETHERNET..ETHERNET + 20)?;
                let fragment = be16(ip, 6) & 0x1fff;
                if ip[9] != TCP || fragment != 0 {
                    return None;
                }
                let header = usize::from(ip[0] & 15) * 4;
                (false, ETHERNET + header, usize::from(be16(ip, 2)))
            }
            [0x86, 0xdd] => {
                let ip = frame.get(ETHERNET..ETHERNET + 40)?;
                if ip[6] != TCP {
                    return None;
                }
                (true, ETHERNET + 40, 40 + usize::from(be16(ip, 4)))
            }
            _ => return None,
        };
        // Longer than the field can say.
        let end = if end == 0 || (v6 && end == 40) {
            frame.len()
        } else {
            ETHERNET + end
        };
        let header = frame.get(tcp..tcp + 20)?;
        let payload = tcp + usize::from(header[12] >> 4) * 4;
        if end > frame.len() || payload > end {
            return None;
        }
        Some(Self {
            v6,
            tcp,
            payload,
            end,
            source: be16(header, 0),
            target: be16(header, 2),
            seq: be32(header, 4),
            flags: header[13],
        })
    }

    /// Bytes of the payload.
    pub fn len(&self) -> usize {
        self.end - self.payload
    }

    /// Sequence number behind it.
    pub fn next(&self) -> u32 {
        let marks = (self.flags & flag::SYN != 0) as u32 + (self.flags & flag::FIN != 0) as u32;
        self.seq.wrapping_add(self.len() as u32).wrapping_add(marks)
    }

    /// Whether it carries `bits`.
    pub fn has(&self, bits: u8) -> bool {
        self.flags & bits != 0
    }
}

fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// Writes a big-endian number.
pub(super) fn put<const N: usize>(frame: &mut [u8], at: usize, bytes: [u8; N]) {
    frame[at..at + N].copy_from_slice(&bytes);
}

fn sum(bytes: &[u8]) -> u64 {
    let words = bytes.chunks_exact(2);
    let odd = words.remainder().first().map_or(0, |b| u64::from(*b) << 8);
    words.map(|w| u64::from(be16(w, 0))).sum::<u64>() + odd
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Sets the lengths and the checksums of a frame, as a network card does for a sender that leaves
/// them to it. `s` tells where things lie.
pub(super) fn complete(frame: &mut [u8], s: &Segment) {
    let length = s.end - s.tcp;
    let addresses = if s.v6 {
        put(frame, ETHERNET + 4, (length as u16).to_be_bytes());
        ETHERNET + 8..ETHERNET + 40
    } else {
        let total = (s.end - ETHERNET) as u16;
        put(frame, ETHERNET + 2, total.to_be_bytes());
        put(frame, ETHERNET + 10, [0, 0]);
        let check = fold(sum(&frame[ETHERNET..s.tcp]));
        put(frame, ETHERNET + 10, check.to_be_bytes());
        ETHERNET + 12..ETHERNET + 20
    };
    put(frame, s.tcp + 16, [0, 0]);
    let pseudo = sum(&frame[addresses]) + u64::from(TCP) + length as u64;
    let check = fold(pseudo + sum(&frame[s.tcp..s.end]));
    put(frame, s.tcp + 16, check.to_be_bytes());
}

/// Cuts a frame whose packet is longer than `mtu` into several, as a network card does for a
/// sender with segmentation offload, and completes them.
pub(super) fn cut(frame: &[u8], s: &Segment, mtu: usize) -> Vec<Vec<u8>> {
    let most = mtu - (s.payload - ETHERNET);
    let payload = &frame[s.payload..s.end];
    if payload.len() <= most {
        let mut whole = frame[..s.end].to_vec();
        complete(&mut whole, s);
        return vec![whole];
    }
    let count = payload.len().div_ceil(most);
    let id = be16(frame, ETHERNET + 4);
    let piece = |(n, bytes): (usize, &[u8])| {
        let mut part = frame[..s.payload].to_vec();
        part.extend_from_slice(bytes);
        let seq = s.seq.wrapping_add((n * most) as u32);
        put(&mut part, s.tcp + 4, seq.to_be_bytes());
        if n + 1 < count {
            part[s.tcp + 13] &= !(flag::FIN | flag::PSH);
        }
        if !s.v6 {
            put(
                &mut part,
                ETHERNET + 4,
                id.wrapping_add(n as u16).to_be_bytes(),
            );
        }
        let here = Segment {
            end: part.len(),
            ..*s
        };
        complete(&mut part, &here);
        part
    };
    payload.chunks(most).enumerate().map(piece).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(payload: usize) -> Vec<u8> {
        let mut f = vec![2; 12];
        f.extend_from_slice(&[8, 0, 0x45, 0]);
        f.extend_from_slice(&((40 + payload) as u16).to_be_bytes());
        f.extend_from_slice(&[0, 7, 0x40, 0, 64, TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        f.extend_from_slice(&[0x1f, 0x90, 0x9c, 0x40, 0, 0, 0, 100, 0, 0, 0, 5]);
        f.extend_from_slice(&[0x50, flag::ACK | flag::PSH | flag::FIN, 1, 0, 0, 0, 0, 0]);
        f.extend((0..payload).map(|n| n as u8));
        f
    }

    fn verifies(f: &[u8]) -> bool {
        let s = Segment::read(f).unwrap();
        let pseudo = sum(&f[ETHERNET + 12..ETHERNET + 20]) + u64::from(TCP);
        let tcp = pseudo + (s.end - s.tcp) as u64 + sum(&f[s.tcp..s.end]);
        fold(sum(&f[ETHERNET..s.tcp])) == 0 && fold(tcp) == 0
    }

    #[test]
    fn a_long_segment_is_cut_into_whole_ones_with_right_checksums() {
        let long = frame(3_001);
        let s = Segment::read(&long).unwrap();
        assert_eq!((s.len(), s.next()), (3_001, 100 + 3_001 + 1));
        let parts = cut(&long, &s, 1_500);
        assert_eq!(parts.len(), 3);
        let mut bytes = Vec::new();
        for (n, part) in parts.iter().enumerate() {
            let p = Segment::read(part).unwrap();
            assert!(verifies(part), "part {n}");
            assert_eq!(p.seq as usize, 100 + bytes.len());
            assert_eq!(p.has(flag::FIN), n == 2);
            bytes.extend_from_slice(&part[p.payload..p.end]);
        }
        assert_eq!(bytes, long[s.payload..]);
        assert_eq!(
            cut(&frame(10), &Segment::read(&frame(10)).unwrap(), 1_500).len(),
            1
        );
    }
}
