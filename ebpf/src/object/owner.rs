//! Hooks on the kernel's own sockets: they confirm flows, name the process that reads, tell when a
//! socket begins to listen and how a connection ended.
//!
//! `inet_sock_set_state` runs in softirq for most changes, so the process it interrupts means
//! nothing except for LISTEN; only a read names the owner. Hooks here never wait for a direction's
//! lock: they may be interrupted by the tap on their own CPU.

use aya_ebpf::macros::{btf_tracepoint, fexit};
use aya_ebpf::programs::{BtfTracePointContext, FExitContext};
use enginetap_ebpf::abi::flow::{Flow, FlowKey, PIPELINE, Request, closer, state};
use enginetap_ebpf::abi::listener::{Listener, ListenerKey, mode};
use enginetap_ebpf::abi::process::Process;
use enginetap_ebpf::abi::record::{FlowClosed, Listen, kind};
use enginetap_ebpf::atomics::{add, cas, swap};

use super::account::owner;
use super::control::{retire, settle_now};
use super::flows::{Birth, confirm, create, listener, port_bit, set_bits};
use super::kernel::{
    current_process, mapped, now, offset, read, sock_family, sock_key, sock_netns, sock_port,
    sock_sport,
};
use super::maps::{FLOWS, LISTENERS, PROCS};
use super::ring::{WAKEUP, emit, submit_flags};
use super::stall::{clock_in, serves, set_of};

const ESTABLISHED: i32 = 1;
const SYN_RECV: i32 = 3;
const CLOSE: i32 = 7;
const CLOSE_WAIT: i32 = 8;
const FIN_WAIT1: i32 = 4;
const LISTEN: i32 = 10;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const MSG_PEEK: i32 = 2;
const ECONNRESET: i32 = 104;
const EPIPE: i32 = 32;
const ETIMEDOUT: i32 = 110;
const EHOSTUNREACH: i32 = 113;
const NO_EXIST: u64 = 1;

/// Hook: `inet_sock_set_state(sk, oldstate, newstate)`, since 4.16.
#[btf_tracepoint(function = "inet_sock_set_state")]
pub fn owner_state(ctx: BtfTracePointContext) -> i32 {
    changed(&ctx)
}

/// Hook: as [`owner_state`], which it doubles. The kernel skips a tracing program that is running
/// already on its CPU, and a softirq that changes a socket may interrupt it at any point; the twin
/// is not running then. Whatever both see is done once: every act here is idempotent.
#[btf_tracepoint(function = "inet_sock_set_state")]
pub fn owner_twin(ctx: BtfTracePointContext) -> i32 {
    changed(&ctx)
}

/// A socket changes its state.
#[inline(always)]
fn changed(ctx: &BtfTracePointContext) -> i32 {
    let sk: *const u8 = ctx.arg(0);
    let (old, new): (i32, i32) = (ctx.arg(1), ctx.arg(2));
    let family = sock_family(sk);
    if family != AF_INET && family != AF_INET6 {
        return 0;
    }
    if new == LISTEN || old == LISTEN {
        listening(sk, family, new == LISTEN);
        return 0;
    }
    let port = sock_sport(sk);
    if port == 0 || !followed(port) {
        return 0;
    }
    let key = sock_key(sk, family, port);
    match new {
        ESTABLISHED if old == SYN_RECV => established(&key),
        CLOSE_WAIT => closes(&key, closer::PEER_FIN),
        FIN_WAIT1 => closes(&key, closer::LOCAL),
        CLOSE => closed(sk, &key),
        _ => {}
    }
    0
}

/// Whether connections to a port may have flows.
#[inline(always)]
fn followed(port: u16) -> bool {
    let (cell, bit) = port_bit(port);
    // SAFETY: a live map value of plain integers.
    cell.is_some_and(|c| unsafe { ((*c).watched | (*c).active | (*c).recognise) & bit != 0 })
}

