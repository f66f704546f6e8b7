//! A buffer for captured bytes that leaves no copy of them behind: it is zeroed when it is
//! cleared, when it grows into a larger block and when it is dropped. A `Zeroizing<Vec<u8>>` does
//! the last of these only.

use std::ops::Deref;

use zeroize::Zeroize;

/// Smallest block, in bytes.
const LEAST: usize = 256;

/// See the module.
#[derive(Default)]
pub struct Wiped(Vec<u8>);

impl Wiped {
    /// Adds bytes at the end.
    pub fn push(&mut self, bytes: &[u8]) {
        let needed = self.0.len() + bytes.len();
        if needed > self.0.capacity() {
            // Growing in place would leave the old block with its content to the allocator.
            let mut larger = Vec::with_capacity(needed.max(2 * self.0.len()).max(LEAST));
            larger.extend_from_slice(&self.0);
            self.0.zeroize();
            self.0 = larger;
        }
        self.0.extend_from_slice(bytes);
    }

    /// Removes the first `n` bytes, or all when there are fewer.
    pub fn drop_front(&mut self, n: usize) {
        let n = n.min(self.0.len());
        self.0.copy_within(n.., 0);
        let left = self.0.len() - n;
        self.0[left..].zeroize();
        self.0.truncate(left);
    }

    /// Bytes of the block it holds.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.0.zeroize();
    }
}

impl Deref for Wiped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Wiped {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_was_pushed_and_drops_its_front() {
        let mut wiped = Wiped::default();
        for piece in [&b"ab"[..], &[b'c'; 400], b"", b"de"] {
            wiped.push(piece);
        }
        assert_eq!((wiped.len(), &wiped[..3]), (404, &b"abc"[..]));
        wiped.drop_front(402);
        assert_eq!(&wiped[..], b"de");
        wiped.drop_front(9);
        assert!(wiped.is_empty());
        wiped.push(b"x");
        wiped.clear();
        assert!(wiped.is_empty());
    }

    #[test]
    fn bytes_that_were_removed_are_zero_in_the_block() {
        let mut wiped = Wiped::default();
        wiped.push(b"secret");
        wiped.drop_front(3);
        wiped.0.resize(6, 1);
        assert_eq!(&wiped[..], b"ret\x01\x01\x01");
        wiped.clear();
        let mut block = std::mem::take(&mut wiped.0);
        block.resize(8, 0);
        assert_eq!(block, [0; 8]);
    }
}
