//! What all requests of all workloads added up to. Every method is a plain update; events of a
//! workload that is not (or no longer) registered are discarded. A model becomes a label value
//! when its workload served it: a 2xx reply of class inference or control, a first token, its
//! command line or its `/v1/models` reply. Until then it is `other`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::budget::{Budget, Limits};
use super::def::Family;
use super::hist::{Bounds, BucketEdge, Hist, nanos};
use super::series::{Combination, ModelIx, SeriesKey};
use super::status;
use super::workload::Workload;
use crate::stalls::Stall;
use crate::vocab::{
    Class, Identity, Outcome, Phase, RequestEnd, StallCause, StallPhase, Status, Streaming,
    TokenSource, Tokens, WorkloadId,
};

/// How a store is set up.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Caps on models and series.
    pub limits: Limits,
    /// The operator's extra bounds.
    pub edges: Vec<BucketEdge>,
    /// Seconds since 1970, read when a series is born.
    pub now: fn() -> f64,
}

impl Default for StoreConfig {
    fn default() -> StoreConfig {
        StoreConfig {
            limits: Limits::default(),
            edges: Vec::new(),
            now: unix_now,
        }
    }
}

/// The wall clock in seconds since 1970.
fn unix_now() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_millis() as f64 / 1e3)
}

/// A response head that has been seen, before its request has ended.
#[derive(Clone, Copy, Debug)]
pub struct ResponseHead<'a> {
    /// Whose request it answers.
    pub workload: WorkloadId,
    /// What the request is for.
    pub class: Class,
    /// The model it named.
    pub model: Option<&'a str>,
    /// Its route, from a closed list.
    pub route: &'static str,
    /// Whether the reply is a stream.
    pub streaming: Streaming,
    /// The status of the head.
    pub status: Status,
    /// From the first request byte to the first byte of the head; `None` when not usable.
    pub after: Option<Duration>,
}

/// The counts of every workload of the node.
#[derive(Clone, Debug)]
pub struct Store {
    workloads: BTreeMap<WorkloadId, Arc<Workload>>,
    budget: Budget,
    bounds: Arc<Vec<Bounds>>,
    now: fn() -> f64,
    created: f64,
}

/// A store as it was at one moment. Cheap to take; shares everything with the store until the
/// next update of each workload.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The workloads by number.
    pub workloads: BTreeMap<WorkloadId, Arc<Workload>>,
    /// Bounds by family.
    pub bounds: Arc<Vec<Bounds>>,
    /// Series that count against the budget.
    pub series: usize,
    /// Updates that went to `other` for want of budget.
    pub dropped: u64,
    /// When the store was made, in seconds since 1970.
    pub created: f64,
}

/// What an update may touch besides its workload.
struct Context<'a> {
    workload: &'a mut Workload,
    budget: &'a mut Budget,
    bounds: &'a [Bounds],
    now: f64,
}

impl Default for Store {
    fn default() -> Store {
        Store::new(StoreConfig::default())
    }
}

impl Store {
    /// An empty store.
    pub fn new(config: StoreConfig) -> Store {
        Store {
            workloads: BTreeMap::new(),
            budget: Budget::new(config.limits),
            bounds: Arc::new(Bounds::table(&config.edges)),
            now: config.now,
            created: (config.now)(),
        }
    }

    /// Registers a workload: its counters stand at 0 on the next page. Registering the same
    /// number with the same identity again changes nothing. Another workload of the same identity
    /// (an earlier life of the container) is removed, for a page must not hold a series twice;
    /// its number is returned.
    pub fn add_workload(&mut self, id: WorkloadId, identity: Identity) -> Option<WorkloadId> {
        if self
            .workloads
            .get(&id)
            .is_some_and(|known| known.identity == identity)
        {
            return None;
        }
        self.remove_workload(id);
        let same = self
            .workloads
            .iter()
            .find(|(_, other)| other.identity == identity);
        let earlier = same.map(|(&id, _)| id);
        if let Some(earlier) = earlier {
            self.remove_workload(earlier);
        }
        let workload = Workload::new(identity, (self.now)(), &mut self.budget);
        self.workloads.insert(id, Arc::new(workload));
        earlier
    }

    /// Drops a workload and all its series; later events of it are discarded.
    pub fn remove_workload(&mut self, id: WorkloadId) {
        if let Some(workload) = self.workloads.remove(&id) {
            workload.release(&mut self.budget);
        }
    }

    /// Whether a workload is registered.
    pub fn contains(&self, id: WorkloadId) -> bool {
        self.workloads.contains_key(&id)
    }

