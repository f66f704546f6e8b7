//! The long proofs; see `enginetap_tests::soak`.

use std::process::ExitCode;

use clap::Parser as _;
use enginetap_tests::soak;

fn main() -> ExitCode {
    if soak::main(&soak::Args::parse()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
