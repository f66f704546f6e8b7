//! Event streams as a client reads them, in pieces of any size.

use super::classify::{Facts, classify};
use crate::event::{Kind, Tally};

/// Which stream it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Sse,
    Ndjson,
}

/// The reader of one stream.
#[derive(Debug)]
pub(super) struct EventReader {
    format: Format,
    line: Vec<u8>,
    name: String,
    data: Option<String>,
    comments: usize,
    keep: bool,
}

impl EventReader {
    pub fn new(format: Format, keep: bool) -> Self {
        let line = Vec::new();
        Self {
            format,
            line,
            name: String::new(),
            data: None,
            comments: 0,
            keep,
        }
    }

    /// Takes body bytes that were read at `now`.
    pub fn feed(&mut self, mut bytes: &[u8], now: u64, tally: &mut Tally, facts: &mut Facts) {
        while let Some(end) = bytes.iter().position(|b| *b == b'\n') {
            self.line.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end + 1..];
            if self.line.last() == Some(&b'\r') {
                self.line.pop();
            }
            let line = std::mem::take(&mut self.line);
            self.take_line(&String::from_utf8_lossy(&line), now, tally, facts);
        }
        self.line.extend_from_slice(bytes);
    }

    fn take_line(&mut self, line: &str, now: u64, tally: &mut Tally, facts: &mut Facts) {
        if self.format == Format::Ndjson {
            if !line.is_empty() {
                tally.note(classify("", line, facts), now, self.keep);
            }
        } else if line.is_empty() {
            for _ in 0..std::mem::take(&mut self.comments) {
                tally.note(Kind::Comment, now, self.keep);
            }
            let name = std::mem::take(&mut self.name);
            if let Some(data) = self.data.take() {
                tally.note(classify(&name, &data, facts), now, self.keep);
            }
        } else if line.starts_with(':') {
            self.comments += 1;
        } else if let Some((field, value)) = line.split_once(':') {
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => self.name = value.to_owned(),
                "data" => match &mut self.data {
                    Some(data) => {
                        data.push('\n');
                        data.push_str(value);
                    }
                    None => self.data = Some(value.to_owned()),
                },
                _ => {}
            }
        }
    }
}
