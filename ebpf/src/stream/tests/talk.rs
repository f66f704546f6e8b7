//! Conversations made at random, and how they are played to the tap.

use super::noise::Noise;
use super::tap::Tap;
use crate::hist::GAP_BOUNDS_NS;

/// Some requests, then their replies.
#[derive(Clone, Debug, Default)]
pub struct Turn {
    pub requests: Vec<u8>,
    pub replies: Vec<u8>,
}

/// A connection's whole life.
#[derive(Clone, Debug, Default)]
pub struct Talk {
    pub turns: Vec<Turn>,
    /// The last reply ends with the connection.
    pub until_close: bool,
}

/// When each byte of the two streams passed.
#[derive(Clone, Debug, Default)]
pub struct Played {
    pub requests: Vec<u8>,
    pub replies: Vec<u8>,
    pub request_times: Vec<u64>,
    pub reply_times: Vec<u64>,
    pub end: u64,
}

const BLANKS: [&str; 5] = ["", " ", " ", "\t", "  \t "];

struct Writer<'a> {
    noise: &'a mut Noise,
    out: Vec<u8>,
    newline: &'static str,
}

impl Writer<'_> {
    fn line(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
        self.out.extend_from_slice(self.newline.as_bytes());
    }

    fn field(&mut self, name: &str, value: &str) {
        let (before, after) = (self.noise.pick(&BLANKS), self.noise.pick(&BLANKS));
        let text = format!("{}:{before}{value}{after}", self.noise.cased(name));
        self.line(&text);
    }

    /// Fields that mean nothing; now and then one that is about as long as a line that is kept.
    fn noise_fields(&mut self) {
        for _ in 0..self.noise.below(4) {
            let name = self.noise.within(1, 20);
            let name = format!("x{}", self.noise.word(name));
            let len = if self.noise.once_in(2) {
                self.noise.within(60, 68).saturating_sub(name.len() + 1)
            } else {
                self.noise.below(200)
            };
            let value = self.noise.word(len);
            self.line(&format!("{name}:{value}"));
        }
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len)
            .map(|_| self.noise.pick(b"{}\",:\n\r aGET POST"))
            .collect()
    }

    fn plain(&mut self) -> Vec<u8> {
        let len = match self.noise.below(6) {
            0 => 0,
            1 => self.noise.below(20_000),
            _ => self.noise.below(2500),
        };
        self.bytes(len)
    }

    fn chunked(&mut self, body: &[u8], one_a_chunk: &[usize]) {
        let mut from = 0;
        let mut cuts = one_a_chunk.iter().copied();
        while from < body.len() {
            let to = match cuts.next() {
                Some(to) => to,
                None => from + self.noise.within(1, 3000).min(body.len() - from),
            };
            let mut size = format!("{:x}", to - from);
            if self.noise.once_in(2) {
                size = size.to_uppercase();
            }
            if self.noise.once_in(8) {
                size = format!("000{size}");
            }
            if self.noise.once_in(8) {
                let len = self.noise.below(150);
                size += &format!(" ;x={}", self.noise.word(len));
            }
            self.line(&size);
            self.out.extend_from_slice(&body[from..to]);
            self.line("");
            from = to;
        }
        self.line("0");
        if self.noise.once_in(4) {
            self.noise_fields();
        }
        self.line("");
    }

    fn event(&mut self, text: &mut String, end: &str) {
        let len = if self.noise.once_in(8) {
            self.noise.below(700)
        } else {
            self.noise.below(90)
        };
        let word = self.noise.word(len);
        match self.noise.below(14) {
            0 => *text += &format!(": ping {word}{end}{end}"),
            1 => *text += &format!("event: ping{end}{end}"),
            2 => *text += &format!("data:{word}{end}data: {word}{end}{end}"),
            3 => *text += &format!("data{end}{end}"),
            4 => *text += &format!("event: x{word}{end}data:{word}{end}id: 1{end}{end}"),
            5 => *text += &format!("database: {word}{end}Data: {word}{end}data :{word}{end}{end}"),
            6 => *text += &format!("data: [D, not the end{word}{end}{end}"),
            8 => *text += &format!("event: ping{end}data: {{{word}}}{end}{end}"),
            9 => *text += &format!("event:ping{end}data{end}data: {word}{end}{end}"),
            7 => *text += end,
            _ => *text += &format!("data: {{{word}}}{end}{end}"),
        }
    }

    /// A stream of events, and where each item of it ends.
    fn stream(&mut self, ndjson: bool) -> (Vec<u8>, Vec<usize>) {
        let end = self.noise.pick(&["\n", "\n", "\r\n"]);
        let n = if self.noise.once_in(6) {
            self.noise.below(200)
        } else {
            self.noise.below(30)
        };
        let (mut text, mut cuts) = (String::new(), Vec::new());
        for _ in 0..n {
            if ndjson {
                let len = self.noise.below(120);
                text += &format!("{}{end}", self.noise.word(len));
            } else {
                self.event(&mut text, end);
            }
            cuts.push(text.len());
        }
        if !ndjson && self.noise.once_in(2) {
            let blank = self.noise.pick(&["", " "]);
            text += &format!("data:{blank}[DONE]{end}{end}");
        } else if self.noise.once_in(3) {
            text += "data: cut";
        }
        cuts.push(text.len());
        cuts.dedup();
        (text.into_bytes(), cuts)
    }

    fn request(&mut self) -> &'static str {
        let method = self
            .noise
            .pick(&["GET", "POST", "POST", "HEAD", "PUT", "DELETE", "OPTIONS"]);
        self.newline = self.noise.pick(&["\r\n", "\r\n", "\n"]);
        if self.noise.once_in(10) {
            self.line("");
        }
        let len = self.noise.below(200);
        let path = self.noise.word(len);
        self.line(&format!("{method} /{path} HTTP/1.1"));
        self.noise_fields();
        match self.noise.below(4) {
            0 => self.line(""),
            1 => {
                self.field("transfer-encoding", "chunked");
                self.noise_fields();
                self.line("");
                let body = self.plain();
                self.chunked(&body, &[]);
            }
            _ => {
                let body = self.plain();
                self.field("content-length", &body.len().to_string());
                self.field("content-type", "application/json");
                self.noise_fields();
                self.line("");
                self.out.extend_from_slice(&body);
            }
        }
        method
    }

    /// True when the reply ends with the connection.
    fn reply(&mut self, method: &str, last: bool) -> bool {
        self.newline = self.noise.pick(&["\r\n", "\r\n", "\n"]);
        for _ in 0..self.noise.below(3) * self.noise.below(2) {
            let status = self.noise.pick(&[100, 102, 103]);
            self.line(&format!("HTTP/1.1 {status} Wait"));
            self.noise_fields();
            self.line("");
        }
        let status = self
            .noise
            .pick(&[200, 200, 200, 200, 204, 304, 400, 404, 500, 503]);
        let version = self.noise.pick(&["1", "1", "0"]);
        let reason = self.noise.pick(&[" OK", ""]);
        self.line(&format!("HTTP/1.{version} {status}{reason}"));
        self.noise_fields();
        let empty = method == "HEAD" || status == 204 || status == 304;
        let kind = self.noise.below(5);
        let (body, cuts) = match kind {
            0 | 1 => {
                self.field("content-type", "text/event-stream; charset=utf-8");
                self.stream(false)
            }
            2 => {
                let kind = self
                    .noise
                    .pick(&["application/x-ndjson", "application/jsonl"]);
                self.field("content-type", kind);
                self.stream(true)
            }
            _ => (self.plain(), Vec::new()),
        };
        let framing = self.noise.below(if last { 4 } else { 3 });
        match framing {
            0 => self.field("content-length", &body.len().to_string()),
            3 => {}
            _ => {
                let coding = self.noise.pick(&["chunked", "gzip, chunked"]);
                self.field("transfer-encoding", coding);
            }
        }
        self.noise_fields();
        self.line("");
        if empty {
            return false;
        }
        match framing {
            0 | 3 => self.out.extend_from_slice(&body),
            _ => {
                let cuts = if self.noise.once_in(3) {
                    Vec::new()
                } else {
                    cuts
                };
                self.chunked(&body, &cuts);
            }
        }
        framing == 3
    }
}

