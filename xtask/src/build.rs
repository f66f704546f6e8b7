//! `cargo xtask build`: the agent, `target/release/enginetap`, with its kernel object inside.

use anyhow::Result;

use crate::{
    setup,
    shell::{cargo, release, run},
};

pub fn agent() -> Result<()> {
    setup::check()?;
    run(&mut cargo([
        "build",
        "--release",
        "--locked",
        "--package",
        "enginetap",
    ]))?;
    println!("built {}", release("enginetap").display());
    Ok(())
}

/// Programs of the tests crate (scripted engines, clients): the named ones, or all.
pub fn test_programs(names: &[&str]) -> Result<()> {
    let mut build = cargo([
        "build",
        "--release",
        "--locked",
        "--package",
        "enginetap-tests",
    ]);
    if names.is_empty() {
        build.arg("--bins");
    }
    for name in names {
        build.args(["--bin", name]);
    }
    run(&mut build)
}

/// A program of the tests crate that measures, with the features it needs.
pub fn measuring_program(name: &str, features: &[&str]) -> Result<()> {
    let mut build = cargo([
        "build",
        "--release",
        "--locked",
        "--package",
        "enginetap-tests",
    ]);
    build.args(["--bin", name, "--features", &features.join(",")]);
    run(&mut build)
}
