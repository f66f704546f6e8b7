//! What the tap adds to the server's CPU per streamed event, over what one packet socket with an
//! empty filter adds, and what the kernel itself says a run of the tap takes.
//!
//! The rate is one that server and client keep up with, so that each event is a segment of its own
//! in order; a server that runs ahead of its client has the kernel join writes.

use std::time::{Duration, Instant};

use super::stats::{differences, median, spread};
use super::stream::{Counted, SEGMENT, Server, Steady, missing};
use super::table::{Detail, Report, Verdict};
use super::{Args, cpu};
use crate::guard::{Agent, NetNs};
use crate::scene::agent_for;

/// One measurement: CPU nanoseconds per event.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    server: f64,
    both: f64,
    counted: Counted,
}

#[derive(Default)]
struct Series(Vec<Cost>);

impl Series {
    fn server(&self) -> Vec<f64> {
        self.0.iter().map(|c| c.server).collect()
    }

    fn both(&self) -> Vec<f64> {
        self.0.iter().map(|c| c.both).collect()
    }
}

struct Scene {
    ns: NetNs,
    server: Server,
    load: Steady,
    time: Duration,
}

impl Scene {
    fn cost(&self) -> Cost {
        let own = std::process::id();
        let (mut server, mut client, mut seconds) = (0, 0, 0.0);
        let counted = self.load.run(&self.ns, &self.server, || {
            let (s, c, began) = (
                cpu::process(self.server.pid()),
                cpu::process(own),
                Instant::now(),
            );
            std::thread::sleep(self.time);
            server = cpu::process(self.server.pid()) - s;
            client = cpu::process(own) - c;
            seconds = began.elapsed().as_secs_f64();
        });
        let events = counted.rate * seconds;
        Cost {
            server: server as f64 / events,
            both: (server + client) as f64 / events,
            counted,
        }
    }

    /// The same under the agent; `look` is called before it stops.
    fn tapped(&self, look: impl FnOnce(&mut Agent)) -> (Cost, f64) {
        let mut agent = agent_for(super::PORT);
        let cost = self.cost();
        look(&mut agent);
        let missed = missing(&agent, cost.counted.events).0;
        agent.stop();
        (cost, missed)
    }
}

pub(super) fn run(args: &Args, report: &mut Report) {
    let rounds = args.pick(20, 2);
    let load = Steady {
        connections: 64,
        rate: args.pick(20_000, 10_000),
        per_stream: 500,
    };
    let ns = NetNs::new();
    let server = Server::start(&ns, load);
    let scene = Scene {
        ns,
        server,
        load,
        time: Duration::from_millis(args.pick(1_000, 500)),
    };
    scene.cost();
    let [mut none, mut packet, mut agent] = [(); 3].map(|()| Series::default());
    let mut missed = 0.0;
    for round in 0..rounds {
        let mut turn = [0, 1, 2];
        turn.rotate_left(round % 3);
        for which in turn {
            match which {
                0 => none.0.push(scene.cost()),
                1 => {
                    let socket = scene
                        .ns
                        .run_in(enginetap::bpf::bench::empty_filter_socket)
                        .expect("a packet socket");
                    packet.0.push(scene.cost());
                    drop(socket);
                }
                _ => {
                    let (cost, lacks) = scene.tapped(|_| {});
                    agent.0.push(cost);
                    missed += lacks;
                }
            }
        }
        let [n, p, a] = [&none, &packet, &agent].map(|s| s.0[round].server);
        println!(
            "round {round}: server ns per event: none {n:.0}, packet socket {p:.0}, agent {a:.0}"
        );
    }
    let added = |with: &Series| differences(&with.server(), &none.server());
    let both = |with: &Series| differences(&with.both(), &none.both());
    let (by_agent, by_packet) = (median(&added(&agent)), median(&added(&packet)));
    let ratio = by_agent / by_packet;
    report.row(
        "added server CPU per streamed event, over that of an unbound ETH_P_ALL packet socket with an empty filter",
        "<= 2.5x",
        &format!("{ratio:.2}x: {by_agent:.0} ns over {by_packet:.0} ns"),
        Verdict::of(ratio <= 2.5),
        &format!(
            "CPU clock of a bare server that writes {} events/s of {SEGMENT} bytes, one write each, to {} connections on lo of a namespace of its own; {rounds} rounds of none, packet socket, agent in turn, {} ms each; medians of paired differences; {missed:.0} events missing on the pages",
            load.rate,
            load.connections,
            scene.time.as_millis()
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
            "out of order",
        ],
    );
    for (name, series) in [
        ("none", &none),
        ("packet socket", &packet),
        ("agent", &agent),
    ] {
        let segments: Vec<f64> = series.0.iter().map(|c| c.counted.segments).collect();
        let disordered: f64 = series.0.iter().map(|c| c.counted.out_of_order).sum();
        detail.line(&[
            name.to_owned(),
            spread(&series.server(), 0),
            spread(&added(series), 0),
            spread(&both(series), 0),
            format!("{:.2}", median(&segments)),
            format!("{disordered:.0}"),
        ]);
    }
    report.detail(detail);

    let stats = cpu::BpfStats::on();
    let mut runs = (0, 0);
    scene.tapped(|agent| runs = cpu::tap_runs(agent.child().pid()));
    drop(stats);
    let (time, count) = runs;
    report.row(
        "a run of the tap under this load",
        "<= 500 ns",
        &format!("{:.0} ns", time as f64 / count.max(1) as f64),
        Verdict::of(time <= count * 500),
        &format!(
            "bpf_stats_enabled over {count} runs of wire_tap, segments with one event and the client's acknowledgements together; a clock read is within"
        ),
    );
}
