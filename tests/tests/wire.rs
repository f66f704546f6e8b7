//! HTTP/1.1 on the wire in every shape that engines, gateways and clients send it.

use enginetap_tests::event::Outcome;
use enginetap_tests::guard::{Engine, Load};
use enginetap_tests::page::Page;
use enginetap_tests::scene::{assert_counts, assert_streams, assert_times, beside, settled};
use enginetap_tests::script::{Cut, Framing, Part, Script, Write};

/// Runs a load against a fresh engine and agent and compares everything that both counted.
fn exact(script: &Script, args: &[&str]) -> Page {
    let mut engine = Engine::start();
    let agent = beside(&engine);
    let header = script.to_header();
    let mut all = vec!["--script", &header];
    all.extend_from_slice(args);
    let sum = Load::run(None, engine.address(), all);
    let truth = engine.ended(sum.requests);
    let page = settled(&agent, sum.requests);
    assert_counts(&page, &truth);
    assert_streams(&page, &sum);
    page.assert_value("enginetap_unparsed_total", &[], 0.0);
    agent.stop();
    page
}

#[test]
fn streams_are_counted_and_timed_as_the_client_does() {
    let mut engine = Engine::start();
    let agent = beside(&engine);
    let script = Script {
        events: 20,
        gap_ms: 10.0,
        first_delay_ms: 30.0,
        ..Script::default()
    };
    let sum = Load::run(
        None,
        engine.address(),
        [
            "-n",
            "4",
            "-m",
            "5",
            "--include-usage",
            "--script",
            &script.to_header(),
        ],
    );
    let truth = engine.ended(20);
    let page = settled(&agent, 20);
    assert_counts(&page, &truth);
    assert_streams(&page, &sum);
    assert_times(&page, &sum, 0.005);
    page.assert_value(
        "enginetap_requests_total",
        &[("model", "test-model"), ("streaming", "true")],
        20.0,
    );
    page.assert_value(
        "enginetap_requests_total",
        &[("route", "/v1/chat/completions"), ("class", "inference")],
        20.0,
    );
    agent.stop();
}

#[test]
fn unary_replies_are_counted_with_their_usage() {
    let page = exact(
        &Script {
            prompt_tokens: 11,
            events: 6,
            ..Script::default()
        },
        &["-m", "7", "--unary"],
    );
    page.assert_value(
        "enginetap_requests_total",
        &[("streaming", "false"), ("status", "200")],
        7.0,
    );
    page.assert_value("enginetap_tokens_total", &[("type", "prompt")], 77.0);
    page.assert_value("enginetap_tokens_total", &[("type", "generation")], 42.0);
    assert_eq!(
        page.get("enginetap_time_to_first_token_seconds_count", &[]),
        None,
        "unary has no first token"
    );
}

#[test]
fn a_split_at_any_byte_of_a_head_chunk_event_or_terminator_changes_nothing() {
    let mut engine = Engine::start();
    let agent = beside(&engine);
    let (mut requests, mut events, mut gaps) = (0, 0, 0);
    for (part, most) in [
        (Part::Head, 170),
        (Part::Chunk, 8),
        (Part::Event, 60),
        (Part::Terminator, 6),
    ] {
        let scripts: Vec<String> = (1..most)
            .map(|at| {
                let cut = Some(Cut { part, at });
                Script {
                    events: 3,
                    cut,
                    piece_pause_us: 50,
                    ..Script::default()
                }
                .to_header()
            })
            .collect();
        let mut args = vec!["-m".to_owned(), scripts.len().to_string()];
        for s in &scripts {
            args.extend(["--script".to_owned(), s.clone()]);
        }
        let sum = Load::run(None, engine.address(), &args);
        assert_eq!(sum.outcome(Outcome::Success), scripts.len() as u64);
        requests += sum.requests;
        events += sum.events;
        gaps += sum.gaps;
    }
    let truth = engine.ended(requests);
    let page = settled(&agent, requests);
    assert_counts(&page, &truth);
    page.assert_value("enginetap_stream_events_total", &[], events as f64);
    page.assert_value("enginetap_stream_gap_seconds_count", &[], gaps as f64);
    page.assert_value("enginetap_unparsed_total", &[], 0.0);
    agent.stop();
}

#[test]
fn a_reply_of_single_bytes_is_the_same_reply() {
    exact(
        &Script {
            events: 5,
            write: Write::Split(1),
            ..Script::default()
        },
        &["-m", "3"],
    );
}

#[test]
fn several_events_in_one_write_are_several_events() {
    exact(
        &Script {
            events: 40,
            write: Write::Merge(7),
            ..Script::default()
        },
        &["-n", "3", "-m", "3"],
    );
}

#[test]
fn requests_come_in_any_pieces() {
    exact(&Script::default(), &["-m", "3", "--first", "24"]);
    exact(
        &Script::default(),
        &["-m", "3", "--split", "7", "--pause-us", "100"],
    );
    exact(&Script::default(), &["-m", "3", "--head-apart"]);
}

