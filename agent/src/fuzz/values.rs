//! JSON, usages, error codes and bodies, against `serde_json` and plain readings of its values.

use proptest::prelude::*;
use serde_json::{Map, Value};

use super::{check, cuts, fuzz};
use crate::protocol::body::request_facts;
use crate::protocol::errors;
use crate::protocol::head::{parse_request_head, parse_response_head};
use crate::protocol::json::{Ending, Json, model_name};
use crate::protocol::reply::{model_ids, read_reply};
use crate::protocol::usage;
use crate::vocab::Tokens;

/// Keys that mean something to one reader or another.
const KEYS: &[&str] = &[
    "model",
    "stream",
    "usage",
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "prompt_tokens_details",
    "input_tokens_details",
    "cached_tokens",
    "tokens",
    "timings",
    "cache_n",
    "prompt_n",
    "predicted_n",
    "message",
    "meta_info",
    "usageMetadata",
    "promptTokenCount",
    "candidatesTokenCount",
    "cachedContentTokenCount",
    "tokens_evaluated",
    "tokens_predicted",
    "details",
    "input_length",
    "generated_tokens",
    "response",
    "error",
    "error_type",
    "code",
    "type",
    "object",
    "modality",
    "choices",
    "delta",
    "content",
    "prompt",
    "messages",
    "x",
];
const TEXTS: &[&str] = &[
    "",
    "m",
    "error",
    "response.failed",
    "timeout",
    "server_error",
    "model_not_found",
    "nonsense",
    "org/m \"q\" \\",
    "\"model\":\"evil\"",
    "},\"usage\":{\"prompt_tokens\":777}}",
    "\\",
    "\\\"",
    "a\nb",
    "\u{202e}x",
    "\u{e9}\u{4e2d}",
    "data: [DONE]\n\n",
    "]}",
    "{\"model\":\"evil\",",
    "\r\n0\r\n\r\n",
];

/// JSON with keys and texts that readers react to.
pub(super) fn json() -> impl Strategy<Value = Value> {
    let number = prop_oneof![0_u64..50, Just(0), Just(u64::MAX), any::<u64>()];
    let leaf = prop_oneof![
        2 => prop::sample::select(TEXTS).prop_map(Value::from),
        1 => ".{0,12}".prop_map(Value::from),
        4 => number.prop_map(Value::from),
        1 => Just(Value::from(-3)),
        1 => Just(Value::from(1.5)),
        1 => any::<bool>().prop_map(Value::from),
        1 => Just(Value::Null),
    ];
    leaf.prop_recursive(4, 40, 7, |inner| {
        let fields = prop::collection::vec((prop::sample::select(KEYS), inner.clone()), 0..7);
        prop_oneof![
            3 => fields.prop_map(|fields| fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<Map<_, _>>().into()),
            1 => prop::collection::vec(inner, 0..4).prop_map(Value::from),
        ]
    })
}