    /// Requests of a workload that have ended, lost ones included; 0 if it is not registered.
    pub fn ended_total(&self, id: WorkloadId) -> u64 {
        self.workloads.get(&id).map_or(0, |workload| workload.ended)
    }

    /// Admits a model that this workload is known to serve.
    pub fn serve_model(&mut self, id: WorkloadId, model: &str) {
        if let Some(cx) = self.context(id) {
            cx.workload.model(Some(model), true, cx.budget);
        }
    }

    /// Takes in a response head. A 2xx one admits the model.
    pub fn response_head(&mut self, head: &ResponseHead<'_>) {
        let Some(mut cx) = self.context(head.workload) else {
            return;
        };
        let served = is_served(head.class, head.status);
        let model = cx.workload.model(head.model, served, cx.budget);
        if served {
            cx.admit(head.class, model, head.route, head.streaming);
        }
        if let (Class::Inference, Some(after)) = (head.class, head.after) {
            cx.observe(Family::ResponseHead, model, &[head.route], nanos_of(after));
        }
    }

    /// Takes in the first event with generated content of an inference stream. Admits the model.
    pub fn first_token(
        &mut self,
        id: WorkloadId,
        model: Option<&str>,
        route: &'static str,
        after: Duration,
    ) {
        let Some(mut cx) = self.context(id) else {
            return;
        };
        let model = cx.workload.model(model, true, cx.budget);
        cx.admit(Class::Inference, model, route, Streaming::True);
        cx.observe(Family::FirstToken, model, &[route], nanos_of(after));
    }

    /// Takes in how long a part of an inference request was held up. `of` is that part's length.
    pub fn stalled(&mut self, id: WorkloadId, phase: StallPhase, stall: &Stall, of: Duration) {
        let Some(mut cx) = self.context(id) else {
            return;
        };
        let (unknown, name) = (ModelIx::UNKNOWN, phase.as_str());
        cx.add(Family::RequestHostStall, unknown, &[name], stall.host_ns);
        for (cause, ns) in StallCause::ALL.iter().zip(stall.by_cause) {
            let rest = [name, cause.domain(), cause.as_str()];
            cx.add(Family::RequestStall, unknown, &rest, ns);
        }
        let of = nanos_of(of);
        if phase == StallPhase::Ttft && of > 0 {
            let share = stall.host_ns as f64 / of as f64;
            if let Some(share) = nanos(share) {
                cx.observe(Family::TtftHostStallRatio, unknown, &[], share);
            }
        }
    }

    /// Adds events sent on a stream since they were last reported.
    pub fn stream_events(&mut self, id: WorkloadId, model: Option<&str>, n: u64) {
        let Some(mut cx) = self.context(id) else {
            return;
        };
        let model = cx.workload.model(model, false, cx.budget);
        cx.add(Family::StreamEvents, model, &[], n);
    }

    /// Takes in a request that has ended. Counts it once, in its outcome.
    pub fn request_ended(&mut self, end: &RequestEnd) {
        let Some(mut cx) = self.context(end.workload) else {
            return;
        };
        // An error inside a 200 reply that never streamed proves nothing about the model.
        let failed = end.outcome == Outcome::Error && end.phase != Phase::Streaming;
        let served = !failed && is_served(end.class, end.status);
        let model = cx.workload.model(end.model.as_deref(), served, cx.budget);
        let combination = cx.admit(end.class, model, end.route, end.streaming);
        let status = status::label(end.status);
        cx.workload
            .count_request(&combination, end.outcome, status, cx.now, cx.budget);
        cx.add(Family::StreamEvents, model, &[], end.events);
        if let Some(code) = end.error_code {
            cx.add(Family::ReplyErrors, ModelIx::UNKNOWN, &[code], 1);
        }
        if end.class == Class::Inference {
            cx.inference(end, model);
        }
    }

    /// Takes in the total of requests that ended without a record, as the kernel counted them.
    /// `status_class` is 1 to 5, or 0 without a head. Totals are absolute and only ever grow; a
    /// smaller one than before is ignored.
    pub fn lost(
        &mut self,
        id: WorkloadId,
        outcome: Outcome,
        status_class: u8,
        streaming: Streaming,
        total: u64,
    ) {
        if total == 0 {
            return;
        }
        let Some(cx) = self.context(id) else { return };
        let status = match status_class {
            0 => "none",
            class => status::class_label(class),
        };
        cx.workload
            .lost_requests(streaming, outcome, status, total, cx.now, cx.budget);
    }