#[test]
fn chunk_sizes_in_capitals_extensions_and_trailers_are_framing() {
    let script = Script {
        upper: true,
        ext: ";name=value".into(),
        trailers: 2,
        ..Script::default()
    };
    exact(&script, &["-n", "2", "-m", "5", "--include-usage"]);
}

#[test]
fn interim_replies_are_not_the_reply() {
    let page = exact(
        &Script {
            interim: 2,
            ..Script::default()
        },
        &["-m", "4"],
    );
    page.assert_value("enginetap_requests_total", &[("status", "200")], 4.0);
    page.assert_value("enginetap_response_head_seconds_count", &[], 4.0);
    exact(
        &Script::default(),
        &["-m", "4", "--expect", "--prompt-bytes", "100000"],
    );
}

#[test]
fn replies_without_a_body_end_with_their_head() {
    exact(
        &Script {
            status: 204,
            ..Script::default()
        },
        &["-m", "3"],
    );
    exact(
        &Script {
            status: 304,
            ..Script::default()
        },
        &["-m", "3"],
    );
    exact(
        &Script {
            unary_bytes: Some(0),
            ..Script::default()
        },
        &["-m", "3", "--unary"],
    );
    exact(
        &Script {
            unary_bytes: Some(500),
            ..Script::default()
        },
        &["-m", "3", "--method", "HEAD"],
    );
}

#[test]
fn a_body_until_close_ends_with_the_connection() {
    let script = Script {
        framing: Some(Framing::Close),
        ..Script::default()
    };
    exact(&script, &["-n", "3", "-m", "2", "--reconnect"]);
}

#[test]
fn a_large_unary_reply_is_one_reply() {
    exact(
        &Script {
            unary_bytes: Some(1_000_000),
            ..Script::default()
        },
        &["-n", "2", "-m", "3", "--unary"],
    );
}

#[test]
fn the_model_after_a_large_prompt_is_found() {
    let page = exact(
        &Script::default(),
        &["-m", "2", "--prompt-bytes", "4000000", "--model-last"],
    );
    page.assert_value("enginetap_requests_total", &[("model", "test-model")], 2.0);
    let page = exact(
        &Script::default(),
        &["-m", "2", "--prompt-bytes", "4000000"],
    );
    page.assert_value("enginetap_requests_total", &[("model", "test-model")], 2.0);
}

#[test]
fn a_body_that_looks_like_requests_is_a_body() {
    exact(
        &Script::default(),
        &["-n", "2", "-m", "4", "--smuggle", "--prompt-bytes", "5000"],
    );
}

#[test]
fn pings_comments_and_empty_deltas_are_not_the_first_token() {
    let script = Script {
        comments: 3,
        pings: 2,
        empty: 2,
        ping_gap_ms: 20.0,
        first_delay_ms: 50.0,
        events: 10,
        gap_ms: 5.0,
        ..Script::default()
    };
    let mut engine = Engine::start();
    let agent = beside(&engine);
    let sum = Load::run(
        None,
        engine.address(),
        [
            "-n",
            "2",
            "-m",
            "4",
            "--include-usage",
            "--script",
            &script.to_header(),
        ],
    );
    let truth = engine.ended(8);
    let page = settled(&agent, 8);
    assert_counts(&page, &truth);
    assert_streams(&page, &sum);
    assert_times(&page, &sum, 0.005);
    agent.stop();
}

#[test]
fn a_hundred_requests_over_one_connection_are_a_hundred() {
    exact(
        &Script {
            events: 4,
            ..Script::default()
        },
        &["-m", "100", "--include-usage"],
    );
}

#[test]
fn pipelined_requests_are_each_counted() {
    exact(
        &Script {
            events: 3,
            ..Script::default()
        },
        &["-m", "8", "--pipeline", "2"],
    );
}

#[test]
fn chunked_request_bodies_are_followed() {
    exact(
        &Script::default(),
        &["-m", "3", "--chunked", "1000", "--prompt-bytes", "20000"],
    );
}

#[test]
fn every_dialect_is_counted_with_its_tokens() {
    for route in [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
    ] {
        let page = exact(
            &Script {
                events: 9,
                prompt_tokens: 5,
                ..Script::default()
            },
            &["-m", "3", "--include-usage", "--route", route],
        );
        page.assert_value(
            "enginetap_requests_total",
            &[("route", route), ("class", "inference")],
            3.0,
        );
        page.assert_value(
            "enginetap_tokens_total",
            &[("type", "generation"), ("source", "usage")],
            27.0,
        );
        page.assert_value(
            "enginetap_tokens_total",
            &[("type", "prompt"), ("source", "usage")],
            15.0,
        );
    }
}

#[test]
fn without_a_usage_events_are_counted_and_said_to_be() {
    let script = Script {
        events: 12,
        usage: Some(false),
        ..Script::default()
    };
    let page = exact(&script, &["-m", "2"]);
    page.assert_value("enginetap_tokens_total", &[("source", "usage")], 0.0);
    assert!(
        page.value(
            "enginetap_tokens_total",
            &[("source", "events"), ("type", "generation")]
        ) >= 24.0
    );
}
