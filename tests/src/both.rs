//! The engine against the client: two truths, written apart, must be equal.

use clap::Parser as _;

use crate::client::{ClientArgs, ClientRow, Summary, run};
use crate::engine::{EngineArgs, EngineRow, Server, Truth, serve};
use crate::event::Outcome;

fn engine(args: &[&str]) -> Server {
    serve(EngineArgs::parse_from(
        [&["scripted-engine"], args].concat(),
    ))
    .unwrap()
}

fn load(server: &Server, args: &[&str]) -> Summary {
    let target = server.address().to_string();
    let args = [
        &["load-client", "--target", &target, "--deadline", "20"],
        args,
    ]
    .concat();
    run(ClientArgs::parse_from(args)).unwrap()
}

/// Every field that both ends tell, for a reply read to its end.
fn assert_row(engine: &EngineRow, client: &ClientRow) {
    let ours = (
        client.status,
        client.streaming,
        &client.model,
        client.outcome,
        client.usage,
    );
    let theirs = (
        engine.status,
        engine.streaming,
        &engine.model,
        engine.outcome,
        engine.usage,
    );
    assert_eq!(ours, theirs, "{engine:?}\n{client:?}");
    assert_eq!(
        client.tally.counts(),
        engine.tally.counts(),
        "{engine:?}\n{client:?}"
    );
    let bytes = (client.request_bytes, client.reply_bytes);
    assert_eq!(
        bytes,
        (engine.request_bytes, engine.reply_bytes),
        "{engine:?}"
    );
    let kinds = |tally: &crate::event::Tally| tally.log.iter().map(|e| e.0).collect::<Vec<_>>();
    assert_eq!(kinds(&client.tally), kinds(&engine.tally));
    assert!(client.start_ns <= engine.start_ns && engine.start_ns <= client.end_ns);
    let far = |a: u64, b: u64| a.abs_diff(b) > 2_000_000_000;
    assert!(!far(
        client.tally.first_content_ns,
        engine.tally.first_content_ns
    ));
    assert!(!far(client.head_ns, engine.head_ns) && !far(client.end_ns, engine.end_ns));
}

fn assert_equal(truth: &Truth, summary: &Summary) {
    assert_eq!(
        truth.count(),
        summary.requests,
        "{:?} {:?}",
        truth.ended,
        summary.outcomes
    );
    assert_eq!(truth.started, summary.requests);
    assert_eq!(truth.events, summary.events);
    assert_eq!(truth.tokens(), summary.tokens);
    for client in &summary.rows {
        let row = truth
            .row(&client.id)
            .unwrap_or_else(|| panic!("no row {}", client.id));
        assert_row(row, client);
    }
}

/// Runs one load and returns the rows both ends agree on.
fn agree(args: &[&str]) -> Summary {
    let server = engine(&[]);
    let summary = load(&server, args);
    assert_equal(&server.ended(summary.requests), &summary);
    summary
}

const ROUTES: [&str; 6] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/generate",
    "/completion",
];

#[test]
fn every_dialect_agrees_streaming_and_unary() {
    for route in ROUTES {
        for content in ["text", "reasoning", "tool"] {
            let script = format!(
                "{{\"content\":\"{content}\",\"cached_tokens\":2,\"comments\":2,\"pings\":1,\"empty\":1,\"empty_every\":3,\"comment_every\":2}}"
            );
            let sum = agree(&["--route", route, "--include-usage", "--script", &script]);
            assert_eq!(
                (sum.content_events, sum.outcome(Outcome::Success)),
                (8, 1),
                "{route}"
            );
            assert_eq!(
                (sum.tokens.prompt, sum.tokens.generation, sum.tokens.cached),
                (7, 8, 2),
                "{route}"
            );
        }
        let sum = agree(&["--route", route, "--unary", "-m", "3"]);
        assert_eq!(
            (sum.tokens.generation, sum.events, sum.connections),
            (24, 0, 1),
            "{route}"
        );
        agree(&[
            "--route",
            route,
            "--script",
            "{\"error_after\":2,\"error_done\":true}",
        ]);
        agree(&[
            "--route",
            route,
            "--script",
            "{\"usage_every\":true,\"done\":false,\"role\":false,\"crlf\":true}",
        ]);
    }
    agree(&[
        "--route",
        "/generate",
        "--script",
        "{\"ndjson\":true,\"empty\":2}",
    ]);
    agree(&[
        "--route",
        "/generate",
        "--script",
        "{\"ndjson\":true,\"error_after\":2}",
    ]);
}

