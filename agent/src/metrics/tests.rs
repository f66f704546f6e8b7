//! The rules of the page, asserted through the page.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use prometheus::TextEncoder;

use super::budget::Limits;
use super::context::*;
use super::def::{Family, Kind};
use super::input::*;
use super::*;
use crate::stalls::Stall;
use crate::vocab::*;

const WL: WorkloadId = WorkloadId(7);
const CHAT: &str = "/v1/chat/completions";
/// The identity labels of `WL`.
const ID: &str = r#"namespace="prod",pod="vllm-0",container="main",engine="vllm",tier="engine""#;

fn identity(pod: &str) -> Identity {
    Identity {
        namespace: "prod".into(),
        pod: pod.into(),
        container: "main".into(),
        engine: Engine::Vllm,
    }
}

fn store_with(limits: Limits, edges: Vec<BucketEdge>) -> Store {
    let mut store = Store::new(StoreConfig {
        limits,
        edges,
        now: || 1_700_000_000.25,
    });
    store.add_workload(WL, identity("vllm-0"));
    store
}

fn store() -> Store {
    store_with(Limits::default(), Vec::new())
}

/// A successful stream.
fn end(model: &str) -> RequestEnd {
    RequestEnd {
        workload: WL,
        class: Class::Inference,
        model: Some(model.into()),
        route: CHAT,
        streaming: Streaming::True,
        outcome: Outcome::Success,
        status: Status::Code(200),
        phase: Phase::Streaming,
        duration: Some(Duration::from_secs(2)),
        gaps: None,
        time_per_output_token: None,
        tokens: None,
        first_token_unknown: false,
        events: 0,
        request_body_bytes: None,
        error_code: None,
    }
}

fn refused(model: &str) -> RequestEnd {
    let mut end = end(model);
    end.streaming = Streaming::False;
    end.outcome = Outcome::Refused;
    end.status = Status::Code(404);
    end.phase = Phase::BeforeHead;
    end
}

fn text(store: &Store, input: &PageInput) -> String {
    render(&store.snapshot(), input, Format::Text, Groups::ALL)
}

/// Every sample of a page by its name and labels as written; a series twice is a failure.
fn samples(page: &str) -> BTreeMap<String, f64> {
    let mut samples = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let value = value.parse().unwrap();
        assert!(
            samples.insert(series.to_owned(), value).is_none(),
            "{series} twice"
        );
    }
    samples
}

fn now(store: &Store) -> BTreeMap<String, f64> {
    samples(&text(store, &PageInput::default()))
}

/// A series of `WL` by its labels after the identity.
fn of_wl(name: &str, labels: &str) -> String {
    let comma = if labels.is_empty() { "" } else { "," };
    format!("{name}{{{ID}{comma}{labels}}}")
}

fn get(samples: &BTreeMap<String, f64>, name: &str, labels: &str) -> Option<f64> {
    samples.get(&of_wl(name, labels)).copied()
}

fn requests(model: &str, outcome: &str, status: &str) -> String {
    format!(
        r#"class="inference",model="{model}",route="{CHAT}",streaming="true",outcome="{outcome}",status="{status}""#
    )
}

fn sum_of(samples: &BTreeMap<String, f64>, prefix: &str) -> f64 {
    samples
        .iter()
        .filter(|(name, _)| name.starts_with(prefix))
        .map(|(_, n)| n)
        .sum()
}

/// Model label values of `enginetap_requests_total`.
fn models(samples: &BTreeMap<String, f64>) -> Vec<String> {
    let mut models: Vec<_> = samples
        .keys()
        .filter(|name| name.starts_with("enginetap_requests_total{"))
        .map(|name| {
            name.split("model=\"")
                .nth(1)
                .unwrap()
                .split('"')
                .next()
                .unwrap()
                .to_owned()
        })
        .collect();
    models.sort();
    models.dedup();
    models
}

