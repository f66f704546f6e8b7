//! CPU of the agent's own process while streams run at a rate, and at a fifth of it with as many
//! requests per second: what it does follows requests, never events.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::stream::{OURS, Server, Steady, missing};
use super::table::{Detail, Report, Verdict};
use super::{Args, PORT, cpu};
use crate::guard::NetNs;
use crate::scene::agent_for;

pub(super) fn run(args: &Args, report: &mut Report) {
    let time = Duration::from_secs(args.pick(20, 3));
    let ns = NetNs::new();
    let mut detail = Detail::new(
        "CPU of the agent's process by event rate",
        &[
            "events/s",
            "requests/s",
            "page every",
            "% of a core",
            "events missing on the page",
            "requests unobserved",
            "lost by gap",
            "segments out of order",
        ],
    );
    let idle = {
        let mut agent = agent_for(PORT);
        std::thread::sleep(Duration::from_secs(2));
        let before = cpu::process(agent.child().pid());
        std::thread::sleep(time);
        let used = cpu::process(agent.child().pid()) - before;
        agent.stop();
        used as f64 / time.as_nanos() as f64 * 100.0
    };
    detail.line(&[
        "0".into(),
        "0".into(),
        "never".into(),
        format!("{idle:.2}"),
        String::new(),
        String::new(),
        String::new(),
        String::new(),
    ]);
    let mut seen = Vec::new();
    for (rate, per_stream, scraped) in [
        (10_000, 200, false),
        (50_000, 1_000, false),
        (50_000, 1_000, true),
    ] {
        let steady = Steady {
            connections: 64,
            rate,
            per_stream,
        };
        let server = Server::start(&ns, steady);
        let mut agent = agent_for(PORT);
        let pid = agent.child().pid();
        let every = Duration::from_secs(args.pick(5, 1));
        let (mut used, done) = (0, AtomicBool::new(false));
        let counted = std::thread::scope(|scope| {
            // From this namespace; the load runs in its own.
            let (agent, done) = (&agent, &done);
            scope.spawn(move || {
                while scraped && !done.load(Ordering::Relaxed) {
                    std::thread::sleep(every);
                    agent.get("/metrics").expect("a page");
                }
            });
            let counted = steady.run(&ns, &server, || {
                let before = cpu::process(pid);
                std::thread::sleep(time);
                used = cpu::process(pid) - before;
            });
            done.store(true, Ordering::Relaxed);
            counted
        });
        let share = used as f64 / time.as_nanos() as f64 * 100.0;
        let (missed, page) = missing(&agent, counted.events);
        let gaps = page.value("enginetap_events_lost_total", &[("reason", "gap")]);
        let unobserved = page.value(
            "enginetap_requests_total",
            &[("outcome", "unobserved"), OURS[0]],
        );
        agent.stop();
        detail.line(&[
            format!("{:.0}", counted.rate),
            format!("{:.0}", counted.requests),
            if scraped {
                format!("{} s", every.as_secs())
            } else {
                "never".into()
            },
            format!("{share:.2}"),
            format!("{missed:.0} of {}", counted.events),
            format!("{unobserved:.0} of {}", counted.replies),
            format!("{gaps:.0}"),
            format!("{:.0}", counted.out_of_order),
        ]);
        seen.push((counted.rate, share));
    }
    let ((slow, at_slow), (fast, at_fast)) = (seen[0], seen[1]);
    report.row(
        "agent CPU at 50k events/s, flat in event rate",
        "<= 1 % of a core",
        &format!(
            "{at_fast:.2} % at {fast:.0} events/s, {at_slow:.2} % at {slow:.0}, {idle:.2} % idle; with a page every {} s {:.2} %",
            args.pick(5, 1),
            seen[2].1
        ),
        Verdict::of(at_fast <= 1.0 && fast >= 45_000.0),
        &format!(
            "CPU clock of the agent's process over {} s; 64 connections, 50 requests/s at either rate; what the page lacks is in the table below",
            time.as_secs()
        ),
    );
    report.detail(detail);
}
