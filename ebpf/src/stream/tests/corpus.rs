//! The corpus, `ebpf/corpus/`: connections as engines and clients make them and as a hostile peer
//! would, `NAME.requests` beside `NAME.replies`. Names that begin with `hostile-` are not for the
//! reference. Each is played in many cuts, and then changed at random and played again.

use std::path::Path;

use super::fuzz::{few_seeds, seeds};
use super::hostile::{break_up, ends_once, same_in_any_cut};
use super::noise::Noise;
use super::reference;
use super::talk::{Talk, Turn};
use super::tap::Tap;
use super::verdict;

/// A connection of the corpus; all its requests pass before its replies.
fn corpus() -> Vec<(String, Talk)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        let Some(name) = path
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .strip_suffix(".requests")
        else {
            continue;
        };
        let turn = Turn {
            requests: std::fs::read(&path).unwrap(),
            replies: std::fs::read(path.with_extension("replies")).unwrap(),
        };
        let until_close = !name.starts_with("hostile-") && {
            let requests = reference::requests(&turn.requests);
            let replies = reference::replies(&turn.replies, &requests);
            replies.last().is_some_and(|(_, m)| m.until_close)
        };
        let turns = vec![turn];
        found.push((name.to_owned(), Talk { turns, until_close }));
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(found.len() > 20, "{} holds {}", dir.display(), found.len());
    found
}

#[test]
fn each_well_formed_connection_reads_as_the_reference_reads_it() {
    let mut held = 0;
    for (name, talk) in corpus()
        .iter()
        .filter(|(name, _)| !name.starts_with("hostile-"))
    {
        println!("{name}");
        few_seeds(40, |_, noise| {
            let mut tap = Tap::new();
            let often = noise.within(1, 30);
            let told = noise.once_in(2);
            let played = talk.play(noise, &mut tap, |tap, noise| {
                if told && noise.once_in(often) {
                    tap.tell();
                }
            });
            if talk.until_close {
                tap.fin(played.end);
            }
            verdict::holds(&played, &tap.seen(), talk.until_close);
        });
        held += 1;
    }
    assert!(held > 10, "only {held} are well formed");
}

#[test]
fn no_connection_of_the_corpus_breaks_anything_or_depends_on_its_cuts() {
    let mut compared = 0;
    for (name, talk) in corpus() {
        println!("{name}");
        few_seeds(20, |_, noise| {
            let mut tap = Tap::new();
            talk.play(noise, &mut tap, |_, _| {});
            ends_once(&mut tap);
        });
        compared += same_in_any_cut(&talk, &name);
    }
    assert!(compared > 60, "only {compared} were compared");
}

#[test]
fn nothing_that_grows_from_the_corpus_breaks_anything() {
    let corpus = corpus();
    seeds(400, |_, noise| {
        let mut talk = grown(&corpus, noise);
        for _ in 0..noise.within(1, 5) {
            break_up(&mut talk, noise);
        }
        let mut tap = Tap::new();
        let often = noise.within(2, 60);
        talk.play(noise, &mut tap, |tap, noise| {
            if noise.once_in(often) {
                tap.lose::<true>(noise.pick(&[1, 9, 1448]), tap.now());
            }
        });
        ends_once(&mut tap);
    });
    let mut compared = 0;
    for seed in 0..120 {
        let mut noise = Noise::new(seed);
        let mut talk = grown(&corpus, &mut noise);
        break_up(&mut talk, &mut noise);
        compared += same_in_any_cut(&talk, &format!("seed {seed}"));
    }
    assert!(compared > 200, "only {compared} were compared");
}

/// The beginning of one connection and the end of another.
fn grown(corpus: &[(String, Talk)], noise: &mut Noise) -> Talk {
    let mut one = corpus[noise.below(corpus.len())].1.clone();
    let other = &corpus[noise.below(corpus.len())].1;
    one.turns.extend(other.turns.iter().cloned());
    one
}
