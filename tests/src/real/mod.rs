//! Real engines, gateways and clients: unmodified programs that `cargo xtask real` installed, run
//! beside the agent, and what the page says of them against what their clients counted.
//!
//! A program that is missing skips a test aloud, or fails it when `ENGINETAP_REQUIRE=1` says that
//! all must be there. Without `ENGINETAP_REAL`, or inside a virtual machine, none is asked for.

mod clients;
mod counts;
mod kept;
mod program;
mod subject;
mod table;

pub use counts::Counts;
pub use kept::Kept;
pub use program::{Place, Program};
pub use table::{Args, run};

/// The name that every recipe's model has, but for SGLang's.
pub const MODEL: &str = "smollm2";
