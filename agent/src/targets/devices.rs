//! The network devices of the calling thread's namespace, and news about them.
//!
//! Call [`list`] and [`DeviceWatch::open`] inside [`in_netns`](super::netns::in_netns); a watch
//! stays with the namespace it was opened in wherever it is read. Addresses are matched to their
//! device by index, so labels (`eth0:1`) and renames do not matter.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::libc::{AF_INET, AF_INET6, IFF_LOOPBACK, IFF_UP};
use nix::sys::socket::{MsgFlags, SockFlag, SockProtocol, recv};

use super::netlink;

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const IFLA_IFNAME: u16 = 3;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// Length of `struct ifinfomsg`; attributes follow.
const IFINFOMSG: usize = 16;
/// Length of `struct ifaddrmsg`; attributes follow.
const IFADDRMSG: usize = 8;
/// `RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR`.
const GROUPS: u32 = 0x1 | 0x10 | 0x100;

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its index in this namespace.
    pub index: u32,
    /// Its name now.
    pub name: String,
    /// `IFF_*` flags.
    pub flags: u32,
    /// Addresses of this host that it carries, link-local ones included.
    pub addresses: Vec<IpAddr>,
}

impl Device {
    /// The loopback device.
    pub fn is_loopback(&self) -> bool {
        self.flags & IFF_LOOPBACK as u32 != 0
    }

    /// Administratively up.
    pub fn is_up(&self) -> bool {
        self.flags & IFF_UP as u32 != 0
    }

    /// Carries an address of this host: connections can end here.
    pub fn has_local_address(&self) -> bool {
        !self.addresses.is_empty()
    }
}

/// All devices of this namespace, by index.
pub fn list() -> Result<Vec<Device>> {
    // Addresses first: a device that comes in between is then listed without any, and the
    // watcher tells of it; the other way round its addresses would have no device.
    let mut addresses: BTreeMap<u32, Vec<IpAddr>> = BTreeMap::new();
    let found = netlink::dump(
        SockProtocol::NetlinkRoute,
        RTM_GETADDR,
        &[0; IFADDRMSG],
        |message| {
            (message.kind == RTM_NEWADDR)
                .then(|| parse_address(message.body))
                .flatten()
        },
    );
    for (index, address) in found.context("list network addresses")? {
        addresses.entry(index).or_default().push(address);
    }
    let mut devices = netlink::dump(
        SockProtocol::NetlinkRoute,
        RTM_GETLINK,
        &[0; IFINFOMSG],
        |message| {
            (message.kind == RTM_NEWLINK)
                .then(|| parse_link(message.body))
                .flatten()
        },
    )
    .context("list network devices")?;
    for device in &mut devices {
        device.addresses = addresses.remove(&device.index).unwrap_or_default();
    }
    devices.sort_by_key(|device| device.index);
    Ok(devices)
}

/// `struct ifinfomsg`: family, padding, type, index, flags, change.
fn parse_link(body: &[u8]) -> Option<Device> {
    let name = netlink::attributes(body, IFINFOMSG)
        .find(|&(kind, _)| kind == IFLA_IFNAME)?
        .1;
    let name = name.split(|&b| b == 0).next()?;
    Some(Device {
        index: netlink::u32_at(body, 4)?,
        name: String::from_utf8_lossy(name).into_owned(),
        flags: netlink::u32_at(body, 8)?,
        addresses: Vec::new(),
    })
}

/// `struct ifaddrmsg`: family, prefix length, flags, scope, index. On a point-to-point device
/// `IFA_ADDRESS` is the peer's and `IFA_LOCAL` ours.
fn parse_address(body: &[u8]) -> Option<(u32, IpAddr)> {
    let family = i32::from(*body.first()?);
    let index = netlink::u32_at(body, 4)?;
    let attribute = |wanted| {
        netlink::attributes(body, IFADDRMSG)
            .find(|&(kind, _)| kind == wanted)
            .map(|(_, v)| v)
    };
    let address = attribute(IFA_LOCAL).or_else(|| attribute(IFA_ADDRESS))?;
    let address = match family {
        AF_INET => IpAddr::V4(Ipv4Addr::from(netlink::bytes_at::<4>(address, 0)?)),
        AF_INET6 => IpAddr::V6(Ipv6Addr::from(netlink::bytes_at::<16>(address, 0)?)),
        _ => return None,
    };
    Some((index, address))
}

/// Tells when a device or an address of a namespace comes, goes or changes. Its descriptor does
/// not block and becomes readable on news.
#[derive(Debug)]
pub struct DeviceWatch(OwnedFd);

impl DeviceWatch {
    /// Watches the calling thread's namespace. Open it before the first [`list`]: nothing is
    /// missed then.
    pub fn open() -> Result<Self> {
        netlink::open(SockProtocol::NetlinkRoute, SockFlag::SOCK_NONBLOCK, GROUPS)
            .context("watch network devices")
            .map(Self)
    }

    /// Takes all news off; true if there was any. Lost news (a full buffer) is news.
    pub fn drain(&self) -> Result<bool> {
        let mut news = false;
        let mut scratch = [0u8; 512];
        loop {
            match recv(self.0.as_raw_fd(), &mut scratch, MsgFlags::empty()) {
                Ok(_) | Err(Errno::ENOBUFS) => news = true,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(news),
                Err(error) => return Err(error).context("read news about network devices"),
            }
        }
    }
}

impl AsFd for DeviceWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for DeviceWatch {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}

impl From<DeviceWatch> for OwnedFd {
    fn from(watch: DeviceWatch) -> Self {
        watch.0
    }
}

#[cfg(test)]
#[path = "devices_tests.rs"]
mod tests;
