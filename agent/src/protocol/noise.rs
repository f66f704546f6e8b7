//! Hostile input for tests: seeded random bytes, biased towards what the parsers react to.

/// A xorshift generator; the same seed gives the same bytes on every machine.
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Noise {
        Noise(seed | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Up to `max` bytes, most of them from the alphabets of HTTP, SSE and JSON.
    pub(crate) fn bytes(&mut self, max: usize) -> Vec<u8> {
        const WORDS: [&str; 24] = [
            "{",
            "}",
            "[",
            "]",
            "\"",
            "\\",
            ":",
            ",",
            "\r\n",
            "\n",
            "data: ",
            "\"model\":",
            "\"usage\":",
            "\"choices\":[",
            "\"delta\":{\"content\":\"",
            "0\r\n\r\n",
            "1f\r\n",
            "12",
            "null",
            "[DONE]",
            "\\\"",
            "event: ",
            "HTTP/1.1 ",
            "Content-Length: ",
        ];
        let length = self.next() as usize % (max + 1);
        let mut out = Vec::new();
        while out.len() < length {
            let n = self.next();
            if n.is_multiple_of(4) {
                out.push((n >> 8) as u8);
            } else {
                out.extend_from_slice(WORDS[(n >> 8) as usize % WORDS.len()].as_bytes());
            }
        }
        out
    }
}