#[test]
fn routes_that_are_read_and_statuses_agree() {
    for route in [
        "/v1/models",
        "/health",
        "/metrics",
        "/version",
        "/tokenize",
        "/v1/embeddings",
    ] {
        assert_eq!(
            agree(&["--route", route, "-m", "2", "--unary"]).connections,
            1,
            "{route}"
        );
    }
    for status in [
        200, 201, 204, 304, 400, 401, 404, 408, 422, 429, 499, 500, 503, 504,
    ] {
        let script = format!("{{\"status\":{status}}}");
        let sum = agree(&["--unary", "-m", "2", "--script", &script]);
        assert_eq!(sum.statuses.get(&status), Some(&2), "{status}");
    }
    assert_eq!(
        agree(&["--method", "HEAD", "-m", "2"]).rows[0].reply_bytes,
        0
    );
    assert_eq!(
        agree(&["--route", "/nowhere", "--method", "GET"]).rows[0].status,
        404
    );
}

#[test]
fn every_framing_and_grouping_agrees() {
    let scripts = [
        "{\"write\":\"merge:3\"}",
        "{\"write\":\"split:7\"}",
        "{\"write\":\"split:1\"}",
        "{\"write\":\"merge:100\",\"glue_head\":true,\"glue_end\":true}",
        "{\"chunk\":\"events:2\"}",
        "{\"chunk\":\"bytes:5\",\"upper\":true}",
        "{\"chunk\":\"bytes:100\",\"write\":\"merge:4\"}",
        "{\"upper\":true,\"ext\":\";a=b\",\"trailers\":2}",
        "{\"framing\":\"length\"}",
        "{\"framing\":\"length\",\"end\":\"close\"}",
        "{\"framing\":\"close\"}",
        "{\"end\":\"close\"}",
        "{\"end\":\"fin\"}",
        "{\"interim\":2}",
        "{\"events\":0}",
        "{\"events\":0,\"role\":false,\"done\":false,\"glue_head\":true}",
        "{\"text\":\"a\\\\ndata: [DONE]\\\\n\\\\n\\\"content\\\":\\\"\\\"\"}",
        "{\"stream\":false,\"unary_bytes\":1048576}",
        "{\"stream\":false,\"unary_bytes\":1048576,\"framing\":\"chunked\",\"chunk\":\"bytes:4096\"}",
        "{\"stream\":false,\"unary_bytes\":0}",
        "{\"stream\":false,\"unary_bytes\":20000,\"write\":\"split:500\",\"piece_pause_us\":100}",
        "{\"stream\":false,\"glue_head\":true}",
        "{\"stream\":false,\"framing\":\"close\"}",
    ];
    for script in scripts {
        let sum = agree(&["-m", "2", "--include-usage", "--script", script]);
        assert_eq!(sum.outcome(Outcome::Success), 2, "{script}: {:?}", sum.rows);
    }
}

