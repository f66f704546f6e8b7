//! What bulk TCP through a watched namespace loses to the tap, on ports that are not watched.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::stats::{median, quantile};
use super::stream::{Server, Steady};
use super::table::{Detail, Report, Verdict};
use super::{Args, OTHER_PORT, PORT, cpu};
use crate::guard::{Agent, NetNs};

/// Bytes per second, and CPU nanoseconds of both ends per megabyte.
#[derive(Clone, Copy, Debug)]
struct Flow {
    rate: f64,
    cpu: f64,
}

fn flow(ns: &NetNs, listener: &TcpListener, time: Duration) -> Flow {
    let address = listener.local_addr().expect("bound");
    ns.run_in(|| {
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                cpu::pin(0);
                let (mut stream, _) = listener.accept().expect("accept");
                let mut buf = vec![0; 262_144];
                let (before, mut total, began) = (cpu::thread(), 0u64, Instant::now());
                loop {
                    match stream.read(&mut buf).expect("read") {
                        0 => break,
                        n => total += n as u64,
                    }
                }
                (total, began.elapsed().as_secs_f64(), cpu::thread() - before)
            });
            cpu::pin(1);
            // Towards the listener: the direction that recognition looks at.
            let mut stream = TcpStream::connect(address).expect("connect");
            let (buf, before, end) = (vec![b'x'; 262_144], cpu::thread(), Instant::now() + time);
            while Instant::now() < end {
                stream.write_all(&buf).expect("write");
            }
            let sent = cpu::thread() - before;
            drop(stream);
            let (total, seconds, received) = receiver.join().expect("receiver");
            Flow {
                rate: total as f64 / seconds,
                cpu: (sent + received) as f64 * 1e6 / total as f64,
            }
        })
    })
}

fn agent(recognise: &str) -> Agent {
    let rule = format!("port={PORT},engine=vllm");
    Agent::builder()
        .matching(&rule)
        .args(["--recognise", recognise])
        .start()
}

fn lost(with: &[Flow], none: &[Flow], of: impl Fn(&Flow, &Flow) -> f64) -> [f64; 3] {
    let losses: Vec<f64> = with
        .iter()
        .zip(none)
        .map(|(a, b)| of(a, b) * 100.0)
        .collect();
    [0.5, 0.25, 0.75].map(|q| quantile(&losses, q))
}

pub(super) fn run(args: &Args, report: &mut Report) {
    let (rounds, time) = (
        args.pick(10, 2),
        Duration::from_millis(args.pick(1_000, 300)),
    );
    let mut detail = Detail::new(
        "Bulk TCP on an unwatched port of a watched namespace: lost, % (median, quartiles)",
        &[
            "segments",
            "recognition",
            "throughput without",
            "throughput lost",
            "CPU per MB without",
            "CPU per MB more",
        ],
    );
    let mut worst = (0.0f64, 0.0f64);
    for (name, setup) in [
        ("64 KB", ""),
        ("1,500 B", "link set lo mtu 1500 gso_max_segs 1"),
    ] {
        let ns = NetNs::new();
        if !setup.is_empty() {
            ns.ip(setup);
        }
        let _watched = Server::start(
            &ns,
            Steady {
                connections: 1,
                rate: 1,
                per_stream: 1,
            },
        );
        let bulk = ns.run_in(|| TcpListener::bind(("127.0.0.1", OTHER_PORT)).expect("listen"));
        flow(&ns, &bulk, time);
        let mut flows = [(); 3].map(|()| Vec::new());
        for round in 0..rounds {
            let mut turn = [0, 1, 2];
            turn.rotate_left(round % 3);
            for which in turn {
                let agent = match which {
                    0 => None,
                    1 => Some(agent("off")),
                    _ => Some(agent("on")),
                };
                flows[which].push(flow(&ns, &bulk, time));
                agent.into_iter().for_each(|agent| drop(agent.stop()));
            }
            let rates: Vec<String> = flows
                .iter()
                .map(|f| format!("{:.2}", f[round].rate / 1e9))
                .collect();
            println!(
                "{name} round {round}: GB/s none, off, on: {}",
                rates.join(" ")
            );
        }
        let [none, off, on] = flows;
        for (recognise, with) in [("off", &off), ("on", &on)] {
            let rate = lost(with, &none, |a, b| 1.0 - a.rate / b.rate);
            let cpu = lost(with, &none, |a, b| a.cpu / b.cpu - 1.0);
            worst = (worst.0.max(rate[0]), worst.1.max(cpu[0]));
            let percent = |v: [f64; 3]| format!("{:.1} ({:.1} to {:.1})", v[0], v[1], v[2]);
            detail.line(&[
                name.to_owned(),
                recognise.to_owned(),
                format!(
                    "{:.2} GB/s",
                    median(&none.iter().map(|f| f.rate / 1e9).collect::<Vec<_>>())
                ),
                percent(rate),
                format!(
                    "{:.0} us",
                    median(&none.iter().map(|f| f.cpu / 1e3).collect::<Vec<_>>())
                ),
                percent(cpu),
            ]);
        }
    }
    report.row(
        "bulk TCP through a watched namespace on unwatched ports: throughput and CPU lost",
        "<= 2 %",
        &format!("worst of four: {:.1} % throughput, {:.1} % CPU", worst.0, worst.1),
        Verdict::of(worst.0 <= 2.0 && worst.1 <= 2.0),
        &format!(
            "one connection over lo towards a listener, {rounds} alternated rounds of {} ms for each of none, recognition off, on; CPU is both ends' threads per byte; medians of paired rounds, detail below; 1,500 B is lo with MTU 1500 and gso_max_segs 1",
            time.as_millis()
        ),
    );
    report.detail(detail);
}
