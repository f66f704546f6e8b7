//! IP and TCP headers of a packet whose offset 0 is the network header.

use core::ffi::c_void;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::generated::bpf_skb_load_bytes;

use super::kernel::mapped;

/// Kind of a packet that was sent to this host.
pub const PACKET_HOST: u32 = 0;
const ETH_P_IP: u32 = 0x0800;
const ETH_P_IPV6: u32 = 0x86dd;
const TCP: u8 = 6;

/// Flags of a TCP segment.
pub mod tcp {
    /// Last byte of the sender.
    pub const FIN: u8 = 1;
    /// First byte of the sender.
    pub const SYN: u8 = 2;
    /// The connection is broken off.
    pub const RST: u8 = 4;
    /// The acknowledgement number is valid.
    pub const ACK: u8 = 16;
}

/// A TCP segment.
pub struct Segment {
    /// Source address.
    pub src: [u32; 4],
    /// Destination address.
    pub dst: [u32; 4],
    /// Source port, host order.
    pub sport: u16,
    /// Destination port, host order.
    pub dport: u16,
    /// Sequence number of the first byte.
    pub seq: u32,
    /// Next byte the sender expects.
    pub ack: u32,
    /// See [`tcp`].
    pub flags: u8,
    /// Offset of the payload.
    pub payload: u32,
    /// End of the payload.
    pub end: u32,
}

/// A length that was checked to be 1 to `MAX`, a power of two, in a form that every verifier sees
/// the bounds of: read anew, so that the compiler cannot drop the mask, and without a branch, which
/// older ones do not carry over from 32 to 64 bits.
#[inline(always)]
pub fn bounded<const MAX: u32>(len: u32) -> u32 {
    // SAFETY: a local.
    let len = unsafe { core::ptr::read_volatile(&raw const len) };
    (len.wrapping_sub(1) & (MAX - 1)) + 1
}

/// Copies `N` bytes at `off`.
#[inline(always)]
pub fn load<const N: usize>(skb: *mut __sk_buff, off: u32) -> Option<[u8; N]> {
    let mut buf = [0u8; N];
    // SAFETY: the destination is a local of that size.
    let r = unsafe {
        bpf_skb_load_bytes(
            skb as *const c_void,
            off,
            &raw mut buf as *mut c_void,
            N as u32,
        )
    };
    if r == 0 { Some(buf) } else { None }
}

#[inline(always)]
fn be16(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

#[inline(always)]
fn be32(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

#[inline(always)]
fn raw32(b: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// The ports of a segment and where its TCP header and its end lie; `None` when it is no TCP
/// segment that can be read.
pub struct Ports {
    /// Source port, host order.
    pub sport: u16,
    /// Destination port, host order.
    pub dport: u16,
    /// Offset of the TCP header.
    pub tcp: u32,
    /// End of the packet by its own length.
    pub end: u32,
    /// Whether it is IPv6.
    pub v6: bool,
}

/// Finds the ports, the cheapest test there is.
#[inline(always)]
pub fn ports(skb: *mut __sk_buff) -> Option<Ports> {
    // SAFETY: fields of the program's context.
    let (protocol, len) = unsafe { (u16::from_be((*skb).protocol as u16) as u32, (*skb).len) };
    let (at, end, v6) = if protocol == ETH_P_IP {
        let ip = load::<12>(skb, 0)?;
        if ip[9] != TCP || ip[0] & 15 < 5 || be16(&ip, 6) & 0x1fff != 0 {
            return None;
        }
        let total = be16(&ip, 2) as u32;
        (
            ((ip[0] & 15) as u32) * 4,
            if total == 0 { len } else { total },
            false,
        )
    } else if protocol == ETH_P_IPV6 {
        let ip = load::<8>(skb, 0)?;
        let total = be16(&ip, 4) as u32;
        let at = if ip[6] == TCP {
            40
        } else {
            extensions(skb, ip[6])?
        };
        (at, if total == 0 { len } else { total + 40 }, true)
    } else {
        return None;
    };
    let p = load::<4>(skb, at)?;
    Some(Ports {
        sport: be16(&p, 0),
        dport: be16(&p, 2),
        tcp: at,
        end,
        v6,
    })
}

/// Skips IPv6 extension headers; `None` for other protocols and later fragments.
#[inline(always)]
fn extensions(skb: *mut __sk_buff, first: u8) -> Option<u32> {
    let mut next = first;
    let mut at = 40u32;
    let mut i = 0;
    while i < 4 {
        if next == TCP {
            return Some(at);
        }
        if next != 0 && next != 43 && next != 60 && next != 44 {
            return None;
        }
        let h = load::<4>(skb, at)?;
        if next == 44 && be16(&h, 2) & 0xfff8 != 0 {
            return None;
        }
        at += if next == 44 { 8 } else { (h[1] as u32 + 1) * 8 };
        next = h[0];
        i += 1;
    }
    if next == TCP { Some(at) } else { None }
}

/// Reads the rest of the segment.
#[inline(always)]
pub fn segment(skb: *mut __sk_buff, p: &Ports) -> Option<Segment> {
    let (src, dst) = if p.v6 {
        let a = load::<32>(skb, 8)?;
        (
            [raw32(&a, 0), raw32(&a, 4), raw32(&a, 8), raw32(&a, 12)],
            [raw32(&a, 16), raw32(&a, 20), raw32(&a, 24), raw32(&a, 28)],
        )
    } else {
        let a = load::<8>(skb, 12)?;
        (mapped(raw32(&a, 0)), mapped(raw32(&a, 4)))
    };
    let t = load::<10>(skb, p.tcp + 4)?;
    let header = ((t[8] >> 4) as u32) * 4;
    let payload = p.tcp + header;
    if header < 20 || p.end < payload {
        return None;
    }
    Some(Segment {
        src,
        dst,
        sport: p.sport,
        dport: p.dport,
        seq: be32(&t, 0),
        ack: be32(&t, 4),
        flags: t[9],
        payload,
        end: p.end,
    })
}
