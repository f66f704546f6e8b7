//! A seeded source of noise, so that a failure can be run again.

/// xorshift64*.
#[derive(Clone, Debug)]
pub struct Noise(u64);

impl Noise {
    pub fn new(seed: u64) -> Noise {
        Noise(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 16) as usize % n
    }

    /// From `from` to `to`, both included.
    pub fn within(&mut self, from: usize, to: usize) -> usize {
        from + self.below(to - from + 1)
    }

    /// True once in `n` times.
    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Letters with no meaning.
    pub fn word(&mut self, len: usize) -> String {
        (0..len)
            .map(|_| self.pick(b"abcdefghijklmnopqrstuvwxyz0123456789-") as char)
            .collect()
    }

    /// The same letters, some of them in the other case.
    pub fn cased(&mut self, text: &str) -> String {
        let mut one = |c: char| {
            if self.once_in(3) {
                c.to_ascii_uppercase()
            } else {
                c
            }
        };
        text.chars().map(&mut one).collect()
    }

    /// Lengths of segments that `len` bytes are cut into.
    pub fn cuts(&mut self, len: usize) -> Vec<usize> {
        let most = self.pick(&[1, 3, 40, 200, 1448, 1448, 4000, 70_000, usize::MAX]);
        let mut left = len;
        let mut cuts = Vec::new();
        while left > 0 {
            let n = if most == usize::MAX {
                left
            } else {
                self.within(1, most).min(left)
            };
            cuts.push(n);
            left -= n;
        }
        cuts
    }
}