#[test]
fn a_cut_at_every_position_agrees() {
    let server = engine(&[]);
    let mut args = vec!["--include-usage".to_owned()];
    let mut count = 0;
    for (part, length) in [
        ("head", 120),
        ("chunk", 5),
        ("event", 230),
        ("terminator", 20),
    ] {
        for at in 1..length {
            args.push("--script".to_owned());
            args.push(format!(
                "{{\"cut\":{{\"part\":\"{part}\",\"at\":{at}}},\"events\":2,\"trailers\":1}}"
            ));
            count += 1;
        }
    }
    let count = count.to_string();
    args.extend(["-m".to_owned(), count]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let summary = load(&server, &args);
    assert_equal(&server.ended(summary.requests), &summary);
    assert_eq!(summary.connections, 1);
}

#[test]
fn requests_in_every_shape_agree() {
    let shapes: [&[&str]; 13] = [
        &["--first", "24"],
        &["--split", "1", "-m", "2"],
        &["--split", "37", "--pause-us", "50"],
        &["--head-apart"],
        &["--expect", "-m", "3"],
        &["--smuggle", "-m", "3"],
        &["--pipeline", "2", "-m", "6"],
        &["--pipeline", "3", "-m", "3", "--unary"],
        &["--chunked", "7", "-m", "2"],
        &["--prompt-bytes", "4000000", "--model-last"],
        &["--http10"],
        &["--say-close", "-m", "2"],
        &["--reconnect", "-m", "3"],
    ];
    for shape in shapes {
        let sum = agree(shape);
        assert_eq!(
            sum.outcome(Outcome::Success),
            sum.requests,
            "{shape:?}: {:?}",
            sum.rows
        );
        assert_eq!(sum.rows[0].model, "test-model");
    }
    assert_eq!(agree(&["--expect"]).rows[0].interim, 1);
}

#[test]
fn a_client_that_leaves_is_an_abort_on_both_ends() {
    let slow = "{\"events\":200,\"gap_ms\":5}";
    for with in ["fin", "rst", "close"] {
        let server = engine(&[]);
        let args = [
            "-n",
            "4",
            "-m",
            "2",
            "--abort-after",
            "5",
            "--abort-with",
            with,
            "--script",
            slow,
        ];
        let sum = load(&server, &args);
        let truth = server.ended(8);
        assert_eq!(
            (sum.outcome(Outcome::Abort), truth.outcome(Outcome::Abort)),
            (8, 8),
            "{with}"
        );
        for row in &sum.rows {
            let engine = truth.row(&row.id).unwrap();
            assert_eq!((engine.status, row.status), (200, 200));
            assert!(engine.tally.data >= row.tally.data && row.tally.data >= 5);
        }
        let late = "{\"head_delay_ms\":5000}";
        let args = [
            "--abort-before-head-ms",
            "20",
            "--abort-with",
            with,
            "--script",
            late,
        ];
        assert_eq!(load(&server, &args).rows[0].status, 0);
        let truth = server.ended(9);
        assert_eq!(truth.ended["/v1/chat/completions 0 abort"], 1, "{with}");
        load(
            &server,
            &[
                "--abort-in-body",
                "--abort-with",
                with,
                "--prompt-bytes",
                "1000",
            ],
        );
        assert_eq!(
            server.ended(10).ended["/v1/chat/completions 0 abort"],
            2,
            "{with}"
        );
    }
}

#[test]
fn a_server_that_leaves_is_a_reset_on_both_ends() {
    let cases = [
        "{\"stop_after\":3,\"end\":\"fin\"}",
        "{\"stop_after\":3,\"end\":\"rst\",\"close_delay_ms\":20}",
        "{\"stop_after\":3,\"framing\":\"length\",\"end\":\"fin\"}",
        "{\"no_head\":true,\"end\":\"fin\"}",
        "{\"no_head\":true,\"end\":\"rst\"}",
        "{\"framing\":\"close\",\"end\":\"rst\",\"close_delay_ms\":20}",
        "{\"stream\":false,\"stop_after\":1,\"end\":\"fin\"}",
    ];
    for script in cases {
        let server = engine(&[]);
        let sum = load(&server, &["--script", script]);
        let truth = server.ended(1);
        assert_eq!(
            (sum.outcome(Outcome::Reset), truth.outcome(Outcome::Reset)),
            (1, 1),
            "{script}"
        );
        assert_eq!(sum.events, truth.events, "{script}");
    }
    let sum = agree(&["--script", "{\"end\":\"rst\",\"close_delay_ms\":20}"]);
    assert_eq!(sum.outcome(Outcome::Success), 1);
}

#[test]
fn a_slow_reader_and_a_hopping_writer_agree() {
    let server = engine(&["--cpu-hop", "--sndbuf", "8192", "--listen", "[::1]:0"]);
    let script = "{\"events\":300,\"text\":\"some longer text for each of the events here\"}";
    let args = [
        "--script",
        script,
        "--rcvbuf",
        "4096",
        "--read-bytes",
        "4096",
        "--read-delay-ms",
        "1",
    ];
    let sum = load(&server, &args);
    assert_equal(&server.ended(sum.requests), &sum);
    assert_eq!(sum.content_events, 300);
}

#[test]
fn many_streams_over_kept_connections_agree() {
    let server = engine(&["--threads", "2"]);
    let script = "{\"events\":40,\"gap_ms\":2}";
    let args = [
        "-n",
        "100",
        "-m",
        "2",
        "--include-usage",
        "--script",
        script,
        "--warm",
    ];
    let sum = load(&server, &args);
    assert_equal(&server.ended(sum.requests), &sum);
    assert_eq!(
        (sum.requests, sum.content_events, sum.connections),
        (200, 8_000, 100)
    );
}

#[test]
fn a_rate_and_a_time_limit_are_kept() {
    let server = engine(&["--demo", "--script", "{\"events\":1,\"token_delay_ms\":0}"]);
    let args = [
        "-n",
        "4",
        "-m",
        "0",
        "--rate",
        "100",
        "--seconds",
        "1",
        "--model",
        "demo-model",
    ];
    let sum = load(&server, &args);
    assert_equal(&server.ended(sum.requests), &sum);
    assert!((30..=101).contains(&sum.requests), "{}", sum.requests);
}

#[test]
fn garbage_disturbs_no_one_and_is_counted() {
    use crate::garbage::{GarbageArgs, run};
    let server = engine(&[]);
    let target = server.address().to_string();
    let modes = [
        "random",
        "binary",
        "tls",
        "half-head",
        "long-line",
        "long-header",
        "h2",
        "silent",
    ];
    let mut args = vec!["garbage-client", "--target", &target, "--count", "8"];
    args.extend(modes.iter().flat_map(|mode| ["--mode", mode]));
    let sum = run(&GarbageArgs::parse_from(args)).unwrap();
    assert_eq!(sum.connections, 8);
    let garbage = crate::guard::poll(std::time::Duration::from_secs(5), || {
        Some(server.truth().garbage).filter(|n| *n == 7)
    });
    assert_eq!(garbage, Some(7), "{:?}", server.truth());
    assert_eq!(load(&server, &[]).outcome(Outcome::Success), 1);
}
