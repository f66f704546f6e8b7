//! Records that no longer borrow the ring.

use enginetap_ebpf::abi::record::{End, FlowClosed, Life, Listen, Piece};
use zeroize::Zeroizing;

use crate::bpf::ring::Record;

/// A record that no longer borrows the ring. Its bytes are zeroed when it is dropped.
pub enum Owned {
    /// Bytes of a message.
    Piece(Box<Piece>, Zeroizing<Vec<u8>>),
    /// A request ended; the end of its reply.
    End(Box<End>, Zeroizing<Vec<u8>>),
    /// A stream goes on.
    Progress(Box<End>),
    /// A connection is over.
    Closed(FlowClosed),
    /// A socket begins or ceases to listen.
    Listen(Listen),
    /// A process begins or ends.
    Life(Life),
}

impl Owned {
    /// Copies a record out of the ring.
    pub fn of(record: Record<'_>) -> Owned {
        match record {
            Record::Piece(head, data) => Owned::Piece(Box::new(head), data.to_vec().into()),
            Record::End(end, older, newer) => {
                let mut tail = Vec::with_capacity(older.len() + newer.len());
                tail.extend_from_slice(older);
                tail.extend_from_slice(newer);
                Owned::End(end, tail.into())
            }
            Record::Progress(end) => Owned::Progress(end),
            Record::Closed(x) => Owned::Closed(x),
            Record::Listen(x) => Owned::Listen(x),
            Record::Life(x) => Owned::Life(x),
        }
    }
}
