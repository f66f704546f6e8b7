//! Measures real engines and gateways: see `enginetap_tests::real`.

use std::process::ExitCode;

use clap::Parser as _;
use enginetap_tests::real::{Args, run};

fn main() -> ExitCode {
    if run(&Args::parse()) == 0 {
        eprintln!("nothing is installed to measure");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
