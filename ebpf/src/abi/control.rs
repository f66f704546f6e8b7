//! Orders that the agent gives to the control program, as the payload of a test packet.

use super::flow::FlowKey;
use super::pod;

/// What is to be done.
pub mod order {
    /// Make a flow for a connection that is older than the tap; `argument` = workload.
    pub const ADOPT: u32 = 1;
    /// End what is open and forget the flow; `argument` = who closed, unless that is known.
    pub const SETTLE: u32 = 2;
    /// Forget a flow that was never confirmed.
    pub const DROP: u32 = 3;
    /// Look at a port; `argument` = port, `flow` = 1 when it is watched, 0 when only inference
    /// requests to it are looked at.
    pub const LOOK: u32 = 4;
    /// Look at ports no longer; `argument` = cell of the table, `flow` = their bits.
    pub const LEAVE: u32 = 5;
    /// Forget the listener at the server's address and port of the key, unless one began to listen
    /// there after `flow`, a time.
    pub const UNLISTEN: u32 = 6;
    /// Look at a task (a thread) with `argument` as its number; its entry is made before.
    pub const SERVE: u32 = 7;
    /// Look at that task no longer; its entry is taken away after.
    pub const UNSERVE: u32 = 8;
}

/// What came of it.
pub mod answer {
    /// It was done.
    pub const DONE: i64 = 1;
    /// There was nothing to do.
    pub const NOTHING: i64 = 2;
    /// A lock was held: try again; or a listener is newer and stays.
    pub const BUSY: i64 = 3;
    /// The order could not be read.
    pub const REJECTED: i64 = 4;
}

/// The fixed part of an order; the key follows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// See [`order`].
    pub what: u32,
    /// See [`order`].
    pub argument: u32,
    /// Number of the flow that is meant, or as said at [`order`].
    pub flow: u64,
    /// Explicit padding.
    pub pad: u64,
}
pod!(Order, 24);

/// An order as it is sent.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// The fixed part.
    pub order: Order,
    /// Which flow.
    pub key: FlowKey,
}
pod!(Sent, 64);
