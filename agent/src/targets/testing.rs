//! Guards of the tests: network namespaces and children that go when their test ends.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::netns::{NetnsId, id_of};
use super::proc::{Process, ProcessKey};

/// A process made of nothing but these.
pub(crate) fn process(exe: &str, cmdline: &[&str]) -> Process {
    Process {
        key: ProcessKey {
            tgid: 1,
            start_ticks: 1,
        },
        ppid: 0,
        comm: "comm".into(),
        cmdline: cmdline
            .iter()
            .map(|&argument| argument.to_owned())
            .collect(),
        exe: exe.into(),
        exe_deleted: false,
        cgroups: vec!["0::/".into()],
        netns: NetnsId(1),
        mapped: Vec::new(),
    }
}

fn ip(arguments: &[&str]) -> bool {
    Command::new("ip")
        .args(arguments)
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

/// A network namespace with its loopback up, removed on drop.
pub(crate) struct NetNs(String);

impl NetNs {
    /// `None`, loudly, without the privilege.
    pub(crate) fn create() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ett-{}-{n}", std::process::id());
        if !ip(&["netns", "add", &name]) {
            assert!(
                std::env::var_os("CI").is_none(),
                "cannot create network namespace {name}"
            );
            eprintln!("SKIP: cannot create network namespaces (needs root and iproute2)");
            return None;
        }
        let ns = Self(name);
        assert!(ns.ip(&["link", "set", "lo", "up"]));
        Some(ns)
    }

    /// Runs `ip` inside.
    pub(crate) fn ip(&self, arguments: &[&str]) -> bool {
        ip(&[&["-n", self.0.as_str()], arguments].concat())
    }

    pub(crate) fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.0)
    }

    pub(crate) fn handle(&self) -> OwnedFd {
        std::fs::File::open(self.path()).unwrap().into()
    }

    pub(crate) fn id(&self) -> NetnsId {
        id_of(&self.handle()).unwrap()
    }
}

impl Drop for NetNs {
    fn drop(&mut self) {
        ip(&["netns", "del", &self.0]);
    }
}

/// A python child that has printed its first line; killed with its children on drop.
pub(crate) struct Python {
    child: Child,
    /// The words of the first line.
    pub(crate) words: Vec<String>,
}

impl Python {
    /// Runs `script`, which prints one line when it is ready and then waits for its input to
    /// end; in a network namespace if one is given.
    pub(crate) fn run(ns: Option<&NetNs>, script: &str) -> Self {
        let mut command = match ns {
            Some(ns) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &ns.0, "python3", "-c", script]);
                command
            }
            None => {
                let mut command = Command::new("python3");
                command.args(["-c", script]);
                command
            }
        };
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(!line.is_empty(), "the child printed nothing: {script}");
        Self {
            child,
            words: line.split_whitespace().map(str::to_owned).collect(),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn word<T: std::str::FromStr>(&self, at: usize) -> T {
        self.words[at]
            .parse()
            .ok()
            .unwrap_or_else(|| panic!("{:?}", self.words))
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        // The script and what it forked wait for the end of their input.
        drop(self.child.stdin.take());
        let mut rest = Vec::new();
        self.child
            .stdout
            .take()
            .unwrap()
            .read_to_end(&mut rest)
            .ok();
        self.child.wait().ok();
    }
}

/// Asks until the answer is there, at most 5 s.
pub(crate) fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(
            Instant::now() < deadline,
            "{what} did not happen within 5 s"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}
