//! What the tap has seen against what the reference reads in the same bytes.

use super::reference::{Event, Kind, Message, replies, requests};
use super::talk::Played;
use super::tap::{Ended, Piece, Seen};
use crate::hist::{GAP_BUCKETS, gap_bucket};
use crate::stream::{
    BODY_CAPTURE, Ending, HEAD_CAPTURE, STREAM_CAPTURE, STREAM_EVENTS, TAIL_PIECES,
};

/// Times and kinds of the events of one reply.
pub fn gaps_hold(e: &Ended, events: &[Event], times: &[u64]) {
    assert_eq!(e.events as usize, events.len(), "events");
    assert_eq!(e.done, events.iter().any(|ev| ev.done), "done");
    let told: Vec<(usize, u64)> = events
        .iter()
        .enumerate()
        .filter(|(_, ev)| !ev.silent)
        .map(|(i, ev)| (i, times[ev.last]))
        .collect();
    assert_eq!(
        e.event,
        told.last().map_or(0, |&(_, at)| at),
        "time of the last event"
    );
    // What the kernel owes: every gap that ends with an event that was not handed over.
    let mut owed: Vec<u64> = told
        .windows(2)
        .filter(|w| w[1].0 >= e.captured as usize)
        .map(|w| (w[1].1 - w[0].1).max(1))
        .collect();
    assert_eq!(e.held, owed.pop().unwrap_or(0), "the held gap");
    let mut buckets = [0; GAP_BUCKETS];
    owed.iter().for_each(|&gap| buckets[gap_bucket(gap)] += 1);
    assert_eq!(e.gaps, buckets, "buckets");
    assert_eq!(e.gap_sum, owed.iter().sum::<u64>(), "sum of the gaps");
}

/// Checks all that was seen of a talk in which nothing was lost.
pub fn holds(p: &Played, seen: &Seen, closed: bool) {
    let asked = requests(&p.requests);
    let said = replies(&p.replies, &asked);
    assert_eq!(seen.unparsed, [], "unparsed");
    assert_eq!(seen.missed, 0);
    assert_eq!(seen.begun.len(), asked.len(), "requests");
    for (i, (b, m)) in seen.begun.iter().zip(&asked).enumerate() {
        assert_eq!(b.number as usize, i + 1);
        let first = m.first + blank_lines(&p.requests[m.first..]);
        assert_eq!(
            b.at, p.request_times[first],
            "start of request {}",
            b.number
        );
    }
    let last: Vec<&(u32, Message)> = said.iter().filter(|(_, m)| m.status >= 200).collect();
    let whole = last.len() - usize::from(!closed && last.last().is_some_and(|l| l.1.until_close));
    assert_eq!(seen.ended.len(), whole, "replies");
    for (e, (number, m)) in seen.ended.iter().zip(&last) {
        assert_eq!((e.number, e.status), (*number, m.status));
        assert_eq!(e.ending, Ending::Complete);
        let ends = if m.until_close {
            p.end
        } else {
            p.reply_times[m.end - 1]
        };
        assert_eq!(e.at, ends, "end of reply {number}");
        assert_eq!(e.head, p.reply_times[m.first], "head of reply {number}");
        assert_eq!(
            e.reply_bytes,
            (m.end - m.first) as u64,
            "bytes of reply {number}"
        );
        assert_eq!(e.reply_body, m.body.len() as u64, "body of reply {number}");
        assert_eq!(
            e.request_body,
            asked[*number as usize - 1].body.len() as u64
        );
        assert!(!e.request_gap);
        gaps_hold(e, &m.events(), &p.reply_times);
        let reported: u32 = seen
            .progress
            .iter()
            .filter(|r| r.number == *number)
            .map(|r| r.unreported)
            .sum();
        assert_eq!(
            reported + e.unreported,
            e.events,
            "progress and end report each event once"
        );
    }
    for (i, m) in asked.iter().enumerate() {
        let pieces = pieces_of(seen, false, i as u32 + 1);
        pieces_hold(&pieces, m, &p.requests, None);
    }
    for number in 1..=asked.len() as u32 {
        let pieces = pieces_of(seen, true, number);
        let messages: Vec<&Message> = said
            .iter()
            .filter(|(n, _)| *n == number)
            .map(|(_, m)| m)
            .collect();
        // Each message of a number, provisional ones too, begins anew at offset 0.
        let starts: Vec<usize> = (0..pieces.len())
            .filter(|&i| pieces[i].offset == 0 && !pieces[i].tail)
            .collect();
        assert_eq!(starts.len(), messages.len());
        for (i, m) in messages.iter().enumerate() {
            let to = starts.get(i + 1).copied().unwrap_or(pieces.len());
            let end = seen
                .ended
                .iter()
                .find(|e| e.number == number && m.status >= 200);
            pieces_hold(&pieces[starts[i]..to], m, &p.replies, end);
        }
    }
}