impl Talk {
    pub fn random(noise: &mut Noise) -> Talk {
        let mut talk = Talk::default();
        let turns = noise.within(1, 4);
        for turn in 0..turns {
            let mut w = Writer {
                noise,
                out: Vec::new(),
                newline: "\r\n",
            };
            let n = if w.noise.once_in(4) {
                w.noise.within(2, 4)
            } else {
                1
            };
            let methods: Vec<&str> = (0..n).map(|_| w.request()).collect();
            let requests = core::mem::take(&mut w.out);
            for (i, method) in methods.iter().enumerate() {
                let last = turn + 1 == turns && i + 1 == n;
                talk.until_close |= w.reply(method, last);
            }
            talk.turns.push(Turn {
                requests,
                replies: w.out,
            });
        }
        talk
    }

    /// Plays the talk in segments of random length; `before` is called ahead of each.
    pub fn play(
        &self,
        noise: &mut Noise,
        tap: &mut Tap,
        mut before: impl FnMut(&mut Tap, &mut Noise),
    ) -> Played {
        let mut p = Played {
            end: 1_000_000_000,
            ..Played::default()
        };
        for turn in &self.turns {
            for reply in [false, true] {
                let bytes = if reply { &turn.replies } else { &turn.requests };
                let mut from = 0;
                for n in noise.cuts(bytes.len()) {
                    p.end += delay(noise);
                    before(tap, noise);
                    let part = &bytes[from..from + n];
                    if reply {
                        tap.replies(part, p.end);
                        p.reply_times.extend(part.iter().map(|_| p.end));
                    } else {
                        tap.requests(part, p.end);
                        p.request_times.extend(part.iter().map(|_| p.end));
                    }
                    from += n;
                }
            }
            p.requests.extend_from_slice(&turn.requests);
            p.replies.extend_from_slice(&turn.replies);
        }
        p
    }
}

/// Time between two segments: often exactly a bound of the histogram, or just past it.
fn delay(noise: &mut Noise) -> u64 {
    match noise.below(6) {
        0 => 0,
        1 => noise.pick(&GAP_BOUNDS_NS[..18]),
        2 => noise.pick(&GAP_BOUNDS_NS[..18]) + 1,
        _ => noise.below(3_000_000) as u64,
    }
}
