//! The tap: a socket filter on every device that owns an address, which sees each byte of a watched
//! connection once per direction and lets none through to user space by itself.
//!
//! It cannot see AF_UNIX listeners, nor what is translated to another port before it reaches the
//! socket (such flows are never confirmed and are dropped). Lowest kernel: 5.17, for `bpf_loop`.

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::macros::socket_filter;
use aya_ebpf::programs::SkBuffContext;
use enginetap_ebpf::abi::counters::lost;
use enginetap_ebpf::abi::flow::{Dir, Flow, FlowKey, PIPELINE, closer, dir_flag, flow_flag, state};
use enginetap_ebpf::abi::listener::mode;
use enginetap_ebpf::atomics::cas;
use enginetap_ebpf::stream::{acknowledged, server_fin, took_over};

use super::account::{flush_bytes, open_of, owner};
use super::control::finish;
use super::flows::{
    Birth, count_connection, create, is, listener, lock, port_bit, set_bits, unlock,
};
use super::kernel::packet_netns;
use super::machine::Tap;
use super::maps::{EVENTS_LOST, FLOWS, PROCS, WIRE_PROGS, WIRE_TMP, bump};
use super::packet::{PACKET_HOST, Ports, Segment, load, ports, segment, tcp};
use super::sound::{plausible, sound};
use super::stall::clock_in;
use super::take::{ask_told, keep_tail, take};

const PACKET_OUTGOING: u32 = 4;
/// Index of lo in every namespace.
const LOOPBACK: u32 = 1;
/// Time after which bytes of a long stream are added to the counters.
const FLUSH_MS: u32 = 250;
/// Bytes after which those of a long request are added to the counters.
const FLUSH_BYTES: u64 = 256 * 1024;
/// Bytes after which a remembered acknowledgement is renewed.
const ACKED_OLD: i32 = 1 << 30;

/// Hook: socket filter, as [`wire_tap`], which it jumps to. A socket is charged for the length of
/// its filter, and before 6.9 the tap is longer than `net.core.optmem_max` allows.
#[socket_filter]
pub fn wire_entry(ctx: SkBuffContext) -> i64 {
    let skb = ctx.as_ptr() as *const __sk_buff;
    // Each packet on lo passes twice. It is taken where it is sent, under the socket's lock and so
    // in order: where it is received, a sender that changes its CPU overtakes itself.
    // SAFETY: fields of the program's context.
    if unsafe { (*skb).pkt_type == PACKET_HOST && (*skb).ifindex == LOOPBACK } {
        return 0;
    }
    // SAFETY: the slot holds a socket filter or nothing; in that case the packet is left alone.
    unsafe { WIRE_PROGS.tail_call(&ctx, 0) };
    0
}

/// Hook: socket filter on an `AF_PACKET`/`SOCK_DGRAM` socket; the context's offset 0 is the network
/// header. Always returns 0: no packet is queued.
#[socket_filter]
#[inline(always)]
pub fn wire_tap(ctx: SkBuffContext) -> i64 {
    tap(ctx.as_ptr() as *mut __sk_buff);
    0
}

#[inline(always)]
fn tap(skb: *mut __sk_buff) -> Option<()> {
    // SAFETY: a field of the program's context.
    let kind = unsafe { (*skb).pkt_type };
    if kind != PACKET_HOST && kind != PACKET_OUTGOING {
        return None;
    }
    let p = ports(skb)?;
    let (to, to_bit) = port_bit(p.dport);
    let (from, from_bit) = port_bit(p.sport);
    let (to, from) = (to?, from?);
    // SAFETY: live map values of plain integers.
    let (to_watched, from_watched, to_look) = unsafe {
        (
            ((*to).watched | (*to).active) & to_bit != 0,
            ((*from).watched | (*from).active) & from_bit != 0,
            (*to).recognise & to_bit != 0,
        )
    };
    if !to_watched && !from_watched && (!to_look || !looks_like_inference(skb, &p)) {
        return None;
    }
    let s = segment(skb, &p)?;
    // What bears nothing but an acknowledgement comes too often to be looked at so closely.
    let moves = s.end > s.payload || s.flags & (tcp::SYN | tcp::FIN) != 0;
    // SAFETY: the context; bottom halves are off in a tap.
    if kind == PACKET_HOST && moves && (to_watched || to_look) && unsafe { sound(skb) } == 0 {
        return None;
    }
    let netns = packet_netns(skb as *const u8);
    if to_watched || to_look {
        let key = FlowKey {
            netns,
            server_port: s.dport,
            client_port: s.sport,
            server: s.dst,
            client: s.src,
        };
        if let Some(f) = FLOWS.get_ptr_mut(key) {
            // SAFETY: a live map value. A SYN that meets a flow whose socket is gone begins a new
            // connection of the same tuple; one that meets a live socket means nothing.
            let over = s.flags & (tcp::SYN | tcp::ACK) == tcp::SYN
                && unsafe { (*f).closed != 0 && finish(f, &key, closer::UNOBSERVED) };
            if !over {
                return requests(skb, f, &key, &s);
            }
        }
        if let Some(f) = birth(skb, &p, &key, &s, to_watched, to_look) {
            return requests(skb, f, &key, &s);
        }
    }
    if from_watched {
        let key = FlowKey {
            netns,
            server_port: s.sport,
            client_port: s.dport,
            server: s.src,
            client: s.dst,
        };
        if let Some(f) = FLOWS.get_ptr_mut(key) {
            return replies(skb, f, &key, &s);
        }
    }
    None
}

