//! Measures what the agent costs and how right it is; see `enginetap_tests::bench`.

use clap::Parser as _;
use enginetap_tests::bench;

fn main() {
    bench::main(&bench::Args::parse());
}
