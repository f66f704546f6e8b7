//! Conversations made at random, cut at random, against the reference.

use std::time::{Duration, Instant};

use super::noise::Noise;
use super::talk::Talk;
use super::tap::Tap;
use super::verdict;

/// Runs `body` once per seed and names the seed that fails. `ENGINETAP_FUZZ_SECONDS=N` goes on with
/// new seeds for N seconds.
pub fn seeds(n: u64, body: impl Fn(u64, &mut Noise) + std::panic::RefUnwindSafe) {
    let asked = std::env::var("ENGINETAP_FUZZ_SECONDS").ok();
    let seconds = asked.map_or(0, |text| text.parse().expect("a number"));
    let end = Instant::now() + Duration::from_secs(seconds);
    for seed in 0.. {
        if seed >= n && Instant::now() >= end {
            return;
        }
        with_seed(seed, &body);
    }
}

/// Runs `body` once per seed, no more whatever was asked for.
pub fn few_seeds(n: u64, body: impl Fn(u64, &mut Noise) + std::panic::RefUnwindSafe) {
    (0..n).for_each(|seed| with_seed(seed, &body));
}

fn with_seed(seed: u64, body: &(impl Fn(u64, &mut Noise) + std::panic::RefUnwindSafe)) {
    let run = std::panic::catch_unwind(|| body(seed, &mut Noise::new(seed + 1)));
    if let Err(why) = run {
        eprintln!("seed {seed} fails");
        std::panic::resume_unwind(why);
    }
}

#[test]
fn a_talk_cut_anywhere_reads_as_the_reference_reads_it() {
    seeds(300, |_, noise| {
        let talk = Talk::random(noise);
        let mut tap = Tap::new();
        let played = talk.play(noise, &mut tap, |_, _| {});
        if talk.until_close {
            tap.fin(played.end);
        }
        verdict::holds(&played, &tap.seen(), talk.until_close);
    });
}

#[test]
fn a_stream_told_at_any_time_loses_no_gap() {
    seeds(300, |_, noise| {
        let talk = Talk::random(noise);
        let mut tap = Tap::new();
        let often = noise.within(1, 30);
        let played = talk.play(noise, &mut tap, |tap, noise| {
            if noise.once_in(often) {
                tap.tell();
            }
        });
        if talk.until_close {
            tap.fin(played.end);
        }
        verdict::holds(&played, &tap.seen(), talk.until_close);
    });
}

#[test]
fn two_cuts_of_one_talk_give_the_same_facts() {
    seeds(150, |_, noise| {
        let talk = Talk::random(noise);
        let (mut one, mut other) = (Tap::new(), Tap::new());
        talk.play(noise, &mut one, |_, _| {});
        talk.play(noise, &mut other, |_, _| {});
        assert_eq!(one.said().facts(), other.said().facts());
    });
}