/// Whether a segment to a listener that is not watched begins like a request to an inference route.
#[inline(always)]
fn looks_like_inference(skb: *mut __sk_buff, p: &Ports) -> bool {
    let Some(t) = load::<2>(skb, p.tcp + 12) else {
        return false;
    };
    let at = p.tcp + ((t[0] >> 4) as u32) * 4;
    let Some(b) = load::<16>(skb, at) else {
        return false;
    };
    let (a, c) = (
        u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
        u64::from_le_bytes([b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13]]),
    );
    if a & 0xffff_ffff_ffff != 0x2f20_5453_4f50 {
        return false;
    }
    let first = c as u32;
    const V1: u32 = u32::from_le_bytes(*b"v1/\0");
    const V2: u32 = u32::from_le_bytes(*b"v2/\0");
    const OPEN: u32 = u32::from_le_bytes(*b"open");
    const API: u32 = u32::from_le_bytes(*b"api/");
    const CHAT: u32 = u32::from_le_bytes(*b"chat");
    const COMP: u32 = u32::from_le_bytes(*b"comp");
    const GENE: u32 = u32::from_le_bytes(*b"gene");
    const INFE: u32 = u32::from_le_bytes(*b"infe");
    const EMBE: u32 = u32::from_le_bytes(*b"embe");
    let three = first & 0x00ff_ffff;
    three == V1
        || three == V2
        || first == OPEN
        || first == API
        || first == CHAT
        || first == COMP
        || first == GENE
        || first == INFE
        || first == EMBE
}

/// A flow that begins with this segment: a SYN to a watched listener, or a request to one whose
/// traffic is looked at.
#[inline(always)]
fn birth(
    skb: *mut __sk_buff,
    p: &Ports,
    key: &FlowKey,
    s: &Segment,
    watched: bool,
    look: bool,
) -> Option<*mut Flow> {
    let syn = s.flags & (tcp::SYN | tcp::ACK) == tcp::SYN;
    let begins = syn || (look && s.end > s.payload && looks_like_inference(skb, p));
    if !begins {
        return None;
    }
    let l = listener(key)?;
    if l.mode == mode::RECOGNISE {
        if syn {
            return None;
        }
        let (cell, bit) = port_bit(key.server_port);
        let cell = cell?;
        // SAFETY: a live map value.
        unsafe { set_bits(&raw mut (*cell).active, bit) };
        return create(
            key,
            &Birth {
                request_seq: Some(s.seq),
                reply_seq: Some(s.ack),
                adopted: false,
                workload: 0,
            },
        );
    }
    if !syn || !watched {
        return None;
    }
    create(
        key,
        &Birth {
            request_seq: Some(s.seq.wrapping_add(1)),
            reply_seq: None,
            adopted: false,
            workload: l.workload,
        },
    )
}

#[inline(always)]
fn requests(skb: *mut __sk_buff, f: *mut Flow, key: &FlowKey, s: &Segment) -> Option<()> {
    // SAFETY: `f` is a live map value; fields of the direction are touched under its lock.
    unsafe {
        let d = &raw mut (*f).requests;
        if !enter(f, d, key, s) {
            return None;
        }
        if (*f).workload == 0
            && let Some(l) = listener(key)
            && l.workload != 0
        {
            (*f).workload = l.workload;
            count_connection(f);
        }
        // The tap comes before the kernel's tests: what those will drop must move nothing here.
        if plausible(skb, f) == 0 {
            unlock(d);
            return None;
        }
        let before = (*f).started;
        if take::<false>(skb, f, d, s) {
            cas(&raw mut (*f).closer, closer::NONE, closer::PEER_FIN);
        }
        let mut i = 1;
        while i <= PIPELINE as u32 {
            let number = before.wrapping_add(i);
            if ((*f).started.wrapping_sub(number) as i32) < 0 {
                break;
            }
            clock_in(f, open_of(f, number));
            i += 1;
        }
        if (*d).state == state::IDLE || (*d).bytes > FLUSH_BYTES {
            flush_bytes(f, false);
        }
        acknowledge(&raw mut (*f).replies, s);
        if (*f).replies.state == state::AWAITING && s.flags & tcp::ACK != 0 {
            hear(skb, f, s.ack);
        }
        unlock(d);
    }
    Some(())
}

