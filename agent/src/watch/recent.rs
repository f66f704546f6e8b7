//! Which process news are about. A server may have served and be gone before the news that it
//! listens is heard: what it was is remembered from its start.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use enginetap_ebpf::abi::record::life;

use crate::ingest::News;
use crate::targets::proc::{self, Process, ProcessKey};

/// Programs that are remembered.
const MOST: usize = 512;
/// Bytes of the command line of a program that is remembered at most.
const LINE_MOST: usize = 8 * 1024;
/// Programs that are looked at when they are executed, per turn.
const EXECS: u32 = 2_000;
const TURN: Duration = Duration::from_secs(5);
const WAIT: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Default)]
pub struct Recent {
    known: HashMap<ProcessKey, Process>,
    order: VecDeque<ProcessKey>,
}

impl Recent {
    /// Remembers a program, or what it has become by another `exec`.
    pub fn add(&mut self, process: Process) {
        let key = process.key;
        if process.cmdline.iter().map(String::len).sum::<usize>() > LINE_MOST {
            return;
        }
        if self.known.insert(key, process).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }

    /// What a process was when it was executed.
    fn get(&self, key: ProcessKey) -> Option<&Process> {
        self.known.get(&key)
    }

    /// What a process is or, if it is gone, was.
    fn what_is(&self, root: &Path, key: ProcessKey) -> Option<Process> {
        let pid = key.tgid;
        let found = proc::read_process(root, pid).or_else(|_| proc::read_identity(root, pid));
        match found {
            Ok(process) if process.key == key => Some(process),
            Ok(_) => self.get(key).cloned(),
            Err(error) => {
                tracing::debug!(pid, %error, "a process that began to listen is gone");
                self.get(key).cloned()
            }
        }
    }
}

/// News with what is known of the process they are about.
#[derive(Debug)]
pub struct Heard {
    /// The news.
    pub news: News,
    /// For a socket or a program: its process, if it could still be read or is remembered.
    pub process: Option<Box<Process>>,
}

/// Reads the processes that news are about, at once, and passes both on in order. On a thread of
/// its own: whoever acts on the news may take longer than such a process lives.
pub fn identify(root: &Path, news: &Receiver<News>, on: &Sender<Heard>, stop: &AtomicBool) {
    let mut recent = Recent::default();
    let (mut turn, mut execs) = (Instant::now(), 0);
    let mut last = None;
    while !stop.load(Ordering::Relaxed) {
        let news = match news.recv_timeout(WAIT) {
            Ok(news) => news,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        if let News::Listen(l) = &news {
            // The hook has a twin, which tells the same again.
            let this = Some((l.key, l.process, l.listening));
            if this == last {
                continue;
            }
            last = this;
        }
        if turn.elapsed() >= TURN {
            (turn, execs) = (Instant::now(), 0);
        }
        let process = match &news {
            News::Listen(l) if l.listening != 0 => {
                let key = ProcessKey {
                    tgid: l.process.tgid,
                    start_ticks: l.process.start_ticks,
                };
                recent.what_is(root, key)
            }
            News::Life(l) if l.what == life::EXEC && execs < EXECS => {
                execs += 1;
                let found = proc::read_identity(root, l.process.tgid).ok();
                if let Some(process) = &found {
                    recent.add(process.clone());
                }
                found
            }
            _ => None,
        };
        let heard = Heard {
            news,
            process: process.map(Box::new),
        };
        if on.send(heard).is_err() {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::testing::process;

    fn named(comm: &str, key: ProcessKey) -> Process {
        Process {
            key,
            comm: comm.to_owned(),
            ..process("/bin/a", &[])
        }
    }

    fn key(tgid: u32) -> ProcessKey {
        ProcessKey {
            tgid,
            start_ticks: 5,
        }
    }

    #[test]
    fn the_latest_programs_are_known_by_pid_and_start() {
        let mut recent = Recent::default();
        for tgid in 0..MOST as u32 + 1 {
            recent.add(named("a", key(tgid)));
        }
        assert!(recent.get(key(0)).is_none(), "the oldest is forgotten");
        assert!(recent.get(key(1)).is_some());
        let other = ProcessKey {
            tgid: 1,
            start_ticks: 6,
        };
        assert!(recent.get(other).is_none(), "a reused pid is another");
        recent.add(Process {
            cmdline: vec!["x".repeat(LINE_MOST + 1)],
            ..named("c", key(1))
        });
        recent.add(named("b", key(1)));
        assert_eq!(recent.get(key(1)).map(|p| p.comm.as_str()), Some("b"));
        assert_eq!(recent.order.len(), recent.known.len());
    }
}
