//! The events of a reply stream as both ends count them.

use serde::{Deserialize, Serialize};

/// What an event carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A delta with a role and no content.
    Role,
    /// Generated content: text, reasoning or a tool call.
    Content,
    /// A delta with empty content.
    Empty,
    /// The event that says why generation ended.
    Finish,
    /// Usage and nothing else.
    Usage,
    /// `data: [DONE]`.
    Done,
    /// A ping event (it has a data field).
    Ping,
    /// An SSE comment (it has none).
    Comment,
    /// An error inside the stream.
    Error,
    /// Envelope events (`message_start`, `response.created`, ...).
    Other,
}

impl Kind {
    /// Whether it counts as an event: it has a data field.
    pub fn is_data(self) -> bool {
        self != Self::Comment
    }

    /// Whether it ends a gap, once content has begun.
    pub fn ends_gap(self) -> bool {
        !matches!(self, Self::Done | Self::Usage | Self::Ping | Self::Comment)
    }
}

/// What one end saw of one stream. Stamps are 0 when it did not happen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tally {
    /// Events with a data field, `[DONE]` and pings included.
    pub data: u64,
    /// Events with content.
    pub content: u64,
    /// Ping events.
    pub pings: u64,
    /// Comments.
    pub comments: u64,
    /// Gaps between consecutive events from the first content on; `[DONE]`,
    /// usage-only events, pings and comments end none.
    pub gaps: u64,
    /// Their sum.
    pub gap_sum_ns: u64,
    /// The longest.
    pub gap_max_ns: u64,
    /// Whether `[DONE]` came.
    pub done: bool,
    /// Whether an error event came.
    pub error: bool,
    /// First event or comment.
    pub first_ns: u64,
    /// First event with content.
    pub first_content_ns: u64,
    /// Last event with content.
    pub last_content_ns: u64,
    /// Last event that ended a gap (or began the first).
    pub last_gap_ns: u64,
    /// Every event with its stamp, when asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<(Kind, u64)>,
}

impl Tally {
    /// Takes one event.
    pub fn note(&mut self, kind: Kind, at: u64, keep: bool) {
        if self.first_ns == 0 {
            self.first_ns = at;
        }
        self.data += u64::from(kind.is_data());
        self.pings += u64::from(kind == Kind::Ping);
        self.comments += u64::from(kind == Kind::Comment);
        self.done |= kind == Kind::Done;
        self.error |= kind == Kind::Error;
        if kind == Kind::Content {
            self.content += 1;
            self.last_content_ns = at;
            if self.first_content_ns == 0 {
                self.first_content_ns = at;
                self.last_gap_ns = at;
                self.push(kind, at, keep);
                return;
            }
        }
        if self.first_content_ns != 0 && kind.ends_gap() {
            let gap = at.saturating_sub(self.last_gap_ns);
            self.gaps += 1;
            self.gap_sum_ns += gap;
            self.gap_max_ns = self.gap_max_ns.max(gap);
            self.last_gap_ns = at;
        }
        self.push(kind, at, keep);
    }

    fn push(&mut self, kind: Kind, at: u64, keep: bool) {
        if keep {
            self.log.push((kind, at));
        }
    }

    /// The gaps in seconds, from the log.
    pub fn gap_seconds(&self) -> Vec<f64> {
        let start = self.log.iter().position(|(kind, _)| *kind == Kind::Content);
        let times: Vec<u64> = self.log[start.unwrap_or(self.log.len())..]
            .iter()
            .filter(|(kind, _)| kind.ends_gap())
            .map(|(_, at)| *at)
            .collect();
        times
            .windows(2)
            .map(|pair| (pair[1] - pair[0]) as f64 / 1e9)
            .collect()
    }

    /// What must be equal on both ends: everything but the stamps.
    pub fn counts(&self) -> (u64, u64, u64, u64, u64, bool, bool) {
        (
            self.data,
            self.content,
            self.pings,
            self.comments,
            self.gaps,
            self.done,
            self.error,
        )
    }
}

/// Tokens as a reply's usage tells them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Of the prompt.
    pub prompt: u64,
    /// Generated.
    pub generation: u64,
    /// Of the prompt, found in the cache.
    pub cached: u64,
}

/// How a request ended, in the words of enginetap's closed list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Below 400 and complete.
    Success,
    /// 5xx, or an error event.
    Error,
    /// 4xx.
    Refused,
    /// The client left before the end.
    Abort,
    /// 408 or 504.
    Timeout,
    /// The server closed before the end.
    Reset,
}

impl Outcome {
    /// The outcome of a complete reply.
    pub fn of(status: u16, error_event: bool) -> Self {
        match status {
            408 | 504 => Self::Timeout,
            500.. => Self::Error,
            400.. => Self::Refused,
            _ if error_event => Self::Error,
            _ => Self::Success,
        }
    }

    /// The label value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Error => "error",
            Self::Refused => "refused",
            Self::Abort => "abort",
            Self::Timeout => "timeout",
            Self::Reset => "reset",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_begin_at_the_first_content_and_done_and_usage_end_none() {
        let mut tally = Tally::default();
        let events = [
            (Kind::Comment, 1),
            (Kind::Role, 2),
            (Kind::Content, 10),
            (Kind::Ping, 11),
            (Kind::Empty, 15),
            (Kind::Finish, 16),
            (Kind::Usage, 17),
            (Kind::Done, 18),
        ];
        for (kind, at) in events {
            tally.note(kind, at, true);
        }
        assert_eq!((tally.gaps, tally.gap_sum_ns, tally.gap_max_ns), (2, 6, 5));
        assert_eq!(tally.gap_seconds().len(), 2);
        assert_eq!(
            (
                tally.data,
                tally.content,
                tally.first_ns,
                tally.first_content_ns
            ),
            (7, 1, 1, 10)
        );
    }
}
