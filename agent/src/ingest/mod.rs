//! From records to numbers: joins the pieces and the end of each request, gives them meaning and
//! hands them to the store. Owns the ring's reading end, the maps and the store; everything else
//! reaches them through one lock that is held for a few milliseconds at most.

mod claim;
mod end;
mod entry;
mod owned;
mod parked;

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use enginetap_ebpf::abi::flow::{FlowKey, closer};
use enginetap_ebpf::abi::listener::ListenerKey;
use enginetap_ebpf::abi::record::{End, FlowClosed, Life, Listen, Piece, piece_flag};

use crate::bpf::control::Control;
use crate::bpf::ring::Ring;
use crate::bpf::tables::Tables;
use crate::engines;
use crate::metrics::input::KernelHistogram;
use crate::metrics::{ResponseHead, Store};
use crate::slow::Slow;
use crate::stalls::{FirstToken, RoleClocks};
use crate::vocab::{Class, Engine, StallPhase, Status, Streaming, WorkloadId};
use enginetap_ebpf::hist::READ_DELAY_BUCKETS;
use entry::{Entry, Finding};
use owned::Owned;
use parked::Parked;
pub use parked::reaches;

/// How long a closed flow waits for bytes that are still on their way through the tap.
const SETTLE_NS: u64 = 50_000_000;
/// When a request is looked at again whose flow was not confirmed.
const UNSURE_NS: u64 = 100_000_000;
/// Requests that are followed one by one at most; more are counted, with unknown labels.
const ENTRIES: usize = 65_536;
/// Models taken from one reply to `/v1/models`.
const MODELS_LISTED: usize = 64;
/// How long a sweep may take in what waits in the ring.
const SWEEP_DRAIN: Duration = Duration::from_millis(20);
/// An open request is checked against the kernel's table when it is older than this.
const CHECK_AFTER: Duration = Duration::from_secs(5);

/// News for the part that watches processes.
#[derive(Debug)]
pub enum News {
    /// A socket began or ceased to listen.
    Listen(Listen),
    /// A process did something.
    Life(Life),
    /// Everything sent before it has been heard.
    Mark,
    /// A scan of the node is done.
    Scanned(anyhow::Result<Box<crate::targets::scan::ScanResult>>),
    /// A listener that is not watched answered an inference route.
    Answers {
        /// The flow it was seen on.
        flow: FlowKey,
        /// The engine that a header of the reply names.
        hint: Option<Engine>,
    },
}

/// A workload as the decoder knows it.
#[derive(Clone, Copy, Debug)]
struct Known {
    engine: Engine,
    /// Requests counted by the agent because they began before the workload had a number.
    started: u64,
    /// Time from a request's first byte to the first read, by bucket, and its sum.
    read_delay: [u64; READ_DELAY_BUCKETS],
    read_delay_ns: u64,
}

/// See the module.
pub struct Ingest {
    ring: Ring,
    /// The maps.
    pub tables: Tables,
    /// The numbers.
    pub store: Store,
    control: Control,
    entries: HashMap<(u64, u32), Entry>,
    known: HashMap<u32, Known>,
    parked: Parked,
    /// Listeners of watched workloads.
    listeners: HashMap<ListenerKey, WorkloadId>,
    closing: VecDeque<(u64, FlowKey, u64)>,
    /// Requests whose head came before the kernel's own socket was seen, and when to look again.
    unsure: VecDeque<(u64, (u64, u32))>,
    news: Sender<News>,
    lost_seen: u64,
    lost_reads: u32,
    lost_checked: Instant,
    /// Requests that found no room in the table of open ones.
    pub overflow: u64,
    /// How long processes were held up, by workload and role.
    pub clocks: RoleClocks,
    /// The worst requests of late.
    pub slow: Slow,
}

/// Monotonic time as the kernel programs tell it.
pub fn monotonic_ns() -> u64 {
    let t = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    t.map_or(0, |t| {
        t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64
    })
}

