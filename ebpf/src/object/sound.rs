//! Whether the kernel will take a segment that the tap sees before the kernel has tested it: header
//! checksum and checksum, as the kernel tests them where the device did not, and the timestamp.

use core::ffi::c_void;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::generated::{bpf_loop, bpf_skb_load_bytes};
use enginetap_ebpf::abi::flow::{Flow, dir_flag};
use enginetap_ebpf::abi::offsets::MISSING;
use enginetap_ebpf::stream::Cursor;

use super::kernel::{now, offset, read};
use super::maps::WIRE_TMP;
use super::packet::{PACKET_HOST, load, ports, tcp};

/// `CHECKSUM_UNNECESSARY`: the device or an earlier layer has tested it.
const TESTED: u8 = 1;
/// `CHECKSUM_PARTIAL`: it comes from this host and has none yet.
const LOCAL: u8 = 3;
/// Bytes that are added up in one step.
const STEP: u32 = 64;
/// Steps: a packet of 64 KiB, and its last bytes one word at a time.
const STEPS: u32 = 0xffff / STEP + STEP / 4 + 2;
const TCP: u8 = 6;
/// An acknowledgement farther than this from what the server sent is not the client's.
const ACK_MAX: i32 = 1 << 26;

/// Seconds after which a timestamp says nothing any more; the clock of a sender comes round in 24
/// days at the earliest.
const STAMP_OLD: u32 = 24 * 3600;
/// Ticks by which a segment may be older than one that was taken. The kernel may process the two in
/// the other order, on two processors, and then takes both; what it drops comes again, with the
/// same bytes. A tick is a millisecond here, and a second at the most.
const STAMP_SLACK: i32 = 10_000;

/// Whether checksums of this packet are still to be tested.
#[inline(always)]
fn untested(skb: *const u8) -> bool {
    let at = offset!(skb_ip_summed) as u32;
    if at == MISSING {
        return false;
    }
    let byte: u8 = read(skb, at as usize / 8);
    let state = byte >> (at & 7) & 3;
    state != TESTED && state != LOCAL
}

/// 0 when the kernel will drop the segment for a wrong checksum or length. It reads the headers again: there
/// is little room on the caller's stack.
///
/// A global function: the kernel verifies it once.
///
/// # Safety
/// `skb` is the program's context and bottom halves are off.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn sound(skb: *mut __sk_buff) -> u64 {
    // SAFETY: the caller's promise; the cursor is this CPU's, and nobody uses it yet.
    unsafe { verdict(skb).is_none_or(|right| right) as u64 }
}

#[inline(always)]
unsafe fn verdict(skb: *mut __sk_buff) -> Option<bool> {
    // SAFETY: the caller's promise.
    unsafe {
        let p = ports(skb)?;
        if p.end > (*skb).len {
            return Some(false);
        }
        if !p.v6 && p.tcp == 20 && !header_sound(skb) {
            return Some(false);
        }
        if !untested(skb as *const u8) {
            return Some(true);
        }
        let c = WIRE_TMP.get_ptr_mut(0)?;
        let len = p.end - p.tcp;
        let mut sum = u32::from_ne_bytes([0, TCP, (len >> 8) as u8, len as u8]) as u64;
        sum += if p.v6 {
            words::<16>(skb, 8)? + words::<16>(skb, 24)?
        } else {
            words::<8>(skb, 12)?
        };
        (*c).piece_offset = sum;
        (*c).pos = p.tcp;
        (*c).end = p.end;
        let mut ctx = Sum { skb, cursor: c };
        bpf_loop(STEPS, add as *mut c_void, &raw mut ctx as *mut c_void, 0);
        Some((*c).pos >= (*c).end && folded((*c).piece_offset) == 0xffff)
    }
}

/// The sum of `N` bytes at `off`, an even number.
#[inline(always)]
fn words<const N: usize>(skb: *mut __sk_buff, off: u32) -> Option<u64> {
    let b = load::<N>(skb, off)?;
    let mut sum = 0u64;
    let mut i = 0;
    while i < N {
        sum += u16::from_ne_bytes([b[i], b[i + 1]]) as u64;
        i += 2;
    }
    Some(sum)
}

