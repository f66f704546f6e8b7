//! The output of a child, line by line.

use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

#[derive(Debug, Default)]
pub(super) struct Lines {
    all: Mutex<Vec<String>>,
    grew: Condvar,
}

impl Lines {
    /// Reads `source` to its end on a thread of its own.
    pub fn follow(self: &Arc<Self>, source: impl Read + Send + 'static) {
        let lines = Arc::clone(self);
        std::thread::spawn(move || {
            for line in BufReader::new(source).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                lines
                    .all
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(line);
                lines.grew.notify_all();
            }
        });
    }

    /// The first line from `from` on that starts with `prefix`, and the number
    /// of lines up to it.
    pub fn wait(&self, from: usize, prefix: &str, deadline: Duration) -> Option<(usize, String)> {
        let end = Instant::now() + deadline;
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = from;
        loop {
            if let Some(found) = all[next..].iter().position(|line| line.starts_with(prefix)) {
                return Some((next + found + 1, all[next + found].clone()));
            }
            next = all.len();
            let left = end.checked_duration_since(Instant::now())?;
            all = self
                .grew
                .wait_timeout(all, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// All of it so far.
    pub fn text(&self) -> String {
        self.all
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .join("\n")
    }
}
