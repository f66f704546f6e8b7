//! How a child is started: its namespace and cgroup before its first
//! instruction.

use std::ffi::{OsStr, OsString};
use std::process::{Command, Stdio};

use super::{Cgroup, Child, NetNs};

/// What a child is to be.
#[derive(Debug)]
pub struct ChildBuilder {
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    netns: Option<String>,
    cgroup: Option<String>,
    cgroup_files: Vec<OsString>,
}

impl ChildBuilder {
    /// Runs `program`, looked up in PATH unless it has a slash.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            netns: None,
            cgroup: None,
            cgroup_files: Vec::new(),
        }
    }

    /// Runs this program instead.
    #[must_use]
    pub fn program(mut self, program: impl AsRef<OsStr>) -> Self {
        self.program = program.as_ref().to_owned();
        self
    }

    /// Adds one argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<T: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.args
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.env.push((key.into(), value.as_ref().to_owned()));
        self
    }

    /// Starts it in this namespace (setns on the spawning thread: no wrapper
    /// process, no mount namespace of its own).
    #[must_use]
    pub fn netns(mut self, ns: &NetNs) -> Self {
        self.netns = Some(ns.name().to_owned());
        self
    }

    /// Starts it in this cgroup: it is a member before its first instruction.
    #[must_use]
    pub fn cgroup(mut self, group: &Cgroup) -> Self {
        self.cgroup = Some(group.path().to_owned());
        self.cgroup_files = group
            .directories()
            .iter()
            .map(|dir| dir.join("cgroup.procs").into())
            .collect();
        self
    }

    fn command(&self) -> Command {
        if self.cgroup_files.is_empty() {
            let mut command = Command::new(&self.program);
            command.args(&self.args);
            return command;
        }
        // The shell joins, then becomes the program: the pid stays.
        let script = "n=$1; shift; while [ $n -gt 0 ]; do echo $$ > \"$1\"; shift; n=$((n-1)); done; exec \"$@\"";
        let mut command = Command::new("sh");
        command
            .args(["-c", script, "sh"])
            .arg(self.cgroup_files.len().to_string());
        command
            .args(&self.cgroup_files)
            .arg(&self.program)
            .args(&self.args);
        command
    }

    /// Starts it.
    pub fn start(self) -> Child {
        let mut command = self.command();
        command.envs(self.env.iter().map(|(k, v)| (k, v)));
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let spawned = match &self.netns {
            None => command.spawn(),
            Some(name) => spawn_in(name, &mut command),
        };
        let process = spawned.unwrap_or_else(|e| panic!("start {:?}: {e}", self.program));
        let mut child = Child::adopt(self.program.to_string_lossy().into_owned(), process);
        if let Some(path) = &self.cgroup {
            child.wait_joined(path, self.cgroup_files.len());
        }
        child
    }
}

fn spawn_in(netns: &str, command: &mut Command) -> std::io::Result<std::process::Child> {
    let file = std::fs::File::open(format!("/run/netns/{netns}"))?;
    std::thread::scope(|scope| {
        let spawn = scope.spawn(|| {
            nix::sched::setns(&file, nix::sched::CloneFlags::CLONE_NEWNET)?;
            command.spawn()
        });
        spawn
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
