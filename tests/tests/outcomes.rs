//! What became of requests that did not go well, and bytes that are no requests at all.

use std::process::Command;

use enginetap_tests::event::Outcome;
use enginetap_tests::guard::{Agent, Engine, Load, locate};
use enginetap_tests::scene::{SOON, assert_counts, beside, only, settled};
use enginetap_tests::script::{End, Framing, Script};

#[test]
fn refusals_and_errors_keep_their_status() {
    let mut engine = Engine::start();
    let agent = beside(&engine);
    for status in [400, 404, 422, 429, 500, 503] {
        let script = Script {
            status,
            ..Script::default()
        };
        Load::run(
            None,
            engine.address(),
            ["-m", "2", "--script", &script.to_header()],
        );
    }
    let truth = engine.ended(12);
    let page = settled(&agent, 12);
    assert_counts(&page, &truth);
    page.assert_value("enginetap_requests_total", &[("outcome", "refused")], 8.0);
    page.assert_value("enginetap_requests_total", &[("outcome", "error")], 4.0);
    assert_eq!(
        page.get("enginetap_request_duration_seconds_count", &[]),
        None,
        "no success, no duration"
    );
    page.assert_value(
        "enginetap_unfinished_request_seconds_count",
        &[("outcome", "error")],
        4.0,
    );
    agent.stop();
}

#[test]
fn an_error_event_inside_a_stream_is_an_error_with_status_200() {
    for error_done in [true, false] {
        let mut engine = Engine::start();
        let agent = beside(&engine);
        let script = Script {
            events: 10,
            error_after: Some(4),
            error_done,
            ..Script::default()
        };
        Load::run(
            None,
            engine.address(),
            ["-m", "3", "--script", &script.to_header()],
        );
        engine.ended(3);
        let page = settled(&agent, 3);
        page.assert_value(
            "enginetap_requests_total",
            &[("outcome", "error"), ("status", "200")],
            3.0,
        );
        page.assert_value("enginetap_reply_errors_total", &[], 3.0);
        agent.stop();
    }
}

#[test]
fn an_error_event_is_an_error_in_every_dialect() {
    // Some engines send `[DONE]` after it, some do not.
    for (route, engine, ndjson, error_done) in [
        ("/v1/completions", "vllm", false, false),
        ("/v1/chat/completions", "sglang", false, true),
        ("/v1/chat/completions", "dynamo", false, true),
        ("/v1/chat/completions", "litellm", false, true),
        ("/v1/chat/completions", "mstar", false, false),
        ("/v1/messages", "vllm", false, false),
        ("/v1/responses", "openai", false, false),
        ("/generate", "sglang", false, true),
        ("/generate", "mstar", true, false),
    ] {
        let mut running = Engine::start();
        let port = running.address().port();
        let agent = Agent::builder()
            .matching(&format!("port={port},engine={engine}"))
            .args(["--recognise", "off"])
            .start();
        let script = Script {
            events: 10,
            error_after: Some(4),
            error_done,
            ndjson,
            ..Script::default()
        };
        let script = script.to_header();
        let args = ["-m", "3", "--route", route, "--script", &script];
        Load::run(None, running.address(), args);
        running.ended(3);
        let ours = [("engine", engine)];
        let page = agent.wait_for(SOON, |p| p.value("enginetap_requests_total", &ours) >= 3.0);
        let page = only(&page, engine);
        println!("{engine} {route}");
        page.assert_value(
            "enginetap_requests_total",
            &[("route", route), ("outcome", "error"), ("status", "200")],
            3.0,
        );
        page.assert_value("enginetap_reply_errors_total", &[], 3.0);
        page.assert_value("enginetap_time_to_first_token_seconds_count", &[], 3.0);
        page.assert_value(
            "enginetap_unfinished_request_seconds_count",
            &[("outcome", "error"), ("phase", "streaming")],
            3.0,
        );
        assert_eq!(
            page.get("enginetap_request_duration_seconds_count", &[]),
            None
        );
        agent.stop();
    }
}

#[test]
fn timeouts_are_told_by_their_status_or_by_the_engines_own_code() {
    let mut engine = Engine::start();
    let agent = beside(&engine);
    let unary = |status, code: &str| Script {
        status,
        error_code: code.to_owned(),
        ..Script::default()
    };
    let in_stream = Script {
        error_after: Some(2),
        ..unary(200, "timeout_error")
    };
    let all = [
        unary(408, "server_error"),
        unary(504, "server_error"),
        unary(500, "timeout"),
        in_stream,
    ];
    for script in &all {
        Load::run(
            None,
            engine.address(),
            ["-m", "2", "--script", &script.to_header()],
        );
    }
    engine.ended(8);
    let page = settled(&agent, 8);
    for status in ["408", "504", "500", "200"] {
        page.assert_value(
            "enginetap_requests_total",
            &[("outcome", "timeout"), ("status", status)],
            2.0,
        );
    }
    page.assert_value(
        "enginetap_unfinished_request_seconds_count",
        &[("outcome", "timeout")],
        8.0,
    );
    let codes = page.label_values("enginetap_reply_errors_total", "code");
    let closed = enginetap::protocol::errors::CODES;
    assert!(
        codes.iter().all(|code| closed.contains(&code.as_str())),
        "{codes:?}"
    );
    agent.stop();
}

