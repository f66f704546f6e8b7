//! What a hook on the scheduler costs tasks that are not watched: a ping-pong over two pipes on one
//! processor, which switches tasks twice per turn.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use enginetap::bpf::{bench, load};

use super::stats::{median, spread};
use super::table::{Report, Verdict};
use super::{Args, cpu};

/// Nanoseconds per turn.
fn ping_pong(time: Duration) -> f64 {
    let (mut a_in, mut a_out) = std::io::pipe().expect("a pipe");
    let (mut b_in, mut b_out) = std::io::pipe().expect("a pipe");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            cpu::pin(1);
            let mut byte = [0];
            while a_in.read(&mut byte).is_ok_and(|n| n == 1) {
                if b_out.write_all(&byte).is_err() {
                    break;
                }
            }
        });
        cpu::pin(1);
        let (mut byte, mut turns, began) = ([0], 0u32, Instant::now());
        while began.elapsed() < time {
            for _ in 0..64 {
                a_out.write_all(&byte).expect("ping");
                b_in.read_exact(&mut byte).expect("pong");
            }
            turns += 64;
        }
        let took = began.elapsed().as_nanos() as f64 / f64::from(turns);
        drop(a_out);
        took
    })
}

pub(super) fn run(args: &Args, report: &mut Report) {
    let (rounds, time) = (args.pick(20, 2), Duration::from_millis(args.pick(250, 50)));
    ping_pong(time);
    let mut took: [Vec<f64>; 4] = Default::default();
    for round in 0..rounds {
        let mut turn = [0, 1, 2, 3];
        turn.rotate_left(round % 4);
        for which in turn {
            let empty = (which == 1).then(|| bench::empty_hook("sched_switch").expect("a hook"));
            let names: &[&str] = match which {
                2 => &["stall_switch"],
                3 => &["stall_switch", "stall_wakeup"],
                _ => &[],
            };
            let ours = (!names.is_empty()).then(|| load::only(names).expect("our hooks"));
            took[which].push(ping_pong(time));
            drop((empty, ours));
        }
    }
    let [none, empty, switch, both] = took;
    let loss = |with: &[f64]| -> Vec<f64> {
        with.iter()
            .zip(&none)
            .map(|(w, n)| (w / n - 1.0) * 100.0)
            .collect()
    };
    let (empty, switch, both) = (loss(&empty), loss(&switch), loss(&both));
    let ratio = median(&switch) / median(&empty);
    let how = format!(
        "pipe ping-pong of two unwatched threads on one processor, {:.0} ns per turn without; loss in % with an empty program {}, with ours {}; {rounds} alternations of {} ms each, medians and quartiles",
        median(&none),
        spread(&empty, 1),
        spread(&switch, 1),
        time.as_millis(),
    );
    report.row(
        "`sched_switch`: loss of a ping-pong over the loss with an empty program there",
        "<= 1.3x",
        &format!("{ratio:.2}x"),
        Verdict::of(ratio <= 1.3),
        &how,
    );
    report.row(
        "the same with the hook on `sched_wakeup` as well",
        "none",
        &format!("{} %", spread(&both, 1)),
        Verdict::Shown,
        "as above, loss in %",
    );
}
