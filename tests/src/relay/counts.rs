//! What the relay did: its own truth.

use std::collections::BTreeMap;

use super::Way;
use super::frame::{Segment, flag};

/// What was done with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deed {
    /// It was passed on once, in its turn.
    Passed,
    /// It was lost.
    Dropped,
    /// It was passed on twice.
    Duplicated,
    /// A later frame of its connection and way was passed on before it.
    Reordered,
    /// It was held, but no later frame came in time.
    Delayed,
    /// It was made up by the relay.
    Injected,
}

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A TCP segment with SYN.
    Syn,
    /// With FIN.
    Fin,
    /// With RST.
    Rst,
    /// With bytes, and none of these.
    Data,
    /// With none of these.
    Ack,
    /// No TCP segment.
    Other,
}

impl Kind {
    pub(super) fn of(s: &Segment) -> Self {
        if s.has(flag::RST) {
            Self::Rst
        } else if s.has(flag::SYN) {
            Self::Syn
        } else if s.has(flag::FIN) {
            Self::Fin
        } else if s.len() > 0 {
            Self::Data
        } else {
            Self::Ack
        }
    }
}

/// Frames by way, deed and kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<(Way, Deed, Kind), u64>);

impl Counts {
    pub(super) fn add(&mut self, way: Way, deed: Deed, kind: Kind) {
        *self.0.entry((way, deed, kind)).or_default() += 1;
    }

    /// Frames of any kind that this was done with.
    pub fn of(&self, way: Way, deed: Deed) -> u64 {
        self.sum(|w, d, _| w == way && d == deed)
    }

    /// Frames with bytes that this was done with.
    pub fn data(&self, way: Way, deed: Deed) -> u64 {
        self.sum(|w, d, k| w == way && d == deed && k == Kind::Data)
    }

    fn sum(&self, which: impl Fn(Way, Deed, Kind) -> bool) -> u64 {
        let mine = self.0.iter().filter(|((w, d, k), _)| which(*w, *d, *k));
        mine.map(|(_, n)| n).sum()
    }
}
