//! A client, or an engine, that wants to harm the page: names without number and names made of
//! what no page should show.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

use enginetap::protocol::errors;
use enginetap::vocab::{
    Class, Engine, Outcome, Phase, Role, StallCause, StallPhase, Streaming, Tier, TokenSource,
};
use enginetap_tests::garbage::Random;
use enginetap_tests::guard::Agent;
use enginetap_tests::page::{Page, Sample};
use enginetap_tests::raw::{RawServer, Wire, json, post};
use enginetap_tests::scene::{SOON, agent_for};

const CHAT: &str = "/v1/chat/completions";
const REQUESTS: &str = "enginetap_requests_total";
const DROPPED: &str = "enginetap_series_dropped_total";
/// Models with a label value of their own, per workload.
const MODELS: usize = 64;
/// Series per workload and model.
const PER_MODEL: usize = 1_000;

fn one_of(set: &[&str], value: &str) -> bool {
    set.contains(&value)
}

fn labels_of<T: Copy>(all: &[T], text: fn(T) -> &'static str, value: &str) -> bool {
    all.iter().any(|v| text(*v) == value)
}

/// A word of a closed set that only the agent's own code can extend.
fn word(value: &str) -> bool {
    value.len() <= 40
        && value
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

fn number(value: &str) -> bool {
    value == "+Inf" || value.parse::<f64>().is_ok()
}

/// Whether a label's value comes from its closed set; models are judged apart.
fn closed(label: &str, value: &str) -> bool {
    match label {
        "namespace" | "pod" => value.is_empty(),
        "container" => value.starts_with("hostile"),
        "engine" => labels_of(Engine::ALL, Engine::as_str, value),
        "tier" => labels_of(Tier::ALL, Tier::as_str, value),
        "class" => labels_of(Class::ALL, Class::as_str, value),
        "outcome" => labels_of(Outcome::ALL, Outcome::as_str, value),
        "streaming" => labels_of(Streaming::ALL, Streaming::as_str, value),
        "phase" => {
            labels_of(Phase::ALL, Phase::as_str, value)
                || labels_of(StallPhase::ALL, StallPhase::as_str, value)
        }
        "cause" => labels_of(StallCause::ALL, StallCause::as_str, value),
        "domain" => labels_of(StallCause::ALL, StallCause::domain, value),
        "role" => labels_of(Role::ALL, Role::as_str, value),
        "source" => labels_of(TokenSource::ALL, TokenSource::as_str, value),
        "route" => one_of(&[CHAT, "/v1/models", "other"], value),
        "status" => one_of(&["200", "400", "404", "499", "500", "504", "none"], value),
        "code" => errors::CODES.contains(&value),
        "le" | "age_gt" | "age_le" => number(value),
        "addr" => value.parse::<std::net::SocketAddr>().is_ok(),
        "map" => one_of(
            &[
                "FLOWS",
                "LISTENERS",
                "PROCS",
                "THREADS",
                "flows",
                "listeners",
                "processes",
            ],
            value,
        ),
        "version" | "revision" | "kernel" | "engine_version" => value.len() <= 64,
        "reason" => value.is_empty() || word(value),
        _ => word(value),
    }
}

/// Series of the page by name and labels.
fn series(page: &Page) -> BTreeSet<(String, BTreeMap<String, String>)> {
    let key = |s: &Sample| (s.name.clone(), s.labels.clone());
    page.samples().iter().map(key).collect()
}

fn models(page: &Page) -> BTreeSet<String> {
    let named = page.samples().iter().filter_map(|s| s.labels.get("model"));
    named.cloned().collect()
}

/// The page is bounded and nothing that `before` showed is gone.
fn assert_bounded(page: &Page, before: &Page) {
    page.assert_invariant();
    page.assert_not_below(before);
    for sample in page.samples() {
        for (label, value) in &sample.labels {
            let fits = label == "model" || closed(label, value);
            assert!(fits, "{}: {label}={value:?}", sample.name);
        }
    }
    let shown = models(page);
    assert!(shown.len() <= MODELS + 2, "{} models", shown.len());
    let of = |model: &str| {
        page.samples()
            .iter()
            .filter(|s| s.label("model") == model)
            .count()
    };
    for model in &shown {
        assert!(of(model) <= PER_MODEL, "{} series of {model}", of(model));
    }
    let (now, then) = (series(page), series(before));
    let gone: Vec<_> = then
        .difference(&now)
        .filter(|(_, l)| !l.contains_key("reason"))
        .collect();
    assert!(gone.is_empty(), "gone: {gone:?}");
}

/// Requests over a few kept connections, one at a time.
struct Crowd {
    wires: Vec<Wire>,
    sent: u64,
}

impl Crowd {
    fn new(server: &RawServer) -> Self {
        let wires = (0..32).map(|_| server.connect()).collect();
        Self { wires, sent: 0 }
    }

    fn send(&mut self, request: &[u8], reply: &[u8]) {
        let at = self.sent as usize % self.wires.len();
        self.wires[at].exchange(request, reply);
        self.sent += 1;
    }

    /// The page when it has counted all that was sent.
    fn settled(&self, agent: &Agent) -> Page {
        let page = agent.wait_for(SOON, |p| p.value(REQUESTS, &[]) >= self.sent as f64);
        page.assert_value(REQUESTS, &[], self.sent as f64);
        page.assert_value("enginetap_requests_in_flight", &[], 0.0);
        page
    }
}

fn name(random: &mut Random) -> String {
    format!("{:x}{:x}", random.draw(), random.draw())
}

fn method(random: &mut Random) -> String {
    let n = 3 + random.draw() as usize % 18;
    let letter = |_| char::from(b'A' + (random.draw() >> 33) as u8 % 26);
    (0..n).map(letter).collect()
}

fn ask(model: &str) -> Vec<u8> {
    post(
        CHAT,
        serde_json::json!({ "model": model }).to_string().as_bytes(),
    )
}

#[test]
fn a_hundred_thousand_names_widen_no_page_and_the_real_model_has_its_own() {
    let server = RawServer::bind();
    let agent = agent_for(server.address().port());
    let mut crowd = Crowd::new(&server);
    let mut random = Random::new(11);
    let refused = json(
        404,
        br#"{"error":{"message":"no","type":"NotFoundError","code":404}}"#,
    );
    let first = agent.scrape();

    // Refused: paths, methods and models nobody has.
    for n in 0..60_000 {
        let request = match n % 3 {
            0 => format!(
                "GET /{}?{} HTTP/1.1\r\n\r\n",
                name(&mut random),
                name(&mut random)
            )
            .into_bytes(),
            1 => format!("{} {CHAT} HTTP/1.1\r\n\r\n", method(&mut random)).into_bytes(),
            _ => ask(&name(&mut random)),
        };
        crowd.send(&request, &refused);
    }
    let page = crowd.settled(&agent);
    assert_bounded(&page, &first);
    assert_eq!(
        models(&page),
        ["other", "unknown"].map(str::to_owned).into()
    );
    page.assert_value(REQUESTS, &[("outcome", "refused")], crowd.sent as f64);

    // The real one has room.
    for _ in 0..10 {
        crowd.send(&ask("real"), &json(200, b"{}"));
    }
    let known = crowd.settled(&agent);
    assert_bounded(&known, &page);
    known.assert_value(REQUESTS, &[("model", "real"), ("outcome", "success")], 10.0);

    // Served: an engine that answers to any name.
    let dropped = known.value(DROPPED, &[]);
    for _ in 0..40_000 {
        crowd.send(&ask(&name(&mut random)), &json(200, b"{}"));
    }
    let full = crowd.settled(&agent);
    assert_bounded(&full, &known);
    assert_eq!(models(&full).len(), MODELS + 2, "the cap is used up");
    let lost = full.value("enginetap_events_lost_total", &[("reason", "ring_full")]);
    let told = full.value(DROPPED, &[]) - dropped;
    assert!(
        told + lost >= 40_000.0 - MODELS as f64,
        "{told} told, {lost} lost"
    );

    // What was shown stays and is counted on.
    for _ in 0..10 {
        crowd.send(&ask("real"), &json(200, b"{}"));
    }
    let last = crowd.settled(&agent);
    assert_bounded(&last, &full);
    last.assert_value(REQUESTS, &[("model", "real"), ("outcome", "success")], 20.0);
    // Those of the agent's own hooks and of the node come when they are first sampled.
    let of_traffic = |page: &Page| -> BTreeSet<_> {
        let all = series(page).into_iter();
        all.filter(|(_, labels)| labels.contains_key("model"))
            .collect()
    };
    assert_eq!(
        of_traffic(&last),
        of_traffic(&full),
        "a full page grows no more"
    );
    agent.stop();
}

/// Names as they stand between the quotes of a JSON string.
const REFUSED_NAMES: &[&[u8]] = &[
    b"a\\u0000b",
    b"a\\u001b[31mb",
    b"a\\nb",
    b"a\\r\\nb",
    b"a\\tb",
    b"a\\u007fb",
    b"a\\u0085b",
    b"a\\u202eb",
    b"a\\u202ab",
    b"a\\u2066b",
    b"a\\u200bb",
    b"a\\u200fb",
    b"\\ufeffa",
    b"a\\u00adb",
    b"a\\u2028b",
    b"a\\u00a0b",
    b"\\udb40\\udc41a",
    b"a\\ue000b",
    b"a\\ud800b",
    b"a\\udc00\\ud800b",
    b"a\\uffffb",
    b"\xe2\x80\xae raw",
    b"\xff\xfe",
    b"a\xc3",
    b"a\xed\xa0\x80b",
    b"a\xc0\x80b",
    b"a\x01b",
    b"",
    b"\\x41",
];

const ADMITTED_NAMES: &[(&str, &str)] = &[
    (r"org\/model-1.5:q4_K", "org/model-1.5:q4_K"),
    (r#"a \"quoted\" one"#, "a \"quoted\" one"),
    (r"back\\slash\\n", "back\\slash\\n"),
    (r#"},le=\"1\"} 7 # {"#, "},le=\"1\"} 7 # {"),
    (r"\u00e9 \u4e2d\u6587", "\u{e9} \u{4e2d}\u{6587}"),
    (r"\ud83e\udd99", "\u{1f999}"),
];

fn checked_by_promtool(page: &Page) {
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool (Debian's prometheus) is needed");
    let mut stdin = child.stdin.take().unwrap();
    let text = page.text().to_owned();
    let feed = std::thread::spawn(move || std::io::Write::write_all(&mut stdin, text.as_bytes()));
    let out = child.wait_with_output().unwrap();
    feed.join().unwrap().unwrap();
    let said = [out.stdout, out.stderr].concat();
    assert!(
        out.status.success() && said.is_empty(),
        "{}",
        said.escape_ascii()
    );
}

#[test]
fn names_that_do_not_print_name_no_model() {
    let server = RawServer::bind();
    let agent = agent_for(server.address().port());
    let mut crowd = Crowd::new(&server);
    let named = |name: &[u8]| [br#"{"model":""#, name, br#"","stream":false}"#].concat();
    let long = [vec![b'm'; 257], vec![b'm'; 70_000]];
    let refused: Vec<&[u8]> = REFUSED_NAMES
        .iter()
        .copied()
        .chain(long.iter().map(Vec::as_slice))
        .collect();
    for name in &refused {
        // Both ends say so, and the list of models too.
        crowd.send(&post(CHAT, &named(name)), &json(200, &named(name)));
        let list = [br#"{"object":"list","data":[{"id":""#, *name, br#""}]}"#].concat();
        crowd.send(b"GET /v1/models HTTP/1.1\r\n\r\n", &json(200, &list));
    }
    let page = crowd.settled(&agent);
    assert_eq!(
        models(&page),
        ["unknown".to_owned()].into(),
        "{}",
        page.lines(REQUESTS)
    );
    page.assert_value(
        REQUESTS,
        &[("route", CHAT), ("outcome", "success")],
        refused.len() as f64,
    );

    for (written, _) in ADMITTED_NAMES {
        crowd.send(&post(CHAT, &named(written.as_bytes())), &json(200, b"{}"));
    }
    let page = crowd.settled(&agent);
    let wanted: BTreeSet<String> = ADMITTED_NAMES
        .iter()
        .map(|(_, name)| (*name).to_owned())
        .chain(["unknown".to_owned()])
        .collect();
    assert_eq!(models(&page), wanted);
    for (_, name) in ADMITTED_NAMES {
        page.assert_value(REQUESTS, &[("model", name), ("outcome", "success")], 1.0);
    }
    let lint = page.lint();
    assert!(lint.is_empty(), "{lint:?}");
    checked_by_promtool(&page);
    let open = [("Accept", "application/openmetrics-text; version=1.0.0")];
    let open = Page::parse(&agent.get_with("/metrics", &open).unwrap().text());
    assert_eq!(models(&open), wanted, "the other format says the same");
    for shown in [
        agent.get("/metrics").unwrap().text(),
        agent.get("/targets").unwrap().text(),
    ] {
        let strange = shown.chars().find(|c| c.is_control() && *c != '\n');
        assert_eq!(strange, None);
    }
    assert_bounded(&page, &page);
    agent.stop();
}
