//! A scraper that goes on in the background and judges every page it gets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::http;
use crate::page::Page;

/// Faults that are kept: one is enough to fail, a few help to see why.
const KEPT: usize = 5;
/// Time between two pages.
const PAUSE: Duration = Duration::from_millis(20);

/// What was seen.
#[derive(Debug, Default)]
pub struct Followed {
    /// Pages that were complete and could be read.
    pub pages: u64,
    /// What was wrong, the first few.
    pub faults: Vec<String>,
    /// Milliseconds that each page took.
    pub millis: Vec<f64>,
    /// The last page.
    pub last: Option<Page>,
}

impl Followed {
    fn fault(&mut self, why: String) {
        if self.faults.len() < KEPT {
            self.faults.push(why);
        }
    }

    fn page(&mut self, page: Page) {
        self.pages += 1;
        if let Err(why) = page.invariant() {
            self.fault(why);
        }
        if let Some(why) = self.last.as_ref().and_then(|last| page.below(last)) {
            self.fault(why);
        }
        self.last = Some(page);
    }

    /// Panics unless there were pages and all of them were good.
    #[track_caller]
    pub fn assert_good(&self) {
        assert!(self.pages > 1, "only {} pages", self.pages);
        assert!(
            self.faults.is_empty(),
            "of {} pages: {:#?}",
            self.pages,
            self.faults
        );
    }
}

/// A scraper in the background: started = ended + in flight on every page, and no counter ever
/// below the page before.
#[derive(Debug)]
pub struct Follower {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Followed>>,
}

impl Follower {
    /// Follows the page that is served there.
    pub fn start(address: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut seen = Followed::default();
            while !stopped.load(Ordering::Relaxed) {
                let asked = Instant::now();
                match http::get(address, "/metrics", &[]) {
                    Ok(reply) if reply.status == 200 => match Page::read(&reply.text()) {
                        Ok(page) => seen.page(page),
                        Err(why) => seen.fault(why),
                    },
                    Ok(reply) => seen.fault(format!("status {}", reply.status)),
                    Err(error) => seen.fault(error.to_string()),
                }
                seen.millis.push(asked.elapsed().as_secs_f64() * 1e3);
                std::thread::sleep(PAUSE);
            }
            seen
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }

    /// Ends it, after the page it is reading.
    pub fn stop(mut self) -> Followed {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("it is stopped once");
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
