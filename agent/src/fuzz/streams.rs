//! Event streams: against a plain reading of the whole body, in any pieces, and from any tail.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::Value;

use super::values::json;
use super::{check, cuts, fuzz, sizes};
use crate::protocol::errors;
use crate::protocol::events::{EVENT_BYTES, Event, EventReader, StreamFraming, model_of};
use crate::protocol::json::{Json, model_name};
use crate::protocol::kind::{EventKind, classify};
use crate::protocol::tail::{TailFacts, read_tail};
use crate::protocol::usage;

/// Name and data of each event of a whole body.
fn plain(body: &[u8], framing: StreamFraming) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut found, mut name, mut data) = (Vec::new(), Vec::new(), None::<Vec<u8>>);
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let mut lines: Vec<&[u8]> = body.split(|&b| b == b'\n').collect();
    // What follows the last newline has not ended.
    lines.pop();
    for line in lines {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if framing == StreamFraming::Ndjson {
            if !line.is_empty() {
                found.push((Vec::new(), line.to_vec()));
            }
            continue;
        }
        if line.is_empty() {
            let name = std::mem::take(&mut name);
            found.extend(data.take().map(|data| (name, data)));
            continue;
        }
        let colon = line.iter().position(|&b| b == b':').unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &line[..colon] {
            b"data" => match &mut data {
                Some(data) => *data = [data.as_slice(), b"\n", value].concat(),
                None => data = Some(value.to_vec()),
            },
            b"event" => name = value.to_vec(),
            _ => {}
        }
    }
    found
}

type Read = (Vec<Event>, Option<crate::vocab::Tokens>, Option<String>);

fn read(raw: &[u8], framing: StreamFraming, chunked: bool, size: usize) -> Read {
    let mut reader = EventReader::new(framing, chunked);
    let events = raw
        .chunks(size.max(1))
        .flat_map(|piece| reader.feed(piece, 1))
        .collect();
    (events, reader.tokens(), reader.model().map(str::to_owned))
}

fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let each = body
        .chunks(size)
        .map(|c| [format!("{:x}\r\n", c.len()).as_bytes(), c, b"\r\n"].concat());
    [each.collect::<Vec<_>>().concat(), b"0\r\n\r\n".to_vec()].concat()
}

fn property(body: &[u8], framing: StreamFraming) {
    let whole = read(body, framing, false, body.len());
    let wanted = plain(body, framing);
    assert_eq!(whole.0.len(), wanted.len(), "{framing:?}");
    for (n, (event, (name, data))) in whole.0.iter().zip(&wanted).enumerate() {
        assert_eq!(event.index, n as u64);
        let kept = &data[..data.len().min(EVENT_BYTES)];
        let name = &name[..name.len().min(64)];
        assert_eq!(
            event.kind,
            classify(name, kept, kept.len() == data.len()),
            "event {n}"
        );
        if let EventKind::Error { code } = event.kind {
            assert!(errors::CODES.contains(&code));
        }
        let done = data.trim_ascii() == b"[DONE]";
        assert_eq!(event.kind == EventKind::Done, done, "event {n}");
    }
    assert!(
        whole
            .2
            .as_deref()
            .is_none_or(|name| model_name(name).is_some())
    );
    for size in sizes() {
        assert_eq!(
            read(body, framing, false, size),
            whole,
            "in pieces of {size}"
        );
        let raw = chunked(body, size + 2);
        assert_eq!(
            read(&raw, framing, true, 5),
            whole,
            "in chunks of {}",
            size + 2
        );
    }
}

#[test]
fn streams_of_any_bytes_are_read_as_a_plain_reading_does_in_any_pieces() {
    for framing in [StreamFraming::Sse, StreamFraming::Ndjson] {
        fuzz("events", |body| property(body, framing));
        // As raw bytes they may be no chunks at all.
        fuzz("events", |raw| {
            let whole = read(raw, framing, true, raw.len());
            assert!(
                sizes()
                    .iter()
                    .all(|size| read(raw, framing, true, *size) == whole)
            );
        });
    }
}