impl Ingest {
    /// Joins the parts.
    pub fn new(
        ring: Ring,
        tables: Tables,
        store: Store,
        control: Control,
        news: Sender<News>,
    ) -> Ingest {
        Ingest {
            ring,
            tables,
            store,
            control,
            entries: HashMap::new(),
            known: HashMap::new(),
            parked: Parked::default(),
            listeners: HashMap::new(),
            closing: VecDeque::new(),
            unsure: VecDeque::new(),
            news,
            lost_seen: 0,
            lost_reads: 3,
            lost_checked: Instant::now(),
            overflow: 0,
            clocks: RoleClocks::default(),
            slow: Slow::default(),
        }
    }

    /// Takes what waits in the ring, for `budget` at most. True when it is empty.
    pub fn drain(&mut self, budget: Duration) -> bool {
        let until = Instant::now() + budget;
        let mut n = 0u32;
        loop {
            // The ring is borrowed while a record is read, so it is moved aside: one pointer copy.
            let mut batch = Vec::new();
            let more = self.ring.next(|record| batch.push(Owned::of(record)));
            if !more {
                return true;
            }
            for record in batch {
                self.take(record);
            }
            n += 1;
            if n.is_multiple_of(64) && Instant::now() > until {
                return false;
            }
        }
    }

    /// Records that could not be decoded.
    pub fn rejected(&self) -> u64 {
        self.ring.rejected
    }

    fn take(&mut self, record: Owned) {
        match record {
            Owned::Piece(head, data) => self.piece(&head, &data),
            Owned::End(end, tail) => self.ended(&end, &tail),
            Owned::Progress(end) => self.progress(&end),
            Owned::Closed(FlowClosed {
                key, flow, ts_ns, ..
            }) => {
                self.closing.push_back((ts_ns + SETTLE_NS, key, flow));
            }
            Owned::Listen(listen) => self.tell(News::Listen(listen)),
            Owned::Life(life) => self.tell(News::Life(life)),
        }
    }

    fn tell(&self, news: News) {
        // The watcher is gone only while the agent stops.
        let _ = self.news.send(news);
    }

    fn engine_of(&self, workload: u32) -> Engine {
        self.known
            .get(&workload)
            .map_or(Engine::OpenAi, |k| k.engine)
    }

    fn piece(&mut self, p: &Piece, data: &[u8]) {
        let id = (p.request.flow, p.request.number);
        let reply = p.flags & piece_flag::REPLY != 0;
        let tail = p.flags & piece_flag::TAIL != 0;
        if !self.entries.contains_key(&id) {
            if reply || tail || p.offset != 0 {
                return;
            }
            if self.entries.len() >= ENTRIES {
                self.overflow += 1;
                return;
            }
            self.entries
                .insert(id, Entry::new(p.request.key, p.request.workload, p.ts_ns));
            if p.flags & piece_flag::PROVISIONAL != 0 {
                self.unsure.push_back((monotonic_ns() + UNSURE_NS, id));
            }
        }
        let engine = self.engine_of(p.request.workload);
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        entry.confirmed |= p.flags & piece_flag::PROVISIONAL == 0;
        if entry.workload == 0 && p.request.workload != 0 && !reply {
            // The workload got its number between two pieces of the head.
            entry.workload = p.request.workload;
            entry.by_agent = false;
        }
        if !reply {
            entry.request_bytes.add(p.offset, data, tail);
            entry.read_head(engine);
            self.claim(id);
            return;
        }
        entry.answered = true;
        entry.read_head(engine);
        let found = entry.reply_piece(p.offset, data, tail, p.ts_ns);
        if entry.first.is_none() && entry.stream.first_token_ns.is_some() {
            entry.first = FirstToken::of(p);
        }
        for finding in found {
            self.found(id, finding);
        }
    }

