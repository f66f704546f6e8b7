//! Listening sockets and the ports they make worth a look.

use super::pod;

/// A listening socket. The wildcard is `::` (IPv6) or `::ffff:0.0.0.0` (IPv4).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerKey {
    /// Inode number of the network namespace.
    pub netns: u32,
    /// Port in host order.
    pub port: u16,
    /// Explicit padding, always 0.
    pub pad: u16,
    /// Address in network order.
    pub addr: [u32; 4],
}
pod!(ListenerKey, 24);

/// What is done with connections to a listener.
pub mod mode {
    /// Just opened: followed as if watched until the agent has looked at its process.
    pub const PENDING: u32 = 1;
    /// Watched.
    pub const WATCHED: u32 = 2;
    /// Not watched; requests to an inference route are looked at.
    pub const RECOGNISE: u32 = 3;
}

/// What is known of a listener.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Workload it belongs to; 0 = none.
    pub workload: u32,
    /// See [`mode`].
    pub mode: u32,
    /// When it began to listen or was found to.
    pub since_ns: u64,
}
pod!(Listener, 16);

/// Sixty-four ports, a bit each.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// Connections to them are followed from their SYN on.
    pub watched: u64,
    /// Requests to them are looked at.
    pub recognise: u64,
    /// A flow was begun on them by recognition.
    pub active: u64,
    /// Explicit padding.
    pub pad: u64,
}
pod!(Ports, 32);

/// Cells of the port table.
pub const PORT_CELLS: u32 = 1024;
