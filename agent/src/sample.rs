//! How often each hook runs and how long it takes, sampled: the kernel's run statistics cost every
//! program of everybody on the node some 70 ns a run, so they are on for one second in thirty.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::sys::Stats;

use crate::watch::hold;

const EVERY: Duration = Duration::from_secs(30);
const FOR: Duration = Duration::from_secs(1);
const TURN: Duration = Duration::from_millis(100);

/// What was sampled of a hook since the agent started.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Name of the program.
    pub probe: String,
    /// Runs while statistics were on.
    pub runs: u64,
    /// Time inside the program during those.
    pub time: Duration,
}

/// Samples until `stop`. Owns the loaded object: it is unloaded when this ends.
pub fn run(ebpf: Ebpf, samples: &Mutex<Vec<Sample>>, stop: &AtomicBool) {
    // The first sample comes soon, so that the figures are there.
    let mut next = Instant::now() + Duration::from_secs(5);
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(TURN);
        if Instant::now() < next {
            continue;
        }
        next = Instant::now() + EVERY;
        let Ok(_on) = aya::sys::enable_stats(Stats::RunTime) else {
            tracing::debug!("run statistics cannot be switched on");
            continue;
        };
        let until = Instant::now() + FOR;
        while Instant::now() < until && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(TURN);
        }
        *hold(samples) = read(&ebpf);
    }
}

fn read(ebpf: &Ebpf) -> Vec<Sample> {
    ebpf.programs()
        .filter_map(|(name, program)| {
            let info = program.info().ok()?;
            Some(Sample {
                probe: name.to_owned(),
                runs: info.run_count(),
                time: info.run_time(),
            })
        })
        .collect()
}
