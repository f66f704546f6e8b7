//! Our own engine and client as separate processes.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::child::address_of;
use super::{Cgroup, Child, ChildBuilder, Finished, NetNs, locate, poll, temp_dir};
use crate::client::{ClientRow, Summary};
use crate::engine::Truth;
use crate::script::Script;

const START: Duration = Duration::from_secs(20);

/// How to start `scripted-engine`.
#[derive(Debug)]
pub struct EngineBuilder {
    child: ChildBuilder,
    listens: usize,
    dir: tempfile::TempDir,
}

impl Default for EngineBuilder {
    fn default() -> Self {
        let child = ChildBuilder::new(locate("scripted-engine")).args(["--control", "stdin"]);
        Self {
            child,
            listens: 0,
            dir: temp_dir(),
        }
    }
}

impl EngineBuilder {
    /// Adds an address; `127.0.0.1:0` without any.
    #[must_use]
    pub fn listen(self, address: &str) -> Self {
        let listens = self.listens + 1;
        Self {
            listens,
            ..self.args(["--listen", address])
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<T: AsRef<std::ffi::OsStr>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.child = self.child.args(args);
        self
    }

    /// Pre-forked workers on one inherited listening socket.
    #[must_use]
    pub fn workers(self, count: usize) -> Self {
        self.args(["--workers", &count.to_string()])
    }

    /// The script of requests that bring none.
    #[must_use]
    pub fn script(self, script: &Script) -> Self {
        self.args(["--script", &script.to_header()])
    }

    /// Appears under this command line.
    #[must_use]
    pub fn title(self, title: &str) -> Self {
        self.args(["--title", title])
    }

    /// Runs from a link to the program (a copy on another file system) under this file name.
    #[must_use]
    pub fn exe_name(mut self, name: &str) -> Self {
        let copy = self.dir.path().join(name);
        let program = locate("scripted-engine");
        if std::fs::hard_link(&program, &copy).is_err() {
            std::fs::copy(&program, &copy).expect("copy the engine");
        }
        self.child = self.child.program(&copy);
        self
    }

    /// Maps a shared object under this path (below a temporary directory), as
    /// a Python engine maps `vllm/_C.abi3.so`.
    #[must_use]
    pub fn maps(mut self, path: &str) -> Self {
        let object = self.dir.path().join(path);
        std::fs::create_dir_all(object.parent().unwrap_or(Path::new("/"))).expect("directory");
        let libs = [
            "/lib/x86_64-linux-gnu/libdl.so.2",
            "/lib/aarch64-linux-gnu/libdl.so.2",
            "/lib64/libdl.so.2",
        ];
        let from = libs
            .iter()
            .find(|lib| Path::new(lib).exists())
            .expect("some small shared object");
        std::fs::copy(from, &object).expect("copy a shared object");
        self.child = self.child.env("LD_PRELOAD", &object);
        self
    }

    /// Runs in a namespace.
    #[must_use]
    pub fn netns(mut self, ns: &NetNs) -> Self {
        self.child = self.child.netns(ns);
        self
    }

    /// Runs in a cgroup.
    #[must_use]
    pub fn cgroup(mut self, group: &Cgroup) -> Self {
        self.child = self.child.cgroup(group);
        self
    }

    /// Starts it and waits until it is ready on every address.
    pub fn start(self) -> Engine {
        let truth_file = self.dir.path().join("truth.json");
        let mut child = self.child.arg("--truth-file").arg(&truth_file).start();
        let ready = |_| address_of(&child.wait_line("ready ", START));
        let addresses = (0..self.listens.max(1)).map(ready).collect();
        Engine {
            child,
            addresses,
            dir: self.dir,
        }
    }
}

/// A running `scripted-engine`; killed on drop.
#[derive(Debug)]
pub struct Engine {
    child: Child,
    addresses: Vec<SocketAddr>,
    dir: tempfile::TempDir,
}

impl Engine {
    /// Starts one on a free port of 127.0.0.1.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// For more than the default.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }

    /// Its first address.
    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// All of its addresses.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Its process (the parent, with workers).
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Its truth now, asked for over standard input.
    pub fn truth(&mut self) -> Truth {
        self.child.say("truth");
        let line = self.child.wait_line("truth ", START);
        serde_json::from_str(line.trim_start_matches("truth ")).expect("truth is JSON")
    }

    /// Its truth once `count` requests have ended (since the start or the last
    /// reset) and none is open; panics after ten seconds. A request that its
    /// client left may reach the engine after the client is done.
    pub fn ended(&mut self, count: u64) -> Truth {
        let mut last = Truth::default();
        let ended = poll(Duration::from_secs(10), || {
            last = self.truth();
            (last.in_flight == 0 && last.count() >= count).then_some(())
        });
        assert!(ended.is_some(), "not {count} have ended: {:?}", last.ended);
        last
    }

    /// Forgets what has ended.
    pub fn reset_truth(&mut self) {
        self.child.say("reset");
        self.child.wait_line("reset done", START);
    }

    /// Waits for an engine that was told to exit, and reads its last truth.
    pub fn exited(self) -> Truth {
        let end = self.child.wait(START);
        assert!(end.status.success(), "{:?}: {}", end.status, end.stderr);
        read_truth(self.dir.path())
    }

    /// SIGTERM, and its last truth.
    pub fn stop(self) -> Truth {
        let end = self.child.terminate(START);
        assert!(end.status.success(), "{:?}: {}", end.status, end.stderr);
        read_truth(self.dir.path())
    }

    /// SIGKILL: no truth.
    pub fn kill9(self) {
        self.child.kill9();
    }
}

fn read_truth(dir: &Path) -> Truth {
    let json = std::fs::read(dir.join("truth.json")).expect("the engine leaves its truth");
    serde_json::from_slice(&json).expect("truth is JSON")
}

/// A running `load-client`; killed on drop.
#[derive(Debug)]
pub struct Load {
    child: Child,
    dir: tempfile::TempDir,
}

impl Load {
    /// Starts it against `target`, in a namespace or this one, with these
    /// arguments of `load-client`.
    pub fn start<T: AsRef<std::ffi::OsStr>>(
        ns: Option<&NetNs>,
        target: SocketAddr,
        args: impl IntoIterator<Item = T>,
    ) -> Self {
        let dir = temp_dir();
        let mut child = ChildBuilder::new(locate("load-client"))
            .args(["--target", &target.to_string()])
            .arg("--rows")
            .arg(dir.path().join("rows"))
            .args(args);
        if let Some(ns) = ns {
            child = child.netns(ns);
        }
        Self {
            child: child.start(),
            dir,
        }
    }

    /// Starts it and waits for its end.
    pub fn run<T: AsRef<std::ffi::OsStr>>(
        ns: Option<&NetNs>,
        target: SocketAddr,
        args: impl IntoIterator<Item = T>,
    ) -> Summary {
        Self::start(ns, target, args).wait(Duration::from_secs(180))
    }

    /// Its process.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits for its end; its summary with the rows.
    pub fn wait(self, deadline: Duration) -> Summary {
        let Finished {
            status,
            stdout,
            stderr,
        } = self.child.wait(deadline);
        assert!(status.success(), "load-client: {status:?}: {stderr}");
        let summary: Summary = serde_json::from_str(stdout.trim()).expect("a summary is JSON");
        let rows = std::fs::read_to_string(self.dir.path().join("rows")).expect("rows");
        let row = |line| serde_json::from_str::<ClientRow>(line).expect("a row is JSON");
        Summary {
            rows: rows.lines().map(row).collect(),
            ..summary
        }
    }
}
