//! The end of a request: what became of it, how long it took, what it said of itself.

use std::time::Duration;

use enginetap_ebpf::abi::counters::outcome as kernel;
use enginetap_ebpf::abi::record::{End, end_flag};
use enginetap_ebpf::hist::{gap_bucket, read_delay_bucket};
use zeroize::Zeroizing;

use super::claim::join;
use super::entry::Entry;
use super::{Ingest, monotonic_ns};
use crate::engines;
use crate::protocol::events::StreamFraming;
use crate::protocol::kind::EventKind;
use crate::protocol::reply::{ReplyFacts, model_ids, read_reply};
use crate::protocol::tail::{TailFacts, read_tail};
use crate::slow::SlowRequest;
use crate::stalls::Charge;
use crate::vocab::{
    Class, Gaps, Outcome, Phase, RequestEnd, StallPhase, Status, Streaming, TokenSource, Tokens,
    WorkloadId,
};

impl Ingest {
    /// A request ended.
    pub(super) fn ended(&mut self, end: &End, tail: &Zeroizing<Vec<u8>>) {
        let r = &end.request;
        let mut entry = self
            .entries
            .remove(&(r.flow, r.number))
            .unwrap_or_else(|| Entry::new(r.key, r.workload, end.start_ns));
        entry.confirmed = true;
        entry.answered = true;
        entry.start_ns = end.start_ns;
        if r.workload == 0
            && entry.workload == 0
            && let Some(workload) = self.reached(&entry.key)
        {
            let engine = self.engine_of(workload.0);
            join(&mut self.store, &mut entry, workload, engine);
        }
        if r.workload == 0 && entry.workload == 0 {
            let answers = end.status / 100 == 2;
            entry.read_head(crate::vocab::Engine::OpenAi);
            let telling = answers
                && entry
                    .head
                    .as_ref()
                    .is_some_and(|h| engines::is_inference_route(h.method, &h.path));
            if telling && self.parked.ask(&entry.key) {
                let hint = entry.reply.as_ref().and_then(|h| h.engine_hint);
                self.tell(super::News::Answers {
                    flow: entry.key,
                    hint,
                });
            }
            self.parked.hold(Box::new(*end), tail.clone(), entry);
            return;
        }
        if r.workload == 0 && !entry.counted {
            // It was not complete enough to be counted when its workload became known.
            if let Some(known) = self.known.get_mut(&entry.workload) {
                known.started += 1;
            }
        }
        if r.workload != 0 {
            entry.workload = r.workload;
        }
        self.finish(end, tail, entry);
    }

    /// Hands an ended request to the store.
    pub(super) fn finish(&mut self, end: &End, tail: &[u8], mut entry: Entry) {
        entry.confirmed = true;
        let engine = self.engine_of(entry.workload);
        entry.read_head(engine);
        let flags = end.flags;
        let stream = flags & end_flag::STREAM != 0;
        let own = tail.len().saturating_sub(end.tail_excess as usize);
        let tail = &tail[..own];
        let tail = &tail[tail.len().saturating_sub(end.reply_bytes as usize)..];
        let chunked = flags & end_flag::CHUNKED != 0;
        let framing = if flags & end_flag::NDJSON != 0 {
            StreamFraming::Ndjson
        } else {
            StreamFraming::Sse
        };
        let last = if stream && !tail.is_empty() {
            read_tail(tail, framing, chunked)
        } else {
            TailFacts::default()
        };
        let unary = if stream {
            ReplyFacts::default()
        } else {
            unary_facts(&mut entry, tail, chunked)
        };
        let error = entry.stream.error.or(last.error).or(unary.error);
        let class = entry.route.map_or(Class::Unknown, |r| r.class);
        let route = entry.route.map_or("other", |r| r.route);
        let head = flags & end_flag::HEAD != 0;
        let outcome = outcome(end, error);
        let status = if head {
            Status::Code(end.status as u16)
        } else if outcome == Outcome::Abort {
            Status::Code(499)
        } else {
            Status::None
        };
        if class == Class::Control
            && end.status == 200
            && let Some(reply) = entry.reply.clone()
        {
            for model in model_ids(&reply, entry.reply_body().0, super::MODELS_LISTED) {
                self.store.serve_model(WorkloadId(entry.workload), &model);
            }
        }
        let asked = entry.facts().clone();
        let model = asked
            .model
            .or_else(|| {
                entry
                    .reader
                    .as_ref()
                    .and_then(|r| r.model().map(str::to_owned))
            })
            .or(last.model.clone())
            .or(unary.model);
        let usable = flags & (end_flag::GAP | end_flag::ADOPTED) == 0;
        if usable
            && class == Class::Inference
            && end.read_ns >= end.start_ns
            && let Some(known) = self.known.get_mut(&entry.workload)
        {
            let delay = end.read_ns - end.start_ns;
            known.read_delay[read_delay_bucket(delay)] += 1;
            known.read_delay_ns += delay;
        }
        let seen = Seen {
            end,
            entry: &entry,
            last: &last,
            stream,
            usable,
        };
        let tokens = tokens(&seen, unary.tokens);
        let first_token_unknown =
            stream && class == Class::Inference && entry.stream.first_token_ns.is_none();
        let streaming = if head {
            if stream {
                Streaming::True
            } else {
                Streaming::False
            }
        } else {
            asked.stream.map_or(Streaming::Unknown, |s| {
                if s { Streaming::True } else { Streaming::False }
            })
        };
        let phase = if !head {
            Phase::BeforeHead
        } else if stream && entry.stream.first_token_ns.is_none() {
            Phase::BeforeFirstToken
        } else {
            Phase::Streaming
        };
        if usable && class == Class::Inference {
            self.charge(end, &entry, outcome, stream);
            let slow = slow_request(end, &entry, outcome, route, status);
            self.slow.add(WorkloadId(entry.workload), outcome, slow);
        }
        self.store.request_ended(&RequestEnd {
            workload: WorkloadId(entry.workload),
            class,
            model,
            route,
            streaming,
            outcome,
            status,
            phase,
            duration: usable.then(|| Duration::from_nanos(end.end_ns.saturating_sub(end.start_ns))),
            gaps: gaps(&seen),
            time_per_output_token: per_token(&seen, tokens),
            tokens,
            first_token_unknown,
            events: u64::from(end.events_total).saturating_sub(entry.reported),
            request_body_bytes: entry.head.is_some().then_some(end.request_bytes),
            error_code: error,
        });
    }

