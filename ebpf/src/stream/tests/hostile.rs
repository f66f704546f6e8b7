//! Streams that are broken on purpose: never a panic, never a read outside a packet, never more
//! steps than bytes allow (the tap checks both), and no request that ends twice.

use super::fuzz::seeds;
use super::noise::Noise;
use super::talk::Talk;
use super::tap::{Facts, Tap};
use crate::stream::Ending;

/// A talk that is broken in a few places.
fn broken(noise: &mut Noise) -> Talk {
    let mut talk = Talk::random(noise);
    break_up(&mut talk, noise);
    talk
}

/// Breaks a talk in a few places.
pub fn break_up(talk: &mut Talk, noise: &mut Noise) {
    let last = talk.turns.len() - 1;
    for _ in 0..noise.within(1, 6) {
        let turn = &mut talk.turns[noise.within(0, last)];
        let bytes = if noise.once_in(2) {
            &mut turn.requests
        } else {
            &mut turn.replies
        };
        if bytes.is_empty() {
            continue;
        }
        let at = noise.below(bytes.len());
        match noise.below(8) {
            0 => bytes[at] = noise.next() as u8,
            1 => bytes[at] ^= 1 << noise.below(8),
            2 => bytes.truncate(at),
            3 => drop(bytes.remove(at)),
            4 => bytes.insert(at, noise.pick(b"\r\n:0 fF;\0\xff")),
            5 => {
                let to = (at + noise.below(300)).min(bytes.len());
                let part = bytes[at..to].to_vec();
                bytes.splice(at..at, part);
            }
            6 => {
                let junk: Vec<u8> = (0..noise.below(300)).map(|_| noise.next() as u8).collect();
                bytes.splice(at..at, junk);
            }
            _ => {
                let line = noise.pick(&[
                    &b"\r\n\r\n"[..],
                    b"Content-Length: 18446744073709551615\r\n",
                    b"Content-Length: 9999999999999999999\r\n\r\n",
                    b"Transfer-Encoding: chunked\r\n\r\n",
                    b"fffffffffffffffe\r\n",
                    b"HTTP/1.1 101 X\r\n\r\n",
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n",
                    b"CONNECT / HTTP/1.1\r\n\r\n",
                    b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n",
                ]);
                bytes.splice(at..at, line.iter().copied());
            }
        }
    }
}

/// Every request that began ends once, in order, by the time the connection is over.
pub fn ends_once(tap: &mut Tap) {
    tap.end(Ending::Closed, u32::MAX, 1 << 60);
    tap.end(Ending::Closed, u32::MAX, 1 << 60);
    let seen = tap.seen();
    let begun: Vec<u32> = seen.begun.iter().map(|b| b.number).collect();
    let ended: Vec<u32> = seen.ended.iter().map(|e| e.number).collect();
    assert_eq!(begun, (1..=begun.len() as u32).collect::<Vec<_>>());
    assert_eq!(ended, begun, "each request that began ends once");
    for e in &seen.ended {
        assert!(e.captured <= e.events);
        let gaps: u32 = e.gaps.iter().sum::<u32>() + u32::from(e.held != 0);
        assert!(
            gaps + e.captured.max(1) <= e.events.max(1),
            "{gaps} gaps, {e:?}"
        );
    }
    assert!(
        seen.unparsed.len() <= 2,
        "each direction ends its reading once: {:?}",
        seen.unparsed
    );
}

#[test]
fn a_broken_talk_breaks_nothing() {
    seeds(400, |_, noise| {
        let talk = broken(noise);
        let mut tap = Tap::new();
        talk.play(noise, &mut tap, |_, _| {});
        ends_once(&mut tap);
    });
}

#[test]
fn a_talk_with_holes_breaks_nothing() {
    seeds(400, |_, noise| {
        let talk = if noise.once_in(2) {
            broken(noise)
        } else {
            Talk::random(noise)
        };
        let mut tap = Tap::new();
        let often = noise.within(2, 60);
        let mut now = 0;
        talk.play(noise, &mut tap, |tap, noise| {
            now = tap.now().max(now);
            if !noise.once_in(often) {
                return;
            }
            let n = noise.pick(&[1, 2, 9, 100, 1448, 70_000, u32::MAX]);
            match noise.below(6) {
                0 => tap.lose::<false>(n, now),
                1 => tap.lose::<true>(n, now),
                2 => tap.hide_after(noise.below(100) as u32),
                3 => tap.tell(),
                4 => tap.fin(now),
                _ => tap.fill(),
            }
        });
        ends_once(&mut tap);
    });
}

/// What is read of a talk in segments as `cut` says; `None` when a direction found its place again,
/// which depends on segments, as it should.
fn facts(talk: &Talk, cut: impl Fn(&[u8]) -> usize) -> Option<Facts> {
    let mut tap = Tap::new();
    for turn in &talk.turns {
        for (reply, bytes) in [(false, &turn.requests), (true, &turn.replies)] {
            for part in bytes.chunks(cut(bytes).max(1)) {
                if reply {
                    tap.replies(part, 1)
                } else {
                    tap.requests(part, 1)
                }
            }
        }
    }
    (!tap.lost_step).then(|| tap.said().facts())
}

/// Asserts that a talk reads the same however it is cut; how many cuts could be compared.
pub fn same_in_any_cut(talk: &Talk, name: &str) -> usize {
    let whole = facts(talk, <[u8]>::len);
    let mut compared = 0;
    for size in [1, 3, 63, 64, 65, 1448] {
        let (Some(a), Some(b)) = (&whole, facts(talk, |_| size)) else {
            continue;
        };
        assert_eq!(*a, b, "{name} in segments of {size}");
        compared += 1;
    }
    compared
}

#[test]
fn a_broken_talk_reads_the_same_however_it_is_cut() {
    let compared: usize = (0..250)
        .map(|seed| same_in_any_cut(&broken(&mut Noise::new(seed)), &format!("seed {seed}")))
        .sum();
    assert!(compared > 300, "only {compared} were compared");
}

#[test]
fn pure_noise_breaks_nothing() {
    seeds(400, |_, noise| {
        let mut tap = Tap::new();
        for i in 0..noise.within(1, 30) {
            let alphabet: &[u8] = noise.pick(&[
                &b"GETPOSHD /1.\r\n:"[..],
                b"\n",
                b"\r\n",
                b"data: [DONE]\n\r",
                b"0123456789abcdef;\r\n",
                &[0, 255, 10, 13, 22, 3],
            ]);
            let bytes: Vec<u8> = (0..noise.below(500))
                .map(|_| noise.pick(alphabet))
                .collect();
            if noise.once_in(3) {
                tap.requests(super::GET, i as u64);
                tap.replies(super::STREAM, i as u64);
            }
            tap.requests(&bytes, i as u64);
            tap.replies(&bytes, i as u64);
        }
        ends_once(&mut tap);
    });
}
