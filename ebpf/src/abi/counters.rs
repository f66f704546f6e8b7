//! Counters per workload, and what is counted when a request's record finds no room.

use super::flow::closer;
use super::pod;

/// Workloads that can be told apart; number 0 stands for "none yet".
pub const WORKLOADS: u32 = 1024;

/// What the kernel counts for a workload. Every field is changed by atomic adds only.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Workload {
    /// Requests begun on confirmed flows.
    pub started: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Connections confirmed.
    pub connections: u64,
    /// Connections closed, by `closer`.
    pub closed: [u64; closer::COUNT],
    /// Events of requests whose end record was lost.
    pub lost_events: u64,
    /// Connections on which HTTP/1.1 could not be followed.
    pub unparsed: u64,
}
pod!(Workload, 8 * (4 + closer::COUNT + 2));

/// Values of an outcome as the kernel tells it.
pub mod outcome {
    /// Complete, status below 400.
    pub const SUCCESS: u32 = 0;
    /// Complete, status 5xx.
    pub const ERROR: u32 = 1;
    /// Complete, status 4xx.
    pub const REFUSED: u32 = 2;
    /// The client left first.
    pub const ABORT: u32 = 3;
    /// Complete, status 408 or 504.
    pub const TIMEOUT: u32 = 4;
    /// The server's side left first.
    pub const RESET: u32 = 5;
    /// The end was not seen.
    pub const UNOBSERVED: u32 = 6;
    /// Number of values, rounded up.
    pub const COUNT: u32 = 8;
}

/// Status classes: none, 1xx to 5xx.
pub const STATUS_CLASSES: u32 = 6;
/// Streaming: unknown, true, false.
pub const STREAMING: u32 = 3;

/// Cells of the table of requests whose end record was lost.
pub const LOST_CELLS: u32 = WORKLOADS * outcome::COUNT * STATUS_CLASSES * STREAMING;

/// The cell of a lost request.
#[inline(always)]
pub const fn lost_cell(workload: u32, outcome: u32, status_class: u32, streaming: u32) -> u32 {
    ((workload * outcome::COUNT + outcome) * STATUS_CLASSES + status_class) * STREAMING + streaming
}

/// Declares indices of a counter array together with their label values.
macro_rules! reasons {
    ($(#[$doc:meta])* $module:ident { $($(#[$vdoc:meta])* $name:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        pub mod $module {
            reasons!(@index 0; $($(#[$vdoc])* $name),+);
            /// Label value of each index.
            pub const NAMES: &[&str] = &[$($text),+];
        }
    };
    (@index $n:expr; $(#[$d:meta])* $name:ident $(, $(#[$rd:meta])* $rest:ident)*) => {
        $(#[$d])*
        pub const $name: u32 = $n;
        reasons!(@index $n + 1; $($(#[$rd])* $rest),*);
    };
    (@index $n:expr;) => {};
}

reasons! {
    /// What was lost of a confirmed flow.
    lost {
        /// The direction's lock was held too long.
        CONTENDED = "contended",
        /// The ring had no room.
        RING_FULL = "ring_full",
        /// A map had no room.
        MAP_FULL = "map_full",
        /// Bytes passed that the tap did not see.
        GAP = "gap",
    }
}

reasons! {
    /// Why a provisional flow was given up.
    dropped {
        /// No socket of this namespace has the tuple (forwarded, bridged or translated traffic).
        NOT_LOCAL = "not_local",
        /// The flow table had no room.
        TABLE_FULL = "table_full",
    }
}

reasons! {
    /// Why bytes on a watched connection could not be read as HTTP/1.1.
    unparsed {
        /// The first bytes are no request line.
        NOT_HTTP = "not_http",
        /// TLS.
        TLS = "tls",
        /// HTTP/2 with prior knowledge.
        HTTP2 = "http2",
        /// The connection ended inside a request head.
        PARTIAL_HEAD = "partial_head",
        /// A head of more than 64 KiB.
        HEAD_TOO_LONG = "head_too_long",
        /// A chunk-size line or a Content-Length that is not a number.
        BAD_FRAMING = "bad_framing",
        /// More than four requests at a time on one connection.
        PIPELINED = "pipelined",
        /// The reply does not begin with a status line.
        REPLY_NOT_HTTP = "reply_not_http",
        /// The connection changed its protocol (101 or CONNECT).
        UPGRADED = "upgraded",
    }
}
