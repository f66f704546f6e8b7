//! Segments that nobody sent, in the middle of live streams: the server's TCP drops them, and so
//! must the tap.

use std::time::Duration;

use enginetap_tests::client::Summary;
use enginetap_tests::event::Outcome;
use enginetap_tests::guard::{Engine, Load, poll};
use enginetap_tests::relay::{Deed, Relay, Spoof, Way};
use enginetap_tests::scene::{self, agent_for, assert_counts, assert_streams, settled};
use enginetap_tests::script::Script;

const CONNECTIONS: usize = 4;
const DEADLINE: Duration = Duration::from_secs(60);

/// Forges `spoofs` again and again in streams and between the pieces of request bodies, all of which
/// are followed by more requests on the same connection, and compares what the page says with what
/// the two ends counted: for them nothing has happened.
fn harmless(spoofs: &[Spoof]) {
    let (relay, port) = (Relay::builder().start(), scene::port());
    let mut engine = Engine::builder()
        .netns(&relay.server)
        .listen(&format!("10.79.0.1:{port}"))
        .start();
    let agent = agent_for(port);
    let script = Script {
        events: 40,
        gap_ms: 10.0,
        ..Script::default()
    };
    let start = |line: &str, script: &Script| {
        let (header, connections) = (script.to_header(), CONNECTIONS.to_string());
        let common = ["-n", &connections, "--include-usage", "--script", &header];
        let args = common.into_iter().chain(line.split(' '));
        Load::start(Some(&relay.client), Relay::address(port), args)
    };
    let bodies = "-m 2 --prompt-bytes 20000 --split 1000 --pause-us 20000 --tag bodies";
    let mut loads = [
        start("-m 3 --tag streams", &script),
        start(bodies, &Script::default()),
    ];
    let mut sent = vec![0; spoofs.len()];
    let ended = poll(DEADLINE, || {
        for (sent, spoof) in sent.iter_mut().zip(spoofs) {
            *sent += relay.spoof(*spoof);
        }
        let ended = loads.iter_mut().all(|load| load.child().has_exited());
        ended.then_some(())
    });
    assert!(ended.is_some(), "the loads do not end");
    let rows = loads.into_iter().flat_map(|load| load.wait(DEADLINE).rows);
    let sum = Summary::of(rows.collect());
    assert!(
        sent.iter().all(|n| *n >= 2 * CONNECTIONS),
        "{spoofs:?} were sent {sent:?} times"
    );
    assert_eq!(
        relay.counts().of(Way::ToServer, Deed::Injected),
        sent.iter().sum::<usize>() as u64
    );
    assert_eq!(
        sum.outcome(Outcome::Success),
        sum.requests,
        "the server took one of {spoofs:?} for real: {:?}",
        sum.outcomes
    );
    let truth = engine.ended(sum.requests);
    assert_eq!((truth.garbage, truth.count()), (0, sum.requests));
    let page = settled(&agent, sum.requests);
    assert_counts(&page, &truth);
    assert_streams(&page, &sum);
    page.assert_value("enginetap_unparsed_total", &[], 0.0);
    agent.stop();
}

#[test]
fn resets_out_of_place_move_nothing() {
    harmless(&[
        Spoof::ResetOutside,
        Spoof::ResetInside,
        Spoof::ResetUnsummed,
    ]);
}

#[test]
fn bytes_outside_the_window_move_nothing() {
    harmless(&[Spoof::DataAhead, Spoof::DataBehind, Spoof::FinAhead]);
}

#[test]
fn a_syn_on_a_live_connection_moves_nothing() {
    harmless(&[Spoof::Syn]);
}

#[test]
fn a_syn_with_bytes_on_a_live_connection_moves_nothing() {
    harmless(&[Spoof::SynWithData]);
}

#[test]
fn a_fin_with_a_wrong_checksum_moves_nothing() {
    harmless(&[Spoof::FinUnsummed]);
}

#[test]
fn bytes_with_a_wrong_checksum_move_nothing() {
    harmless(&[Spoof::DataUnsummed]);
}

#[test]
fn bytes_ahead_with_a_wrong_checksum_move_nothing() {
    harmless(&[Spoof::AheadUnsummed]);
}

#[test]
fn bytes_without_an_acknowledgement_move_nothing() {
    harmless(&[Spoof::DataWithoutAck]);
}

#[test]
fn bytes_that_acknowledge_what_was_never_sent_move_nothing() {
    harmless(&[Spoof::DataAckAhead]);
}

#[test]
fn bytes_with_an_old_timestamp_move_nothing() {
    harmless(&[Spoof::DataOld]);
}

#[test]
fn a_header_shorter_than_a_header_moves_nothing() {
    harmless(&[Spoof::HeaderShort]);
}

#[test]
fn a_packet_longer_than_its_frame_moves_nothing() {
    harmless(&[Spoof::PacketCut]);
}

#[test]
fn a_packet_with_a_wrong_header_checksum_moves_nothing() {
    harmless(&[Spoof::PacketUnsummed]);
}

#[test]
fn noise_moves_nothing() {
    harmless(&[Spoof::Noise]);
}
