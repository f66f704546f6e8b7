//! One metric page is written at a time, and all who asked before its writing began share it.
//!
//! A page takes the lock of the numbers and, on a large node, megabytes. Twenty scrapers at a time
//! must neither keep the reader of the ring from that lock nor hold a page each.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use axum::body::Bytes;
use tokio::sync::Mutex;
use tokio::task::{JoinError, spawn_blocking};

use crate::metrics::{Format, Groups};

/// What distinguishes pages of one moment.
pub type Kind = (Format, Groups);

struct Written {
    kind: Kind,
    began: Instant,
    text: Bytes,
}

/// See the module.
#[derive(Default)]
pub struct Pages {
    written: Mutex<Vec<Written>>,
    asking: AtomicUsize,
}

/// Counts one who asks; the last one out leaves no page behind.
struct Asking<'a>(&'a Pages);

impl<'a> Asking<'a> {
    fn new(pages: &'a Pages) -> Self {
        pages.asking.fetch_add(1, Ordering::Relaxed);
        Self(pages)
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        // Whoever holds the lock is not the last one, or will come here after this.
        if self.0.asking.fetch_sub(1, Ordering::Relaxed) == 1
            && let Ok(mut written) = self.0.written.try_lock()
        {
            written.clear();
        }
    }
}

impl Pages {
    /// A page whose writing began after this call did: another's, or else what `write` returns,
    /// which runs off the runtime's workers. An error means that `write` panicked.
    pub async fn get(
        &self,
        kind: Kind,
        write: impl FnOnce() -> String + Send + 'static,
    ) -> Result<Bytes, JoinError> {
        let asked = Instant::now();
        let _asking = Asking::new(self);
        let mut written = self.written.lock().await;
        let fresh = written.iter().find(|p| p.kind == kind && p.began >= asked);
        if let Some(page) = fresh {
            return Ok(page.text.clone());
        }
        let began = Instant::now();
        let text = Bytes::from(spawn_blocking(write).await?);
        written.retain(|p| p.kind != kind);
        written.push(Written {
            kind,
            began,
            text: text.clone(),
        });
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, mpsc};

    fn all() -> Kind {
        (Format::Text, Groups::parse([]).unwrap())
    }

    #[test]
    fn those_who_ask_while_a_page_is_written_share_the_next_one() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let pages = Arc::new(Pages::default());
            let wrote = Arc::new(AtomicUsize::new(0));
            let (go, wait) = mpsc::channel::<()>();
            let (begun, begins) = tokio::sync::oneshot::channel();
            let first = tokio::spawn({
                let pages = pages.clone();
                async move {
                    let write = move || {
                        begun.send(()).unwrap();
                        wait.recv().unwrap();
                        "first".to_owned()
                    };
                    pages.get(all(), write).await.unwrap()
                }
            });
            begins.await.unwrap();
            let others: Vec<_> = (0..10)
                .map(|_| {
                    let (pages, wrote) = (pages.clone(), wrote.clone());
                    tokio::spawn(async move {
                        let write = move || {
                            wrote.fetch_add(1, Ordering::Relaxed);
                            "second".to_owned()
                        };
                        pages.get(all(), write).await.unwrap()
                    })
                })
                .collect();
            while pages.asking.load(Ordering::Relaxed) < 11 {
                tokio::task::yield_now().await;
            }
            go.send(()).unwrap();
            assert_eq!(first.await.unwrap(), "first");
            for other in others {
                assert_eq!(other.await.unwrap(), "second");
            }
            assert_eq!(wrote.load(Ordering::Relaxed), 1);
            assert!(pages.written.lock().await.is_empty(), "a page is kept");
        });
    }

    #[test]
    fn another_kind_of_page_is_written_for_itself() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let pages = Pages::default();
            let open = (Format::OpenMetrics, all().1);
            let (text, metrics) = tokio::join!(
                pages.get(all(), || "text".to_owned()),
                pages.get(open, || "open".to_owned())
            );
            assert_eq!(text.unwrap(), "text");
            assert_eq!(metrics.unwrap(), "open");
        });
    }
}