    /// Adds what held up the part of a request that ends with it.
    fn charge(&mut self, end: &End, entry: &Entry, outcome: Outcome, stream: bool) {
        let success = outcome == Outcome::Success;
        let charged = match &entry.first {
            Some(first) if entry.token_stored => {
                let phase = if success {
                    StallPhase::Stream
                } else {
                    StallPhase::Unfinished
                };
                first.until(end).map(|c| (phase, c))
            }
            _ => {
                let phase = if success && !stream {
                    StallPhase::Unary
                } else {
                    StallPhase::Unfinished
                };
                Charge::of(end).map(|c| (phase, c))
            }
        };
        if let Some((phase, charge)) = charged {
            let workload = WorkloadId(entry.workload);
            self.store
                .stalled(workload, phase, &charge.stall, charge.of);
        }
    }

    /// A request of ours whose end was not seen.
    pub(super) fn unobserved(&mut self, entry: Entry) {
        self.store.request_ended(&RequestEnd {
            workload: WorkloadId(entry.workload),
            class: entry.route.map_or(Class::Unknown, |r| r.class),
            model: None,
            route: entry.route.map_or("other", |r| r.route),
            streaming: Streaming::Unknown,
            outcome: Outcome::Unobserved,
            status: Status::None,
            phase: Phase::BeforeHead,
            duration: Some(Duration::from_nanos(
                monotonic_ns().saturating_sub(entry.start_ns),
            )),
            gaps: None,
            time_per_output_token: None,
            tokens: None,
            first_token_unknown: false,
            events: 0,
            request_body_bytes: None,
            error_code: None,
        });
    }

    /// Takes over what the kernel counted for a workload when the ring was full.
    pub(super) fn lost_of(&mut self, id: u32) {
        let rows = match self.tables.lost(id) {
            Ok(rows) => rows,
            Err(error) => {
                tracing::warn!(%error, "the table of lost records could not be read");
                return;
            }
        };
        for (outcome, class, streaming, total) in rows {
            let streaming = match streaming {
                1 => Streaming::True,
                2 => Streaming::False,
                _ => Streaming::Unknown,
            };
            self.store.lost(
                WorkloadId(id),
                outcome_of(outcome),
                class as u8,
                streaming,
                total,
            );
        }
        if let Ok(w) = self.tables.workload(id) {
            self.store.lost_events(WorkloadId(id), w.lost_events);
        }
    }
}

/// A request as `/requests/slow` shows it.
fn slow_request(
    end: &End,
    entry: &Entry,
    outcome: Outcome,
    route: &'static str,
    status: Status,
) -> SlowRequest {
    let since = |at: u64| (at > end.start_ns).then(|| (at - end.start_ns) as f64 / 1e9);
    let ago = monotonic_ns().saturating_sub(end.end_ns) as f64 / 1e9;
    let unix = std::time::SystemTime::now()
        .duration_since(std::time::SystemTime::UNIX_EPOCH)
        .map_or(0.0, |t| t.as_secs_f64());
    let mut request = SlowRequest {
        ended: unix - ago,
        seconds: end.end_ns.saturating_sub(end.start_ns) as f64 / 1e9,
        read_seconds: since(end.read_ns),
        head_seconds: since(end.head_ns),
        first_token_seconds: entry.stream.first_token_ns.and_then(since),
        route,
        outcome: outcome.as_str(),
        status: match status {
            Status::Code(code) => Some(code),
            _ => None,
        },
        pid: end.owner.tgid,
        host_stall_seconds: None,
        stall_seconds: std::collections::BTreeMap::new(),
    };
    if let Some(charge) = Charge::of(end) {
        request.held_up_by(&charge.stall);
    }
    request
}