    fn found(&mut self, id: (u64, u32), finding: Finding) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        let (Some(_), Some(status)) = (entry.route, entry.reply.as_ref().map(|h| h.status)) else {
            return;
        };
        let (workload, key) = (WorkloadId(entry.workload), entry.key);
        let hint = entry.reply.as_ref().and_then(|h| h.engine_hint);
        if workload.0 == 0 {
            let answers = (200..300).contains(&status)
                && entry
                    .head
                    .as_ref()
                    .is_some_and(|h| engines::is_inference_route(h.method, &h.path));
            if answers && self.parked.ask(&key) {
                self.tell(News::Answers { flow: key, hint });
            }
            return;
        }
        self.store_finding(id, finding);
    }

    /// Hands a finding to the store; the entry's workload is known.
    fn store_finding(&mut self, id: (u64, u32), finding: Finding) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        write_finding(&mut self.store, entry, finding);
        if let Finding::FirstToken(_) = finding
            && let Err(error) = self.tables.tell(id.0, id.1)
        {
            tracing::debug!(%error, "the tap could not be told to stop capturing");
        }
    }

    fn progress(&mut self, end: &End) {
        let r = &end.request;
        let Some(entry) = self.entries.get_mut(&(r.flow, r.number)) else {
            return;
        };
        if entry
            .route
            .is_some_and(|route| route.class == Class::Inference)
            && r.workload != 0
        {
            let model = entry.facts().model.clone();
            self.store
                .stream_events(WorkloadId(r.workload), model.as_deref(), end.events.into());
            entry.reported += u64::from(end.events);
        }
    }

    /// Gives a workload its number: from now on its requests are counted.
    pub fn know(&mut self, workload: WorkloadId, engine: Engine) {
        let known = self.known.entry(workload.0).or_insert(Known {
            engine,
            started: 0,
            read_delay: [0; READ_DELAY_BUCKETS],
            read_delay_ns: 0,
        });
        known.engine = engine;
    }

    /// Forgets a workload and all its series; what still comes under its number is discarded.
    pub fn forget(&mut self, workload: WorkloadId) {
        self.known.remove(&workload.0);
        self.clocks.forget(workload);
        self.slow.forget(workload);
        self.store.remove_workload(workload);
    }

    /// Requests of a workload that have begun.
    pub fn started(&self, workload: WorkloadId) -> u64 {
        let kernel = self
            .tables
            .workload(workload.0)
            .map(|w| w.started)
            .unwrap_or(0);
        kernel + self.known.get(&workload.0).map_or(0, |k| k.started)
    }

    /// How long a workload's requests waited to be read; `None` without a sample.
    pub fn read_delay(&self, workload: WorkloadId) -> Option<KernelHistogram> {
        let known = self.known.get(&workload.0)?;
        known
            .read_delay
            .iter()
            .any(|n| *n > 0)
            .then(|| KernelHistogram {
                cells: known.read_delay.to_vec(),
                sum_ns: known.read_delay_ns,
            })
    }

    /// Open requests of all workloads: workload, class, age.
    pub fn open(&self) -> impl Iterator<Item = (WorkloadId, Class, Duration)> + '_ {
        let now = monotonic_ns();
        self.entries
            .values()
            .filter(|e| e.workload != 0)
            .filter_map(move |e| {
                let class = e.route?.class;
                Some((
                    WorkloadId(e.workload),
                    class,
                    Duration::from_nanos(now.saturating_sub(e.start_ns)),
                ))
            })
    }

    /// How many open requests are followed one by one.
    pub fn open_len(&self) -> usize {
        self.entries.len()
    }

    /// Settles flows whose time has come.
    pub fn settle_due(&mut self) {
        let now = monotonic_ns();
        self.make_sure(now);
        let mut again = Vec::new();
        while let Some(&(due, key, flow)) = self.closing.front() {
            if due > now {
                break;
            }
            self.closing.pop_front();
            match self.control.settle(&key, flow, closer::UNOBSERVED) {
                Ok(true) => {}
                Ok(false) => again.push((now + SETTLE_NS, key, flow)),
                Err(error) => tracing::warn!(%error, "a closed connection could not be settled"),
            }
        }
        self.closing.extend(again);
    }

    /// Ends what is open on a flow whose socket is gone.
    pub fn settle_unobserved(&mut self, key: &FlowKey, flow: u64) {
        if let Err(error) = self.control.settle(key, flow, closer::UNOBSERVED) {
            tracing::warn!(%error, "a connection without a socket could not be settled");
        }
    }

    /// Forgets a flow that no socket confirmed.
    pub fn drop_unconfirmed(&mut self, key: &FlowKey, flow: u64) {
        if let Err(error) = self.control.drop_unconfirmed(key, flow) {
            tracing::warn!(%error, "an unconfirmed flow could not be dropped");
        }
    }

    /// Takes up a connection that is older than the tap. True when it was new.
    pub fn adopt(&mut self, key: &FlowKey, workload: WorkloadId) -> bool {
        match self.control.adopt(key, workload.0) {
            Ok(made) => made,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be adopted");
                false
            }
        }
    }

    /// Drops entries of requests that the kernel no longer has: their end record was lost (the
    /// kernel counted it), their head never came, or their flow was never confirmed.
    pub fn sweep_entries(&mut self) {
        let now = monotonic_ns();
        let old = CHECK_AFTER.as_nanos() as u64;
        let mut gone = Vec::new();
        for (id, e) in &self.entries {
            if now.saturating_sub(e.start_ns) <= old {
                continue;
            }
            match self.tables.flow(&e.key) {
                Some(f) if f.id == id.0 && (f.ended.wrapping_sub(id.1) as i32) < 0 => {}
                _ => gone.push(*id),
            }
        }
        // The record of an end may still wait in the ring. It needs its entry: without it the events
        // that were reported before would be counted again. Only when the ring is empty after the
        // look at the flows is it certain that no record comes.
        if !gone.is_empty() && !self.drain(SWEEP_DRAIN) {
            return;
        }
        for id in gone {
            if let Some(entry) = self.entries.remove(&id)
                && entry.counted
            {
                self.unobserved(entry);
            }
        }
        self.parked.expire(now);
    }

    /// Takes over the kernel's counts of requests whose end record was lost, when there may be new
    /// ones.
    pub fn read_lost(&mut self, ring_full: u64) {
        if ring_full != self.lost_seen {
            self.lost_seen = ring_full;
            self.lost_reads = 0;
        }
        if ring_full == 0
            || (self.lost_reads > 3 && self.lost_checked.elapsed() < Duration::from_secs(10))
        {
            return;
        }
        self.lost_reads += 1;
        self.lost_checked = Instant::now();
        let ids: Vec<u32> = self.known.keys().copied().collect();
        for id in ids {
            self.lost_of(id);
        }
    }
}

