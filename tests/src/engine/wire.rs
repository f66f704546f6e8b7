//! Bytes ready to be written, with the moments and boundaries inside them.

use super::dialect::Step;
use crate::script::{Chunk, Framing, Part, Script};

/// A moment that happens when a byte is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// First byte of the head.
    Head,
    /// Last byte of an event.
    Event(Step),
    /// Last byte of so much body payload.
    Body(usize),
}

/// Bytes, marks by the number of bytes before them, and forced boundaries.
#[derive(Clone, Debug, Default)]
pub(super) struct Wire {
    pub bytes: Vec<u8>,
    pub marks: Vec<(usize, Mark)>,
    pub cuts: Vec<usize>,
}

/// Payload with the ends of the events in it.
#[derive(Clone, Debug, Default)]
pub(super) struct Payload {
    pub bytes: Vec<u8>,
    pub ends: Vec<(usize, Step)>,
}

impl Wire {
    fn cut(&mut self, script: &Script, part: Part, start: usize, length: usize) {
        if let Some(cut) = script.cut
            && cut.part == part
            && cut.at > 0
            && cut.at <= length
        {
            self.cuts.push(start + cut.at);
        }
    }

    pub fn head(script: &Script, head: &str) -> Self {
        let mut wire = Self {
            bytes: head.as_bytes().to_vec(),
            ..Self::default()
        };
        wire.marks.push((1, Mark::Head));
        wire.cut(script, Part::Head, 0, head.len());
        wire
    }

    /// Appends payload in the framing of the reply.
    pub fn push(&mut self, script: &Script, framing: Framing, payload: &Payload) {
        let size = match (framing, script.chunk) {
            (Framing::Chunked, Chunk::Bytes(n)) => n,
            _ => payload.bytes.len().max(1),
        };
        let mut start = 0;
        for piece in payload.bytes.chunks(size) {
            self.piece(script, framing, payload, start, piece);
            start += piece.len();
        }
    }

    fn piece(
        &mut self,
        script: &Script,
        framing: Framing,
        all: &Payload,
        start: usize,
        piece: &[u8],
    ) {
        let chunked = framing == Framing::Chunked;
        if chunked {
            let size = match script.upper {
                true => format!("{:X}{}\r\n", piece.len(), script.ext),
                false => format!("{:x}{}\r\n", piece.len(), script.ext),
            };
            self.cut(script, Part::Chunk, self.bytes.len(), size.len());
            self.bytes.extend_from_slice(size.as_bytes());
        }
        let (data, stop) = (self.bytes.len(), start + piece.len());
        self.bytes.extend_from_slice(piece);
        let tail = if chunked { 2 } else { 0 };
        let mut event = start;
        for (end, step) in all
            .ends
            .iter()
            .filter(|(end, _)| *end > start && *end <= stop)
        {
            self.cut(
                script,
                Part::Event,
                data + event - start,
                end - event + tail,
            );
            self.marks.push((data + end - start, Mark::Event(*step)));
            event = *end;
        }
        if event < stop {
            self.cut(script, Part::Event, data + event - start, stop - event);
        }
        self.marks.push((self.bytes.len(), Mark::Body(piece.len())));
        if chunked {
            self.bytes.extend_from_slice(b"\r\n");
        }
    }

    /// Appends the last chunk, where the framing has one.
    pub fn finish(&mut self, script: &Script, framing: Framing) {
        if framing != Framing::Chunked {
            return;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(b"0\r\n");
        for n in 0..script.trailers {
            self.bytes
                .extend_from_slice(format!("X-Trailer-{n}: value\r\n").as_bytes());
        }
        self.bytes.extend_from_slice(b"\r\n");
        self.cut(script, Part::Terminator, start, self.bytes.len() - start);
    }

    /// Ends of the write calls: the forced boundaries and every `size` bytes.
    pub fn boundaries(&self, size: Option<usize>) -> Vec<usize> {
        let mut ends = self.cuts.clone();
        if let Some(size) = size {
            ends.extend(
                (1..)
                    .map(|n| n * size)
                    .take_while(|end| *end < self.bytes.len()),
            );
        }
        ends.push(self.bytes.len());
        ends.sort_unstable();
        ends.dedup();
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Kind;
    use crate::script::Cut;

    fn payload() -> Payload {
        let step = |kind| Step { kind, index: 0 };
        let ends = vec![(4, step(Kind::Content)), (10, step(Kind::Done))];
        Payload {
            bytes: b"aaaabbbbbb".to_vec(),
            ends,
        }
    }

    #[test]
    fn marks_stand_at_the_last_byte_of_each_event_in_any_chunking() {
        let script = Script {
            chunk: Chunk::Bytes(3),
            ..Script::default()
        };
        let mut wire = Wire::default();
        wire.push(&script, Framing::Chunked, &payload());
        assert_eq!(
            wire.bytes,
            b"3\r\naaa\r\n3\r\nabb\r\n3\r\nbbb\r\n1\r\nb\r\n"
        );
        let events: Vec<usize> = wire
            .marks
            .iter()
            .filter(|(_, mark)| matches!(mark, Mark::Event(_)))
            .map(|(at, _)| *at)
            .collect();
        assert_eq!(events, [12, 28]);
    }

    #[test]
    fn a_cut_falls_into_every_such_part() {
        let cut = Some(Cut {
            part: Part::Chunk,
            at: 1,
        });
        let script = Script {
            cut,
            trailers: 1,
            ..Script::default()
        };
        let mut wire = Wire::default();
        wire.push(&script, Framing::Chunked, &payload());
        wire.push(&script, Framing::Chunked, &payload());
        wire.finish(&script, Framing::Chunked);
        assert_eq!(wire.boundaries(None), [1, 16, wire.bytes.len()]);
        assert_eq!(wire.boundaries(Some(1)).len(), wire.bytes.len());
    }
}