/// A socket begins or ceases to listen, in the context of the process that calls.
#[inline(always)]
fn listening(sk: *const u8, family: u16, begins: bool) {
    let port = if begins {
        sock_port(sk)
    } else {
        sock_sport(sk)
    };
    let addr = if family == AF_INET {
        mapped(read(sk, offset!(sk_rcv_saddr)))
    } else {
        read(sk, offset!(sk_v6_rcv_saddr))
    };
    let key = ListenerKey {
        netns: sock_netns(sk),
        port,
        pad: 0,
        addr,
    };
    if begins {
        // Followed at once, so that a connection that comes before the agent has looked at the
        // process is not missed.
        let fresh = Listener {
            workload: 0,
            mode: mode::PENDING,
            since_ns: now(),
        };
        if LISTENERS.insert(key, fresh, NO_EXIST).is_err()
            && let Some(known) = LISTENERS.get_ptr_mut(key)
        {
            // SAFETY: a live map value.
            unsafe { (&raw mut (*known).since_ns).write_volatile(fresh.since_ns) };
        }
        let (cell, bit) = port_bit(port);
        if let Some(cell) = cell {
            // SAFETY: a live map value.
            unsafe { set_bits(&raw mut (*cell).watched, bit) };
        }
    }
    emit(
        Listen {
            kind: kind::LISTEN,
            listening: begins as u32,
            key,
            process: current_process(),
        },
        WAKEUP,
    );
}

/// A listener of ours has a new connection.
#[inline(always)]
fn established(key: &FlowKey) {
    if let Some(f) = FLOWS.get_ptr_mut(key) {
        // SAFETY: a live map value, changed by atomics and by words that only this hook writes.
        unsafe {
            if (*f).confirmed != 0 && (*f).created_ns + 1_000_000_000 < now() {
                // The old connection of this tuple is over and its end was not seen.
                swap(&raw mut (*f).closed, now());
                cas(&raw mut (*f).closer, closer::NONE, closer::UNOBSERVED);
                emit_closed(f, WAKEUP);
                return;
            }
            confirm(f);
            // From here on it is old: the handshake may have taken seconds, and the twin comes next.
            (&raw mut (*f).created_ns).write_volatile(now());
        }
        return;
    }
    let Some(l) = listener(key) else {
        return;
    };
    if l.mode == mode::RECOGNISE {
        return;
    }
    // Its SYN came before the tap or the listener was there.
    let birth = Birth {
        request_seq: None,
        reply_seq: None,
        adopted: true,
        workload: l.workload,
    };
    if let Some(f) = create(key, &birth) {
        // SAFETY: as above.
        unsafe { confirm(f) };
    }
}

/// One side closes.
#[inline(always)]
fn closes(key: &FlowKey, who: u64) {
    if let Some(f) = FLOWS.get_ptr_mut(key) {
        // SAFETY: as above.
        unsafe { cas(&raw mut (*f).closer, closer::NONE, who) };
    }
}

/// The socket is gone.
#[inline(always)]
fn closed(sk: *const u8, key: &FlowKey) {
    let Some(f) = FLOWS.get_ptr_mut(key) else {
        return;
    };
    let err: i32 = read(sk, offset!(sk_err));
    // SAFETY: as above.
    unsafe {
        let who = if err == ECONNRESET || err == EPIPE {
            closer::PEER_RST
        } else if err == ETIMEDOUT || err == EHOSTUNREACH {
            closer::PEER_TIMEOUT
        } else {
            let p = PROCS.get_ptr(owner(f));
            if p.is_some_and(|p| (*p).exited != 0) {
                closer::KILLED
            } else {
                closer::LOCAL
            }
        };
        if !cas(&raw mut (*f).closer, closer::NONE, who) {
            if who == closer::KILLED {
                cas(&raw mut (*f).closer, closer::LOCAL, who);
            } else if who != closer::LOCAL
                && (&raw const (*f).replies.state).read_volatile() == state::AWAITING
            {
                cas(&raw mut (*f).closer, closer::PEER_FIN, who);
            }
        }
        swap(&raw mut (*f).closed, now());
        let quiet = (*f).started == (*f).ended
            && (*f).confirmed != 0
            && matches!(
                (*f).requests.state,
                state::IDLE | state::DEAD | state::UNSYNCED
            );
        if quiet && retire(f, key) {
            return;
        }
        // What the server sent passed the tap before it was acknowledged or reset, so nothing is on
        // its way any more; and a stopped agent must not leave the table to fill up.
        if (*f).confirmed != 0 && settle_now(f) != 0 {
            return;
        }
        emit_closed(f, submit_flags());
    }
}

