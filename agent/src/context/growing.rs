//! A total of something whose counter may begin again.

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Growing {
    /// What earlier counters had come to.
    base: u64,
    /// What the present one says.
    last: u64,
    /// Which one that is.
    of: u64,
}

impl Growing {
    /// Takes in what the counter `of` says now. Another counter than before, or one that was set
    /// back, goes on from the sum.
    pub fn take(&mut self, value: u64, of: u64) {
        if self.of != of || value < self.last {
            self.base = self.base.saturating_add(self.last);
        }
        (self.last, self.of) = (value, of);
    }

    /// The total.
    pub fn total(self) -> u64 {
        self.base.saturating_add(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_begins_again_goes_on_from_the_sum() {
        let mut total = Growing::default();
        total.take(100, 7);
        total.take(150, 7);
        assert_eq!(total.total(), 150);
        total.take(20, 7);
        assert_eq!(total.total(), 170, "set back");
        total.take(20, 7);
        assert_eq!(total.total(), 170, "nothing happened");
        total.take(60, 8);
        assert_eq!(
            total.total(),
            230,
            "another one that is ahead of the old one"
        );
        total.take(u64::MAX, 9);
        assert_eq!(total.total(), u64::MAX);
    }
}
