//! `cargo xtask lint`: everything that judges the sources without running them. One function per
//! step; `ci` calls them one by one.

use anyhow::{Result, bail};

use crate::{
    object, setup,
    shell::{cargo, command, root, run, target},
};

/// Name and function of each step, cheap ones first.
pub const STEPS: [crate::ci::Step; 7] = [
    ("fmt", fmt),
    ("typos", typos),
    ("toml", toml),
    ("deny", deny),
    ("unused dependencies", unused),
    ("clippy", clippy),
    ("clippy of the kernel programs", clippy_bpf),
];

pub fn fmt() -> Result<()> {
    run(&mut cargo(["fmt", "--all", "--check"]))
}

fn typos() -> Result<()> {
    run(command(setup::tool("typos")?).current_dir(root()))
}

fn toml() -> Result<()> {
    let files = [
        "Cargo.toml",
        "agent/Cargo.toml",
        "ebpf/Cargo.toml",
        "tests/Cargo.toml",
        "xtask/Cargo.toml",
        "deny.toml",
        "typos.toml",
    ];
    run(command(setup::tool("taplo")?)
        .args(["lint", "--no-schema", "--colors", "never"])
        .args(files)
        .env("RUST_LOG", "warn")
        .current_dir(root()))
}

/// Licences, sources and doubled versions. Advisories need a database that lives in no registry.
fn deny() -> Result<()> {
    run(command(setup::tool("cargo-deny")?)
        .args([
            "--locked",
            "--all-features",
            "check",
            "--hide-inclusion-graph",
        ])
        .args(["bans", "licenses", "sources"])
        .current_dir(root()))
}

fn unused() -> Result<()> {
    run(command(setup::tool("cargo-shear")?).current_dir(root()))
}

fn clippy() -> Result<()> {
    let mut clippy = cargo([
        "clippy",
        "--workspace",
        "--all-targets",
        "--locked",
        "--quiet",
    ]);
    run(clippy
        .args(["--", "-Dwarnings"])
        .env("ENGINETAP_SKIP_BPF", "1"))
}

/// The compiler's and clippy's warnings on the code that only the BPF target sees.
fn clippy_bpf() -> Result<()> {
    let tools = object::toolchain().map_err(|missing| anyhow::anyhow!("{missing}"))?;
    let mut clippy = tools.command("clippy", root(), &target().join("bpf"));
    let status = clippy.args(["--quiet", "--", "-Dwarnings"]).status()?;
    if !status.success() {
        bail!(
            "clippy of the kernel programs failed (without cargo-clippy: run `cargo xtask setup`)"
        );
    }
    Ok(())
}
