//! The tap: a socket filter on every device that owns an address, which sees each byte of a watched
//! connection once per direction and lets none through to user space by itself.
//!
//! It cannot see AF_UNIX listeners, nor what is translated to another port before it reaches the
//! socket (such flows are never confirmed and are dropped). Lowest kernel: 5.17, for `bpf_loop`.

use core::ffi::c_void;

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::generated::{bpf_loop, bpf_skb_load_bytes};
use aya_ebpf::macros::socket_filter;
use aya_ebpf::programs::SkBuffContext;
use enginetap_ebpf::abi::counters::lost;
use enginetap_ebpf::abi::flow::{Dir, Flow, FlowKey, TAIL_BANK, closer, dir_flag, state};
use enginetap_ebpf::abi::listener::mode;
use enginetap_ebpf::abi::record::told as told_value;
use enginetap_ebpf::atomics::cas;
use enginetap_ebpf::stream::{Cursor, Ending, Env, end_all, gap, step};

use super::account::{self, flush_bytes};
use super::control::finish;
use super::flows::{Birth, count_connection, create, is, listener, lock, port_bit, unlock};
use super::kernel::{now, packet_netns};
use super::maps::{EVENTS_LOST, FLOWS, TOLD, WIRE_PROGS, WIRE_TMP, bump};
use super::packet::{Ports, Segment, load, ports, segment, tcp};

const PACKET_HOST: u32 = 0;
const PACKET_OUTGOING: u32 = 4;
/// Index of lo in every namespace.
const LOOPBACK: u32 = 1;
/// Steps of the machine in one packet: more than a 64 KiB packet of the shortest events takes. What
/// is left after that is a gap.
const STEPS: u32 = 20_000;
/// Time after which bytes of a long stream are added to the counters.
const FLUSH_MS: u32 = 250;
/// What is appended to a bank that holds something already is at most this long.
const HALF_BANK: u32 = TAIL_BANK as u32 / 2;
/// Bytes after which those of a long request are added to the counters.
const FLUSH_BYTES: u64 = 256 * 1024;

/// The machine's surroundings in a tap; lives on the program's stack and holds pointers only.
#[derive(Clone, Copy)]
pub struct Tap {
    skb: *mut __sk_buff,
    flow: *mut Flow,
    cursor: *mut Cursor,
}

impl Env for Tap {
    #[inline(always)]
    unsafe fn load<const MAX: u32>(&mut self, off: u32, dst: *mut u8, len: u32) -> bool {
        if len == 0 || len > MAX {
            return false;
        }
        let len = account::bounded::<MAX>(len);
        // SAFETY: `dst` has room for MAX bytes, and `len` is at most that.
        unsafe { bpf_skb_load_bytes(self.skb as *const c_void, off, dst as *mut c_void, len) == 0 }
    }

    #[inline(always)]
    unsafe fn piece(
        &mut self,
        f: *mut Flow,
        off: u32,
        len: u32,
        offset: u64,
        flags: u32,
        now: u64,
    ) -> bool {
        // SAFETY: the caller's promise; the cursor is this CPU's.
        unsafe {
            (*self.cursor).piece_offset = offset;
            (*self.cursor).now = now;
            account::hand_over(
                self.skb,
                f,
                off,
                (flags as u64) << 32 | len as u64,
                self.cursor,
            ) != 0
        }
    }

    #[inline(always)]
    unsafe fn started(&mut self, f: *mut Flow, slot: u32) {
        // SAFETY: the caller's promise.
        unsafe { account::started(f, slot) }
    }

    #[inline(always)]
    unsafe fn ended(
        &mut self,
        f: *mut Flow,
        slot: u32,
        ending: Ending,
        now: u64,
        excess: u32,
    ) -> bool {
        // SAFETY: the caller's promise.
        unsafe { account::end_request(f, slot, ending as u32, now, excess) != 0 }
    }

    #[inline(always)]
    unsafe fn unparsed(&mut self, f: *mut Flow, reason: u32) {
        // SAFETY: the caller's promise.
        unsafe { account::unparsed(f, reason) }
    }

    #[inline(always)]
    unsafe fn missed(&mut self, f: *mut Flow) {
        // SAFETY: the caller's promise.
        if unsafe { (*f).confirmed } != 0 {
            bump(&EVENTS_LOST, lost::GAP);
        }
    }
}

unsafe extern "C" fn step_requests(_: u32, ctx: *mut c_void) -> i64 {
    // SAFETY: the loop passes the address of a `Tap` on its caller's stack.
    unsafe {
        let mut tap = *(ctx as *const Tap);
        let (f, c) = (tap.flow, tap.cursor);
        if step::<Tap, false>(&mut tap, f, c) {
            0
        } else {
            1
        }
    }
}

