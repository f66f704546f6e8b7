//! A device as the relay holds it: a packet socket that reads and writes whole frames.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recvfrom, send,
    setsockopt, socket, sockopt,
};

/// Sent by this host rather than received.
const OUTGOING: u8 = 4;
/// Room for frames that the relay has not read yet: it must lose none by itself.
const BUFFER: usize = 64 << 20;

/// A packet socket bound to one device of the namespace it was opened in.
#[derive(Debug)]
pub(super) struct Port {
    fd: OwnedFd,
}

impl Port {
    /// Opens it; panics when the device is not there.
    pub fn open(device: &str) -> Self {
        let fd = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
            SockProtocol::EthAll,
        )
        .expect("a packet socket (root?)");
        setsockopt(&fd, sockopt::RcvBufForce, &BUFFER).expect("SO_RCVBUFFORCE");
        setsockopt(&fd, sockopt::SndBuf, &(BUFFER / 16)).expect("SO_SNDBUF");
        bind(fd.as_raw_fd(), &address(device)).expect("bind to a device");
        Self { fd }
    }

    /// The next frame received, `None` when there is none now.
    pub fn read(&self, into: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match recvfrom::<LinkAddr>(self.fd.as_raw_fd(), into) {
                Ok((_, Some(from))) if from.pkttype() == OUTGOING => {}
                Ok((n, _)) => return Ok(Some(n)),
                Err(nix::Error::EAGAIN) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Sends a frame.
    pub fn write(&self, frame: &[u8]) -> io::Result<()> {
        loop {
            match send(self.fd.as_raw_fd(), frame, MsgFlags::empty()) {
                Ok(_) => return Ok(()),
                // The device takes more in a moment.
                Err(nix::Error::EAGAIN | nix::Error::ENOBUFS) => std::thread::yield_now(),
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn address(device: &str) -> LinkAddr {
    let mut devices = getifaddrs().expect("the devices of this namespace");
    devices
        .find_map(|d| {
            let link = *d.address?.as_link_addr()?;
            (d.interface_name == device).then_some(link)
        })
        .unwrap_or_else(|| panic!("no device {device}"))
}
