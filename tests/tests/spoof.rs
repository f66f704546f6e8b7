//! Segments that nobody sent, in the middle of live streams: the server's TCP drops them, and so
//! must the tap.

use std::time::Duration;

use enginetap_tests::event::Outcome;
use enginetap_tests::guard::{Engine, Load, poll};
use enginetap_tests::relay::{Deed, Relay, Spoof, Way};
use enginetap_tests::scene::{self, agent_for, assert_counts, assert_streams, settled};
use enginetap_tests::script::Script;

const CONNECTIONS: usize = 4;
const DEADLINE: Duration = Duration::from_secs(60);

/// Forges `spoofs` on every connection of a load again and again while it runs, and compares what
/// the page says with what the two ends counted: for them nothing has happened.
fn harmless(spoofs: &[Spoof], load: &[&str], script: &Script) {
    let (relay, port) = (Relay::builder().start(), scene::port());
    let mut engine = Engine::builder()
        .netns(&relay.server)
        .listen(&format!("10.79.0.1:{port}"))
        .start();
    let agent = agent_for(port);
    let (connections, header) = (CONNECTIONS.to_string(), script.to_header());
    let mut args = vec!["-n", &connections, "--script", &header];
    args.extend_from_slice(load);
    let mut load = Load::start(Some(&relay.client), Relay::address(port), args);
    let mut sent = vec![0; spoofs.len()];
    let ended = poll(DEADLINE, || {
        for (sent, spoof) in sent.iter_mut().zip(spoofs) {
            *sent += relay.spoof(*spoof);
        }
        load.child().has_exited().then_some(())
    });
    assert!(ended.is_some(), "the load does not end");
    let sum = load.wait(DEADLINE);
    assert!(
        sent.iter().all(|n| *n >= CONNECTIONS),
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

/// Forges them in streams that a request of its own follows on the same connection.
fn in_streams(spoofs: &[Spoof]) {
    let script = Script {
        events: 40,
        gap_ms: 10.0,
        ..Script::default()
    };
    harmless(spoofs, &["-m", "3", "--include-usage"], &script);
}

/// Forges them between the pieces of request bodies.
fn in_bodies(spoofs: &[Spoof]) {
    let load = "-m 2 --include-usage --prompt-bytes 20000 --split 1000 --pause-us 20000";
    let load: Vec<&str> = load.split(' ').collect();
    harmless(spoofs, &load, &Script::default());
}

fn everywhere(spoofs: &[Spoof]) {
    in_streams(spoofs);
    in_bodies(spoofs);
}

#[test]
fn resets_out_of_place_move_nothing() {
    everywhere(&[
        Spoof::ResetOutside,
        Spoof::ResetInside,
        Spoof::ResetUnsummed,
    ]);
}

#[test]
fn bytes_outside_the_window_move_nothing() {
    everywhere(&[Spoof::DataAhead, Spoof::DataBehind, Spoof::FinAhead]);
}

#[test]
fn a_syn_on_a_live_connection_moves_nothing() {
    everywhere(&[Spoof::Syn]);
}

#[test]
fn a_syn_with_bytes_on_a_live_connection_moves_nothing() {
    everywhere(&[Spoof::SynWithData]);
}

#[test]
fn a_fin_with_a_wrong_checksum_moves_nothing() {
    everywhere(&[Spoof::FinUnsummed]);
}

#[test]
fn bytes_with_a_wrong_checksum_move_nothing() {
    in_streams(&[Spoof::DataUnsummed]);
    in_bodies(&[Spoof::DataUnsummed]);
}

#[test]
fn bytes_ahead_with_a_wrong_checksum_move_nothing() {
    everywhere(&[Spoof::AheadUnsummed]);
}

#[test]
fn bytes_without_an_acknowledgement_move_nothing() {
    everywhere(&[Spoof::DataWithoutAck]);
}

#[test]
fn bytes_that_acknowledge_what_was_never_sent_move_nothing() {
    everywhere(&[Spoof::DataAckAhead]);
}

#[test]
fn bytes_with_an_old_timestamp_move_nothing() {
    everywhere(&[Spoof::DataOld]);
}

#[test]
fn a_header_shorter_than_a_header_moves_nothing() {
    everywhere(&[Spoof::HeaderShort]);
}

#[test]
fn a_packet_longer_than_its_frame_moves_nothing() {
    everywhere(&[Spoof::PacketCut]);
}

#[test]
fn a_packet_with_a_wrong_header_checksum_moves_nothing() {
    everywhere(&[Spoof::PacketUnsummed]);
}

#[test]
fn noise_moves_nothing() {
    everywhere(&[Spoof::Noise]);
}
