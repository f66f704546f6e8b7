//! What the tap adds to the server's CPU per streamed event, over what one packet socket with an
//! empty filter adds, and what the kernel itself says a run of the tap takes.

use super::stats::{differences, median, spread};
use super::stream::{Blast, Job, SEGMENT, Server, blast, missing};
use super::table::{Detail, Report, Verdict};
use super::{Args, cpu};
use crate::guard::{Agent, NetNs};
use crate::scene::agent_for;

#[derive(Default)]
struct Series {
    server: Vec<f64>,
    both: Vec<f64>,
    segments: Vec<f64>,
}

impl Series {
    fn add(&mut self, blast: Blast) {
        self.server.push(blast.server);
        self.both.push(blast.server + blast.client);
        self.segments.push(blast.segments);
    }
}

/// Runs a stream under the agent and says when the page lacks events of it.
fn tapped(ns: &NetNs, server: &mut Server, events: u64, look: impl FnOnce(&mut Agent)) -> Blast {
    let mut agent = agent_for(super::PORT);
    let blast = blast(ns, server, events);
    look(&mut agent);
    let (missed, page) = missing(&agent, events + 1);
    if missed != 0.0 {
        println!(
            "the page lacks {missed} events:\n{}",
            page.lines("enginetap_events_lost_total")
        );
    }
    agent.stop();
    blast
}

pub(super) fn run(args: &Args, report: &mut Report) {
    let (rounds, events) = (args.pick(10, 2), args.pick(150_000, 20_000));
    let ns = NetNs::new();
    let mut server = Server::start(&ns, Job::Blast(events));
    blast(&ns, &mut server, events);
    let [mut none, mut packet, mut agent] = [(); 3].map(|()| Series::default());
    for round in 0..rounds {
        let mut turn = [0, 1, 2];
        turn.rotate_left(round % 3);
        for which in turn {
            match which {
                0 => none.add(blast(&ns, &mut server, events)),
                1 => {
                    let socket = ns
                        .run_in(enginetap::bpf::bench::empty_filter_socket)
                        .expect("a packet socket");
                    packet.add(blast(&ns, &mut server, events));
                    drop(socket);
                }
                _ => agent.add(tapped(&ns, &mut server, events, |_| {})),
            }
        }
        println!(
            "round {round}: server ns per event: none {:.0}, packet socket {:.0}, agent {:.0}",
            none.server[round], packet.server[round], agent.server[round]
        );
    }
    let added = |with: &Series| differences(&with.server, &none.server);
    let both = |with: &Series| differences(&with.both, &none.both);
    let (by_agent, by_packet) = (added(&agent), added(&packet));
    let ratio = median(&by_agent) / median(&by_packet);
    report.row(
        "added server CPU per streamed event, over that of an unbound ETH_P_ALL packet socket with an empty filter",
        "<= 2.5x",
        &format!("{ratio:.2}x: {:.0} ns over {:.0} ns", median(&by_agent), median(&by_packet)),
        Verdict::of(ratio <= 2.5),
        &format!(
            "thread CPU clock of a bare server that writes {events} events of {SEGMENT} bytes, one write each, on lo of a namespace of its own; {rounds} rounds of none, packet socket, agent in turn; medians of paired differences"
        ),
    );
    let mut detail = Detail::new(
        "CPU per streamed event, ns: median (quartiles)",
        &[
            "",
            "server",
            "added to the server",
            "added to server and client",
            "segments per event",
        ],
    );
    for (name, series) in [
        ("none", &none),
        ("packet socket", &packet),
        ("agent", &agent),
    ] {
        detail.line(&[
            name.to_owned(),
            spread(&series.server, 0),
            spread(&added(series), 0),
            spread(&both(series), 0),
            format!("{:.2}", median(&series.segments)),
        ]);
    }
    report.detail(detail);

    let stats = cpu::BpfStats::on();
    let mut runs = (0, 0);
    tapped(&ns, &mut server, events, |agent| {
        runs = cpu::tap_runs(agent.child().pid())
    });
    drop(stats);
    let (time, count) = runs;
    report.row(
        "a run of the tap under a streaming load",
        "<= 500 ns",
        &format!("{:.0} ns", time as f64 / count.max(1) as f64),
        Verdict::of(time <= count * 500),
        &format!(
            "bpf_stats_enabled over {count} runs of wire_tap: {events} segments of {SEGMENT} bytes and the client's acknowledgements; the clock read is within"
        ),
    );
}
