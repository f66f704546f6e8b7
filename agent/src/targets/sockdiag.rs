//! The TCP sockets of the calling thread's network namespace, dumped over `NETLINK_SOCK_DIAG`.
//!
//! Call it inside [`in_netns`](super::netns::in_netns). One address type serves both families:
//! 16 bytes, IPv4 as `::ffff:a.b.c.d`. A dump is not a snapshot: sockets that open or close while
//! it runs may or may not be in it. AF_UNIX sockets are not looked at. MPTCP listeners appear as
//! the TCP socket below them, which carries the inode of the descriptor.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use anyhow::Result;
use nix::errno::Errno;
use nix::libc::{AF_INET, AF_INET6, IPPROTO_TCP};
use nix::sys::socket::SockProtocol;

use super::netlink;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Length of `struct inet_diag_msg`; attributes follow.
const MESSAGE: usize = 72;
const INET_DIAG_SKV6ONLY: u16 = 11;

/// An address as flows key it: IPv4 is `::ffff:a.b.c.d`, the wildcards are `::ffff:0.0.0.0` and
/// `::`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// Address in network order.
    pub ip: [u8; 16],
    /// Port in host order.
    pub port: u16,
}

impl Endpoint {
    /// The address in its own family.
    pub fn ip_addr(&self) -> IpAddr {
        Ipv6Addr::from(self.ip).to_canonical()
    }

    /// True for `0.0.0.0` and `::`.
    pub fn is_wildcard(&self) -> bool {
        self.ip_addr().is_unspecified()
    }

    /// True for an IPv4 address.
    pub fn is_v4(&self) -> bool {
        self.ip_addr().is_ipv4()
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(addr: SocketAddr) -> Self {
        let ip = match addr.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        Self {
            ip: ip.octets(),
            port: addr.port(),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::new(self.ip_addr(), self.port).fmt(f)
    }
}

/// Where a TCP socket stands, as in `include/net/tcp_states.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum TcpState {
    /// Open both ways.
    Established = 1,
    /// We closed, the peer has not acknowledged it.
    FinWait1 = 4,
    /// We closed, the peer has not.
    FinWait2 = 5,
    /// The peer closed, we have not.
    CloseWait = 8,
    /// Both closed, the peer has not acknowledged ours.
    LastAck = 9,
    /// Waiting for connections.
    Listen = 10,
    /// Both closed at once.
    Closing = 11,
}

impl TcpState {
    /// The states of a connection that can still carry or owe data.
    pub const CONNECTED: [TcpState; 6] = [
        TcpState::Established,
        TcpState::FinWait1,
        TcpState::FinWait2,
        TcpState::CloseWait,
        TcpState::LastAck,
        TcpState::Closing,
    ];

    fn from_raw(raw: u8) -> Option<Self> {
        [Self::Listen]
            .into_iter()
            .chain(Self::CONNECTED)
            .find(|&state| state as u8 == raw)
    }
}

/// One TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TcpSocket {
    /// Its own end.
    pub local: Endpoint,
    /// The other end; zeros for a listener.
    pub remote: Endpoint,
    /// Where it stands.
    pub state: TcpState,
    /// Inode of its descriptor; 0 when no descriptor holds it (not accepted yet, or closed).
    pub inode: u64,
    /// Listeners on IPv6 only: whether it refuses IPv4.
    pub v6only: Option<bool>,
    /// The device it is bound to (`SO_BINDTODEVICE`), 0 for none.
    pub device: u32,
}

/// All listening TCP sockets, ordered by address.
pub fn listeners() -> Result<Vec<TcpSocket>> {
    dump(&[TcpState::Listen], |_| true)
}

/// All connected TCP sockets that `keep` wants, ordered by address. Sockets that only wait for
/// their timeout or are not open yet are left out.
pub fn connections(keep: impl FnMut(&TcpSocket) -> bool) -> Result<Vec<TcpSocket>> {
    dump(&TcpState::CONNECTED, keep)
}

fn dump(states: &[TcpState], mut keep: impl FnMut(&TcpSocket) -> bool) -> Result<Vec<TcpSocket>> {
    let mut sockets = Vec::new();
    for family in [AF_INET, AF_INET6] {
        let found = netlink::dump(
            SockProtocol::NetlinkSockDiag,
            SOCK_DIAG_BY_FAMILY,
            &request(family as u8, states),
            |message| {
                (message.kind == SOCK_DIAG_BY_FAMILY)
                    .then(|| parse(message.body))
                    .flatten()
                    .filter(|socket| keep(socket))
            },
        );
        sockets.extend(found.map_err(advise)?);
    }
    // A socket that moves between hash buckets during the dump can come twice.
    sockets.sort_unstable();
    sockets.dedup();
    Ok(sockets)
}

fn advise(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<Errno>() {
        Some(Errno::ENOENT) => error.context(
            "this kernel has no TCP socket dump: load it with `modprobe tcp_diag` on the node",
        ),
        _ => error.context("dump TCP sockets"),
    }
}

/// `struct inet_diag_req_v2`: family, protocol, extensions, padding, states, an empty socket id.
fn request(family: u8, states: &[TcpState]) -> [u8; 56] {
    let mut bytes = [0; 56];
    bytes[0] = family;
    bytes[1] = IPPROTO_TCP as u8;
    let mask = states
        .iter()
        .fold(0u32, |mask, &state| mask | 1 << state as u8);
    bytes[4..8].copy_from_slice(&mask.to_ne_bytes());
    bytes
}

/// `struct inet_diag_msg`: family, state, timer, retrans, then the socket id (ports, addresses,
/// device, cookie), expires, rqueue, wqueue, uid, inode.
fn parse(body: &[u8]) -> Option<TcpSocket> {
    let family = i32::from(*body.first()?);
    let state = TcpState::from_raw(*body.get(1)?)?;
    let endpoint = |port: usize, ip: usize| {
        let ip = match family {
            AF_INET => std::net::Ipv4Addr::from(netlink::bytes_at::<4>(body, ip)?)
                .to_ipv6_mapped()
                .octets(),
            AF_INET6 => netlink::bytes_at::<16>(body, ip)?,
            _ => return None,
        };
        Some(Endpoint {
            ip,
            port: u16::from_be_bytes(netlink::bytes_at::<2>(body, port)?),
        })
    };
    Some(TcpSocket {
        local: endpoint(4, 8)?,
        remote: endpoint(6, 24)?,
        state,
        device: netlink::u32_at(body, 40)?,
        inode: u64::from(netlink::u32_at(body, 68)?),
        v6only: netlink::attributes(body, MESSAGE)
            .find(|&(kind, _)| kind == INET_DIAG_SKV6ONLY)
            .and_then(|(_, payload)| payload.first().map(|&flag| flag != 0)),
    })
}

#[cfg(test)]
#[path = "sockdiag_tests.rs"]
mod tests;