unsafe extern "C" fn step_replies(_: u32, ctx: *mut c_void) -> i64 {
    // SAFETY: as above.
    unsafe {
        let mut tap = *(ctx as *const Tap);
        let (f, c) = (tap.flow, tap.cursor);
        if step::<Tap, true>(&mut tap, f, c) {
            0
        } else {
            1
        }
    }
}

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
    let l = listener(key.netns, key.server_port, &key.server)?;
    if l.mode == mode::RECOGNISE {
        if syn {
            return None;
        }
        let (cell, bit) = port_bit(key.server_port);
        let cell = cell?;
        // SAFETY: a live map value; setting a bit twice does no harm, and a set of another bit that
        // is lost here is made again by that port's next request.
        unsafe {
            if (*cell).active & bit == 0 {
                (*cell).active |= bit;
            }
        }
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
            && let Some(l) = listener(key.netns, key.server_port, &key.server)
            && l.workload != 0
        {
            (*f).workload = l.workload;
            count_connection(f);
        }
        let fin = take::<false>(skb, f, d, s, step_requests as *mut c_void);
        if fin {
            cas(&raw mut (*f).closer, closer::NONE, closer::PEER_FIN);
        }
        if (*d).state == state::IDLE || (*d).bytes > FLUSH_BYTES {
            flush_bytes(f, false);
        }
        acknowledge(&raw mut (*f).replies, s);
        unlock(d);
    }
    Some(())
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
        let fin = take::<true>(skb, f, d, s, step_replies as *mut c_void);
        if fin {
            end_of_replies(skb, f, d);
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
        if (s.ack.wrapping_sub(next) as i32) > 0 {
            (&raw mut (*other).acked).write_volatile(s.ack);
        }
    }
}

/// Takes the bytes of a segment that are next in the stream. True when it ended the stream.
#[inline(always)]
unsafe fn take<const REPLY: bool>(
    skb: *mut __sk_buff,
    f: *mut Flow,
    d: *mut Dir,
    s: &Segment,
    callback: *mut c_void,
) -> bool {
    // SAFETY: the direction's lock is held; the cursor is this CPU's and bottom halves are off.
    unsafe {
        let Some(c) = WIRE_TMP.get_ptr_mut(0) else {
            return false;
        };
        let t = now();
        (*f).seen_ns = t;
        let mut seq = s.seq;
        if s.flags & tcp::SYN != 0 {
            seq = seq.wrapping_add(1);
            if REPLY && (*d).flags & dir_flag::SEQ == 0 {
                (*d).next_seq = seq;
                (*d).flags |= dir_flag::SEQ;
            }
        }
        let len = s.end - s.payload;
        let fin = s.flags & tcp::FIN != 0;
        if len == 0 && !fin {
            return false;
        }
        if (*d).flags & dir_flag::SEQ == 0 {
            (*d).next_seq = seq;
            (*d).flags |= dir_flag::SEQ;
        }
        let next = (*d).next_seq;
        let ahead = seq.wrapping_sub(next) as i32;
        (*c).now = t;
        (*c).end = s.end;
        (*c).captured_to = 0;
        let mut skip = 0;
        if ahead < 0 {
            skip = ahead.unsigned_abs();
            if skip > len || (skip == len && !fin) {
                return false;
            }
        } else if ahead > 0 {
            let acked = (&raw const (*d).acked).read_volatile();
            if acked.wrapping_sub(next) as i32 >= ahead {
                (*c).pos = s.payload;
                (*c).end = s.payload;
                let mut tap = Tap {
                    skb,
                    flow: f,
                    cursor: c,
                };
                gap::<Tap, REPLY>(&mut tap, f, c, ahead as u32);
                (*c).end = s.end;
            } else {
                return false;
            }
        }
        (*d).next_seq = seq.wrapping_add(len);
        (*d).bytes += (len - skip) as u64;
        (*c).pos = s.payload + skip;
        if skip < len {
            if (*d).state == state::UNSYNCED && skip == 0 {
                resync::<REPLY>(skb, f, d, c);
            }
            let mut tap = Tap {
                skb,
                flow: f,
                cursor: c,
            };
            bpf_loop(STEPS, callback, &raw mut tap as *mut c_void, 0);
            let (pos, end) = ((*c).pos, (*c).end);
            if pos < end {
                (*c).pos = end;
                gap::<Tap, REPLY>(&mut tap, f, c, end - pos);
            }
        }
        if fin && (*d).flags & dir_flag::FIN == 0 {
            (*d).flags |= dir_flag::FIN;
            (*d).next_seq = (*d).next_seq.wrapping_add(1);
            return true;
        }
        false
    }
}

