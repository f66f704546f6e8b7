//! Value to bucket and bucket to upper bound, for both worlds. Bounds are inclusive (`le`): a
//! value equal to a bound counts in that bound's bucket. Pure; the edges are unit-tested.

/// Upper bounds of the gap histogram in nanoseconds; one more bucket, `+Inf`, follows.
pub const GAP_BOUNDS_NS: [u64; 21] = [
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    15_000_000,
    20_000_000,
    25_000_000,
    30_000_000,
    40_000_000,
    50_000_000,
    75_000_000,
    100_000_000,
    150_000_000,
    200_000_000,
    300_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
];

/// Number of gap buckets, `+Inf` included.
pub const GAP_BUCKETS: usize = GAP_BOUNDS_NS.len() + 1;

/// The bucket a gap belongs to: the first whose bound is not below it.
///
/// Leaves at the first match, so that a verifier that follows every path sees one per bucket.
#[inline(always)]
pub fn gap_bucket(ns: u64) -> usize {
    let mut i = 0;
    while i < GAP_BOUNDS_NS.len() {
        if ns <= GAP_BOUNDS_NS[i] {
            return i;
        }
        i += 1;
    }
    GAP_BOUNDS_NS.len()
}

/// Upper bounds of the read-delay histogram in nanoseconds; one more bucket, `+Inf`, follows.
pub const READ_DELAY_BOUNDS_NS: [u64; 15] = [
    100_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];

/// Number of read-delay buckets, `+Inf` included.
pub const READ_DELAY_BUCKETS: usize = READ_DELAY_BOUNDS_NS.len() + 1;

/// The bucket a read delay belongs to.
#[inline(always)]
pub fn read_delay_bucket(ns: u64) -> usize {
    let mut i = 0;
    while i < READ_DELAY_BOUNDS_NS.len() {
        if ns <= READ_DELAY_BOUNDS_NS[i] {
            return i;
        }
        i += 1;
    }
    READ_DELAY_BOUNDS_NS.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_belongs_to_that_bound() {
        for (i, &bound) in GAP_BOUNDS_NS.iter().enumerate() {
            assert_eq!(gap_bucket(bound), i, "at {bound}");
            assert_eq!(gap_bucket(bound - 1), i, "just below {bound}");
            assert_eq!(gap_bucket(bound + 1), i + 1, "just above {bound}");
        }
    }

    #[test]
    fn read_delays_are_inclusive_too() {
        for (i, &bound) in READ_DELAY_BOUNDS_NS.iter().enumerate() {
            assert_eq!(read_delay_bucket(bound), i);
            assert_eq!(read_delay_bucket(bound + 1), i + 1);
        }
    }

    #[test]
    fn zero_is_in_the_first_bucket_and_the_largest_value_in_the_last() {
        assert_eq!(gap_bucket(0), 0);
        assert_eq!(gap_bucket(u64::MAX), GAP_BUCKETS - 1);
    }
}