#[test]
fn a_new_workload_stands_at_0_for_every_outcome() {
    let page = now(&store());
    for outcome in Outcome::ALL {
        let labels = format!(
            r#"class="unknown",model="unknown",route="other",streaming="unknown",outcome="{}",status="none""#,
            outcome.as_str()
        );
        assert_eq!(
            get(&page, "enginetap_requests_total", &labels),
            Some(0.0),
            "{labels}"
        );
    }
    let of = |prefix: &str| page.keys().filter(|name| name.starts_with(prefix)).count();
    assert_eq!(of("enginetap_requests_total{"), 7);
    assert_eq!(of("enginetap_requests_in_flight{"), 5);
    assert_eq!(of("enginetap_requests_in_flight_by_age{"), 12);
    assert_eq!(of("enginetap_connections_closed_total{"), 6);
    for (name, labels) in [
        ("enginetap_requests_started_total", ""),
        (
            "enginetap_requests_in_flight_by_age",
            r#"age_gt="0",age_le="30""#,
        ),
        (
            "enginetap_requests_in_flight_by_age",
            r#"age_gt="86400",age_le="+Inf""#,
        ),
        ("enginetap_oldest_request_age_seconds", ""),
        ("enginetap_stream_events_total", r#"model="unknown""#),
        ("enginetap_first_token_unknown_total", ""),
        ("enginetap_reply_errors_total", r#"code="other""#),
        ("enginetap_bytes_total", r#"direction="received""#),
        ("enginetap_bytes_total", r#"direction="sent""#),
        ("enginetap_connections", ""),
    ] {
        assert_eq!(get(&page, name, labels), Some(0.0), "{name} {labels}");
    }
    assert!(!page.keys().any(|name| name.contains("_bucket")));
}

#[test]
fn all_outcomes_of_a_combination_appear_with_its_first_request() {
    let mut store = store();
    store.request_ended(&end("m"));
    let page = now(&store);
    for (outcome, status, n) in [
        ("success", "200", 1.0),
        ("error", "500", 0.0),
        ("refused", "400", 0.0),
        ("abort", "499", 0.0),
        ("timeout", "504", 0.0),
        ("reset", "none", 0.0),
        ("unobserved", "none", 0.0),
    ] {
        let labels = requests("m", outcome, status);
        assert_eq!(
            get(&page, "enginetap_requests_total", &labels),
            Some(n),
            "{labels}"
        );
    }
    assert_eq!(store.ended_total(WL), 1);
}

#[test]
fn a_served_head_and_a_first_token_make_the_zeros_appear_before_the_end() {
    let mut store = store();
    let head = ResponseHead {
        workload: WL,
        class: Class::Inference,
        model: Some("m"),
        route: CHAT,
        streaming: Streaming::True,
        status: Status::Code(200),
        after: Some(Duration::from_millis(10)),
    };
    store.response_head(&head);
    store.first_token(WL, Some("n"), CHAT, Duration::from_millis(500));
    let page = now(&store);
    for model in ["m", "n"] {
        let labels = requests(model, "success", "200");
        assert_eq!(
            get(&page, "enginetap_requests_total", &labels),
            Some(0.0),
            "{model}"
        );
    }
    let head_labels = format!(r#"model="m",route="{CHAT}",le="0.01""#);
    assert_eq!(
        get(
            &page,
            "enginetap_response_head_seconds_bucket",
            &head_labels
        ),
        Some(1.0)
    );
    let name = "enginetap_time_to_first_token_seconds_bucket";
    for (le, n) in [("0.4", 0.0), ("0.5", 1.0), ("+Inf", 1.0)] {
        let labels = format!(r#"model="n",route="{CHAT}",le="{le}""#);
        assert_eq!(get(&page, name, &labels), Some(n), "{le}");
    }
}

#[test]
fn counts_sums_and_buckets_are_exact() {
    let mut store = store();
    let mut stream = end("m");
    let mut gaps = Gaps {
        count: 3,
        sum_ns: 1_500_000_001,
        ..Gaps::default()
    };
    gaps.buckets[0] = 2;
    gaps.buckets[enginetap_ebpf::hist::GAP_BUCKETS - 1] = 1;
    stream.gaps = Some(gaps);
    stream.time_per_output_token = Some((0.05, TokenSource::Usage));
    let tokens = Tokens {
        prompt: Some(64),
        generation: Some(0),
        cached: None,
    };
    stream.tokens = Some((tokens, TokenSource::Usage));
    stream.events = 5;
    stream.request_body_bytes = Some(256);
    for _ in 0..3 {
        store.request_ended(&stream);
    }
    store.stream_events(WL, Some("m"), 10);
    let page = now(&store);
    let expect = [
        (
            "enginetap_stream_gap_seconds_bucket",
            r#"model="m",le="0.001""#,
            6.0,
        ),
        (
            "enginetap_stream_gap_seconds_bucket",
            r#"model="m",le="30""#,
            6.0,
        ),
        ("enginetap_stream_gap_seconds_count", r#"model="m""#, 9.0),
        (
            "enginetap_stream_gap_seconds_sum",
            r#"model="m""#,
            4.500000003,
        ),
        (
            "enginetap_time_per_output_token_seconds_bucket",
            r#"model="m",source="usage",le="0.04""#,
            0.0,
        ),
        (
            "enginetap_time_per_output_token_seconds_bucket",
            r#"model="m",source="usage",le="0.05""#,
            3.0,
        ),
        (
            "enginetap_tokens_total",
            r#"model="m",type="prompt",source="usage""#,
            192.0,
        ),
        (
            "enginetap_tokens_total",
            r#"model="m",type="generation",source="usage""#,
            0.0,
        ),
        (
            "enginetap_request_tokens_bucket",
            r#"model="m",type="prompt",source="usage",le="64""#,
            3.0,
        ),
        (
            "enginetap_request_tokens_bucket",
            r#"model="m",type="prompt",source="usage",le="16""#,
            0.0,
        ),
        (
            "enginetap_request_body_bytes_bucket",
            r#"model="m",le="256""#,
            3.0,
        ),
        ("enginetap_request_body_bytes_sum", r#"model="m""#, 768.0),
        ("enginetap_stream_events_total", r#"model="m""#, 25.0),
    ];
    for (name, labels, n) in expect {
        assert_eq!(get(&page, name, labels), Some(n), "{name} {labels}");
    }
    assert!(!page.keys().any(|name| name.contains("type=\"cached\"")));
    let duration = format!(r#"model="m",route="{CHAT}",streaming="true""#);
    assert_eq!(
        get(&page, "enginetap_request_duration_seconds_sum", &duration),
        Some(6.0)
    );
}

#[test]
fn an_end_writes_its_age_where_its_outcome_says() {
    for &outcome in Outcome::ALL {
        let mut store = store();
        store.serve_model(WL, "m");
        let mut request = end("m");
        request.outcome = outcome;
        request.phase = Phase::BeforeFirstToken;
        store.request_ended(&request);
        let page = now(&store);
        let duration = format!(r#"model="m",route="{CHAT}",streaming="true""#);
        let unfinished = format!(
            r#"model="m",streaming="true",outcome="{}",phase="before_first_token""#,
            outcome.as_str()
        );
        let succeeded = outcome == Outcome::Success;
        let broke_off = matches!(
            outcome,
            Outcome::Error | Outcome::Abort | Outcome::Timeout | Outcome::Reset
        );
        let of = |name, labels: &str| get(&page, name, labels);
        assert_eq!(
            of("enginetap_request_duration_seconds_count", &duration),
            succeeded.then_some(1.0),
            "{outcome:?}"
        );
        assert_eq!(
            of("enginetap_unfinished_request_seconds_count", &unfinished),
            broke_off.then_some(1.0),
            "{outcome:?}"
        );
        assert_eq!(sum_of(&page, "enginetap_requests_total{"), 1.0);
    }
}

#[test]
fn latencies_and_tokens_hold_inference_only() {
    for &class in Class::ALL
        .iter()
        .filter(|&&class| class != Class::Inference)
    {
        let mut store = store();
        let mut request = end("m");
        request.class = class;
        request.tokens = Some((
            Tokens {
                prompt: Some(1),
                ..Tokens::default()
            },
            TokenSource::Usage,
        ));
        request.request_body_bytes = Some(1);
        request.first_token_unknown = true;
        store.request_ended(&request);
        let page = now(&store);
        assert!(
            !page
                .keys()
                .any(|n| n.contains("_bucket") || n.contains("tokens_total"))
        );
        assert_eq!(
            get(&page, "enginetap_first_token_unknown_total", ""),
            Some(0.0)
        );
        assert_eq!(sum_of(&page, "enginetap_requests_total{"), 1.0);
    }
}

#[test]
fn a_model_is_other_until_its_workload_served_it() {
    let mut store = store();
    store.request_ended(&refused("m"));
    assert_eq!(models(&now(&store)), ["other", "unknown"]);
    store.request_ended(&end("m"));
    store.request_ended(&refused("m"));
    let page = now(&store);
    assert_eq!(models(&page), ["m", "other", "unknown"]);
    let refused_m = requests("m", "refused", "404").replace("\"true\"", "\"false\"");
    assert_eq!(
        get(&page, "enginetap_requests_total", &refused_m),
        Some(1.0)
    );
    let refused_other = requests("other", "refused", "404").replace("\"true\"", "\"false\"");
    assert_eq!(
        get(&page, "enginetap_requests_total", &refused_other),
        Some(1.0)
    );
}

#[test]
fn a_2xx_reply_that_only_carried_an_error_admits_nothing() {
    let mut store = store();
    let mut failed = end("m");
    failed.outcome = Outcome::Error;
    failed.phase = Phase::BeforeFirstToken;
    store.request_ended(&failed);
    let mut page_request = end("n");
    page_request.class = Class::Other;
    store.request_ended(&page_request);
    assert_eq!(models(&now(&store)), ["other", "unknown"]);
}

#[test]
fn no_model_is_unknown_and_reserved_names_are_themselves() {
    let mut store = store();
    for model in ["", "unknown", "other"] {
        store.request_ended(&end(model));
    }
    let mut unnamed = end("x");
    unnamed.model = None;
    store.request_ended(&unnamed);
    let page = now(&store);
    assert_eq!(models(&page), ["other", "unknown"]);
    let of = |model| {
        get(
            &page,
            "enginetap_requests_total",
            &requests(model, "success", "200"),
        )
    };
    assert_eq!((of("unknown"), of("other")), (Some(3.0), Some(1.0)));
}

#[test]
fn a_hundred_thousand_made_up_models_leave_one_series_and_the_real_one_gets_its_own() {
    let mut store = store();
    for i in 0..100_000 {
        store.request_ended(&refused(&format!("made-up-{i}")));
    }
    store.request_ended(&refused("real"));
    store.request_ended(&end("real"));
    let page = now(&store);
    assert_eq!(models(&page), ["other", "real", "unknown"]);
    let refused_other = requests("other", "refused", "404").replace("\"true\"", "\"false\"");
    assert_eq!(
        get(&page, "enginetap_requests_total", &refused_other),
        Some(100_001.0)
    );
    assert!(page.len() < 200, "{} series", page.len());
}

#[test]
fn a_server_that_serves_every_name_fills_its_cap_and_no_more() {
    let mut store = store();
    for i in 0..100_000 {
        store.request_ended(&end(&format!("made-up-{i}")));
    }
    let page = now(&store);
    let models = models(&page);
    assert_eq!(models.len(), 64 + 2);
    assert!(models.contains(&"made-up-63".into()) && !models.contains(&"made-up-64".into()));
    let past = get(
        &page,
        "enginetap_requests_total",
        &requests("other", "success", "200"),
    );
    assert_eq!(past, Some(100_000.0 - 64.0));
    assert_eq!(store.ended_total(WL), 100_000);
    store.request_ended(&end(&"x".repeat(10_000)));
    assert!(
        text(&store, &PageInput::default())
            .lines()
            .all(|line| line.len() < 1_000)
    );
}

#[test]
fn different_names_on_the_node_are_capped_and_come_back_with_their_workload() {
    let limits = Limits {
        models_per_node: 10,
        ..Limits::default()
    };
    let mut store = store_with(limits, Vec::new());
    let second = WorkloadId(8);
    store.add_workload(second, identity("vllm-1"));
    for i in 0..10 {
        store.serve_model(WL, &format!("m{i}"));
    }
    let mut shared = end("m3");
    shared.workload = second;
    store.request_ended(&shared);
    let mut fresh = end("fresh");
    fresh.workload = second;
    store.request_ended(&fresh);
    assert_eq!(models(&now(&store)), ["m3", "other", "unknown"]);
    store.remove_workload(WL);
    store.request_ended(&fresh);
    assert_eq!(models(&now(&store)), ["fresh", "m3", "other", "unknown"]);
}

/// A client and a server that together try every label value there is.
fn hostile(store: &mut Store, routes: &[&'static str]) -> u64 {
    let mut sent = 0;
    for (i, &route) in routes.iter().enumerate() {
        for code in (100..=600).step_by(3) {
            for &streaming in Streaming::ALL {
                for &outcome in Outcome::ALL {
                    let mut request = end(&format!("m{}", (i + usize::from(code)) % 5));
                    request.route = route;
                    request.status = Status::Code(code);
                    request.streaming = streaming;
                    request.outcome = outcome;
                    store.request_ended(&request);
                    sent += 1;
                }
            }
        }
    }
    sent
}

const ROUTES: [&str; 24] = [
    "/a", "/b", "/c", "/d", "/e", "/f", "/g", "/h", "/i", "/j", "/k", "/l", "/m", "/n", "/o", "/p",
    "/q", "/r", "/s", "/t", "/u", "/v", "/w", "/x",
];

#[test]
fn a_model_keeps_within_its_series_whatever_a_server_sends() {
    let mut store = store();
    let sent = hostile(&mut store, &ROUTES);
    let page = now(&store);
    for model in 0..5 {
        let label = format!("model=\"m{model}\"");
        let own = page.keys().filter(|name| name.contains(&label)).count();
        assert!((500..=1_000).contains(&own), "{label}: {own}");
    }
    assert!(page.len() < 8_000, "{}", page.len());
    assert_eq!(store.ended_total(WL), sent);
    assert_eq!(sum_of(&page, "enginetap_requests_total{"), sent as f64);
    assert!(page["enginetap_series_dropped_total"] > 0.0);
}

#[test]
fn past_the_node_budget_counts_go_to_other_and_nothing_shown_goes() {
    let limits = Limits {
        series: 700,
        ..Limits::default()
    };
    let mut store = store_with(limits, Vec::new());
    store.request_ended(&end("first"));
    let before = now(&store);
    let sent = 1 + hostile(&mut store, &ROUTES);
    let page = now(&store);
    for name in before.keys() {
        assert!(page.contains_key(name), "{name} has gone");
    }
    assert_eq!(sum_of(&page, "enginetap_requests_total{"), sent as f64);
    assert!(page["enginetap_series_dropped_total"] > 0.0);
    let request_series = page.keys().filter(|n| n.contains("model=")).count();
    assert!(request_series < 700 + 1_700, "{request_series}");
    store.request_ended(&end("first"));
    let again = now(&store);
    let labels = requests("first", "success", "200");
    assert_eq!(get(&again, "enginetap_requests_total", &labels), Some(2.0));
}

#[test]
fn the_series_gauge_counts_what_is_on_the_page() {
    let mut store = store();
    let (empty, fixed) = (store.snapshot().series, now(&store).len());
    hostile(&mut store, &ROUTES[..3]);
    let grown = store.snapshot().series - empty;
    assert_eq!(grown, now(&store).len() - fixed);
    store.remove_workload(WL);
    assert_eq!(store.snapshot().series, 0);
}

#[test]
fn lost_totals_are_absolute_and_join_their_series_once() {
    let mut store = store();
    store.lost(WL, Outcome::Unobserved, 0, Streaming::Unknown, 3);
    store.lost(WL, Outcome::Unobserved, 0, Streaming::Unknown, 5);
    store.lost(WL, Outcome::Unobserved, 0, Streaming::Unknown, 4);
    store.lost(WL, Outcome::Success, 2, Streaming::True, 7);
    store.lost(WL, Outcome::Error, 5, Streaming::True, 0);
    store.lost_events(WL, 40);
    store.lost_events(WL, 41);
    store.stream_events(WL, None, 1);
    let mut unread = end("x");
    unread.class = Class::Unknown;
    unread.model = None;
    unread.route = "other";
    unread.streaming = Streaming::Unknown;
    unread.outcome = Outcome::Unobserved;
    unread.status = Status::None;
    store.request_ended(&unread);
    assert_eq!(store.ended_total(WL), 5 + 7 + 1);
    let page = now(&store);
    let labels = |streaming: &str, outcome: &str, status: &str| {
        format!(
            r#"class="unknown",model="unknown",route="other",streaming="{streaming}",outcome="{outcome}",status="{status}""#
        )
    };
    let name = "enginetap_requests_total";
    assert_eq!(
        get(&page, name, &labels("unknown", "unobserved", "none")),
        Some(6.0)
    );
    assert_eq!(
        get(&page, name, &labels("true", "success", "2xx")),
        Some(7.0)
    );
    assert_eq!(
        get(&page, name, &labels("true", "abort", "none")),
        Some(0.0)
    );
    assert_eq!(sum_of(&page, "enginetap_requests_total{"), 13.0);
    assert_eq!(
        get(&page, "enginetap_stream_events_total", r#"model="unknown""#),
        Some(42.0)
    );
}

#[test]
fn an_operators_edge_is_on_the_page() {
    let mut store = store_with(
        Limits::default(),
        vec![parse_bucket_edge("ttft=0.8").unwrap()],
    );
    store.first_token(WL, Some("m"), CHAT, Duration::from_millis(800));
    store.first_token(WL, Some("m"), CHAT, Duration::from_nanos(800_000_001));
    let page = now(&store);
    for (le, n) in [("0.75", 0.0), ("0.8", 1.0), ("1", 2.0)] {
        let labels = format!(r#"model="m",route="{CHAT}",le="{le}""#);
        let name = "enginetap_time_to_first_token_seconds_bucket";
        assert_eq!(get(&page, name, &labels), Some(n), "{le}");
    }
}

#[test]
fn a_removed_workload_leaves_nothing_and_its_late_events_are_discarded() {
    let mut store = store();
    store.request_ended(&end("m"));
    store.remove_workload(WL);
    store.request_ended(&end("m"));
    store.first_token(WL, Some("m"), CHAT, Duration::ZERO);
    store.stream_events(WL, Some("m"), 1);
    store.lost(WL, Outcome::Reset, 0, Streaming::True, 1);
    store.lost_events(WL, 1);
    store.serve_model(WL, "m");
    assert!(!store.contains(WL));
    assert_eq!(store.ended_total(WL), 0);
    assert!(!text(&store, &rich_input()).contains("namespace="));
    store.add_workload(WL, identity("vllm-0"));
    assert_eq!(models(&now(&store)), ["unknown"]);
}

#[test]
fn registering_again_keeps_counts_and_a_second_life_replaces_the_first() {
    let mut store = store();
    store.request_ended(&end("m"));
    assert_eq!(store.add_workload(WL, identity("vllm-0")), None);
    assert_eq!(store.ended_total(WL), 1);
    assert_eq!(
        store.add_workload(WorkloadId(9), identity("vllm-0")),
        Some(WL)
    );
    assert!(!store.contains(WL));
    assert_eq!(sum_of(&now(&store), "enginetap_requests_total{"), 0.0);
}

/// A cgroup that has everything.
fn rich_cgroup() -> CgroupFigures {
    let pressure = CgroupCounter::Pressure;
    let counters = [
        (pressure(Resource::Cpu, PressureKind::Some), 1_500_000_000),
        (pressure(Resource::Irq, PressureKind::Full), 42_000),
        (CgroupCounter::Throttled, 2_500_001_000),
        (CgroupCounter::Periods, 70),
        (CgroupCounter::ThrottledPeriods, 31),
        (CgroupCounter::CpuUsage, 4_000_000_000),
        (CgroupCounter::Memory(MemoryEvent::OomKill), 2),
    ];
    CgroupFigures {
        counters: counters.into(),
        quota_cores: Some(0.2),
        memory_bytes: Some(123_456_789),
        memory_limit_bytes: Some(1 << 30),
    }
}

/// A node of which everything is known.
fn rich_node() -> NodeFigures {
    NodeFigures {
        boot_time: Some(1_699_000_000.0),
        pressure: [((Resource::Io, PressureKind::Full), 88_504_982_000)].into(),
        cpu: Some(100_000_000_000),
        steal: Some(1_000_000_000),
        softirq: Some(2_000_000_000),
        runnable: Some(3),
        disks: [
            (DiskDirection::Read, (10, 50_000_000)),
            (DiskDirection::Write, (20, 60_000_000)),
        ]
        .into(),
        tcp_segments: Some(1_000),
        tcp_retransmits: Some(7),
    }
}

/// Everything an input can hold.
fn rich_input() -> PageInput {
    let mut input = PageInput::default();
    let open = |class, seconds| OpenRequest {
        class,
        age: Duration::from_secs(seconds),
    };
    input.workloads.insert(
        WL,
        WorkloadInput {
            started: 30,
            open: vec![
                open(Class::Inference, 31),
                open(Class::Inference, 90_000),
                open(Class::Probe, 1),
            ],
            received_bytes: 1_000,
            sent_bytes: 2_000,
            connections: 4,
            closed: vec![(CloseReason::PeerFin, 3), (CloseReason::Killed, 1)],
            read_delay: Some(KernelHistogram {
                cells: vec![1; 16],
                sum_ns: 25_000_000_000,
            }),
            listeners: vec![
                "[::]:8000".parse().unwrap(),
                "10.0.0.1:8000".parse().unwrap(),
            ],
            coverage: vec![
                CoverageRow {
                    aspect: Aspect::Wire,
                    state: CoverageState::Full,
                    reason: "",
                },
                CoverageRow {
                    aspect: Aspect::Tls,
                    state: CoverageState::None,
                    reason: "static",
                },
            ],
            start_time: Some(1_699_999_000.5),
            engine_version: Some("0.11.2".into()),
            process_stalls: vec![("api", [1_500_000_000; 9]), ("core", [0; 9])],
            cgroup: rich_cgroup(),
        },
    );
    let probe = |probe, state| ProbeRow {
        probe,
        state,
        reason: "no_btf",
        run_time: Duration::from_micros(1_234),
        runs: 10,
    };
    input.node = NodeInput {
        events_lost: vec![
            ("ring_full", 2),
            ("contended", 0),
            ("map_full", 0),
            ("gap", 1),
        ],
        flows_dropped: vec![("not_local", 5)],
        unparsed: vec![("http2", 1)],
        probes: vec![
            probe("wire", ProbeState::Ok),
            probe("tls", ProbeState::Broken),
        ],
        maps: vec![MapRow {
            map: "FLOWS",
            entries: Some(3),
            memory_bytes: Some(4_096),
        }],
        tasks: vec![("scan", 1_700_000_000.0)],
        process: Some(ProcessStats {
            cpu: Duration::from_millis(1_500),
            resident_bytes: 20 << 20,
            open_fds: 40,
            start_time: 1_699_999_999.75,
        }),
        page: PageCost {
            pages: 3,
            time: Duration::from_millis(6),
            bytes: 12_345,
        },
        context: rich_node(),
    };
    input
}

/// A store with a sample in every family.
fn rich_store() -> Store {
    let mut store = store();
    let stall = Stall {
        host_ns: 30_000_000,
        by_cause: [10_000_000; 9],
    };
    for phase in StallPhase::ALL {
        store.stalled(WL, *phase, &stall, Duration::from_millis(100));
    }
    let names = [
        "meta/llama",
        "quo\"te",
        "back\\slash",
        "new\nline",
        "ünï\tcode",
        "{a=\"b\"} 1 # EOF",
    ];
    for (i, name) in names.into_iter().enumerate() {
        store.response_head(&ResponseHead {
            workload: WL,
            class: Class::Inference,
            model: Some(name),
            route: CHAT,
            streaming: Streaming::True,
            status: Status::Code(200),
            after: Some(Duration::from_micros(1_234 * (i as u64 + 1))),
        });
        store.first_token(WL, Some(name), CHAT, Duration::from_millis(70 + i as u64));
        let mut stream = end(name);
        let mut gaps = Gaps {
            count: 1,
            sum_ns: 3_333_333,
            ..Gaps::default()
        };
        gaps.buckets[2] = 1;
        stream.gaps = Some(gaps);
        stream.time_per_output_token = Some((0.012_345_678_9, TokenSource::Events));
        let tokens = Tokens {
            prompt: Some(9),
            generation: Some(2_000),
            cached: Some(0),
        };
        stream.tokens = Some((tokens, TokenSource::Usage));
        stream.events = 9;
        stream.request_body_bytes = Some(12_345);
        stream.error_code = Some("invalid_request_error");
        stream.first_token_unknown = i == 0;
        store.request_ended(&stream);
        stream.outcome = Outcome::Abort;
        stream.status = Status::Code(499);
        store.request_ended(&stream);
    }
    store.request_ended(&refused("nobody"));
    store.lost(WL, Outcome::Unobserved, 2, Streaming::True, 4);
    store.add_workload(WorkloadId(1), identity("vllm-1"));
    store
}

#[test]
fn every_family_of_the_catalogue_is_scraped_and_nothing_else() {
    let page = text(&rich_store(), &rich_input());
    let typed: Vec<_> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .collect();
    let expected: Vec<_> = METRICS
        .iter()
        .map(|def| format!("{} {}", def.name, def.kind.as_str()))
        .collect();
    assert_eq!(typed, expected);
    for (name, _) in samples(&page) {
        let bare = name.split('{').next().unwrap();
        let known = METRICS.iter().any(|def| match def.kind {
            Kind::Histogram(_) => ["_bucket", "_sum", "_count"]
                .iter()
                .any(|suffix| bare.strip_suffix(suffix) == Some(def.name)),
            _ => bare == def.name,
        });
        assert!(known, "{name}");
    }
}

#[test]
fn the_text_is_what_the_prometheus_crate_writes() {
    let (store, input) = (rich_store(), rich_input());
    let families = families(&store.snapshot(), &input, Groups::ALL);
    let theirs = TextEncoder::new().encode_to_string(&families).unwrap();
    assert_eq!(text(&store, &input), theirs);
}

#[test]
fn labels_are_escaped_and_the_page_is_the_same_every_time() {
    let (store, input) = (rich_store(), rich_input());
    let page = text(&store, &input);
    for model in [r#"model="quo\"te""#, r#"model="back\\slash""#] {
        assert!(page.contains(model), "{model}");
    }
    assert!(!page.contains("new\\nline"), "no name that does not print");
    assert_eq!(page, text(&store, &input));
    let mut chunks = String::new();
    let snapshot = store.snapshot();
    render_to(&snapshot, &input, Format::Text, Groups::ALL, &mut |chunk| {
        chunks.push_str(chunk)
    });
    assert_eq!(page, chunks);
}

#[test]
fn values_of_the_input_are_on_the_page() {
    let page = samples(&text(&rich_store(), &rich_input()));
    for (name, labels, n) in [
        ("enginetap_requests_started_total", "", 30.0),
        ("enginetap_requests_in_flight", r#"class="inference""#, 2.0),
        ("enginetap_requests_in_flight", r#"class="probe""#, 1.0),
        ("enginetap_requests_in_flight", r#"class="unknown""#, 10.0),
        (
            "enginetap_requests_in_flight_by_age",
            r#"age_gt="30",age_le="60""#,
            1.0,
        ),
        (
            "enginetap_requests_in_flight_by_age",
            r#"age_gt="86400",age_le="+Inf""#,
            1.0,
        ),
        ("enginetap_oldest_request_age_seconds", "", 90_000.0),
        ("enginetap_read_delay_seconds_bucket", r#"le="0.0001""#, 1.0),
        ("enginetap_read_delay_seconds_count", "", 16.0),
        ("enginetap_read_delay_seconds_sum", "", 25.0),
        (
            "enginetap_connections_closed_total",
            r#"reason="killed""#,
            1.0,
        ),
        (
            "enginetap_connections_closed_total",
            r#"reason="local""#,
            0.0,
        ),
        ("enginetap_workload_info", r#"engine_version="0.11.2""#, 1.0),
        (
            "enginetap_workload_pressure_seconds_total",
            r#"resource="cpu",kind="some""#,
            1.5,
        ),
        (
            "enginetap_workload_cpu_throttled_seconds_total",
            "",
            2.500001,
        ),
        ("enginetap_workload_cpu_periods_total", "", 70.0),
        ("enginetap_workload_cpu_throttled_periods_total", "", 31.0),
        ("enginetap_workload_cpu_quota_cores", "", 0.2),
        ("enginetap_workload_cpu_usage_seconds_total", "", 4.0),
        ("enginetap_workload_memory_usage_bytes", "", 123_456_789.0),
        (
            "enginetap_workload_memory_events_total",
            r#"event="oom_kill""#,
            2.0,
        ),
        ("enginetap_listener_info", r#"addr="[::]:8000""#, 1.0),
        (
            "enginetap_coverage",
            r#"aspect="tls",state="none",reason="static""#,
            1.0,
        ),
        (
            "enginetap_reply_errors_total",
            r#"code="invalid_request_error""#,
            12.0,
        ),
    ] {
        assert_eq!(get(&page, name, labels), Some(n), "{name} {labels}");
    }
    for (name, n) in [
        (r#"enginetap_events_lost_total{reason="ring_full"}"#, 2.0),
        (
            r#"enginetap_probe_state{probe="tls",state="broken",reason="no_btf"}"#,
            1.0,
        ),
        (
            r#"enginetap_probe_run_seconds_total{probe="wire"}"#,
            0.001234,
        ),
        (r#"enginetap_map_memory_bytes{map="FLOWS"}"#, 4_096.0),
        (
            r#"enginetap_node_pressure_seconds_total{resource="io",kind="full"}"#,
            88.504982,
        ),
        (
            r#"enginetap_node_disk_time_seconds_total{direction="write"}"#,
            0.06,
        ),
        (r#"enginetap_node_disk_ios_total{direction="read"}"#, 10.0),
        ("enginetap_node_cpu_steal_seconds_total", 1.0),
        ("enginetap_node_tcp_retransmits_total", 7.0),
        ("process_cpu_seconds_total", 1.5),
        ("enginetap_page_bytes_total", 12_345.0),
    ] {
        assert_eq!(page.get(name), Some(&n), "{name}");
    }
}

#[test]
fn collect_filters_families() {
    let (snapshot, input) = (rich_store().snapshot(), rich_input());
    let page = |values: &[&str]| {
        let groups = Groups::parse(values.iter().copied()).unwrap();
        render(&snapshot, &input, Format::OpenMetrics, groups)
    };
    assert!(!page(&["core"]).contains("process_"));
    assert!(!page(&["self"]).contains("enginetap_requests"));
    assert_eq!(page(&["engines"]), "# EOF\n");
    let stalls = page(&["stalls"]);
    assert!(stalls.contains("enginetap_node_pressure_seconds_total"));
    assert!(!stalls.contains("enginetap_requests") && !stalls.contains("\nprocess_"));
    assert_eq!(page(&["core", "stalls", "self"]), page(&[]));
}

/// A small generator, so that the sequences below are the same on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

#[test]
fn every_page_is_exact_and_no_counter_ever_falls() {
    let mut random = Random(42);
    let limits = Limits {
        series: 600,
        series_per_model: 150,
        ..Limits::default()
    };
    let mut store = store_with(limits, Vec::new());
    let mut input = PageInput::default();
    let (mut started, mut lost, mut ended) = (0, 0, 0);
    let mut before = BTreeMap::<String, f64>::new();
    for _ in 0..300 {
        started += random.below(12);
        for _ in 0..random.below(12) {
            let mut request = end(&format!("m{}", random.below(70)));
            request.outcome = Outcome::ALL[random.below(7) as usize];
            request.class = Class::ALL[random.below(5) as usize];
            request.route = ROUTES[random.below(24) as usize];
            request.status = Status::Code(100 + random.below(500) as u16);
            request.duration = Some(Duration::from_millis(random.below(100_000)));
            store.request_ended(&request);
            ended += 1;
        }
        if random.below(4) == 0 {
            lost += random.below(3);
            store.lost(WL, Outcome::Reset, 5, Streaming::True, lost);
        }
        let classes = (0..random.below(20)).map(|_| OpenRequest {
            class: Class::ALL[random.below(5) as usize],
            age: Duration::from_secs(random.below(100_000)),
        });
        let open = classes.collect();
        input.workloads.insert(
            WL,
            WorkloadInput {
                started,
                open,
                ..WorkloadInput::default()
            },
        );
        let page = samples(&text(&store, &input));
        let in_flight = sum_of(&page, "enginetap_requests_in_flight{");
        let total = sum_of(&page, "enginetap_requests_total{");
        assert_eq!(total, (ended + lost) as f64);
        assert_eq!(store.ended_total(WL), ended + lost);
        assert_eq!(
            get(&page, "enginetap_requests_started_total", ""),
            Some(total + in_flight),
            "{started}"
        );
        let inference = get(
            &page,
            "enginetap_requests_in_flight",
            r#"class="inference""#,
        );
        assert_eq!(
            Some(sum_of(&page, "enginetap_requests_in_flight_by_age{")),
            inference
        );
        assert!(page.values().all(|&n| n >= 0.0));
        for (name, was) in &before {
            let is_gauge = METRICS
                .iter()
                .any(|def| def.kind == Kind::Gauge && name.split('{').next() == Some(def.name));
            let is = page.get(name).unwrap_or_else(|| panic!("{name} has gone"));
            assert!(is_gauge || is >= was, "{name} fell from {was} to {is}");
        }
        before = page;
    }
}

#[test]
fn a_snapshot_stays_as_it_was() {
    let mut store = store();
    store.request_ended(&end("m"));
    let snapshot = store.snapshot();
    let was = render(&snapshot, &PageInput::default(), Format::Text, Groups::ALL);
    store.request_ended(&end("m"));
    store.remove_workload(WL);
    assert_eq!(
        was,
        render(&snapshot, &PageInput::default(), Format::Text, Groups::ALL)
    );
}

/// Checks an OpenMetrics page by the rules of the specification that a parser relies on.
fn check_open_metrics(page: &str) {
    let body = page.strip_suffix("# EOF\n").unwrap();
    assert!(!body.contains("# EOF\n") && !body.contains("\n\n"));
    let (mut name, mut kind, mut families, mut seen) = ("", "", Vec::new(), BTreeMap::new());
    let mut last: (String, f64, f64) = (String::new(), f64::MIN, 0.0);
    for line in body.lines() {
        if let Some(meta) = line.strip_prefix("# ") {
            let mut words = meta.splitn(3, ' ');
            let (word, of, rest) = (
                words.next().unwrap(),
                words.next().unwrap(),
                words.next().unwrap(),
            );
            match word {
                "HELP" => {
                    assert!(!families.contains(&of), "{of} twice");
                    families.push(of);
                    name = of;
                }
                "TYPE" => kind = rest,
                "UNIT" => assert!(of.ends_with(&format!("_{rest}")), "{line}"),
                _ => panic!("{line}"),
            }
            assert_eq!(of, name, "{line}");
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap();
        assert!(seen.insert(series, ()).is_none(), "{series} twice");
        let suffix = series
            .split('{')
            .next()
            .unwrap()
            .strip_prefix(name)
            .unwrap();
        let allowed: &[&str] = match kind {
            "counter" => &["_total", "_created"],
            "gauge" => &[""],
            "histogram" => &["_bucket", "_sum", "_count", "_created"],
            _ => panic!("{kind}"),
        };
        assert!(allowed.contains(&suffix), "{line}");
        assert!(suffix != "_created" || value > 1e9, "{line}");
        if suffix == "_bucket" {
            let (labels, le) = series.split_once("le=\"").unwrap();
            let text = le.trim_end_matches("\"}");
            assert!(text == "+Inf" || text.contains(['.', 'e']), "{line}");
            let le: f64 = text.parse().unwrap();
            if last.0 == labels {
                assert!(le > last.1 && value >= last.2, "{line}");
            }
            last = (labels.to_owned(), le, value);
        }
        if suffix == "_count" {
            assert!(last.1 == f64::INFINITY && value == last.2, "{line}");
        }
    }
}

#[test]
fn open_metrics_is_valid_and_tells_every_birth() {
    let page = render(
        &rich_store().snapshot(),
        &rich_input(),
        Format::OpenMetrics,
        Groups::ALL,
    );
    check_open_metrics(&page);
    let line = |text: &str| assert!(page.contains(text), "{text}");
    line("# TYPE enginetap_requests counter\n");
    line("# UNIT enginetap_bytes bytes\n");
    line("# TYPE process_cpu_seconds counter\n");
    line(&format!("\nenginetap_requests_started_total{{{ID}}} 30\n"));
    line(&format!(
        "\nenginetap_requests_started_created{{{ID}}} 1700000000.25\n"
    ));
    line(&format!(
        "\nenginetap_read_delay_seconds_created{{{ID}}} 1700000000.25\n"
    ));
    line("\nprocess_cpu_seconds_created 1699999999.75\n");
    if let Some(path) = std::env::var_os("ENGINETAP_KEEP_PAGE") {
        std::fs::write(path, &page).unwrap();
    }
}

#[test]
fn promtool_has_nothing_to_say() {
    const PROMTOOL: &str = "/usr/bin/promtool";
    if !std::path::Path::new(PROMTOOL).exists() {
        let required = std::env::var_os("ENGINETAP_REQUIRE_PROMTOOL").is_some_and(|v| v == "1");
        assert!(!required, "{PROMTOOL} is required and missing");
        eprintln!("SKIP promtool_has_nothing_to_say: {PROMTOOL} is missing");
        return;
    }
    for page in [
        text(&rich_store(), &rich_input()),
        text(&store(), &PageInput::default()),
    ] {
        let mut promtool = Command::new(PROMTOOL)
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        promtool
            .stdin
            .take()
            .unwrap()
            .write_all(page.as_bytes())
            .unwrap();
        let output = promtool.wait_with_output().unwrap();
        let said =
            String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.trim().is_empty(), "{said}");
    }
}

#[test]
fn a_page_of_many_workloads_is_within_budget() {
    let mut store = Store::new(StoreConfig {
        now: || 1.7e9,
        ..StoreConfig::default()
    });
    let mut input = PageInput::default();
    for id in 1..=200 {
        let workload = WorkloadId(id);
        store.add_workload(workload, identity(&format!("vllm-llama-70b-{id:05}")));
        input.workloads.insert(
            workload,
            WorkloadInput {
                started: 100,
                ..WorkloadInput::default()
            },
        );
        for model in 0..5 {
            let name = format!("meta-llama/Llama-3.1-70B-Instruct-{model}");
            let mut stream = end(&name);
            stream.workload = workload;
            stream.gaps = Some(Gaps {
                count: 1,
                ..Gaps::default()
            });
            stream.time_per_output_token = Some((0.01, TokenSource::Usage));
            let tokens = Tokens {
                prompt: Some(9),
                generation: Some(9),
                cached: Some(9),
            };
            stream.tokens = Some((tokens, TokenSource::Usage));
            stream.request_body_bytes = Some(9);
            store.first_token(workload, Some(&name), CHAT, Duration::ZERO);
            store.request_ended(&stream);
            stream.outcome = Outcome::Abort;
            store.request_ended(&stream);
        }
    }
    let begin = std::time::Instant::now();
    let snapshot = store.snapshot();
    let taken = begin.elapsed();
    let (mut bytes, mut lines, mut largest) = (0, 0, 0);
    render_to(&snapshot, &input, Format::Text, Groups::ALL, &mut |chunk| {
        bytes += chunk.len();
        lines += chunk.lines().count();
        largest = largest.max(chunk.len());
    });
    eprintln!(
        "{lines} lines, {bytes} bytes, snapshot {taken:?}, page {:?}",
        begin.elapsed()
    );
    assert!(snapshot.series <= 200_000 + 200 * 60, "{}", snapshot.series);
    assert!(largest < 128 * 1024, "a chunk of {largest} bytes");
    let counted = snapshot
        .workloads
        .values()
        .flat_map(|w| w.counts(Family::Requests));
    let ended: u64 = counted.map(|(_, count)| count.value()).sum();
    assert_eq!(ended, 2_000);
}
