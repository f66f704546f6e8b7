//! A child process: output captured line by line, killed and reaped on drop.

use std::io::Write;
use std::net::SocketAddr;
use std::process::{ChildStdin, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::lines::Lines;
use super::poll;

/// How a child ended and what it said.
#[derive(Debug)]
pub struct Finished {
    /// Its status.
    pub status: ExitStatus,
    /// All of its standard output.
    pub stdout: String,
    /// All of its standard error.
    pub stderr: String,
}

/// A running child.
#[derive(Debug)]
pub struct Child {
    name: String,
    process: std::process::Child,
    stdin: Option<ChildStdin>,
    stdout: Arc<Lines>,
    stderr: Arc<Lines>,
    read: usize,
    status: Option<ExitStatus>,
}

impl Child {
    /// Guards a process whose three streams are piped.
    pub(super) fn adopt(name: String, mut process: std::process::Child) -> Self {
        let (stdout, stderr) = (Arc::new(Lines::default()), Arc::new(Lines::default()));
        stdout.follow(process.stdout.take().expect("piped"));
        stderr.follow(process.stderr.take().expect("piped"));
        let stdin = process.stdin.take();
        Self {
            name,
            process,
            stdin,
            stdout,
            stderr,
            read: 0,
            status: None,
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits until the shell in front of it has joined all its cgroups.
    pub(super) fn wait_joined(&mut self, path: &str, count: usize) {
        let joined = poll(Duration::from_secs(5), || {
            let own = std::fs::read_to_string(format!("/proc/{}/cgroup", self.pid()));
            let member = own
                .unwrap_or_default()
                .lines()
                .filter(|l| l.ends_with(path))
                .count();
            (member >= count || self.has_exited()).then_some(())
        });
        assert!(
            joined.is_some(),
            "{} does not join {path}: {}",
            self.name,
            self.evidence()
        );
    }

    /// Sends a signal; panics when the process is gone.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid() as i32);
        kill(pid, signal).unwrap_or_else(|e| panic!("{signal} to {}: {e}", self.name));
    }

    /// Writes a line to its standard input.
    pub fn say(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("standard input is open");
        let sent = stdin
            .write_all(format!("{line}\n").as_bytes())
            .and_then(|()| stdin.flush());
        assert!(
            sent.is_ok(),
            "{} no longer reads: {}",
            self.name,
            self.evidence()
        );
    }

    /// Closes its standard input.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// The next line of standard output that starts with `prefix`, after those
    /// already returned; panics with the output when the deadline passes.
    pub fn wait_line(&mut self, prefix: &str, deadline: Duration) -> String {
        match self.stdout.wait(self.read, prefix, deadline) {
            Some((next, line)) => {
                self.read = next;
                line
            }
            None => panic!("{} never said {prefix:?}: {}", self.name, self.evidence()),
        }
    }

    /// A line of standard error that starts with `prefix`.
    pub fn wait_error_line(&self, prefix: &str, deadline: Duration) -> String {
        match self.stderr.wait(0, prefix, deadline) {
            Some((_, line)) => line,
            None => panic!("{} never said {prefix:?}: {}", self.name, self.evidence()),
        }
    }

    /// Waits until some process of its namespace listens on `port`, read from
    /// /proc: nothing is sent to it.
    pub fn wait_listens(&mut self, port: u16, deadline: Duration) {
        let found = poll(deadline, || {
            let dead = self.has_exited();
            (dead || listens(self.pid(), port)).then_some(!dead)
        });
        assert!(
            found == Some(true),
            "{} does not listen on {port}: {}",
            self.name,
            self.evidence()
        );
    }

    /// Whether it has exited.
    pub fn has_exited(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.process.try_wait().expect("wait for a child");
        }
        self.status.is_some()
    }

    /// Waits for it to exit by itself; panics when the deadline passes.
    pub fn wait(mut self, deadline: Duration) -> Finished {
        let exited = poll(deadline, || self.has_exited().then_some(()));
        assert!(
            exited.is_some(),
            "{} still runs after {deadline:?}: {}",
            self.name,
            self.evidence()
        );
        let status = self.status.expect("it has exited");
        // The readers end with the pipe; give them the time to drain it.
        poll(Duration::from_secs(2), || {
            (Arc::strong_count(&self.stdout) + Arc::strong_count(&self.stderr) == 2).then_some(())
        });
        Finished {
            status,
            stdout: self.stdout.text(),
            stderr: self.stderr.text(),
        }
    }

    /// SIGTERM, then [`Child::wait`].
    pub fn terminate(mut self, deadline: Duration) -> Finished {
        if !self.has_exited() {
            self.signal(Signal::SIGTERM);
        }
        self.wait(deadline)
    }

    /// SIGKILL and reap.
    pub fn kill9(mut self) {
        let _ = self.process.kill();
        self.status = self.process.wait().ok();
    }

    /// Standard output so far.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// Standard error so far.
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// What to print when a test fails.
    pub fn evidence(&self) -> String {
        format!(
            "\n--- {} (pid {}) status {:?}\n--- stdout\n{}\n--- stderr\n{}\n---",
            self.name,
            self.process.id(),
            self.status,
            tail(&self.stdout.text()),
            tail(&self.stderr.text())
        )
    }
}

fn tail(text: &str) -> &str {
    let start = text.len().saturating_sub(6_000);
    let start = (start..text.len())
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(text.len());
    &text[start..]
}

/// Whether a socket listens on `port` in the namespace of `pid`.
fn listens(pid: u32, port: u16) -> bool {
    let needle = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|file| {
        let table = std::fs::read_to_string(format!("/proc/{pid}/net/{file}")).unwrap_or_default();
        table.lines().skip(1).any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            let local = fields.next().unwrap_or_default();
            local.ends_with(&needle) && fields.nth(1) == Some("0A")
        })
    })
}

/// The port of the last `ADDR:PORT` word of a line.
pub(super) fn address_of(line: &str) -> SocketAddr {
    let word = line.split_whitespace().last().unwrap_or_default();
    word.parse()
        .unwrap_or_else(|_| panic!("no address in {line:?}"))
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.has_exited() {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
        if std::thread::panicking() {
            eprintln!("{}", self.evidence());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::ChildBuilder;

    const SECOND: Duration = Duration::from_secs(5);

    #[test]
    fn lines_are_waited_for_in_order_and_the_rest_is_kept() {
        let mut child = ChildBuilder::new("sh")
            .args(["-c", "echo a 1; echo b; echo a 2"])
            .start();
        assert_eq!(child.wait_line("a", SECOND), "a 1");
        assert_eq!(child.wait_line("a", SECOND), "a 2");
        let end = child.wait(SECOND);
        assert!(end.status.success());
        assert_eq!(end.stdout, "a 1\nb\na 2");
    }

    #[test]
    fn a_dropped_child_is_gone() {
        let child = ChildBuilder::new("sleep").arg("60").start();
        let pid = child.pid();
        drop(child);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_listener_is_seen_without_touching_it() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(listens(std::process::id(), port));
        drop(listener);
        // A child of another test may hold the socket until its exec.
        let gone = poll(SECOND, || {
            (!listens(std::process::id(), port)).then_some(())
        });
        assert!(gone.is_some());
    }
}