fn blank_lines(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .take_while(|b| matches!(b, b'\r' | b'\n'))
        .count()
}

pub fn pieces_of(seen: &Seen, reply: bool, number: u32) -> Vec<&Piece> {
    seen.pieces
        .iter()
        .filter(|p| p.reply == reply && p.number == number)
        .collect()
}

/// The pieces of one message: where they lie, how many bytes they are, what is in them.
pub fn pieces_hold(pieces: &[&Piece], m: &Message, stream: &[u8], end: Option<&Ended>) {
    let len = (m.end - m.first) as u64;
    let head = m.head as u64;
    for p in pieces {
        assert!(!p.broken);
        let at = m.first + p.offset as usize;
        assert_eq!(
            p.data,
            stream[at..at + p.data.len()],
            "bytes of the piece at {}",
            p.offset
        );
        assert!(p.offset < len, "a piece begins outside its message");
    }
    let start: Vec<&&Piece> = pieces.iter().filter(|p| !p.tail).collect();
    let mut reach = 0;
    for p in &start {
        if p.offset != reach {
            assert_eq!(reach, u64::from(HEAD_CAPTURE), "a hole at {reach}");
            assert_eq!(p.offset, head, "after a head that is cut the body begins");
        }
        reach = p.offset + p.data.len() as u64;
    }
    let total: u64 = start.iter().map(|p| p.data.len() as u64).sum();
    let wanted = head.min(u64::from(HEAD_CAPTURE)) + u64::from(BODY_CAPTURE);
    let stream_reply = end.is_some() && m.kind != Kind::Plain && !m.body.is_empty();
    if stream_reply {
        assert!(
            total <= u64::from(STREAM_CAPTURE),
            "{total} bytes of a stream"
        );
    } else {
        // A message whose head is not known yet may take bytes of the next in its segment.
        assert!(
            total <= wanted.max(u64::from(HEAD_CAPTURE)),
            "{total} bytes, {wanted} wanted"
        );
    }
    let body = head + u64::from(BODY_CAPTURE);
    assert!(
        reach >= len.min(body) || head > u64::from(HEAD_CAPTURE),
        "{reach} of {len} bytes"
    );
    if let Some(e) = end {
        let events = m.events();
        let within = |ev: &&Event| ((ev.last + 1 - m.first) as u64) <= reach;
        let captured = events.iter().filter(within).count();
        assert_eq!(e.captured as usize, captured, "events within the pieces");
        if stream_reply && e.flags & crate::abi::flow::dir_flag::TOLD == 0 {
            let enough = reach >= len || total >= u64::from(STREAM_CAPTURE);
            assert!(
                enough || captured >= STREAM_EVENTS as usize,
                "a stream was cut at {reach}"
            );
        }
    }
    let tail: Vec<&&Piece> = pieces.iter().filter(|p| p.tail).collect();
    assert!(tail.len() <= TAIL_PIECES as usize);
    let hopped = m.length && (m.kind == Kind::Plain || end.is_none());
    assert!(
        tail.is_empty() || hopped,
        "a tail of a body that has no known length"
    );
    if !hopped || reach >= len {
        return;
    }
    let ends = tail.last().map_or(0, |p| p.offset + p.data.len() as u64);
    assert_eq!(ends, len, "the tail reaches the end of the message");
    assert!(
        tail.iter().all(|p| p.offset >= head),
        "a tail begins in the head"
    );
}
