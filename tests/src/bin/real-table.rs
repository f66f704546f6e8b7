//! Measures real engines and gateways: see `enginetap_tests::real`.

use std::process::ExitCode;

use clap::Parser as _;
use enginetap_tests::real::{Args, run};

fn main() -> ExitCode {
    match run(&Args::parse()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