/// Hands a finding to the store, once.
fn write_finding(store: &mut Store, entry: &mut Entry, finding: Finding) {
    let (Some(route), Some(status)) = (entry.route, entry.reply.as_ref().map(|h| h.status)) else {
        return;
    };
    let (workload, start) = (WorkloadId(entry.workload), entry.start_ns);
    let streaming = if entry.reader.is_some() {
        Streaming::True
    } else {
        Streaming::False
    };
    let model = entry.facts().model.clone();
    match finding {
        Finding::Head(at) => {
            entry.head_stored = true;
            store.response_head(&ResponseHead {
                workload,
                class: route.class,
                model: model.as_deref(),
                route: route.route,
                streaming,
                status: Status::Code(status),
                after: Some(Duration::from_nanos(at.saturating_sub(start))),
            });
        }
        Finding::FirstToken(at) => {
            entry.token_stored = true;
            if route.class == Class::Inference {
                let after = Duration::from_nanos(at.saturating_sub(start));
                store.first_token(workload, model.as_deref(), route.route, after);
                if let Some(first) = &entry.first {
                    let stall = first.since(start, at);
                    store.stalled(workload, StallPhase::Ttft, &stall, after);
                }
            }
        }
    }
}

/// Hands over what was found before the workload was known.
fn catch_up(store: &mut Store, entry: &mut Entry) {
    if let Some(at) = entry.head_ns.filter(|_| !entry.head_stored) {
        write_finding(store, entry, Finding::Head(at));
    }
    if let Some(at) = entry.stream.first_token_ns.filter(|_| !entry.token_stored) {
        write_finding(store, entry, Finding::FirstToken(at));
    }
}
