//! Reads of kernel structures, all through [`OFFSETS`](super::maps::OFFSETS).

use core::ffi::c_void;

use aya_ebpf::helpers::generated::{bpf_get_current_task, bpf_probe_read_kernel};
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns};
use enginetap_ebpf::abi::flow::FlowKey;
use enginetap_ebpf::abi::offsets::MISSING;
use enginetap_ebpf::abi::process::ProcessKey;

/// Nanoseconds of a clock tick as `/proc` shows it.
const TICK_NS: u64 = 10_000_000;

/// Reads one offset of the table; volatile, since the agent sets it after compilation.
macro_rules! offset {
    ($field:ident) => {
        // SAFETY: a static of plain integers.
        unsafe {
            core::ptr::read_volatile(&raw const $crate::object::maps::OFFSETS.$field) as usize
        }
    };
}
pub(super) use offset;

/// Monotonic time.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_ktime_get_ns() }
}

/// Reads a field; zero when it cannot be read.
#[inline(always)]
pub fn read<T: Copy + Default>(base: *const u8, at: usize) -> T {
    let mut value = T::default();
    // SAFETY: the helper checks the source; the destination is a local of that size.
    unsafe {
        bpf_probe_read_kernel(
            &raw mut value as *mut c_void,
            core::mem::size_of::<T>() as u32,
            base.wrapping_add(at) as *const c_void,
        );
    }
    value
}

/// Namespace number of a packet's device.
#[inline(always)]
pub fn packet_netns(skb: *const u8) -> u32 {
    let dev: u64 = read(skb, offset!(skb_dev));
    let net: u64 = read(dev as *const u8, offset!(dev_net));
    read(net as *const u8, offset!(net_inum))
}

/// Family of a socket.
#[inline(always)]
pub fn sock_family(sk: *const u8) -> u16 {
    read(sk, offset!(sk_family))
}

/// Local port of a socket.
#[inline(always)]
pub fn sock_port(sk: *const u8) -> u16 {
    read(sk, offset!(sk_num))
}

/// Local port of a socket that may have given it back: `inet_num` is 0 when the change to CLOSE is
/// told.
#[inline(always)]
pub fn sock_sport(sk: *const u8) -> u16 {
    let port: u16 = read(sk, offset!(inet_sport));
    u16::from_be(port)
}

/// Namespace number of a socket.
#[inline(always)]
pub fn sock_netns(sk: *const u8) -> u32 {
    let net: u64 = read(sk, offset!(sk_net));
    read(net as *const u8, offset!(net_inum))
}

/// An IPv4 address in the form of the keys.
#[inline(always)]
pub fn mapped(v4: u32) -> [u32; 4] {
    [0, 0, u32::from_be(0xffff), v4]
}

/// The tuple of a socket, seen from its own side.
#[inline(always)]
pub fn sock_key(sk: *const u8, family: u16, port: u16) -> FlowKey {
    let (server, client) = if family == 2 {
        (
            mapped(read(sk, offset!(sk_rcv_saddr))),
            mapped(read(sk, offset!(sk_daddr))),
        )
    } else {
        (
            read(sk, offset!(sk_v6_rcv_saddr)),
            read(sk, offset!(sk_v6_daddr)),
        )
    };
    let dport: u16 = read(sk, offset!(sk_dport));
    FlowKey {
        netns: sock_netns(sk),
        server_port: port,
        client_port: u16::from_be(dport),
        server,
        client,
    }
}

/// The current task.
#[inline(always)]
pub fn current() -> *const u8 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_get_current_task() as *const u8 }
}

/// The process a task belongs to.
#[inline(always)]
pub fn process_of(task: *const u8) -> ProcessKey {
    let leader: u64 = read(task, offset!(task_leader));
    let start: u64 = read(leader as *const u8, offset!(task_start));
    let tgid: u32 = read(task, offset!(task_tgid));
    ProcessKey {
        tgid,
        pad: 0,
        start_ticks: start / TICK_NS,
    }
}

/// The process that runs now.
#[inline(always)]
pub fn current_process() -> ProcessKey {
    let leader: u64 = read(current(), offset!(task_leader));
    let start: u64 = read(leader as *const u8, offset!(task_start));
    ProcessKey {
        tgid: (bpf_get_current_pid_tgid() >> 32) as u32,
        pad: 0,
        start_ticks: start / TICK_NS,
    }
}

/// The signal that ends the current task; 0 when it ends by itself.
#[inline(always)]
pub fn ending_signal() -> u32 {
    let at = offset!(task_exit_code);
    if at as u32 == MISSING {
        return 0;
    }
    let code: u32 = read(current(), at);
    code & 0x7f
}

/// Live threads of the current thread group.
#[inline(always)]
pub fn live_threads() -> u32 {
    let signal: u64 = read(current(), offset!(task_signal));
    read(signal as *const u8, offset!(signal_live))
}
