//! Which network namespaces are entered, and when: on the news of a listener or a program, before
//! the first connection comes.

use std::os::fd::AsFd;

use anyhow::{Context, Result};

use super::Watcher;
use super::decide::Decision;
use super::space::Space;
use crate::config::Switch;
use crate::targets::netns::{self, NetnsId};
use crate::targets::proc::{self, Process};

impl Watcher {
    /// Taps a namespace, unless that is done.
    pub(super) fn enter(&mut self, netns: u32, pids: &[u32]) -> Result<()> {
        if self.spaces.contains_key(&netns) {
            return Ok(());
        }
        let handle = netns::open_by_id(&self.settings.proc_root, NetnsId(netns.into()), pids)
            .context(
                "cannot be opened (CAP_SYS_PTRACE and, to enter it, CAP_SYS_ADMIN are needed)",
            )?;
        let space = Space::open(handle, self.program.as_fd()).context("cannot be tapped")?;
        for error in space.errors.values() {
            tracing::warn!("device {error}");
        }
        self.spaces.insert(netns, space);
        Ok(())
    }

    pub(super) fn refresh_devices(&mut self) {
        let mut failed = Vec::new();
        for (id, space) in &mut self.spaces {
            if space.changed()
                && let Err(error) = space.refresh(self.program.as_fd())
            {
                failed.push(format!("network namespace {id}: {error:#}"));
            }
        }
        for text in failed {
            self.say(text);
        }
    }

    /// A process executes a program. If that is an engine's, its namespace is tapped before it
    /// listens.
    pub(super) fn executes(&mut self, process: &Process) {
        let (netns, pid) = (process.netns, process.key.tgid);
        if self.spaces.contains_key(&(netns.0 as u32)) {
            return;
        }
        // Before it is known which port it will listen on, or what it will answer, every program in
        // a namespace that is not tapped may become one to watch; a sweep leaves what came to
        // nothing.
        let open = self.settings.recognise == Switch::On || !self.settings.rules.matches.is_empty();
        let wanted = open || matches!(self.decide(process, &[]), Decision::Watch { .. });
        if wanted && let Err(error) = self.enter(netns.0 as u32, &[pid]) {
            tracing::debug!(pid, "network namespace {}: {error:#}", netns.0);
        }
    }

    /// The agent's own namespace, on a node the host's, is always tapped: an engine that is started
    /// there is seen from its first byte.
    pub(super) fn enter_own(&mut self) {
        let pid = self.own_pid;
        match proc::read_netns(std::path::Path::new("/proc"), pid) {
            Ok(netns) => {
                let id = netns.0 as u32;
                self.own_netns = Some(id);
                if let Err(error) = self.enter(id, &[pid]) {
                    self.say(format!("own network namespace: {error:#}"));
                }
            }
            Err(error) => self.say(format!("own network namespace: {error}")),
        }
    }
}