/// The client acknowledges a reply whose verdict waits for that.
#[inline(always)]
unsafe fn hear(skb: *mut __sk_buff, f: *mut Flow, ack: u32) {
    // SAFETY: the request direction's lock is held, and the reply direction's is taken after it as
    // everywhere.
    unsafe {
        let d = &raw mut (*f).replies;
        let Some(cursor) = WIRE_TMP.get_ptr_mut(0) else {
            return;
        };
        if !lock(d) {
            return;
        }
        let mut tap = Tap {
            skb,
            flow: f,
            cursor,
        };
        acknowledged(&mut tap, f, ack);
        unlock(d);
    }
}

#[inline(always)]
fn replies(skb: *mut __sk_buff, f: *mut Flow, key: &FlowKey, s: &Segment) -> Option<()> {
    // SAFETY: as above.
    unsafe {
        let d = &raw mut (*f).replies;
        if !enter(f, d, key, s) {
            return None;
        }
        if s.end > s.payload {
            keep_tail(skb, f, d, s);
            ask_told(f, d);
        }
        let fin = take::<true>(skb, f, d, s);
        if (*f).flags & flow_flag::ADOPTED != 0 && s.end > s.payload {
            take_over(skb, f);
        }
        if fin {
            end_of_replies(skb, f);
        }
        let ms = ((*f).seen_ns / 1_000_000) as u32;
        if ms.wrapping_sub((*f).flushed_ms) > FLUSH_MS || (*d).state == state::IDLE {
            (*f).flushed_ms = ms;
            flush_bytes(f, true);
        }
        acknowledge(&raw mut (*f).requests, s);
        unlock(d);
    }
    Some(())
}

/// Takes the direction's lock for this segment.
#[inline(always)]
unsafe fn enter(f: *mut Flow, d: *mut Dir, key: &FlowKey, s: &Segment) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        if !lock(d) {
            if s.end > s.payload && (*f).confirmed != 0 {
                bump(&EVENTS_LOST, lost::CONTENDED);
            }
            return false;
        }
        if !is(f, key) {
            unlock(d);
            return false;
        }
        true
    }
}

/// The sender of `s` has received all bytes of `other` up to its acknowledgement: what the tap has
/// not taken of them it will never see.
#[inline(always)]
unsafe fn acknowledge(other: *mut Dir, s: &Segment) {
    // SAFETY: aligned words of a live map value; a stale read only delays the finding.
    unsafe {
        if s.flags & tcp::ACK == 0
            || (&raw const (*other).flags).read_volatile() & dir_flag::SEQ == 0
        {
            return;
        }
        let next = (&raw const (*other).next_seq).read_volatile();
        let acked = (&raw const (*other).acked).read_volatile();
        // An old one is renewed before so many bytes lie behind it that it looks like one ahead.
        if (s.ack.wrapping_sub(next) as i32) > 0 || s.ack.wrapping_sub(acked) as i32 > ACKED_OLD {
            (&raw mut (*other).acked).write_volatile(s.ack);
        }
    }
}

/// Counts the request that was under way when the connection was taken up. Its direction's lock is
/// only tried: it comes before the reply direction's, which is held.
#[inline(always)]
unsafe fn take_over(skb: *mut __sk_buff, f: *mut Flow) {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(cursor) = WIRE_TMP.get_ptr_mut(0) else {
            return;
        };
        let d = &raw mut (*f).requests;
        if !cas(&raw mut (*d).lock, 0, 1) {
            return;
        }
        let mut tap = Tap {
            skb,
            flow: f,
            cursor,
        };
        took_over(&mut tap, f, (*cursor).now);
        unlock(d);
    }
}

/// The server's side ended its stream, in order.
#[inline(always)]
unsafe fn end_of_replies(skb: *mut __sk_buff, f: *mut Flow) {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(cursor) = WIRE_TMP.get_ptr_mut(0) else {
            return;
        };
        let mut tap = Tap {
            skb,
            flow: f,
            cursor,
        };
        // A body that ends with the connection is cut when a signal ended the server.
        if let Some(p) = PROCS.get_ptr(owner(f))
            && (*p).exited > 1
        {
            cas(&raw mut (*f).closer, closer::NONE, closer::KILLED);
            cas(&raw mut (*f).closer, closer::LOCAL, closer::KILLED);
        }
        let first =
            cas(&raw mut (*f).closer, closer::NONE, closer::LOCAL) || (*f).closer == closer::LOCAL;
        server_fin(&mut tap, f, first, (*cursor).now);
    }
}
