//! What the benchmark needs of the kernel beside the agent's own hooks: something to compare the
//! tap with, and a way to time it on a packet of choice.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use anyhow::{Result, bail};

use super::control::test_run;
use super::tap::set;

const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_RAW_TRACEPOINT_OPEN: libc::c_long = 17;
const SOCKET_FILTER: u32 = 1;
const TRACING: u32 = 26;
const TRACE_RAW_TP: u32 = 23;

/// Opens the packet socket that the tap is compared with: not bound to a device, all protocols,
/// and a classic filter of one instruction that takes no packet. It sees the packets of the
/// namespace that the calling thread is in.
pub fn empty_filter_socket() -> Result<OwnedFd> {
    // Protocol 0 until the filter is there, so that nothing is queued before.
    // SAFETY: no pointers are passed; a negative result is checked.
    let raw = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if raw < 0 {
        bail!(
            "cannot open a packet socket: {}",
            std::io::Error::last_os_error()
        );
    }
    // SAFETY: the descriptor was just opened and has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    let mut refuse = libc::sock_filter {
        code: 6,
        jt: 0,
        jf: 0,
        k: 0,
    };
    let program = libc::sock_fprog {
        len: 1,
        filter: &raw mut refuse,
    };
    set(&fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
    // SAFETY: all-zero is a valid sockaddr_ll; index 0 means every device.
    let mut addr: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    addr.sll_family = libc::AF_PACKET as u16;
    addr.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: the pointer and the size describe `addr`.
    let r = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            std::ptr::from_ref(&addr).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    if r != 0 {
        bail!(
            "cannot hear all protocols: {}",
            std::io::Error::last_os_error()
        );
    }
    Ok(fd)
}

/// The fields of `union bpf_attr` that loading a small program takes.
#[repr(C)]
#[derive(Default)]
struct Load {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    rest: [u64; 6],
}

/// Loads a socket filter that does nothing: what a run costs at least.
pub fn empty_program() -> Result<OwnedFd> {
    // r0 = 0; exit
    let code: [u64; 2] = [0xb7, 0x95];
    let attr = Load {
        prog_type: SOCKET_FILTER,
        insn_cnt: code.len() as u32,
        insns: code.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        ..Load::default()
    };
    // SAFETY: `attr` describes `code`, and both live through the call.
    unsafe { bpf(BPF_PROG_LOAD, &attr) }
}

/// The fields of `union bpf_attr` that loading a tracing program takes.
#[repr(C)]
#[derive(Default)]
struct LoadTracing {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
    prog_btf_fd: u32,
    func_info_rec_size: u32,
    func_info: u64,
    func_info_cnt: u32,
    line_info_rec_size: u32,
    line_info: u64,
    line_info_cnt: u32,
    attach_btf_id: u32,
    attach_prog_fd: u32,
    pad: u32,
}

/// Attaches a program that does nothing to a BTF tracepoint: what a hook there costs at least. It
/// goes with what is returned.
pub fn empty_hook(tracepoint: &str) -> Result<[OwnedFd; 2]> {
    let btf = aya::Btf::from_sys_fs()?;
    let name = format!("btf_trace_{tracepoint}");
    let code: [u64; 2] = [0xb7, 0x95];
    let attr = LoadTracing {
        prog_type: TRACING,
        insn_cnt: code.len() as u32,
        insns: code.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        expected_attach_type: TRACE_RAW_TP,
        attach_btf_id: btf.id_by_type_name_kind(&name, aya_obj::btf::BtfKind::Typedef)?,
        ..LoadTracing::default()
    };
    // SAFETY: `attr` describes `code`, and both live through the call.
    let program = unsafe { bpf(BPF_PROG_LOAD, &attr) }?;
    let attr = [0u64, program.as_raw_fd() as u64];
    // SAFETY: a null name and the program, as the command wants for one of this type.
    let link = unsafe { bpf(BPF_RAW_TRACEPOINT_OPEN, &attr) }?;
    Ok([program, link])
}

/// A command that returns a descriptor.
///
/// # Safety
/// `attr` is what the command expects, and all that it points to lives.
unsafe fn bpf<T>(command: libc::c_long, attr: &T) -> Result<OwnedFd> {
    // SAFETY: the caller's promise; a descriptor that was just opened has no other owner.
    unsafe {
        let r = libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attr),
            size_of::<T>() as libc::c_long,
        );
        if r < 0 {
            bail!("bpf command {command}: {}", std::io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(r as i32))
    }
}

/// Runs a socket filter once on a packet that begins with its Ethernet header and returns the
/// nanoseconds it took. The filter sees it as received on `lo` of the calling thread's namespace.
pub fn time_once(program: BorrowedFd<'_>, packet: &[u8]) -> Result<u32> {
    Ok(test_run(program.as_fd(), packet)?.nanos)
}
