//! Packet sockets with the tap's filter. Opened by a thread that is in the namespace already.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result, bail};

const SO_ATTACH_BPF: i32 = 50;

pub(super) fn set<T>(fd: &OwnedFd, level: i32, name: i32, value: &T) -> std::io::Result<()> {
    // SAFETY: the pointer and the size describe `value`, which lives through the call.
    let r = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if r == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// Opens a tap on device `index` of the current namespace. Nothing is ever queued: the filter is
/// attached before the socket is bound, and takes no packet.
pub fn open(program: BorrowedFd<'_>, index: u32) -> Result<OwnedFd> {
    // SAFETY: no pointers are passed; a negative result is checked.
    let raw = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if raw < 0 {
        bail!(
            "cannot open a packet socket (CAP_NET_RAW is needed): {}",
            std::io::Error::last_os_error()
        );
    }
    // SAFETY: the descriptor was just opened and has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    set(&fd, libc::SOL_SOCKET, SO_ATTACH_BPF, &program.as_raw_fd())
        .context("cannot attach the tap to a packet socket")?;
    // SAFETY: all-zero is a valid sockaddr_ll.
    let mut addr: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    addr.sll_family = libc::AF_PACKET as u16;
    addr.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    addr.sll_ifindex = index as i32;
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
            "cannot bind a packet socket to device {index}: {}",
            std::io::Error::last_os_error()
        );
    }
    Ok(fd)
}