#[test]
fn tails_of_any_bytes_are_bounded() {
    fuzz("tail", |raw| {
        for framing in [StreamFraming::Sse, StreamFraming::Ndjson] {
            for chunked in [false, true] {
                let facts = read_tail(raw, framing, chunked);
                assert!(facts.silent <= facts.events && facts.events <= raw.len() as u64);
                assert!(facts.error.is_none_or(|code| errors::CODES.contains(&code)));
                assert!(facts.model.is_none_or(|name| model_name(&name).is_some()));
            }
        }
    });
}

/// A stream of one event a value, as an engine would send it.
fn stream(events: &[Value]) -> Vec<u8> {
    let each = events.iter().map(|event| format!("data: {event}\n\n"));
    (each.collect::<String>() + "data: [DONE]\n\n").into_bytes()
}

/// All that the events of a stream say, one by one.
struct Said {
    prompts: BTreeSet<Option<u64>>,
    generations: BTreeSet<Option<u64>>,
    models: BTreeSet<Option<String>>,
    errors: BTreeSet<Option<&'static str>>,
}

/// Every number in a value; none that stands in a text.
fn collect(value: &Value, into: &mut BTreeSet<u64>) {
    match value {
        Value::Object(fields) => fields.values().for_each(|v| collect(v, into)),
        Value::Array(items) => items.iter().for_each(|v| collect(v, into)),
        other => into.extend(other.as_u64()),
    }
}

fn said(events: &[Value]) -> Said {
    let mut said = Said {
        prompts: [None].into(),
        generations: [None].into(),
        models: [None].into(),
        errors: [None].into(),
    };
    for event in events {
        let text = event.to_string();
        let json = Json::prefix(text.as_bytes());
        let tokens = usage::of_fields(|key| json.get(key)).unwrap_or_default();
        said.prompts.insert(tokens.prompt);
        said.generations.insert(tokens.generation);
        // Without what was cut another of its counts may be the one to take, and the key of a
        // member that was cut is not known; a number in a text is never one.
        let mut numbers = BTreeSet::new();
        collect(event, &mut numbers);
        said.prompts.extend(numbers.iter().copied().map(Some));
        said.generations.extend(numbers.into_iter().map(Some));
        said.models.insert(model_of(|key| json.get(key)));
        if let EventKind::Error { code } = classify(b"", text.as_bytes(), true) {
            // Without what was cut another of its codes may be the first, or none.
            let named =
                ["code", "type", "error_type"].map(|key| event[key].as_str().unwrap_or_default());
            said.errors.extend([Some(code), Some(errors::OTHER)]);
            said.errors
                .extend(named.map(|text| errors::known(text.as_bytes())));
        }
    }
    said
}

#[test]
fn a_tail_says_only_what_its_stream_says() {
    let event = json().prop_filter("an engine sends objects", Value::is_object);
    check(
        500,
        &(prop::collection::vec(event, 1..6), 5_usize..400),
        |(events, size)| {
            let said = said(&events);
            let (body, n) = (stream(&events), events.len() as u64 + 1);
            for (raw, framed) in [(body.clone(), false), (chunked(&body, size), true)] {
                for cut in cuts(&raw) {
                    let facts: TailFacts = read_tail(&raw[cut..], StreamFraming::Sse, framed);
                    let tokens = facts.tokens.unwrap_or_default();
                    let shown = || format!("cut at {cut} of {}: {facts:?}", raw.escape_ascii());
                    assert!(facts.events <= n, "{}", shown());
                    assert!(said.prompts.contains(&tokens.prompt), "{}", shown());
                    assert!(said.generations.contains(&tokens.generation), "{}", shown());
                    assert!(said.models.contains(&facts.model), "{}", shown());
                    assert!(said.errors.contains(&facts.error), "{}", shown());
                }
            }
        },
    );
}
