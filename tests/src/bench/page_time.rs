//! The page of a large node, and how many series a workload has. The store is driven in this
//! process with what requests would have brought.

use std::time::{Duration, Instant};

use enginetap::metrics::{Format, Groups, PageInput, ResponseHead, Store, WorkloadInput, render};
use enginetap::vocab::{
    Class, Engine, Gaps, Identity, Outcome, Phase, RequestEnd, Status, Streaming, TokenSource,
    Tokens, WorkloadId,
};

use super::Args;
use super::stats::quantile;
use super::table::{Detail, Report, Verdict};

const ROUTES: [&str; 2] = ["/v1/chat/completions", "/v1/completions"];

/// Requests of every usual kind to a model.
fn feed(store: &mut Store, id: WorkloadId, model: &str) {
    for (route, streaming) in [(ROUTES[0], Streaming::True), (ROUTES[1], Streaming::False)] {
        let after = Some(Duration::from_millis(20));
        let head = ResponseHead {
            workload: id,
            class: Class::Inference,
            model: Some(model),
            route,
            streaming,
            status: Status::Code(200),
            after,
        };
        store.response_head(&head);
        let streams = streaming == Streaming::True;
        if streams {
            store.first_token(id, Some(model), route, Duration::from_millis(80));
        }
        for (outcome, status) in [
            (Outcome::Success, Status::Code(200)),
            (Outcome::Refused, Status::Code(429)),
            (Outcome::Error, Status::Code(500)),
            (Outcome::Abort, Status::Code(200)),
        ] {
            let good = outcome == Outcome::Success;
            let mut gaps = Gaps {
                count: 100,
                sum_ns: 2_000_000_000,
                ..Gaps::default()
            };
            gaps.buckets[5] = 100;
            let tokens = Tokens {
                prompt: Some(500),
                generation: Some(100),
                cached: None,
            };
            store.request_ended(&RequestEnd {
                workload: id,
                class: Class::Inference,
                model: Some(model.to_owned()),
                route,
                streaming,
                outcome,
                status,
                phase: if good {
                    Phase::Streaming
                } else {
                    Phase::BeforeHead
                },
                duration: Some(Duration::from_millis(2_100)),
                gaps: (good && streams).then_some(gaps),
                time_per_output_token: good.then_some((0.02, TokenSource::Usage)),
                tokens: good.then_some((tokens, TokenSource::Usage)),
                first_token_unknown: false,
                events: 102,
                request_body_bytes: Some(2_000),
                error_code: None,
            });
        }
    }
}

fn node(workloads: u32, models: usize) -> (Store, PageInput) {
    let mut store = Store::default();
    let mut input = PageInput::default();
    for n in 1..=workloads {
        let id = WorkloadId(n);
        let identity = Identity {
            namespace: "inference".into(),
            pod: format!("llama-70b-7d9c5b6f4-{n:05}"),
            container: "server".into(),
            engine: Engine::Vllm,
        };
        store.add_workload(id, identity);
        for model in 0..models {
            feed(&mut store, id, &format!("org/model-{model}-instruct"));
        }
        let started = store.ended_total(id);
        input.workloads.insert(
            id,
            WorkloadInput {
                started,
                connections: 8,
                ..WorkloadInput::default()
            },
        );
    }
    (store, input)
}

fn series(page: &str) -> usize {
    page.lines()
        .filter(|l| !l.starts_with('#') && !l.is_empty())
        .count()
}

fn all() -> Groups {
    Groups::parse([]).expect("no names are all groups")
}

pub(super) fn run(args: &Args, report: &mut Report) {
    let (mut store, input) = node(200, 5);
    let (mut times, mut size, mut lines) = (Vec::new(), 0, 0);
    for n in 0..args.pick(300, 20) {
        // Between pages every workload changes, as on a busy node: the next one copies it.
        let began = Instant::now();
        let snapshot = store.snapshot();
        let page = render(&snapshot, &input, Format::Text, all());
        times.push(began.elapsed().as_secs_f64() * 1e3);
        for id in 1..=200 {
            let after = Duration::from_millis(50 + n as u64);
            store.first_token(
                WorkloadId(id),
                Some("org/model-0-instruct"),
                ROUTES[0],
                after,
            );
        }
        (size, lines) = (page.len(), series(&page));
    }
    let (mid, p99) = (quantile(&times, 0.5), quantile(&times, 0.99));
    let (counted, folded) = (store.snapshot().series, store.snapshot().dropped);
    report.row(
        "page for 200 workloads of 5 models each, p99",
        "<= 50 ms",
        &format!("p50 {mid:.1} ms, p99 {p99:.1} ms for {lines} lines, {:.1} MB ({counted} against the series budget, {folded} updates folded)", size as f64 / 1e6),
        Verdict::of(p99 <= 50.0),
        &format!(
            "{} snapshots and texts from the agent's library in this process; two routes, four outcomes and every histogram per model; kernel maps and HTTP not within",
            times.len()
        ),
    );
    let mut detail = Detail::new(
        "Series by number of models",
        &[
            "models",
            "series of one workload",
            "of them histogram lines",
            "page of one workload",
        ],
    );
    let own = {
        let (store, input) = node(0, 0);
        series(&render(&store.snapshot(), &input, Format::Text, all()))
    };
    let mut told = Vec::new();
    let mut each = Vec::new();
    for models in [1, 5, 20] {
        let (store, input) = node(1, models);
        let page = render(&store.snapshot(), &input, Format::Text, all());
        let count = series(&page) - own;
        let hist = page.lines().filter(|l| l.contains("_bucket{")).count();
        detail.line(&[
            models.to_string(),
            count.to_string(),
            hist.to_string(),
            format!("{:.0} kB", page.len() as f64 / 1e3),
        ]);
        told.push(format!("{count} at {models}"));
        each.push(count as f64 / models as f64);
    }
    report.row(
        "series per workload at 1, 5, 20 models",
        "within 1,000 per workload and model",
        &told.join(", "),
        Verdict::of(each.iter().all(|n| *n <= 1_000.0)),
        "lines of the page, bucket lines included, two routes and four outcomes per model",
    );
    report.detail(detail);
}