/// Asks the agent to settle the flow.
#[inline(always)]
unsafe fn emit_closed(f: *mut Flow, flags: u64) {
    // SAFETY: as above.
    unsafe {
        let record = FlowClosed {
            kind: kind::CLOSED,
            len: 0,
            key: (*f).key,
            flow: (*f).id,
            ts_ns: now(),
        };
        emit(record, flags);
    }
}

/// Hook: `sock_recv_length(sk, ret, flags)`, since 6.3.
#[btf_tracepoint(function = "sock_recv_length")]
pub fn owner_recv(ctx: BtfTracePointContext) -> i32 {
    let (ret, flags): (i32, i32) = (ctx.arg(1), ctx.arg(2));
    received(ctx.arg(0), ret, flags);
    0
}

/// Hook: return of `tcp_recvmsg(sk, msg, len, flags, addr_len)`, for kernels without
/// `sock_recv_length`; its arguments are the same since 5.19.
#[fexit(function = "tcp_recvmsg")]
pub fn owner_recvmsg(ctx: FExitContext) -> i32 {
    let (flags, ret): (i32, i32) = (ctx.arg(3), ctx.arg(5));
    received(ctx.arg(0), ret, flags);
    0
}

/// A process read from a socket.
#[inline(always)]
fn received(sk: *const u8, ret: i32, flags: i32) {
    if ret <= 0 || flags & MSG_PEEK != 0 {
        return;
    }
    let port = sock_port(sk);
    if !followed(port) {
        return;
    }
    let family = sock_family(sk);
    if family != AF_INET && family != AF_INET6 {
        return;
    }
    let key = sock_key(sk, family, port);
    let Some(f) = FLOWS.get_ptr_mut(key) else {
        return;
    };
    // SAFETY: a live map value, changed by atomics.
    unsafe {
        if (*f).confirmed == 0 {
            confirm(f);
        }
        add(&raw mut (*f).reads, 1);
        serves(current_process());
        if (*f).owner_tgid == 0 {
            own(f);
        }
        let t = now();
        cas(&raw mut (*f).read_ns, 0, t);
        first_reads(f, t);
    }
}

/// Marks requests that had not been read from yet.
#[inline(always)]
unsafe fn first_reads(f: *mut Flow, t: u64) {
    // SAFETY: the slot is masked; words are changed by atomics.
    unsafe {
        let ended = (*f).ended;
        let mut i = 1;
        while i <= PIPELINE as u32 {
            let number = ended.wrapping_add(i);
            if (*f).started.wrapping_sub(number) as i32 >= 0 {
                let slot = (number & (PIPELINE as u32 - 1)) as usize;
                let r: *mut Request = (&raw mut (*f).open as *mut Request).add(slot);
                let first = (*r).read_ns == 0 && cas(&raw mut (*r).read_ns, 0, t);
                if first && (*r).set != set_of(f) {
                    // Its process is known only now.
                    clock_in(f, r);
                }
                if first && let Some(p) = PROCS.get_ptr_mut(owner(f)) {
                    add(&raw mut (*p).in_flight, 1);
                }
            }
            i += 1;
        }
    }
}

/// Sets the owner of a flow, once.
#[inline(always)]
unsafe fn own(f: *mut Flow) {
    // SAFETY: words are changed by atomics; the start is written before the id publishes it.
    unsafe {
        let key = current_process();
        if key.tgid == 0 {
            return;
        }
        let p = match PROCS.get_ptr_mut(key) {
            Some(p) => p,
            None => {
                let fresh = Process {
                    workload: (*f).workload as u64,
                    ..EMPTY
                };
                let _ = PROCS.insert(key, fresh, NO_EXIST);
                match PROCS.get_ptr_mut(key) {
                    Some(p) => p,
                    None => return,
                }
            }
        };
        (&raw mut (*f).owner_start).write_volatile(key.start_ticks);
        if cas(&raw mut (*f).owner_tgid, 0, key.tgid as u64) {
            add(&raw mut (*p).flows, 1);
        }
    }
}

const EMPTY: Process = Process {
    ended: 0,
    bytes_received: 0,
    bytes_sent: 0,
    events: 0,
    flows: 0,
    in_flight: 0,
    exited: 0,
    workload: 0,
};
