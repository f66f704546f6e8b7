//! Builds the kernel object into `OUT_DIR/enginetap.bpf.o`. With `ENGINETAP_SKIP_BPF=1` the file is
//! empty, so that check and clippy need no BPF toolchain; an agent built so refuses to start.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

#[path = "../xtask/src/object.rs"]
mod object;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("cargo::error={why}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let out = PathBuf::from(variable("OUT_DIR")?);
    let manifest = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let root = manifest
        .parent()
        .ok_or("the agent lies outside a workspace")?;
    println!("cargo::rerun-if-env-changed=ENGINETAP_SKIP_BPF");
    for input in ["ebpf", "xtask/src/object.rs", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", root.join(input).display());
    }

    let placed = out.join("enginetap.bpf.o");
    if env::var("ENGINETAP_SKIP_BPF").is_ok_and(|value| value == "1") {
        return fs::write(&placed, []).map_err(|error| format!("{}: {error}", placed.display()));
    }
    let tools = object::toolchain().map_err(|missing| missing.to_string())?;
    let built = object::build(&tools, root, &target_dir(&out).join("bpf"))?;
    fs::copy(&built, &placed)
        .map(drop)
        .map_err(|error| format!("cannot place {}: {error}", placed.display()))
}

/// The outer target directory, where `OUT_DIR` is `TARGET[/TRIPLE]/PROFILE/build/PACKAGE/out`. The
/// object gets a directory of its own in it: the outer cargo holds the lock of the profile's.
fn target_dir(out: &Path) -> &Path {
    out.ancestors().nth(4).unwrap_or(out)
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|_| format!("cargo did not set {name}"))
}