fn unary_facts(entry: &mut Entry, tail: &[u8], chunked: bool) -> ReplyFacts {
    let Some(reply) = entry.reply.clone() else {
        return ReplyFacts::default();
    };
    let (prefix, end) = entry.reply_body();
    read_reply(
        &reply,
        prefix,
        if chunked || end.is_empty() { tail } else { end },
    )
}

fn outcome_of(value: u32) -> Outcome {
    match value {
        kernel::SUCCESS => Outcome::Success,
        kernel::ERROR => Outcome::Error,
        kernel::REFUSED => Outcome::Refused,
        kernel::ABORT => Outcome::Abort,
        kernel::TIMEOUT => Outcome::Timeout,
        kernel::RESET => Outcome::Reset,
        _ => Outcome::Unobserved,
    }
}

/// The kernel tells how the connection went; the status and the reply's own error tell the rest.
fn outcome(end: &End, error: Option<&'static str>) -> Outcome {
    if end.flags & end_flag::COMPLETE == 0 {
        return outcome_of(end.outcome);
    }
    engines::outcome_of_status(end.status as u16, error)
}

/// What is known of a reply, for the numbers of its stream.
struct Seen<'a> {
    end: &'a End,
    entry: &'a Entry,
    last: &'a TailFacts,
    stream: bool,
    usable: bool,
}

impl Seen<'_> {
    /// Whether every captured event reached us, so that the two halves of the stream join.
    fn joined(&self) -> bool {
        let read = self.entry.reader.as_ref().map_or(0, |r| r.events());
        self.stream
            && self.usable
            && self.end.flags & end_flag::PIECE_LOST == 0
            && read == u64::from(self.end.events_captured)
    }

    /// Events with a gap of their own that came after the captured ones.
    fn late(&self) -> bool {
        self.end.events_total > self.end.events_captured + u32::from(self.done_late())
    }

    /// Whether `[DONE]` came after the captured events.
    fn done_late(&self) -> bool {
        self.end.flags & end_flag::DONE != 0
            && !self.entry.reader.as_ref().is_some_and(|r| r.done())
    }

    /// Whether the last event but `[DONE]` is only a usage.
    fn usage_last(&self) -> bool {
        self.last.last == Some(EventKind::UsageOnly)
    }

    /// Time of the last event that ends a gap.
    fn last_ns(&self) -> Option<u64> {
        self.entry.stream.first_token_ns?;
        if !self.late() {
            return Some(self.entry.stream.last_ns);
        }
        let end = self.end;
        if !self.usage_last() {
            return Some(end.event_ns);
        }
        // The gap before it, if the kernel held one, leads back to the event before.
        Some(end.event_ns.saturating_sub(end.held_gap_ns))
    }
}

fn gaps(seen: &Seen<'_>) -> Option<Gaps> {
    if !seen.joined() || seen.entry.stream.first_token_ns.is_none() {
        return None;
    }
    let mut gaps = seen.entry.stream.gaps;
    for (cell, n) in gaps.buckets.iter_mut().zip(seen.end.gaps) {
        *cell += u64::from(n);
        gaps.count += u64::from(n);
    }
    gaps.sum_ns += seen.end.gap_sum_ns;
    let held = seen.end.held_gap_ns;
    if held != 0 && !seen.usage_last() {
        gaps.count += 1;
        gaps.sum_ns += held;
        gaps.buckets[gap_bucket(held)] += 1;
    }
    Some(gaps)
}

fn tokens(seen: &Seen<'_>, unary: Option<Tokens>) -> Option<(Tokens, TokenSource)> {
    if !seen.stream {
        return unary.map(|t| (t, TokenSource::Usage));
    }
    let mut named = seen.entry.reader.as_ref().and_then(|r| r.tokens());
    crate::protocol::usage::merge(&mut named, seen.last.tokens);
    if let Some(tokens) = named
        && tokens.generation.is_some()
    {
        return Some((tokens, TokenSource::Usage));
    }
    if !seen.joined() {
        return None;
    }
    let late = u64::from(seen.end.events_total - seen.end.events_captured);
    let silent = if late > 0 {
        seen.last.silent.min(late)
    } else {
        0
    };
    let generation = seen.entry.stream.content + late - silent;
    let counted = Tokens {
        generation: Some(generation),
        ..named.unwrap_or_default()
    };
    Some((counted, TokenSource::Events))
}

fn per_token(seen: &Seen<'_>, tokens: Option<(Tokens, TokenSource)>) -> Option<(f64, TokenSource)> {
    if !seen.joined() {
        return None;
    }
    let (tokens, source) = tokens?;
    let first = seen.entry.stream.first_token_ns?;
    let n = tokens.generation?;
    if n < 2 {
        return None;
    }
    let span = seen.last_ns()?.saturating_sub(first);
    Some((span as f64 / 1e9 / (n - 1) as f64, source))
}
