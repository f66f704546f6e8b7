//! News: sockets that begin to listen, programs that are executed, listeners that answer.

use enginetap_ebpf::abi::flow::FlowKey;
use enginetap_ebpf::abi::record::{Listen, life};

use super::decide::Decision;
use super::recent::Heard;
use super::space::Space;
use super::{Older, Watcher, hold};
use crate::config::Switch;
use crate::ingest::{News, monotonic_ns, reaches};
use crate::targets::proc::{self, Process};
use crate::targets::workload;
use crate::vocab::{Engine, Role};

impl Watcher {
    pub(super) fn hear(&mut self, heard: Heard) {
        match heard.news {
            News::Listen(l) => self.listen(&l, heard.process.as_deref()),
            News::Life(l) if l.what == life::EXEC => {
                if let Some(process) = heard.process.as_deref() {
                    self.executes(process);
                }
            }
            News::Life(l) => self.wants_scan |= l.what == life::FORK,
            News::Mark => {}
            News::Scanned(found) => self.take_scan(found),
            News::Answers { flow, hint } => self.answers(&flow, hint),
        }
    }

    /// A socket began or ceased to listen.
    fn listen(&mut self, l: &Listen, process: Option<&Process>) {
        let pid = l.process.tgid;
        if l.listening == 0 {
            // Whoever drops the last reference closes the socket, so the process means nothing
            // here; and others may listen on the same address (SO_REUSEPORT). A scan tells.
            self.wants_scan = true;
            return;
        }
        if pid == self.own_pid {
            let mut ingest = hold(&self.ingest);
            if let Err(error) = ingest.remove_listener(&l.key, monotonic_ns()) {
                tracing::warn!(%error, "the agent's own listener could not be left out");
            }
            return;
        }
        self.heard.insert(l.key);
        // Before anything is read: the first connection may be on its way. If it turns out that
        // nobody is watched there, the next sweep leaves the namespace again.
        let older = if self.spaces.contains_key(&l.key.netns) {
            Older::No
        } else {
            Older::Maybe
        };
        if let Err(error) = self.enter(l.key.netns, &[pid]) {
            tracing::debug!(pid, "network namespace {}: {error:#}", l.key.netns);
        }
        let Some(process) = process else {
            return;
        };
        let decision = self.decide(process, &[l.key.port]);
        let by_pid = |pid: u32| proc::read_identity(&self.settings.proc_root, pid).ok();
        let name = workload::name_in_tree(process, by_pid);
        self.apply(l.key, process, name, &decision, &[pid], older);
        tracing::debug!(pid, port = l.key.port, ?decision, "listens");
        let devices = self.spaces.get(&l.key.netns).map(Space::devices);
        if let Some(devices) = devices {
            hold(&self.inventory).spaces.insert(l.key.netns, devices);
        }
    }

    /// A listener answered an inference route.
    fn answers(&mut self, flow: &FlowKey, hint: Option<Engine>) {
        let found = self
            .listeners
            .iter()
            .find(|(key, known)| known.workload.is_none() && reaches(flow, key));
        let Some((key, known)) = found.map(|(k, v)| (*k, v.clone())) else {
            return;
        };
        let Some(owner) = known.owner else { return };
        let Ok(process) = proc::read_process(&self.settings.proc_root, owner.tgid) else {
            return;
        };
        if process.key != owner || self.settings.recognise == Switch::Off {
            return;
        }
        let by_pid = |pid: u32| proc::read_identity(&self.settings.proc_root, pid).ok();
        let name = workload::name_in_tree(&process, by_pid);
        let engine = hint.unwrap_or(Engine::OpenAi);
        let decision = Decision::Watch {
            engine,
            role: Role::Api,
            why: "answers an inference route".to_owned(),
        };
        let pids = [owner.tgid];
        self.apply(key, &process, name, &decision, &pids, Older::Maybe);
    }
}
