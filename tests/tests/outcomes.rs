//! What became of requests that did not go well, and bytes that are no requests at all.

use std::process::Command;

use enginetap_tests::event::Outcome;
use enginetap_tests::guard::{Engine, Load, locate};
use enginetap_tests::scene::{SOON, assert_counts, beside, settled};
use enginetap_tests::script::{End, Script};

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
