//! Builds the kernel object. Shared, as a file, by `agent/build.rs` and by xtask, so it needs nothing
//! but std.
//!
//! Two toolchains will do: Debian's `rustc-web` with its `rust-web-src`, or a rustup nightly that has
//! rust-src. Either needs `bpf-linker`, whose LLVM must not be older than the compiler's.

use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The remedy every complaint of this file ends with.
const REMEDY: &str = "run `cargo xtask setup`";
/// LLVM of the `bpf-linker` that setup installs; a newer compiler writes bitcode it cannot read.
const LLVM: u32 = 22;
/// Oldest compiler the workspace accepts (`rust-version`).
const RUST_MINOR: u32 = 95;
/// The object's own release profile; the workspace's is the agent's.
const PROFILE: [&str; 5] = [
    "opt-level=3",
    "lto=true",
    "panic=\"abort\"",
    "debug=2",
    "codegen-units=1",
];

/// A compiler that can build `core` for BPF, and the linker to go with it.
#[derive(Debug)]
pub struct Toolchain {
    /// What to show a person: `rustc 1.96.0 at /usr/bin/rustc`.
    pub label: String,
    rustup: Option<&'static str>,
    linker_dir: PathBuf,
}

/// What is missing, and the remedy.
#[derive(Debug)]
pub enum Missing {
    Linker(String),
    Compiler(String),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linker(why) => write!(f, "no linker for the kernel programs: {why}: {REMEDY}"),
            Self::Compiler(why) => {
                write!(f, "no compiler for the kernel programs: {why}: {REMEDY}")
            }
        }
    }
}

/// Finds a usable toolchain, or says what each candidate lacks and how to get it.
pub fn toolchain() -> Result<Toolchain, Missing> {
    let (label, rustup) = candidate(None)
        .map(|label| (label, None))
        .or_else(|why| {
            candidate(Some("nightly"))
                .map(|label| (label, Some("nightly")))
                .map_err(|also| format!("{why}; {also}"))
        })
        .map_err(Missing::Compiler)?;
    let linker = linker().map_err(Missing::Linker)?;
    Ok(Toolchain {
        label,
        rustup,
        linker_dir: linker.parent().map(Path::to_path_buf).unwrap_or_default(),
    })
}

/// Builds the object of the workspace at `root` into `target_dir` and returns its path.
pub fn build(tools: &Toolchain, root: &Path, target_dir: &Path) -> Result<PathBuf, String> {
    let mut cargo = tools.command("build", root, target_dir);
    let status = cargo
        .stdin(Stdio::null())
        .status()
        .map_err(|error| format!("cannot start {cargo:?}: {error}: {REMEDY}"))?;
    if !status.success() {
        return Err(format!(
            "the kernel object does not build with {} ({status})",
            tools.label
        ));
    }
    let object = target_dir.join("bpfel-unknown-none/release/enginetap-object");
    if fs::metadata(&object).is_ok_and(|meta| meta.len() > 0) {
        Ok(object)
    } else {
        Err(format!("{} was not written", object.display()))
    }
}

impl Toolchain {
    /// `cargo build` or `cargo clippy` of the object, free of what an outer cargo, a build script or
    /// clippy left in the environment. It has a target directory of its own: the outer cargo holds
    /// the lock of the other.
    pub fn command(&self, action: &str, root: &Path, target_dir: &Path) -> Command {
        // Called by its own name: `cargo clippy` would take another toolchain's from CARGO_HOME.
        let program = match action {
            "clippy" => "cargo-clippy",
            _ => "cargo",
        };
        let mut cargo = tool(self.rustup, program);
        let path = env::var_os("PATH").unwrap_or_default();
        let dirs = std::iter::once(self.linker_dir.clone()).chain(env::split_paths(&path));
        if let Ok(path) = env::join_paths(dirs) {
            cargo.env("PATH", path);
        }
        if self.rustup.is_none() {
            cargo.env("CARGO", "/usr/bin/cargo");
            cargo.env("RUSTC", "/usr/bin/rustc");
        }
        // build-std and the atomics are unstable: a release compiler must be told to allow them.
        // Without --btf a program that uses bpf_loop is refused; v3 is for the atomics.
        cargo
            .current_dir(root)
            .env("RUSTC_BOOTSTRAP", "1")
            .env(
                "RUSTFLAGS",
                "-Cdebuginfo=2 -Clink-arg=--btf -Ctarget-cpu=v3",
            )
            .args([action, "--locked", "--release", "-Zbuild-std=core"])
            .args(["--package=enginetap-ebpf", "--bin=enginetap-object"])
            .args(["--target=bpfel-unknown-none", "--target-dir"])
            .arg(target_dir)
            .args(PROFILE.map(|setting| format!("--config=profile.release.{setting}")));
        cargo
    }
}