/// An object of such fields.
fn object() -> impl Strategy<Value = Map<String, Value>> {
    let fields = prop::collection::vec((prop::sample::select(KEYS), json()), 0..9);
    fields.prop_map(|fields| fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
}

/// As text, tight or with blanks.
fn written(value: &Value, pretty: bool) -> Vec<u8> {
    let text = if pretty {
        serde_json::to_vec_pretty(value)
    } else {
        serde_json::to_vec(value)
    };
    text.expect("JSON")
}

/// Asserts that a span says what the value says.
fn assert_same(ours: Json<'_>, theirs: &Value) {
    assert_eq!(ours.is_object(), theirs.is_object());
    assert_eq!(ours.is_array(), theirs.is_array());
    assert_eq!(ours.is_null(), theirs.is_null());
    assert_eq!(ours.boolean(), theirs.as_bool());
    assert_eq!(ours.number(), theirs.as_u64());
    assert_eq!(ours.model(), theirs.as_str().and_then(model_name));
    match theirs {
        Value::Array(items) => {
            assert_eq!(ours.items().count(), items.len());
            ours.items()
                .zip(items)
                .for_each(|(ours, theirs)| assert_same(ours, theirs));
        }
        Value::Object(fields) => {
            assert_eq!(ours.fields().count(), fields.len());
            for (key, value) in fields {
                assert_same(ours.get(key).expect(key), value);
            }
        }
        _ => assert!(ours.fields().next().is_none() && ours.items().next().is_none()),
    }
}

#[test]
fn json_of_any_bytes_is_bounded_and_valid_json_is_what_serde_reads() {
    fuzz("json", |bytes| {
        let prefix = Json::prefix(bytes);
        let named = prefix.fields().filter_map(|(_, value)| value.model());
        named.for_each(|name| assert_eq!(model_name(&name), Some(name)));
        assert!(prefix.items().count() <= bytes.len());
        let ending = Ending::read(bytes).unwrap_or_default();
        assert!(ending.fields.len() <= 128 && ending.orphans.len() <= 128);
        if serde_json::from_slice::<Value>(bytes).is_ok() {
            assert!(Json::exact(bytes).is_some());
        }
    });
}

#[test]
fn every_value_of_valid_json_is_read_as_serde_reads_it() {
    check(600, &(json(), any::<bool>()), |(value, pretty)| {
        let text = written(&value, pretty);
        assert_same(Json::exact(&text).expect("whole"), &value);
    });
}

#[test]
fn json_cut_anywhere_says_nothing_false() {
    check(400, &(object(), any::<bool>()), |(fields, pretty)| {
        let text = written(&Value::Object(fields.clone()), pretty);
        for cut in cuts(&text) {
            for (key, value) in Json::prefix(&text[..cut])
                .fields()
                .filter(|(_, v)| v.whole())
            {
                let key = std::str::from_utf8(key).expect("a key");
                assert_same(value, &fields[key]);
            }
            let Some(ending) = Ending::read(&text[cut..]) else {
                continue;
            };
            for (key, value) in &ending.fields {
                let key = std::str::from_utf8(key).expect("a key");
                assert_same(
                    *value,
                    fields
                        .get(key)
                        .unwrap_or_else(|| panic!("cut at {cut}: {key}")),
                );
            }
            assert!(
                !ending.from_start || ending.fields.len() == fields.len(),
                "cut at {cut}"
            );
        }
    });
}

fn path<'a>(value: Option<&'a Value>, keys: &[&str]) -> Option<&'a Value> {
    keys.iter()
        .try_fold(value?, |value, key| value.as_object()?.get(*key))
}

fn at(value: Option<&Value>, keys: &[&str]) -> Option<u64> {
    path(value, keys)?.as_u64()
}

/// The first of these places that holds a number.
fn first(value: Option<&Value>, places: &[&[&str]]) -> Option<u64> {
    places.iter().find_map(|keys| at(value, keys))
}

fn said(tokens: Tokens) -> Option<Tokens> {
    let tokens = Tokens {
        prompt: tokens.prompt.filter(|n| *n > 0),
        ..tokens
    };
    (tokens.prompt.is_some() || tokens.generation.is_some_and(|n| n > 0)).then_some(tokens)
}

/// The counts of a usage object.
fn usage_of(usage: &Value) -> Option<Tokens> {
    let u = Some(usage);
    let generation = first(
        u,
        &[
            &["completion_tokens"],
            &["output_tokens"],
            &["tokens", "output_tokens"],
        ],
    );
    let around = [
        at(u, &["cache_read_input_tokens"]),
        at(u, &["cache_creation_input_tokens"]),
    ];
    let around = around
        .into_iter()
        .flatten()
        .fold(0_u64, u64::saturating_add);
    let prompt = at(u, &["prompt_tokens"])
        .or(at(u, &["input_tokens"]).map(|n| n.saturating_add(around)))
        .or(at(u, &["tokens", "input_tokens"]))
        .or(at(u, &["total_tokens"]).filter(|_| generation.is_none()));
    let cached = first(
        u,
        &[
            &["prompt_tokens_details", "cached_tokens"],
            &["input_tokens_details", "cached_tokens"],
            &["cached_tokens"],
            &["cache_read_input_tokens"],
        ],
    );
    said(Tokens {
        prompt,
        generation,
        cached,
    })
}