/// A direction that lost its place looks for a first line at the start of this segment.
#[inline(always)]
unsafe fn resync<const REPLY: bool>(
    skb: *mut __sk_buff,
    f: *mut Flow,
    d: *mut Dir,
    c: *mut Cursor,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(b) = load::<8>(skb, (*c).pos) else {
            return;
        };
        if REPLY {
            if b[0] != b'H'
                || b[1] != b'T'
                || b[2] != b'T'
                || b[3] != b'P'
                || b[4] != b'/'
                || b[5] != b'1'
            {
                return;
            }
            let upto = (*f).lost_upto;
            let mut tap = Tap {
                skb,
                flow: f,
                cursor: c,
            };
            end_all(&mut tap, f, Ending::Unobserved, upto, (*c).now);
            if (*f).started != (*f).ended {
                (*d).state = state::IDLE;
            }
            return;
        }
        let idle = matches!((*f).replies.state, state::IDLE | state::UNSYNCED);
        let upper = |x: u8| x.is_ascii_uppercase();
        let verb = (upper(b[0]) && upper(b[1]) && upper(b[2]))
            && (b[3] == b' ' && b[4] == b'/'
                || upper(b[3]) && (b[4] == b' ' && b[5] == b'/' || upper(b[4])));
        if idle && verb {
            (*f).lost_upto = (*f).started;
            (*d).state = state::IDLE;
        }
    }
}

/// Appends the end of the segment to the rolling tail, for replies whose end is not known ahead.
#[inline(always)]
unsafe fn keep_tail(skb: *mut __sk_buff, f: *mut Flow, d: *mut Dir, s: &Segment) {
    // SAFETY: the bank's offset and the length are compared with the bank's size.
    unsafe {
        let st = (*d).state;
        if st == state::BODY || st == state::DEAD || st == state::UNSYNCED {
            return;
        }
        if (*d).flags & dir_flag::SEQ != 0 && (s.seq.wrapping_sub((*d).next_seq) as i32) < 0 {
            return;
        }
        let whole = s.end - s.payload;
        let len = if whole > TAIL_BANK as u32 {
            TAIL_BANK as u32
        } else {
            whole
        };
        let mut at = (*f).tail_len;
        // Offset and length are bounded apart from each other, which is all a verifier follows.
        if at == 0 || at >= HALF_BANK || len > HALF_BANK {
            if at != 0 {
                (*f).tail_bank ^= 1;
                (*f).tail_other_len = at;
            }
            at = 0;
        }
        let bank = if (*f).tail_bank & 1 == 0 {
            0
        } else {
            TAIL_BANK
        };
        let to = (&raw mut (*f).tail as *mut u8).add(bank);
        let from = s.end - len;
        let read = if at == 0 {
            let n = account::bounded::<{ TAIL_BANK as u32 }>(len);
            bpf_skb_load_bytes(skb as *const c_void, from, to as *mut c_void, n)
        } else {
            let n = account::bounded::<HALF_BANK>(len);
            let behind = core::ptr::read_volatile(&raw const at) & (HALF_BANK - 1);
            bpf_skb_load_bytes(
                skb as *const c_void,
                from,
                to.add(behind as usize) as *mut c_void,
                n,
            )
        };
        if read == 0 {
            (*f).tail_len = at + len;
        }
    }
}

/// Asks whether the agent has seen enough of this stream's first events.
#[inline(always)]
unsafe fn ask_told(f: *mut Flow, d: *mut Dir) {
    // SAFETY: live map values of plain integers.
    unsafe {
        let flags = (*d).flags;
        if flags & (dir_flag::SSE | dir_flag::NDJSON) == 0 || flags & dir_flag::TOLD != 0 {
            return;
        }
        let id = (*f).id;
        if let Some(told) = TOLD.get_ptr(id as u32 & 0xffff)
            && *told == told_value(id, (*f).ended.wrapping_add(1))
        {
            (*d).flags |= dir_flag::TOLD;
        }
    }
}

/// The server's side ended its stream, in order.
#[inline(always)]
unsafe fn end_of_replies(skb: *mut __sk_buff, f: *mut Flow, d: *mut Dir) {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(c) = WIRE_TMP.get_ptr_mut(0) else {
            return;
        };
        let mut tap = Tap {
            skb,
            flow: f,
            cursor: c,
        };
        let first =
            cas(&raw mut (*f).closer, closer::NONE, closer::LOCAL) || (*f).closer == closer::LOCAL;
        if (*f).started == (*f).ended {
            return;
        }
        let ending = if (*d).state == state::UNTIL_CLOSE && first {
            Ending::Complete
        } else {
            Ending::Closed
        };
        let upto = if ending == Ending::Complete {
            (*f).ended.wrapping_add(1)
        } else {
            u32::MAX
        };
        end_all(&mut tap, f, ending, upto, (*c).now);
        if (*d).state != state::DEAD {
            (*d).state = state::IDLE;
        }
    }
}
