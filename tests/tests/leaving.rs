//! Clients that close their side early, against a server that answers all the same: who left, and
//! who only said that no more requests come. Client and server are this test's own sockets, so that
//! the order of every segment is known.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use enginetap_tests::guard::Agent;
use enginetap_tests::page::Page;
use enginetap_tests::pair::{REQUEST, REST, STREAM, UNARY, UNTIL_CLOSE, connect, end, take};
use enginetap_tests::scene::{agent_for, settled};

fn listen() -> (TcpListener, Agent) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let agent = agent_for(listener.local_addr().expect("an address").port());
    (listener, agent)
}

/// `times` exchanges, each on a connection of its own; the page afterwards.
fn page_of(times: u64, exchange: impl Fn(TcpStream, TcpStream)) -> Page {
    let (listener, agent) = listen();
    for _ in 0..times {
        let (client, server) = connect(&listener);
        exchange(client, server);
    }
    let page = settled(&agent, times);
    page.assert_value("enginetap_requests_started_total", &[], times as f64);
    page.assert_value("enginetap_requests_total", &[], times as f64);
    page.assert_value("enginetap_events_lost_total", &[], 0.0);
    agent.stop();
    page
}

fn all_are(page: &Page, outcome: &str, status: &str, n: f64) {
    page.assert_value(
        "enginetap_requests_total",
        &[("outcome", outcome), ("status", status)],
        n,
    );
}

#[test]
fn gone_before_the_head_is_a_499_though_the_server_answers_in_full() {
    for reply in [UNARY, UNTIL_CLOSE] {
        let page = page_of(5, |mut client, mut server| {
            client.write_all(REQUEST).expect("write");
            take(&mut server, REQUEST.len());
            drop(client);
            end(&mut server);
            server.write_all(reply).expect("write");
        });
        all_are(&page, "abort", "499", 5.0);
        page.assert_value(
            "enginetap_unfinished_request_seconds_count",
            &[("outcome", "abort")],
            5.0,
        );
    }
}

#[test]
fn a_client_that_only_closed_its_side_is_served() {
    for reply in [UNARY, UNTIL_CLOSE, &[STREAM, REST].concat()] {
        let page = page_of(5, |mut client, mut server| {
            client.write_all(REQUEST).expect("write");
            client.shutdown(Shutdown::Write).expect("shutdown");
            take(&mut server, REQUEST.len());
            end(&mut server);
            server.write_all(reply).expect("write");
            take(&mut client, reply.len());
            drop(server);
            end(&mut client);
        });
        all_are(&page, "success", "200", 5.0);
    }
}

#[test]
fn gone_in_mid_stream_is_an_abort_though_the_server_completes_it_in_one_segment() {
    let page = page_of(5, |mut client, mut server| {
        client.write_all(REQUEST).expect("write");
        take(&mut server, REQUEST.len());
        server.write_all(STREAM).expect("write");
        take(&mut client, STREAM.len());
        drop(client);
        end(&mut server);
        server.write_all(REST).expect("write");
        // The reset is the answer to that; the server learns of it by its next call.
        let _ = server.read(&mut [0; 8]);
    });
    all_are(&page, "abort", "200", 5.0);
    page.assert_value("enginetap_stream_events_total", &[], 10.0);
}

#[test]
fn a_close_right_behind_the_terminator_is_a_success() {
    let reply = [STREAM, REST].concat();
    let page = page_of(200, |mut client, mut server| {
        let reply = reply.clone();
        let serve = thread::spawn(move || {
            take(&mut server, REQUEST.len());
            server.write_all(&reply).expect("write");
            let _ = server.read(&mut [0; 8]);
        });
        client.write_all(REQUEST).expect("write");
        take(&mut client, STREAM.len() + REST.len());
        drop(client);
        serve.join().expect("the server");
    });
    all_are(&page, "success", "200", 200.0);
    page.assert_value("enginetap_stream_events_total", &[], 400.0);
}

#[test]
fn a_server_that_closes_on_a_client_that_closed_its_side_gave_it_nothing() {
    let page = page_of(3, |mut client, mut server| {
        client.write_all(REQUEST).expect("write");
        client.shutdown(Shutdown::Write).expect("shutdown");
        take(&mut server, REQUEST.len());
        end(&mut server);
        drop(server);
        end(&mut client);
    });
    page.assert_value("enginetap_requests_total", &[("outcome", "success")], 0.0);
    page.assert_value(
        "enginetap_requests_total",
        &[("outcome", "abort"), ("status", "499")],
        3.0,
    );
}
