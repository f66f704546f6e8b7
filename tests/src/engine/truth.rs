//! The engine's own truth: one row per request, totals, and where they go.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::Route;
use crate::event::{Outcome, Tally, Usage};

/// One request as the engine served it. Stamps are CLOCK_MONOTONIC
/// nanoseconds, 0 when the moment did not happen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineRow {
    /// The request's `x-row` header: pairs it with the client's row.
    pub id: String,
    /// Process that served it.
    pub pid: u32,
    /// Connection number within the process.
    pub conn: u64,
    /// Method.
    pub method: String,
    /// Route.
    pub route: Route,
    /// Status sent; 0 without a head.
    pub status: u16,
    /// Whether the reply was an event stream.
    pub streaming: bool,
    /// Model named in the reply; empty when it names none.
    pub model: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Bytes of the request's body.
    pub request_bytes: u64,
    /// Bytes of the reply's body, framing left out.
    pub reply_bytes: u64,
    /// The events.
    pub tally: Tally,
    /// Usage sent.
    pub usage: Option<Usage>,
    /// The read that brought the first byte returned.
    pub start_ns: u64,
    /// The read that brought the last byte of the request returned.
    pub read_ns: u64,
    /// The write that brought the first byte of the head returned.
    pub head_ns: u64,
    /// The write that brought the last byte of the body returned.
    pub body_end_ns: u64,
    /// The write that brought the last byte of all returned.
    pub end_ns: u64,
}

/// The whole truth of an engine, all its workers together.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Truth {
    /// Requests whose head was read.
    pub started: u64,
    /// Of them still open.
    pub in_flight: u64,
    /// Connections accepted.
    pub connections: u64,
    /// Connections that sent something that is no request.
    pub garbage: u64,
    /// Events with a data field over all requests.
    pub events: u64,
    /// Ended requests by `route status outcome`.
    pub ended: BTreeMap<String, u64>,
    /// The rows in order of their end, unless switched off.
    pub rows: Vec<EngineRow>,
}

impl Truth {
    /// Ended requests.
    pub fn count(&self) -> u64 {
        self.ended.values().sum()
    }

    /// Ended requests of a kind.
    pub fn outcome(&self, outcome: Outcome) -> u64 {
        let end = format!(" {}", outcome.as_str());
        self.ended
            .iter()
            .filter(|(key, _)| key.ends_with(&end))
            .map(|(_, n)| n)
            .sum()
    }

    /// The row of a request.
    pub fn row(&self, id: &str) -> Option<&EngineRow> {
        self.rows.iter().find(|row| row.id == id)
    }

    /// Usage sent, summed over the rows.
    pub fn tokens(&self) -> Usage {
        self.rows
            .iter()
            .filter_map(|row| row.usage)
            .fold(Usage::default(), |sum, u| Usage {
                prompt: sum.prompt + u.prompt,
                generation: sum.generation + u.generation,
                cached: sum.cached + u.cached,
            })
    }

    pub(super) fn add(&mut self, note: Note, keep_rows: bool) {
        match note {
            Note::Connection => self.connections += 1,
            Note::Start => {
                self.started += 1;
                self.in_flight += 1;
            }
            Note::Garbage => self.garbage += 1,
            Note::Row(row) => {
                self.in_flight = self.in_flight.saturating_sub(1);
                self.events += row.tally.data;
                let key = format!(
                    "{} {} {}",
                    row.route.as_str(),
                    row.status,
                    row.outcome.as_str()
                );
                *self.ended.entry(key).or_default() += 1;
                if keep_rows {
                    self.rows.push(*row);
                }
            }
        }
    }
}

/// One thing that happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Note {
    Connection,
    Start,
    Garbage,
    Row(Box<EngineRow>),
}

/// Where notes go: kept here, or sent to the parent as lines of JSON.
#[derive(Debug)]
pub(super) struct Sink {
    truth: Mutex<Truth>,
    parent: Option<Mutex<UnixStream>>,
    file: Option<PathBuf>,
    keep_rows: bool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sink {
    pub fn here(file: Option<PathBuf>, keep_rows: bool) -> Self {
        Self {
            truth: Mutex::default(),
            parent: None,
            file,
            keep_rows,
        }
    }

    pub fn to_parent(parent: UnixStream) -> Self {
        Self {
            truth: Mutex::default(),
            parent: Some(Mutex::new(parent)),
            file: None,
            keep_rows: false,
        }
    }

    pub fn note(&self, note: Note) {
        match &self.parent {
            None => locked(&self.truth).add(note, self.keep_rows),
            Some(_) => self.tell_parent(&serde_json::to_string(&note).expect("a note is JSON")),
        }
    }

    /// A line to the parent; a dead parent is noticed elsewhere.
    pub fn tell_parent(&self, line: &str) {
        if let Some(parent) = &self.parent {
            let _ = locked(parent).write_all(format!("{line}\n").as_bytes());
        }
    }

    pub fn truth(&self) -> Truth {
        locked(&self.truth).clone()
    }

    pub fn reset(&self) {
        let mut truth = locked(&self.truth);
        let in_flight = truth.in_flight;
        *truth = Truth {
            started: in_flight,
            in_flight,
            ..Truth::default()
        };
    }

    /// Writes the truth file, when there is one.
    pub fn persist(&self) {
        if let Some(file) = &self.file {
            let json = serde_json::to_vec(&*locked(&self.truth)).expect("truth is JSON");
            if let Err(error) = std::fs::write(file, json) {
                eprintln!("{}: {error}", file.display());
            }
        }
    }
}
