//! Sends what is no HTTP to a port; see `enginetap_tests::garbage`. Prints a
//! summary as one line of JSON.

use clap::Parser as _;
use enginetap_tests::garbage::{GarbageArgs, run};

fn main() -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(&run(&GarbageArgs::parse())?)?);
    Ok(())
}
