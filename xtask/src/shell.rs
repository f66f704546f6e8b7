//! Places, processes and errors that every command shares.

use std::{
    env,
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, geteuid},
};

/// The workspace this xtask was built in.
pub fn root() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own)
}

/// Cargo's target directory, below which every command keeps what it makes.
pub fn target() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// A path of the release build.
pub fn release(program: &str) -> PathBuf {
    target().join("release").join(program)
}

/// The cargo that runs this xtask, in the workspace.
pub fn cargo<const N: usize>(args: [&str; N]) -> Command {
    let mut cargo = command(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(args).current_dir(root());
    cargo
}

/// A program without the library path that `cargo run` adds.
pub fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_remove("LD_LIBRARY_PATH");
    command
}

/// Runs a command with its output shown; failing is an error that names it.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot start {}", line(command)))?;
    if !status.success() {
        bail!("{} failed ({status})", line(command));
    }
    Ok(())
}

/// Runs a command whose output matters only if it fails.
pub fn run_quietly(command: &mut Command) -> Result<()> {
    capture(command).map(drop)
}

/// Runs a command and returns what it printed.
pub fn capture(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", line(command)))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let all = format!("{text}{errors}");
        let lines: Vec<&str> = all.lines().collect();
        let tail = lines[lines.len().saturating_sub(40)..].join("\n");
        bail!("{} failed ({}):\n{tail}", line(command), output.status);
    }
    Ok(text.into_owned())
}

/// A command as a person would type it, without its environment.
pub fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// Where `program` is, if it is on PATH (system folders included).
pub fn which(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|dir| dir.join(program))
        .find(|file| file.is_file())
}

/// Fails unless root, naming the command that needs it.
pub fn need_root(what: &str) -> Result<()> {
    if geteuid().is_root() {
        return Ok(());
    }
    bail!("{what} must run as root: sudo -E env PATH=\"$PATH\" cargo xtask {what}")
}

/// A child process that never outlives this one: asked to stop, then killed, on drop.
#[derive(Debug)]
pub struct Guarded {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Guarded {
    /// Starts `command` with its output in `log`. Where `setpriv` exists the kernel kills the child
    /// even if this process is killed.
    pub fn start(name: &str, command: &Command, log: &Path) -> Result<Self> {
        let mut guarded = self::command(which("setpriv").unwrap_or_else(|| "env".into()));
        if guarded.get_program().to_string_lossy().ends_with("setpriv") {
            guarded.args(["--pdeathsig", "KILL", "--"]);
        }
        guarded
            .arg(command.get_program())
            .args(command.get_args())
            .stdin(Stdio::null());
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => guarded.env(key, value),
                None => guarded.env_remove(key),
            };
        }
        let out = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        guarded.stderr(out.try_clone()?).stdout(out);
        let child = guarded
            .spawn()
            .with_context(|| format!("cannot start {}", line(command)))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
        })
    }

    /// Fails with the end of its log if the process has ended.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let tail = lines[lines.len().saturating_sub(15)..].join("\n");
            bail!("{} ended ({status}):\n{tail}", self.name);
        }
        Ok(())
    }

    /// Stops the process by SIGTERM and says whether it ended well.
    pub fn stop(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_none() {
            let pid = i32::try_from(self.child.id()).context("pid")?;
            kill(Pid::from_raw(pid), Signal::SIGTERM)?;
            let deadline = Instant::now() + Duration::from_secs(5);
            while Instant::now() < deadline {
                if let Some(status) = self.child.try_wait()? {
                    if status.success() {
                        return Ok(());
                    }
                    bail!("{} ended with {status} on SIGTERM", self.name);
                }
                thread::sleep(Duration::from_millis(20));
            }
            bail!("{} does not stop on SIGTERM", self.name);
        }
        Ok(())
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if self.stop().is_err() {
            // Already ended, or about to: there is nobody to report a failed kill to.
            let _ended = self.child.kill().and_then(|()| self.child.wait());
        }
    }
}
