//! Requests in flight. What started and has not ended is in flight, exactly; the list of open
//! requests only says what they are. The two are read at different moments, so the list is
//! fitted to the number: what it does not know is `unknown`, what it has too many is taken back.

use std::time::Duration;

use crate::metrics::input::OpenRequest;
use crate::vocab::Class;

/// Upper edges of the age cells in seconds, with their label text.
pub const AGE_EDGES: [(u64, &str); 12] = [
    (30, "30"),
    (60, "60"),
    (180, "180"),
    (300, "300"),
    (600, "600"),
    (1_200, "1200"),
    (3_600, "3600"),
    (7_200, "7200"),
    (14_400, "14400"),
    (28_800, "28800"),
    (86_400, "86400"),
    (u64::MAX, "+Inf"),
];

/// The open requests of one workload as they go on the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flight {
    /// Requests started: at least those that have ended.
    pub started: u64,
    /// Open requests by class, in the order of `Class::ALL`; their sum is started minus ended.
    pub by_class: [u64; Class::ALL.len()],
    /// Open inference requests by age cell.
    pub by_age: [u64; AGE_EDGES.len()],
    /// Age of the oldest open inference request.
    pub oldest: Duration,
}

impl Flight {
    /// Fits the open list to what started and ended.
    pub fn new(started: u64, ended: u64, open: &[OpenRequest]) -> Flight {
        // An end may be read after a start that it belongs to was not.
        let started = started.max(ended);
        let by_class = split(started - ended, open);
        let inference = by_class[Class::Inference as usize];
        let mut ages: Vec<Duration> = open
            .iter()
            .filter(|o| o.class == Class::Inference)
            .map(|o| o.age)
            .collect();
        // The list's surplus is what began after `started` was read: the youngest.
        ages.sort_unstable_by(|a, b| b.cmp(a));
        ages.truncate(usize::try_from(inference).unwrap_or(usize::MAX));
        let mut by_age = [0; AGE_EDGES.len()];
        for &age in &ages {
            let cell = AGE_EDGES.partition_point(|&(edge, _)| Duration::from_secs(edge) < age);
            by_age[cell.min(AGE_EDGES.len() - 1)] += 1;
        }
        Flight {
            started,
            by_class,
            by_age,
            oldest: ages.first().copied().unwrap_or_default(),
        }
    }
}

/// Splits a number of requests by class: as the open list says, the remainder to `unknown`. A
/// list that says more loses `unknown` first, then from the largest class on.
fn split(total: u64, open: &[OpenRequest]) -> [u64; Class::ALL.len()] {
    let mut by_class = [0; Class::ALL.len()];
    for request in open {
        by_class[request.class as usize] += 1;
    }
    let listed: u64 = by_class.iter().sum();
    let unknown = Class::Unknown as usize;
    by_class[unknown] += total.saturating_sub(listed);
    let mut surplus = listed.saturating_sub(total);
    let mut next = unknown;
    while surplus > 0 {
        let taken = surplus.min(by_class[next]);
        by_class[next] -= taken;
        surplus -= taken;
        let largest = (0..by_class.len()).max_by_key(|&i| by_class[i]);
        next = largest.unwrap_or(unknown);
    }
    by_class
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(class: Class, seconds: u64) -> OpenRequest {
        OpenRequest {
            class,
            age: Duration::from_secs(seconds),
        }
    }

    #[test]
    fn class_index_is_its_place_in_all() {
        for (place, &class) in Class::ALL.iter().enumerate() {
            assert_eq!(class as usize, place);
        }
    }

    #[test]
    fn the_split_always_adds_up_to_started_minus_ended() {
        for started in 0..8 {
            for ended in 0..8 {
                for n in 0..4_u64.pow(3) {
                    let (a, b, c) = (n % 4, n / 4 % 4, n / 16);
                    let mut list = vec![open(Class::Inference, 5); a as usize];
                    list.extend(vec![open(Class::Probe, 5); b as usize]);
                    list.extend(vec![open(Class::Unknown, 5); c as usize]);
                    let flight = Flight::new(started, ended, &list);
                    let sum: u64 = flight.by_class.iter().sum();
                    assert_eq!(flight.started, ended + sum, "{started} {ended} {list:?}");
                    assert_eq!(flight.started, started.max(ended));
                    let aged: u64 = flight.by_age.iter().sum();
                    assert_eq!(aged, flight.by_class[0], "{started} {ended} {list:?}");
                }
            }
        }
    }

    #[test]
    fn a_surplus_comes_off_unknown_first_and_then_off_the_largest() {
        let mut list = vec![open(Class::Inference, 5); 4];
        list.extend([
            open(Class::Probe, 5),
            open(Class::Unknown, 5),
            open(Class::Unknown, 5),
        ]);
        assert_eq!(Flight::new(9, 0, &list).by_class, [4, 0, 1, 0, 4]);
        assert_eq!(Flight::new(7, 0, &list).by_class, [4, 0, 1, 0, 2]);
        assert_eq!(Flight::new(6, 0, &list).by_class, [4, 0, 1, 0, 1]);
        assert_eq!(Flight::new(4, 0, &list).by_class, [3, 0, 1, 0, 0]);
        assert_eq!(Flight::new(1, 0, &list).by_class, [0, 0, 1, 0, 0]);
    }

    #[test]
    fn an_age_on_an_edge_belongs_to_the_cell_below_it() {
        for (i, &(edge, _)) in AGE_EDGES.iter().enumerate().take(11) {
            for (seconds, cell) in [(edge - 1, i), (edge, i), (edge + 1, i + 1)] {
                let flight = Flight::new(1, 0, &[open(Class::Inference, seconds)]);
                assert_eq!(flight.by_age[cell], 1, "{seconds}");
            }
        }
        let new = Flight::new(1, 0, &[open(Class::Inference, 0)]);
        assert_eq!(new.by_age[0], 1);
    }

    #[test]
    fn only_inference_has_an_age_and_the_oldest_stay() {
        let list = [
            open(Class::Inference, 10),
            open(Class::Inference, 100),
            open(Class::Probe, 1_000),
        ];
        assert_eq!(Flight::new(3, 0, &list).oldest, Duration::from_secs(100));
        let fitted = Flight::new(2, 0, &list);
        assert_eq!(
            (fitted.by_class[0], fitted.by_age[0], fitted.by_age[2]),
            (1, 0, 1)
        );
        assert_eq!(Flight::new(0, 0, &[]).oldest, Duration::ZERO);
    }
}
