//! The agent as a user runs it: `enginetap run`, its page, its signals.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::child::address_of;
use super::{Cgroup, Child, ChildBuilder, Finished, NetNs, locate};
use crate::http;
use crate::page::Page;

/// In software emulation the kernel takes most of a minute to verify the programs.
const START: Duration = Duration::from_secs(120);
const STOP: Duration = Duration::from_secs(15);

/// How to start the agent.
#[derive(Debug)]
pub struct AgentBuilder {
    child: ChildBuilder,
    netns: Option<String>,
    wait_ready: bool,
}

impl Default for AgentBuilder {
    fn default() -> Self {
        let child = ChildBuilder::new(locate("enginetap")).args(["run", "--listen", "127.0.0.1:0"]);
        Self {
            child,
            netns: None,
            wait_ready: true,
        }
    }
}

impl AgentBuilder {
    /// Adds `--match RULE`.
    #[must_use]
    pub fn matching(self, rule: &str) -> Self {
        self.args(["--match", rule])
    }

    /// Adds `--exclude RULE`.
    #[must_use]
    pub fn excluding(self, rule: &str) -> Self {
        self.args(["--exclude", rule])
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<T: AsRef<std::ffi::OsStr>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.child = self.child.args(args);
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.child = self.child.env(key, value);
        self
    }

    /// Runs it in a namespace; scrapes go there too.
    #[must_use]
    pub fn netns(mut self, ns: &NetNs) -> Self {
        self.child = self.child.netns(ns);
        self.netns = Some(ns.name().to_owned());
        self
    }

    /// Runs it in a cgroup.
    #[must_use]
    pub fn cgroup(mut self, group: &Cgroup) -> Self {
        self.child = self.child.cgroup(group);
        self
    }

    /// Does not wait for `/readyz`.
    #[must_use]
    pub fn not_ready(mut self) -> Self {
        self.wait_ready = false;
        self
    }

    /// Starts it and waits for its address and, normally, `/readyz`.
    pub fn start(self) -> Agent {
        let mut child = self.child.start();
        let address = address_of(&child.wait_line("listening on ", START));
        let mut agent = Agent {
            child,
            address,
            netns: self.netns,
        };
        if self.wait_ready {
            agent.wait_ready(START);
        }
        agent
    }
}

/// A running agent; killed on drop.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    address: SocketAddr,
    netns: Option<String>,
}

impl Agent {
    /// Starts it with these arguments after `run --listen 127.0.0.1:0`.
    pub fn start(args: &[&str]) -> Self {
        Self::builder().args(args).start()
    }

    /// For more than arguments.
    pub fn builder() -> AgentBuilder {
        AgentBuilder::default()
    }

    /// Where it serves its page.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// GET of a path: status, head and body; `Err` when it cannot be reached.
    pub fn get(&self, path: &str) -> std::io::Result<http::Reply> {
        self.get_with(path, &[])
    }

    /// GET with more header lines, for example an `Accept`.
    pub fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> std::io::Result<http::Reply> {
        http::get_in(self.netns.as_deref(), self.address, path, headers)
    }

    /// Waits until `/readyz` answers 200.
    pub fn wait_ready(&mut self, deadline: Duration) {
        let ready = super::poll(deadline, || {
            let ok = self.get("/readyz").is_ok_and(|reply| reply.status == 200);
            (ok || self.child.has_exited()).then_some(ok)
        });
        assert!(
            ready == Some(true),
            "the agent is not ready: {}",
            self.child.evidence()
        );
    }

    /// `/metrics`, parsed.
    pub fn scrape(&self) -> Page {
        self.scrape_path("/metrics")
    }

    /// Another page of the exposition format, parsed.
    pub fn scrape_path(&self, path: &str) -> Page {
        let reply = match self.get(path) {
            Ok(reply) => reply,
            Err(e) => panic!("{path}: {e}: {}", self.child.evidence()),
        };
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        Page::parse(&reply.text())
    }

    /// Waits until a process is listed as watched: its namespace is tapped before that.
    ///
    /// # Panics
    /// When that takes longer than `deadline`.
    pub fn wait_listed(&self, pid: u32, deadline: Duration) {
        let listed = format!("\"pid\":{pid},");
        let watched = super::poll(deadline, || {
            let targets = self.get("/targets").ok()?.text();
            targets.contains(&listed).then_some(())
        });
        assert!(watched.is_some(), "process {pid} is not watched");
    }

    /// Scrapes until `cond` holds and returns that page; panics with the last
    /// page when the deadline passes.
    pub fn wait_for(&self, deadline: Duration, cond: impl Fn(&Page) -> bool) -> Page {
        let end = Instant::now() + deadline;
        loop {
            let page = self.scrape();
            if cond(&page) {
                return page;
            }
            if Instant::now() >= end {
                let evidence = self.child.evidence();
                panic!(
                    "not within {deadline:?}; the last page:\n{}\n{evidence}",
                    page.text()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// SIGTERM; panics unless it exits with 0 in time.
    pub fn stop(self) -> Finished {
        let end = self.child.terminate(STOP);
        assert!(
            end.status.success(),
            "{:?}\n{}\n{}",
            end.status,
            end.stdout,
            end.stderr
        );
        end
    }

    /// SIGKILL.
    pub fn kill9(self) {
        self.child.kill9();
    }

    /// SIGSTOP: a slow agent.
    pub fn sigstop(&self) {
        self.child.signal(Signal::SIGSTOP);
    }

    /// SIGCONT.
    pub fn sigcont(&self) {
        self.child.signal(Signal::SIGCONT);
    }
}
