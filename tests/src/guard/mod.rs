//! Guards: what a test starts or creates is gone when the guard drops, also
//! when the test panics. Waiting is polling until a deadline, never a guess.

mod agent;
mod cgroup;
mod child;
mod held;
mod lines;
mod netns;
mod place;
mod spawn;
mod tools;

pub use agent::{Agent, AgentBuilder};
pub use cgroup::Cgroup;
pub use child::{Child, Finished};
pub use held::Held;
pub use netns::{Bridge, NetNs, Veth, VethEnd};
pub use place::locate;
pub use spawn::ChildBuilder;
pub use tools::{Engine, EngineBuilder, Load};

use std::time::{Duration, Instant};

/// A fresh temporary directory, removed on drop.
pub fn temp_dir() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("enginetap-")
        .tempdir()
        .expect("temporary directory")
}

/// Polls `probe` until it yields a value; `None` when the deadline passes.
pub fn poll<T>(deadline: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + deadline;
    loop {
        if let Some(value) = probe() {
            return Some(value);
        }
        if Instant::now() >= end {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