/// `program` of Debian's toolchain or of the named rustup toolchain, in a scrubbed environment.
fn tool(rustup: Option<&str>, program: &str) -> Command {
    let mut command = match rustup {
        None => Command::new(format!("/usr/bin/{program}")),
        Some(name) => {
            let mut command = Command::new("rustup");
            command
                .args(["run", name, program])
                .env("RUSTUP_AUTO_INSTALL", "0");
            command
        }
    };
    for (name, _) in env::vars_os() {
        if name.to_str().is_none_or(inherited) {
            command.env_remove(name);
        }
    }
    command
}

/// Whether an outer cargo may have set this variable for another build than ours.
fn inherited(name: &str) -> bool {
    const KEPT: [&str; 6] = [
        "CARGO_HOME",
        "CARGO_HTTP_",
        "CARGO_NET_",
        "CARGO_REGISTRIES_",
        "CARGO_REGISTRY_",
        "CARGO_TERM_",
    ];
    const DROPPED: [&str; 5] = ["CARGO", "RUSTC", "RUSTDOC", "CLIPPY_", "DEP_"];
    const EXACT: [&str; 10] = [
        "RUSTFLAGS",
        "RUSTUP_TOOLCHAIN",
        "LD_LIBRARY_PATH",
        "MAKEFLAGS",
        "MFLAGS",
        "TARGET",
        "HOST",
        "PROFILE",
        "OPT_LEVEL",
        "DEBUG",
    ];
    EXACT.contains(&name)
        || DROPPED.iter().any(|prefix| name.starts_with(prefix))
            && !KEPT.iter().any(|prefix| name.starts_with(prefix))
}

/// Checks one compiler: there, new enough, with an LLVM the linker reads and with core's sources.
fn candidate(rustup: Option<&str>) -> Result<String, String> {
    let name = rustup.map_or("/usr/bin/rustc".to_owned(), |name| format!("rustup {name}"));
    let about = output(tool(rustup, "rustc").arg("-vV")).ok_or_else(|| format!("no {name}"))?;
    let field = |key: &str| {
        about
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    let (release, llvm) = (field("release:"), field("LLVM version:"));
    if number(&release, 0) == 1 && number(&release, 1) < RUST_MINOR {
        return Err(format!("{name} is {release}, older than 1.{RUST_MINOR}"));
    }
    if number(&llvm, 0) > LLVM {
        return Err(format!(
            "{name} uses LLVM {llvm}, newer than bpf-linker's {LLVM}"
        ));
    }
    let sysroot = output(tool(rustup, "rustc").args(["--print", "sysroot"])).unwrap_or_default();
    let core = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/core/Cargo.toml");
    if !core.is_file() {
        let package = if rustup.is_none() {
            "rust-web-src"
        } else {
            "rust-src"
        };
        return Err(format!(
            "{name} {release} has no sources of core ({package})"
        ));
    }
    output(tool(rustup, "cargo").arg("-V")).ok_or_else(|| format!("no cargo beside {name}"))?;
    Ok(format!("rustc {release} of {name}"))
}

/// Finds `bpf-linker` on PATH or where cargo installs it.
fn linker() -> Result<PathBuf, String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let home = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    let linker = env::split_paths(&path)
        .chain(home.map(|home| home.join("bin")))
        .map(|dir| dir.join("bpf-linker"))
        .find(|linker| linker.is_file())
        .ok_or("bpf-linker is not on PATH")?;
    let about = output(Command::new(&linker).arg("--version"))
        .ok_or_else(|| format!("{} does not run", linker.display()))?;
    let version = about.trim().rsplit(' ').next().unwrap_or_default();
    if number(version, 0) == 0 && number(version, 1) < 13 {
        return Err(format!("bpf-linker {version} is older than 0.13"));
    }
    Ok(linker)
}

/// The `index`-th dotted number of a version.
fn number(version: &str, index: usize) -> u32 {
    version
        .split(['.', '-'])
        .nth(index)
        .and_then(|part| part.parse().ok())
        .unwrap_or(0)
}

/// What a command prints, if it succeeds.
fn output(command: &mut Command) -> Option<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