/// 0 when a request segment is not the client's own by its place in the connection: by its flags,
/// by what it acknowledges, or by its timestamp. Of a reset nothing is taken either, the socket
/// tells of it. It reads the headers again, as [`sound`] does.
///
/// A global function: the kernel verifies it once.
///
/// # Safety
/// `skb` is the program's context, `f` is live and its request direction's lock is held.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn plausible(skb: *mut __sk_buff, f: *mut Flow) -> u64 {
    if f.is_null() {
        return 0;
    }
    let Some(p) = ports(skb) else {
        return 0;
    };
    let Some(b) = load::<10>(skb, p.tcp + 4) else {
        return 0;
    };
    let flags = b[9];
    // SAFETY: the caller's promise; the server's bytes only move on.
    unsafe {
        let misplaced = if flags & tcp::SYN != 0 {
            (*f).confirmed != 0
        } else {
            flags & tcp::ACK == 0
        };
        if misplaced || flags & tcp::RST != 0 {
            return 0;
        }
        if flags & tcp::ACK != 0
            && (&raw const (*f).replies.flags).read_volatile() & dir_flag::SEQ != 0
        {
            let ack = u32::from_be_bytes([b[4], b[5], b[6], b[7]]);
            let sent = (&raw const (*f).replies.next_seq).read_volatile();
            let behind = sent.wrapping_sub(ack) as i32;
            if behind >= ACK_MAX || behind <= -ACK_MAX {
                return 0;
            }
        }
        if (*skb).pkt_type != PACKET_HOST {
            return 1;
        }
        let seq = u32::from_be_bytes([b[0], b[1], b[2], b[3]]);
        !outdated(skb, f, p.tcp, seq) as u64
    }
}

/// Whether a segment is much older by its timestamp than one that was taken: the kernel drops it
/// (PAWS).
/// Only the layout that senders use is read, two fillers and the timestamps.
#[inline(always)]
unsafe fn outdated(skb: *mut __sk_buff, f: *mut Flow, at: u32, seq: u32) -> bool {
    let Some(b) = load::<16>(skb, at + 12) else {
        return false;
    };
    if b[0] >> 4 < 8 || b[8] != 1 || b[9] != 1 || b[10] != 8 || b[11] != 10 {
        return false;
    }
    let stamp = u32::from_be_bytes([b[12], b[13], b[14], b[15]]);
    let second = (now() / 1_000_000_000) as u32 + 1;
    // SAFETY: the caller's promise.
    unsafe {
        let known = (*f).stamp_s != 0 && second.wrapping_sub((*f).stamp_s) < STAMP_OLD;
        let behind = (*f).stamp.wrapping_sub(stamp) as i32;
        if known && behind > STAMP_SLACK {
            return true;
        }
        let in_turn = seq.wrapping_sub((*f).requests.next_seq) as i32 <= 0;
        if in_turn && !(known && behind > 0) {
            (*f).stamp = stamp;
            (*f).stamp_s = second;
        }
    }
    false
}

struct Sum {
    skb: *mut __sk_buff,
    cursor: *mut Cursor,
}

/// Adds the next bytes to the cursor's sum, which it keeps in `piece_offset`.
unsafe extern "C" fn add(_: u32, ctx: *mut c_void) -> i64 {
    // SAFETY: the loop passes the address of a `Sum` on its caller's stack; the window holds STEP
    // bytes.
    unsafe {
        let (skb, c) = ((*(ctx as *const Sum)).skb, (*(ctx as *const Sum)).cursor);
        let (pos, end) = ((*c).pos, (*c).end);
        if pos >= end {
            return 1;
        }
        let window = &raw mut (*c).window as *mut u32;
        let left = end - pos;
        let mut sum = (*c).piece_offset;
        if left >= STEP {
            let to = window as *mut c_void;
            if bpf_skb_load_bytes(skb as *const c_void, pos, to, STEP) != 0 {
                return 1;
            }
            let mut i = 0;
            while i < STEP as usize / 4 {
                sum += window.add(i).read() as u64;
                i += 1;
            }
            (*c).pos = pos + STEP;
        } else if left >= 4 {
            let Some(b) = load::<4>(skb, pos) else {
                return 1;
            };
            sum += u32::from_ne_bytes(b) as u64;
            (*c).pos = pos + 4;
        } else {
            // One byte, or two and another one.
            let two = left >= 2;
            let b = if two {
                load::<2>(skb, pos)
            } else {
                load::<1>(skb, pos).map(|b| [b[0], 0])
            };
            let Some(b) = b else {
                return 1;
            };
            sum += u16::from_ne_bytes(b) as u64;
            (*c).pos = pos + if two { 2 } else { 1 };
        }
        (*c).piece_offset = sum;
        0
    }
}

/// Whether the checksum of an IPv4 header without options is right.
#[inline(always)]
fn header_sound(skb: *mut __sk_buff) -> bool {
    words::<20>(skb, 0).is_some_and(|sum| folded(sum) == 0xffff)
}

/// A sum of words as its ones' complement sum in 16 bits.
#[inline(always)]
fn folded(sum: u64) -> u64 {
    let mut s = (sum >> 32) + (sum & 0xffff_ffff);
    s = (s >> 16) + (s & 0xffff);
    s = (s >> 16) + (s & 0xffff);
    (s >> 16) + (s & 0xffff)
}
