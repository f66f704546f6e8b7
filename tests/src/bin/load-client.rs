//! A load client with its own truth; see `enginetap_tests::client`. Prints a
//! summary as one line of JSON.

use clap::Parser as _;
use enginetap_tests::client::{ClientArgs, run};

fn main() -> anyhow::Result<()> {
    let summary = run(ClientArgs::parse())?;
    println!("{}", serde_json::to_string(&summary)?);
    Ok(())
}
