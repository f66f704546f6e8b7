//! A scripted LLM engine with its own truth; see `enginetap_tests::engine`.

use clap::Parser as _;
use enginetap_tests::engine::{EngineArgs, main as run};

fn main() -> anyhow::Result<()> {
    run(EngineArgs::parse)
}
