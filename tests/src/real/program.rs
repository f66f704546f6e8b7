//! A real program as a child, started through `xtask real start`, which becomes it.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::guard::{Child, ChildBuilder, NetNs, poll};
use crate::http;

/// A program with a graphics library, a compiler and worker processes takes its time.
const UP: Duration = Duration::from_secs(300);
const DOWN: Duration = Duration::from_secs(20);

/// Where the real programs are installed.
#[derive(Clone, Debug)]
pub struct Place {
    dir: PathBuf,
    xtask: PathBuf,
}

impl Place {
    /// The place, if it has all of `names`; else says why not, or panics where they must be.
    pub fn with(names: &[&str]) -> Option<Self> {
        if std::env::var_os("ENGINETAP_VM").is_some() {
            return skip("real programs do not run in virtual machines");
        }
        let Some(dir) = std::env::var_os("ENGINETAP_REAL") else {
            return skip("ENGINETAP_REAL is not set");
        };
        let lacks = |why: String| match std::env::var_os("ENGINETAP_REQUIRE") {
            Some(one) if one == "1" => panic!("{why}"),
            _ => skip(&why),
        };
        let Some(xtask) = std::env::var_os("ENGINETAP_XTASK") else {
            return lacks("ENGINETAP_XTASK, which starts real programs, is not set".to_owned());
        };
        let place = Self {
            dir: PathBuf::from(dir),
            xtask: PathBuf::from(xtask),
        };
        let missing = |name: &&&str| !place.dir.join(format!("run/{name}.installed")).is_file();
        match names.iter().find(missing) {
            Some(name) => lacks(format!(
                "{name} is missing: cargo xtask real install {name}"
            )),
            None => Some(place),
        }
    }

    /// A file or folder below it.
    pub fn join(&self, path: impl AsRef<Path>) -> PathBuf {
        self.dir.join(path)
    }

    /// `xtask real start NAME`, with more arguments of the recipe.
    pub(super) fn starter(&self, name: &str, port: Option<u16>, args: &[&str]) -> ChildBuilder {
        let mut child = ChildBuilder::new(&self.xtask)
            .env("ENGINETAP_REAL", &self.dir)
            .args(["real", "start", name]);
        if let Some(port) = port {
            child = child.args(["--port", &port.to_string()]);
        }
        child.arg("--").args(args)
    }
}

/// Says so on the process's own standard error: the harness hides what passing tests print.
fn skip(why: &str) -> Option<Place> {
    let test = std::thread::current().name().unwrap_or("").to_owned();
    let _ = writeln!(std::io::stderr(), "SKIP {test}: {why}");
    None
}

/// A running real program; ended on drop with all its processes.
#[derive(Debug)]
pub struct Program {
    child: Child,
    address: SocketAddr,
}

impl Program {
    /// Starts it on loopback of a namespace and waits until a GET of `ready` is answered with 200.
    pub fn start(
        place: &Place,
        ns: &NetNs,
        name: &str,
        port: u16,
        args: &[&str],
        ready: &str,
    ) -> Self {
        let child = place.starter(name, Some(port), args).netns(ns).start();
        let mut program = Self {
            child,
            address: SocketAddr::from(([127, 0, 0, 1], port)),
        };
        program.child.wait_listens(port, UP);
        let up = poll(UP, || {
            let reply = http::get_in(Some(ns.name()), program.address, ready, &[]);
            let ok = reply.is_ok_and(|reply| reply.status == 200);
            (ok || program.child.has_exited()).then_some(ok)
        });
        assert!(
            up == Some(true),
            "{name} is not up: {}",
            program.child.evidence()
        );
        program
    }

    /// llama.cpp's server, on the namespace's own port 8113.
    pub fn llamacpp(place: &Place, ns: &NetNs) -> Self {
        Self::start(place, ns, "xllama", 8113, &[], "/health")
    }

    /// SMG on port 8200 in front of a worker that is up.
    pub fn smg(place: &Place, ns: &NetNs, worker: &Self) -> Self {
        let url = format!("http://{}", worker.address);
        Self::start(place, ns, "smg", 8200, &[&url], "/readiness")
    }

    /// nginx on port 8301 in front of anything.
    pub fn nginx(place: &Place, ns: &NetNs, upstream: &Self) -> Self {
        let address = upstream.address.to_string();
        Self::start(place, ns, "nginx", 8301, &[&address], "/v1/models")
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Program {
    /// SIGTERM and time to end, then SIGKILL for whichever of its processes are left.
    fn drop(&mut self) {
        let family = family(self.child.pid());
        if !self.child.has_exited() {
            let _ = kill(Pid::from_raw(self.child.pid() as i32), Signal::SIGTERM);
            poll(DOWN, || self.child.has_exited().then_some(()));
        }
        let left = |member: &&Process| Process::read(member.pid).is_some_and(|now| now == **member);
        poll(Duration::from_secs(5), || {
            family[1..]
                .iter()
                .all(|member| !left(&member))
                .then_some(())
        });
        for member in family[1..].iter().filter(left) {
            let _ = kill(Pid::from_raw(member.pid as i32), Signal::SIGKILL);
        }
    }
}

/// A process, told from a later one with the same id by its start time.
#[derive(Clone, Copy, Debug, Default)]
struct Process {
    pid: u32,
    parent: u32,
    started: u64,
}

impl PartialEq for Process {
    /// A process whose parent ended has another one.
    fn eq(&self, other: &Self) -> bool {
        (self.pid, self.started) == (other.pid, other.started)
    }
}

impl Process {
    fn read(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        (*fields.first()? != "Z").then_some(())?;
        Some(Self {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
        })
    }
}

/// A process and all that descend from it, itself first.
fn family(root: u32) -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let all: Vec<Process> = entries
        .filter_map(|entry| Process::read(entry.file_name().to_str()?.parse().ok()?))
        .collect();
    let own = all.iter().find(|process| process.pid == root).copied();
    let mut family = vec![own.unwrap_or_default()];
    let mut at = 0;
    while at < family.len() {
        let parent = family[at].pid;
        family.extend(
            all.iter()
                .filter(|p| p.pid != 0 && parent != 0 && p.parent == parent),
        );
        at += 1;
    }
    family
}