#[test]
fn a_client_that_leaves_is_an_abort() {
    for with in ["fin", "rst"] {
        let mut engine = Engine::start();
        let agent = beside(&engine);
        let script = Script {
            events: 200,
            gap_ms: 5.0,
            ..Script::default()
        };
        Load::run(
            None,
            engine.address(),
            [
                "-n",
                "6",
                "--abort-after",
                "5",
                "--abort-with",
                with,
                "--script",
                &script.to_header(),
            ],
        );
        engine.ended(6);
        let page = settled(&agent, 6);
        page.assert_value(
            "enginetap_requests_total",
            &[("outcome", "abort"), ("status", "200")],
            6.0,
        );
        page.assert_value("enginetap_requests_in_flight", &[], 0.0);
        page.assert_value("enginetap_time_to_first_token_seconds_count", &[], 6.0);
        agent.stop();
    }
}

#[test]
fn a_client_that_leaves_before_the_head_is_a_499() {
    for with in ["fin", "rst"] {
        leaves_before_the_head(with);
    }
}

fn leaves_before_the_head(with: &str) {
    let mut engine = Engine::start();
    let agent = beside(&engine);
    let script = Script {
        head_delay_ms: 400.0,
        ..Script::default()
    };
    Load::run(
        None,
        engine.address(),
        [
            "-n",
            "4",
            "--abort-before-head-ms",
            "100",
            "--abort-with",
            with,
            "--script",
            &script.to_header(),
        ],
    );
    engine.ended(4);
    let page = settled(&agent, 4);
    page.assert_value(
        "enginetap_requests_total",
        &[("outcome", "abort"), ("status", "499")],
        4.0,
    );
    agent.stop();
}

#[test]
fn a_server_that_breaks_off_is_a_reset() {
    for (end, n) in [(End::Rst, 3.0), (End::Fin, 3.0)] {
        let mut engine = Engine::start();
        let agent = beside(&engine);
        let script = Script {
            events: 20,
            stop_after: Some(6),
            end,
            ..Script::default()
        };
        let sum = Load::run(
            None,
            engine.address(),
            ["-n", "3", "--script", &script.to_header()],
        );
        assert_eq!(sum.outcome(Outcome::Success), 0);
        engine.ended(3);
        let page = settled(&agent, 3);
        page.assert_value(
            "enginetap_requests_total",
            &[("outcome", "reset"), ("status", "200")],
            n,
        );
        agent.stop();
    }
}

#[test]
fn requests_of_a_killed_server_are_resets() {
    let engine = Engine::start();
    let agent = beside(&engine);
    let script = Script {
        head_delay_ms: 60_000.0,
        ..Script::default()
    };
    let _load = Load::start(
        None,
        engine.address(),
        ["-n", "50", "--script", &script.to_header()],
    );
    agent
        .wait_for(SOON, |p| {
            p.value("enginetap_requests_in_flight", &[]) >= 50.0
        })
        .assert_invariant();
    engine.kill9();
    let page = settled(&agent, 50);
    page.assert_value(
        "enginetap_requests_total",
        &[("outcome", "reset"), ("status", "none")],
        50.0,
    );
    page.assert_value("enginetap_requests_in_flight", &[], 0.0);
    agent.stop();
}

#[test]
fn a_body_until_close_that_a_signal_cuts_is_a_reset() {
    let engine = Engine::start();
    let agent = beside(&engine);
    let script = Script {
        events: 10_000,
        gap_ms: 20.0,
        framing: Some(Framing::Close),
        ..Script::default()
    };
    let _load = Load::start(
        None,
        engine.address(),
        ["-n", "3", "--script", &script.to_header()],
    );
    agent.wait_for(SOON, |p| {
        p.value("enginetap_time_to_first_token_seconds_count", &[]) >= 3.0
    });
    engine.kill9();
    let page = settled(&agent, 3);
    page.assert_value(
        "enginetap_requests_total",
        &[("outcome", "reset"), ("status", "200")],
        3.0,
    );
    page.assert_value(
        "enginetap_connections_closed_total",
        &[("reason", "killed")],
        3.0,
    );
    agent.stop();
}

#[test]
fn garbage_is_unparsed_and_disturbs_nobody() {
    let mut engine = Engine::start();
    let agent = beside(&engine);
    let target = engine.address().to_string();
    for (mode, reason) in [
        ("binary", "not_http"),
        ("tls", "tls"),
        ("half-head", "partial_head"),
        ("long-line", "head_too_long"),
        ("h2", "http2"),
    ] {
        let status = Command::new(locate("garbage-client"))
            .args(["--target", &target, "--mode", mode, "--count", "3"])
            .status()
            .unwrap();
        assert!(status.success(), "{mode}");
        agent.wait_for(SOON, |p| {
            p.value("enginetap_unparsed_total", &[("reason", reason)]) >= 3.0
        });
    }
    let sum = Load::run(None, engine.address(), ["-n", "3", "-m", "3"]);
    assert_eq!(sum.outcome(Outcome::Success), 9);
    engine.ended(9);
    let page = settled(&agent, 9);
    page.assert_value("enginetap_requests_total", &[("outcome", "success")], 9.0);
    page.assert_value("enginetap_requests_started_total", &[], 9.0);
    agent.stop();
}