    /// Takes in the total of stream events of requests that ended without a record.
    pub fn lost_events(&mut self, id: WorkloadId, total: u64) {
        if let Some(cx) = self.context(id) {
            cx.workload.lost_events(total, cx.now, cx.budget);
        }
    }

    /// The store as it is now, to write a page from outside its lock.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            workloads: self.workloads.clone(),
            bounds: Arc::clone(&self.bounds),
            series: self.budget.series,
            dropped: self.budget.dropped,
            created: self.created,
        }
    }

    fn context(&mut self, id: WorkloadId) -> Option<Context<'_>> {
        let workload = Arc::make_mut(self.workloads.get_mut(&id)?);
        let now = (self.now)();
        Some(Context {
            workload,
            budget: &mut self.budget,
            bounds: &self.bounds,
            now,
        })
    }
}

/// Whether a reply proves that the workload serves the model it was asked for.
fn is_served(class: Class, status: Status) -> bool {
    let success = match status {
        Status::Code(code) => (200..300).contains(&code),
        Status::ClassOnly(class) => class == 2,
        Status::None => false,
    };
    success && matches!(class, Class::Inference | Class::Control)
}

/// A duration as the integer the histograms keep.
fn nanos_of(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Context<'_> {
    /// Makes all outcomes of a combination stand on the page.
    fn admit(
        &mut self,
        class: Class,
        model: ModelIx,
        route: &'static str,
        streaming: Streaming,
    ) -> Combination {
        let asked = Combination {
            class,
            model,
            route,
            streaming,
        };
        self.workload
            .admit_combination(asked, self.now, self.budget)
    }

    fn add(&mut self, family: Family, model: ModelIx, rest: &[&'static str], n: u64) {
        if n > 0 {
            self.workload.add(
                SeriesKey::new(family, model, rest),
                n,
                self.now,
                self.budget,
            );
        }
    }

    fn observe(&mut self, family: Family, model: ModelIx, rest: &[&'static str], sample: u64) {
        let bounds = &self.bounds[family as usize];
        self.write(family, model, rest, |hist| hist.observe(bounds, sample));
    }

    fn write(
        &mut self,
        family: Family,
        model: ModelIx,
        rest: &[&'static str],
        update: impl FnOnce(&mut Hist),
    ) {
        let key = SeriesKey::new(family, model, rest);
        let bounds = &self.bounds[family as usize];
        self.workload
            .write(key, bounds, self.now, self.budget, update);
    }

    /// The latencies, tokens and sizes of an inference request.
    fn inference(&mut self, end: &RequestEnd, model: ModelIx) {
        let (streaming, outcome) = (end.streaming.as_str(), end.outcome.as_str());
        if let Some(duration) = end.duration.map(nanos_of) {
            match end.outcome {
                Outcome::Success => {
                    self.observe(Family::Duration, model, &[end.route, streaming], duration);
                }
                Outcome::Error | Outcome::Abort | Outcome::Timeout | Outcome::Reset => {
                    let rest = [streaming, outcome, end.phase.as_str()];
                    self.observe(Family::Unfinished, model, &rest, duration);
                }
                Outcome::Refused | Outcome::Unobserved => {}
            }
        }
        if let Some(gaps) = end.gaps.filter(|gaps| gaps.count > 0) {
            self.write(Family::StreamGap, model, &[], |hist| hist.add_gaps(&gaps));
        }
        if let Some((seconds, source)) = end.time_per_output_token
            && let Some(ns) = nanos(seconds)
        {
            self.observe(Family::TimePerToken, model, &[source.as_str()], ns);
        }
        if let Some((tokens, source)) = end.tokens {
            self.tokens(model, &tokens, source);
        }
        if let Some(bytes) = end.request_body_bytes {
            self.observe(Family::BodyBytes, model, &[], bytes);
        }
        if end.first_token_unknown {
            self.add(Family::FirstTokenUnknown, ModelIx::UNKNOWN, &[], 1);
        }
    }

    /// Adds the token counts that are known; a known 0 makes its series appear.
    fn tokens(&mut self, model: ModelIx, tokens: &Tokens, source: TokenSource) {
        for (kind, n) in [
            ("prompt", tokens.prompt),
            ("generation", tokens.generation),
            ("cached", tokens.cached),
        ] {
            let Some(n) = n else { continue };
            let rest = [kind, source.as_str()];
            let key = SeriesKey::new(Family::Tokens, model, &rest);
            self.workload.add(key, n, self.now, self.budget);
            self.observe(Family::RequestTokens, model, &rest, n);
        }
    }
}