/// The counts of an event or a reply, read plainly.
fn tokens_of(reply: &Value) -> Option<Tokens> {
    let r = Some(reply);
    let object = |keys: &[&str]| path(r, keys).filter(|v| v.is_object());
    let usage = object(&["usage"]).or_else(|| path(object(&["response"]), &["usage"]));
    if let Some(tokens) = usage.and_then(usage_of) {
        return Some(Tokens {
            cached: tokens.cached.or(at(r, &["timings", "cache_n"])),
            ..tokens
        });
    }
    if let Some(usage) = path(object(&["message"]), &["usage"]) {
        return said(Tokens {
            generation: None,
            ..usage_of(usage)?
        });
    }
    if let Some(meta) = object(&["meta_info"]) {
        return usage_of(meta);
    }
    if let Some(meta) = object(&["usageMetadata"]) {
        let m = Some(meta);
        let (prompt, generation) = (
            at(m, &["promptTokenCount"]),
            at(m, &["candidatesTokenCount"]),
        );
        return said(Tokens {
            prompt,
            generation,
            cached: at(m, &["cachedContentTokenCount"]),
        });
    }
    let cached = at(r, &["timings", "cache_n"]);
    let timed = at(r, &["timings", "prompt_n"]).map(|n| n.saturating_add(cached.unwrap_or(0)));
    let prompt = at(r, &["tokens_evaluated"]).or(timed).or(first(
        r,
        &[&["details", "prompt_tokens"], &["details", "input_length"]],
    ));
    let generation = first(
        r,
        &[
            &["tokens_predicted"],
            &["timings", "predicted_n"],
            &["details", "generated_tokens"],
        ],
    );
    said(Tokens {
        prompt,
        generation,
        cached,
    })
}

#[test]
fn usages_of_any_reply_are_what_a_plain_reading_finds() {
    let ours = |text: &[u8]| {
        let json = Json::prefix(text);
        usage::of_fields(|key| json.get(key))
    };
    fuzz("usage", |bytes| {
        let (ours, ending) = (ours(bytes), Ending::read(bytes));
        if let Some(ending) = ending {
            let _ = usage::of_ending(&ending);
        }
        // A key written with escapes is not recognised, which is unknown and not wrong.
        let plain = !bytes.contains(&b'\\');
        if let (true, Ok(value @ Value::Object(_))) =
            (plain, serde_json::from_slice::<Value>(bytes))
        {
            assert_eq!(ours, tokens_of(&value));
        }
    });
    check(1_500, &(object(), any::<bool>()), |(fields, pretty)| {
        let value = Value::Object(fields);
        assert_eq!(ours(&written(&value, pretty)), tokens_of(&value), "{value}");
    });
}

#[test]
fn error_codes_come_from_the_list_whatever_a_reply_says() {
    let code = |text: &[u8]| {
        let json = Json::prefix(text);
        errors::of_fields(|key| json.get(key))
    };
    fuzz("errors", |bytes| {
        assert!(code(bytes).is_none_or(|code| errors::CODES.contains(&code)));
    });
    check(1_500, &object(), |fields| {
        let value = Value::Object(fields);
        let found = code(&written(&value, false));
        let text = |v: Option<&Value>| v.and_then(Value::as_str).map(str::to_owned);
        let listed = |v: Option<&Value>| text(v).filter(|t| errors::CODES.contains(&t.as_str()));
        match &value["error"] {
            Value::Object(error) => {
                let named = listed(error.get("code")).or(listed(error.get("type")));
                assert_eq!(
                    found,
                    Some(named.as_deref().unwrap_or(errors::OTHER)),
                    "{value}"
                );
            }
            Value::String(error) if !error.is_empty() => assert!(found.is_some(), "{value}"),
            _ => {}
        }
        let reports = [
            "error",
            "error_type",
            "type",
            "object",
            "message",
            "modality",
        ];
        if !reports.iter().any(|key| value.get(key).is_some()) {
            assert_eq!(found, None, "{value}");
        }
    });
}

