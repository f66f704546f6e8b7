//! Which frames meet which fault.

/// A way through the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// From the client to the server: what the tap sees after the relay.
    ToServer,
    /// From the server to the client: what the tap sees before the relay.
    ToClient,
}

/// What happens to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// It is lost.
    Drop,
    /// It arrives twice.
    Duplicate,
    /// It arrives behind so many later frames of its connection and way, or a little later when
    /// they do not come.
    Behind(u8),
}

/// The faults of one way.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Frames of a thousand that are lost.
    pub drop: u32,
    /// Frames of a thousand that arrive twice.
    pub duplicate: u32,
    /// Frames of a thousand that arrive behind the next one to three.
    pub reorder: u32,
    /// Faults of certain frames: the n-th of every connection, from 1, of those that carry bytes
    /// for the first time.
    pub exact: Vec<(u32, Fault)>,
}

impl Faults {
    /// One frame in a hundred is lost.
    pub fn drops() -> Self {
        Self {
            drop: 10,
            ..Self::default()
        }
    }

    /// One frame in a hundred arrives twice.
    pub fn duplicates() -> Self {
        Self {
            duplicate: 10,
            ..Self::default()
        }
    }

    /// One frame in a hundred is overtaken.
    pub fn reorders() -> Self {
        Self {
            reorder: 10,
            ..Self::default()
        }
    }

    /// All three, each of one frame in a hundred.
    pub fn all() -> Self {
        Self {
            drop: 10,
            duplicate: 10,
            reorder: 10,
            ..Self::default()
        }
    }

    /// These frames and no others.
    pub fn exactly(exact: &[(u32, Fault)]) -> Self {
        Self {
            exact: exact.to_vec(),
            ..Self::default()
        }
    }

    /// The fault of the next frame: by its number among its connection's first carriers of bytes,
    /// when it is one, else by the draw.
    pub(super) fn of(&self, first: Option<u32>, draw: &mut Draw) -> Option<Fault> {
        let listed = |n: u32| self.exact.iter().find(|(at, _)| *at == n);
        if let Some((_, fault)) = first.and_then(listed) {
            return Some(*fault);
        }
        let n = draw.below(1_000);
        let (drop, duplicate) = (self.drop, self.drop + self.duplicate);
        if n < drop {
            Some(Fault::Drop)
        } else if n < duplicate {
            Some(Fault::Duplicate)
        } else if n < duplicate + self.reorder {
            Some(Fault::Behind(1 + draw.below(3) as u8))
        } else {
            None
        }
    }
}

/// A list of numbers that a seed determines (SplitMix64).
#[derive(Clone, Debug)]
pub(super) struct Draw(u64);

impl Draw {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let a = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let b = (a ^ (a >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        b ^ (b >> 31)
    }

    fn below(&mut self, n: u32) -> u32 {
        (self.next() % u64::from(n)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_its_list_again_and_each_fault_its_share() {
        let list = |seed| {
            let mut draw = Draw::new(seed);
            (0..100_000)
                .map(|_| Faults::all().of(None, &mut draw))
                .collect::<Vec<_>>()
        };
        assert_eq!(list(7), list(7));
        assert_ne!(list(7), list(8));
        let count = |f: fn(&Fault) -> bool| list(7).iter().flatten().filter(|x| f(x)).count();
        for n in [
            count(|f| *f == Fault::Drop),
            count(|f| *f == Fault::Duplicate),
            count(|f| matches!(f, Fault::Behind(1..=3))),
        ] {
            assert!((850..1_150).contains(&n), "{n} of 100,000");
        }
    }

    #[test]
    fn a_listed_frame_meets_its_fault_and_no_other_does() {
        let faults = Faults::exactly(&[(2, Fault::Behind(1))]);
        let mut draw = Draw::new(1);
        assert_eq!(faults.of(Some(1), &mut draw), None);
        assert_eq!(faults.of(Some(2), &mut draw), Some(Fault::Behind(1)));
        assert_eq!(faults.of(None, &mut draw), None);
    }
}
