//! `cargo xtask vm`: the kernel tests on other kernels. Boots Debian's cloud kernels in QEMU, in
//! software (works nested and without /dev/kvm), from an initramfs with the same test programs and
//! agent as on the host. Boot takes 5 to 10 s; programs run 5 to 20 times slower than natively.

mod image;
mod kernel;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::Stdio,
    time::Instant,
};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde_json::Value;

use crate::{
    build, setup,
    shell::{capture, cargo, command, release, root, target, which},
    test::Tally,
};
use image::Image;

/// The kernels that are booted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kernels {
    #[value(name = "6.1")]
    V6_1,
    #[value(name = "6.12")]
    V6_12,
    All,
}

/// Longest time one virtual machine may run.
const LIMIT_SECONDS: &str = "1200";
const EXIT: &str = "enginetap-vm-exit ";
/// What the tests call besides the shell; left out where the host lacks it.
const TOOLS: &[&str] = &[
    "ip",
    "tc",
    "iptables",
    "ip6tables",
    "iptables-legacy",
    "nft",
    "nsenter",
    "unshare",
    "ethtool",
    "setpriv",
    "sysctl",
];
const MODULES: &[&str] = &[
    "veth",
    "dummy",
    "bridge",
    "inet_diag",
    "tcp_diag",
    "sch_netem",
    "nf_tables",
    "nft_compat",
    "nft_chain_nat",
    "nf_nat",
    "ip_tables",
    "iptable_nat",
    "ip6table_nat",
    "xt_REDIRECT",
    "xt_tcpudp",
];

/// Runs the kernel tests, those of them that `args` select, on each kernel.
pub fn run(kernels: Kernels, args: &[String]) -> Result<()> {
    setup::check()?;
    build::agent()?;
    let programs = test_programs()?;
    let mut files: Vec<(PathBuf, PathBuf)> = programs
        .iter()
        .map(|program| (program.path.clone(), program.path.clone()))
        .collect();
    // Same paths as on the host: tests know the programs they call by absolute path.
    files.push((release("enginetap"), release("enginetap")));
    for text in ["agent/METRICS.md", "tests/fixtures", "tests/corpus"] {
        let path = root().join(text);
        if path.exists() {
            files.push((path.clone(), path));
        }
    }
    let script = script(&programs, args);
    let mut tally = Tally::default();
    for kernel in kernels.list() {
        println!("-- kernel {kernel}");
        let started = Instant::now();
        let (code, counted) = boot(kernel, &files, &script)?;
        println!(
            "-- kernel {kernel}: exit code {code} after {} s",
            started.elapsed().as_secs()
        );
        if code != 0 && !counted.has_failures() {
            bail!("kernel {kernel}: a test program ended with {code} and no result");
        }
        // A name that no test has any more must not pass for one that passed.
        if let Some(part) = args.iter().find(|a| !a.starts_with('-') && !counted.ran(a)) {
            bail!("kernel {kernel}: no test ran with '{part}' in its name");
        }
        tally.add(counted);
    }
    tally.close()
}

impl Kernels {
    fn list(self) -> Vec<&'static str> {
        match self {
            Self::V6_1 => vec!["6.1"],
            Self::V6_12 => vec!["6.12"],
            Self::All => vec!["6.1", "6.12"],
        }
    }
}

/// Boots `kernel` with `files` (host path, guest path; folders whole) and runs `script` by its shell
/// as root. Returns the script's exit code and the test results it printed.
pub fn boot(kernel: &str, files: &[(PathBuf, PathBuf)], script: &str) -> Result<(i32, Tally)> {
    let dir = target().join("vm").join(kernel);
    let kernel = kernel::fetch(kernel, &dir)?;
    let mut image = Image::new(&dir.join("root"))?;
    for (host, guest) in files {
        image.add(host, guest)?;
    }
    for tool in TOOLS.iter().filter_map(|tool| which(tool)) {
        image.add(&tool, &tool)?;
    }
    let plugins = Path::new("/usr/lib/x86_64-linux-gnu/xtables");
    if plugins.is_dir() {
        image.add(plugins, plugins)?;
    }
    let modules = kernel.modules(MODULES)?;
    image.add_modules(&modules)?;
    let initrd = image.pack(script, EXIT)?;

    // A machine's own limit: a guest that hangs must not hang the run.
    let mut child = command("timeout")
        .args([
            "--foreground",
            LIMIT_SECONDS,
            "qemu-system-x86_64",
            "-machine",
            "q35",
        ])
        .args([
            "-accel",
            "tcg,thread=multi",
            "-cpu",
            "max",
            "-smp",
            "2",
            "-m",
            "3072",
        ])
        .args([
            "-display",
            "none",
            "-monitor",
            "none",
            "-serial",
            "stdio",
            "-no-reboot",
        ])
        .args(["-nic", "none", "-kernel"])
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(&initrd)
        .args([
            "-append",
            "console=ttyS0 quiet panic=-1 mitigations=off rdinit=/init",
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start timeout and qemu-system-x86_64: run `cargo xtask setup`")?;
    let output = child.stdout.take().context("no output of qemu")?;
    let (mut code, mut tally) = (None, Tally::default());
    let mut reader = BufReader::new(output);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes)? > 0 {
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end();
        match text.strip_prefix(EXIT) {
            Some(number) => code = number.parse().ok(),
            None => println!("{text}"),
        }
        tally.read(text);
        bytes.clear();
    }
    let status = child.wait()?;
    fs::remove_file(&initrd)?;
    let code = code.with_context(|| format!("the guest ended early (qemu: {status})"))?;
    Ok((code, tally))
}

/// A program of the tests crate.
#[derive(Debug)]
struct Program {
    path: PathBuf,
    test: bool,
}

/// Builds the integration tests and the programs they call.
fn test_programs() -> Result<Vec<Program>> {
    let messages = capture(&mut cargo([
        "test",
        "--package",
        "enginetap-tests",
        "--release",
        "--locked",
        "--no-run",
        "--test",
        "*",
        "--message-format=json",
    ]))?;
    build::test_programs(&[])?;
    let mut programs = Vec::new();
    for message in messages.lines() {
        let message: Value = serde_json::from_str(message).context("cargo's messages")?;
        let Some(path) = message["executable"].as_str() else {
            continue;
        };
        programs.push(Program {
            path: path.into(),
            test: message["profile"]["test"] == true,
        });
    }
    if !programs.iter().any(|program| program.test) {
        bail!("the tests crate has no tests/tests/*.rs to run");
    }
    Ok(programs)
}

fn script(programs: &[Program], args: &[String]) -> String {
    let quoted: Vec<String> = args
        .iter()
        .map(|arg| format!("'{}'", arg.replace('\'', "'\\''")))
        .collect();
    let mut script = format!(
        "export ENGINETAP_VM=1 ENGINETAP_BIN='{}' ENGINETAP_PROGRAMS='{}' RUST_BACKTRACE=1\nrc=0\n",
        release("enginetap").display(),
        target().join("release").display(),
    );
    script.push_str(&format!(
        "uname -r; '{}' doctor || rc=1\n",
        release("enginetap").display()
    ));
    // What is ignored on the host needs a module that only these kernels have.
    for program in programs.iter().filter(|program| program.test) {
        let path = program.path.display();
        script.push_str(&format!(
            "echo; echo 'Running {path}'; '{path}' --test-threads=1 --include-ignored {} || rc=1\n",
            quoted.join(" ")
        ));
    }
    script.push_str("exit $rc\n");
    script
}