/// The captured windows of a body.
fn windows(body: &[u8]) -> (&[u8], &[u8]) {
    let tail = if body.len() > 1_024 {
        &body[body.len() - 704..]
    } else {
        &[]
    };
    (&body[..body.len().min(1_024)], tail)
}

#[test]
fn requests_name_no_other_model_than_their_body_does() {
    let ask = |kind: &str, body: &[u8]| {
        let head = format!(
            "POST /x HTTP/1.1\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let head = parse_request_head(head.as_bytes()).expect("a head");
        let (prefix, tail) = windows(body);
        request_facts(&head, prefix, tail)
    };
    fuzz("request_body", |bytes| {
        for kind in [
            "application/json",
            "multipart/form-data; boundary=b",
            "application/x-www-form-urlencoded",
        ] {
            let model = ask(kind, bytes).model;
            assert!(
                model.is_none_or(|name| model_name(&name).is_some()),
                "{kind}"
            );
        }
    });
    check(
        800,
        &(object(), 0_usize..2_000, any::<bool>()),
        |(mut fields, long, first)| {
            // Sorted keys: one sorts before `model`, the other behind it.
            let key = if first { "a" } else { "z" };
            fields.insert(
                key.into(),
                Value::from("\\\"model\":\"evil\",".repeat(long / 16)),
            );
            let truth = fields
                .get("model")
                .and_then(Value::as_str)
                .and_then(model_name);
            let facts = ask("application/json", &written(&Value::Object(fields), false));
            if facts.whole || facts.model.is_some() {
                assert_eq!(facts.model, truth);
            }
        },
    );
}

#[test]
fn replies_name_no_other_model_than_their_body_does() {
    let head = |status: u16, body: &[u8]| {
        let head = format!(
            "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        parse_response_head(head.as_bytes()).expect("a head")
    };
    fuzz("reply_body", |bytes| {
        let (prefix, tail) = windows(bytes);
        for status in [200, 500] {
            let facts = read_reply(&head(status, bytes), prefix, tail);
            assert!(facts.error.is_none_or(|code| errors::CODES.contains(&code)));
            assert!(facts.model.is_none_or(|name| model_name(&name).is_some()));
        }
        let listed = model_ids(&head(200, bytes), prefix, 64);
        assert!(listed.len() <= 64 && listed.iter().all(|name| model_name(name).is_some()));
    });
    check(800, &(object(), 0_usize..2_000), |(mut fields, long)| {
        fields.insert(
            "output".into(),
            Value::from("\"model\":\"evil\",".repeat(long / 15)),
        );
        let value = Value::Object(fields);
        let names: Vec<Option<String>> = [
            &["model"][..],
            &["model_name"],
            &["response", "model"],
            &["message", "model"],
        ]
        .iter()
        .map(|keys| {
            path(Some(&value), keys)
                .and_then(Value::as_str)
                .and_then(model_name)
        })
        .collect();
        let body = written(&value, false);
        let (prefix, tail) = windows(&body);
        let facts = read_reply(&head(200, &body), prefix, tail);
        assert!(
            facts.model.is_none() || names.contains(&facts.model),
            "{value}"
        );
        if body.len() <= 1_024 {
            assert_eq!(facts.model, names.into_iter().flatten().next());
            assert_eq!(facts.tokens, tokens_of(&value));
        }
    });
}
