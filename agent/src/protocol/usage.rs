//! Token counts from a reply's own `usage`, in the dialects of OpenAI, Responses, Anthropic,
//! Cohere, Gemini, SGLang, llama.cpp, TGI and MindIE. Read from the fields of one object, found by
//! structure and not by text, so that a `"usage":` inside generated text is never taken. Counts
//! that are all zero (mstar) are unknown: no request has an empty prompt.

use super::json::{Ending, Json};
use crate::vocab::Tokens;

/// The counts of a whole event or reply whose fields `get` finds.
pub fn of_fields<'a>(get: impl Fn(&str) -> Option<Json<'a>>) -> Option<Tokens> {
    let object = |key: &str| get(key).filter(Json::is_object);
    let usage = object("usage").or_else(|| object("response")?.get("usage"));
    if let Some(tokens) = usage.and_then(counts_of) {
        let cached = tokens
            .cached
            .or_else(|| object("timings")?.get("cache_n")?.number());
        return Some(Tokens { cached, ..tokens });
    }
    // What `message_start` says of the output is a placeholder, its input is final.
    if let Some(usage) = object("message").and_then(|message| message.get("usage")) {
        return known(Tokens {
            generation: None,
            ..counts_of(usage)?
        });
    }
    if let Some(meta) = object("meta_info") {
        return counts_of(meta);
    }
    if let Some(meta) = object("usageMetadata") {
        let number = |key: &str| meta.get(key)?.number();
        return known(Tokens {
            prompt: number("promptTokenCount"),
            generation: number("candidatesTokenCount"),
            cached: number("cachedContentTokenCount"),
        });
    }
    native(get)
}

/// The counts in the last bytes of an event or reply that was cut at its start.
pub fn of_ending(ending: &Ending<'_>) -> Option<Tokens> {
    of_fields(|key| ending.get(key)).or_else(|| {
        // The cut member is `response` around a usage, or `meta_info` or `usage` itself.
        let usage = ending.orphan("usage").and_then(counts_of);
        usage.or_else(|| counts(|key| ending.orphan(key), false))
    })
}

/// Adds what a later part of the same reply says: the output so far is replaced, the prompt is
/// the largest one named, as deltas repeat it in part or not at all.
pub fn merge(into: &mut Option<Tokens>, later: Option<Tokens>) {
    let Some(later) = later else { return };
    let known = into.get_or_insert_default();
    known.prompt = known.prompt.max(later.prompt);
    known.cached = known.cached.max(later.cached);
    known.generation = later.generation.or(known.generation);
}

/// The counts of one usage object.
fn counts_of(usage: Json<'_>) -> Option<Tokens> {
    counts(|key| usage.get(key), usage.whole())
}

/// The counts of a usage whose fields `get` finds. What must be put together from several fields
/// is only taken from a `whole` one.
fn counts<'a>(get: impl Fn(&str) -> Option<Json<'a>>, whole: bool) -> Option<Tokens> {
    let number = |key: &str| get(key)?.number();
    let inner = |key: &str, name: &str| get(key)?.get(name)?.number();
    let cache_read = number("cache_read_input_tokens");
    // Anthropic's input excludes what came from a cache or went into one.
    let input = || {
        if !whole {
            return None;
        }
        let around = cache_read
            .unwrap_or(0)
            .saturating_add(number("cache_creation_input_tokens").unwrap_or(0));
        Some(number("input_tokens")?.saturating_add(around))
    };
    let generation = number("completion_tokens")
        .or_else(|| number("output_tokens"))
        .or_else(|| inner("tokens", "output_tokens"));
    let prompt = number("prompt_tokens")
        .or_else(input)
        .or_else(|| inner("tokens", "input_tokens"))
        .or_else(|| number("total_tokens").filter(|_| whole && generation.is_none()));
    let cached = inner("prompt_tokens_details", "cached_tokens")
        .or_else(|| inner("input_tokens_details", "cached_tokens"))
        .or_else(|| number("cached_tokens"))
        .or(cache_read);
    known(Tokens {
        prompt,
        generation,
        cached,
    })
}

/// The engines' own forms: llama.cpp's counters and timings, the details of TGI and MindIE.
fn native<'a>(get: impl Fn(&str) -> Option<Json<'a>>) -> Option<Tokens> {
    let inner = |key: &str, name: &str| get(key)?.get(name)?.number();
    let number = |key: &str| get(key)?.number();
    let cached = inner("timings", "cache_n");
    let timed =
        inner("timings", "prompt_n").map(|prompt| prompt.saturating_add(cached.unwrap_or(0)));
    known(Tokens {
        prompt: number("tokens_evaluated")
            .or(timed)
            .or_else(|| inner("details", "prompt_tokens"))
            .or_else(|| inner("details", "input_length")),
        generation: number("tokens_predicted")
            .or_else(|| inner("timings", "predicted_n"))
            .or_else(|| inner("details", "generated_tokens")),
        cached,
    })
}

/// Refuses counts that say nothing.
fn known(tokens: Tokens) -> Option<Tokens> {
    let prompt = tokens.prompt.filter(|&n| n > 0);
    let empty = prompt.is_none() && tokens.generation.unwrap_or(0) == 0;
    (!empty).then_some(Tokens { prompt, ..tokens })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<(Option<u64>, Option<u64>, Option<u64>)> {
        let json = Json::prefix(text.as_bytes());
        of_fields(|key| json.get(key)).map(|t| (t.prompt, t.generation, t.cached))
    }

    fn end(text: &str) -> Option<(Option<u64>, Option<u64>, Option<u64>)> {
        let ending = Ending::read(text.as_bytes()).expect("ends an object");
        of_ending(&ending).map(|t| (t.prompt, t.generation, t.cached))
    }

    #[test]
    fn every_dialect_is_read() {
        for (text, expected) in [
            (
                r#"{"choices":[],"usage":{"prompt_tokens":16,"total_tokens":22,"completion_tokens":6,"prompt_tokens_details":{"cached_tokens":4}}}"#,
                (Some(16), Some(6), Some(4)),
            ),
            (
                r#"{"usage":{"prompt_tokens":16,"completion_tokens":6,"prompt_tokens_details":null}}"#,
                (Some(16), Some(6), None),
            ),
            (
                r#"{"type":"response.completed","response":{"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":0},"output_tokens":3}}}"#,
                (Some(9), Some(3), Some(0)),
            ),
            (
                r#"{"type":"message_start","message":{"usage":{"input_tokens":10,"cache_read_input_tokens":90,"cache_creation_input_tokens":5,"output_tokens":1}}}"#,
                (Some(105), None, Some(90)),
            ),
            (
                r#"{"type":"message_delta","delta":{},"usage":{"output_tokens":15}}"#,
                (None, Some(15), None),
            ),
            (
                r#"{"text":"x","meta_info":{"id":"a","prompt_tokens":7,"completion_tokens":2,"cached_tokens":1}}"#,
                (Some(7), Some(2), Some(1)),
            ),
            (
                r#"{"content":"","stop":true,"tokens_predicted":8,"tokens_evaluated":12,"timings":{"cache_n":10,"prompt_n":2,"predicted_n":8}}"#,
                (Some(12), Some(8), Some(10)),
            ),
            (
                r#"{"choices":[],"timings":{"cache_n":10,"prompt_n":2,"predicted_n":8}}"#,
                (Some(12), Some(8), Some(10)),
            ),
            (
                r#"{"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":8},"timings":{"cache_n":10,"prompt_n":2}}"#,
                (Some(12), Some(8), Some(10)),
            ),
            (
                r#"{"generated_text":"x","details":{"finish_reason":"length","generated_tokens":20,"seed":1}}"#,
                (None, Some(20), None),
            ),
            (
                r#"{"object":"list","data":[],"usage":{"prompt_tokens":5,"total_tokens":5}}"#,
                (Some(5), None, None),
            ),
            (r#"{"usage":{"total_tokens":56}}"#, (Some(56), None, None)),
            (
                r#"{"type":"message-end","usage":{"tokens":{"input_tokens":5,"output_tokens":6}}}"#,
                (Some(5), Some(6), None),
            ),
            (
                r#"{"usageMetadata":{"promptTokenCount":4,"candidatesTokenCount":2}}"#,
                (Some(4), Some(2), None),
            ),
        ] {
            assert_eq!(read(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn zeros_nulls_and_durations_are_unknown() {
        assert_eq!(
            read(r#"{"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}}"#),
            None
        );
        assert_eq!(read(r#"{"usage":null}"#), None);
        assert_eq!(read(r#"{"usage":{"type":"duration","seconds":3}}"#), None);
        assert_eq!(read(r#"{"usage":{"prompt_tokens":-1}}"#), None);
        assert_eq!(
            read(r#"{"usage":{"prompt_tokens":5,"completion_tokens":12"#).map(|t| t.1),
            Some(None),
            "a cut number is no number"
        );
    }

    #[test]
    fn a_cut_usage_is_not_put_together() {
        let cut = r#"{"usage":{"input_tokens":10,"output_tokens":3,"cache_re"#;
        assert_eq!(read(cut), Some((None, Some(3), None)));
        assert_eq!(end(r#"n_tokens":16,"total_tokens":22}}"#), None);
    }

    #[test]
    fn generated_text_is_never_taken_for_usage() {
        let text = r#"{"choices":[{"text":"\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}"}],"model":"m"}"#;
        assert_eq!(read(text), None);
        for cut in 0..text.len() - 1 {
            assert_eq!(end(&text[cut..]), None, "cut at {cut}");
        }
    }

    #[test]
    fn metadata_of_a_user_is_never_taken_for_usage() {
        assert_eq!(
            read(r#"{"metadata":{"usage":{"input_tokens":1}},"output":[]}"#),
            None
        );
    }

    #[test]
    fn endings_give_usage_under_a_cut_response() {
        assert_eq!(
            end(r#"ong text"}]}],"usage":{"input_tokens":9,"output_tokens":3},"user":null}}"#),
            Some((Some(9), Some(3), None))
        );
        assert_eq!(
            end(
                r#"x","prompt_tokens":7,"completion_tokens":2,"cached_tokens":0,"e2e_latency":0.5},"index":0}"#
            ),
            Some((Some(7), Some(2), Some(0)))
        );
    }

    #[test]
    fn later_parts_complete_earlier_ones() {
        let mut tokens = None;
        merge(
            &mut tokens,
            Some(Tokens {
                prompt: Some(105),
                generation: None,
                cached: Some(90),
            }),
        );
        merge(&mut tokens, None);
        merge(
            &mut tokens,
            Some(Tokens {
                prompt: Some(10),
                generation: Some(15),
                cached: None,
            }),
        );
        assert_eq!(
            tokens,
            Some(Tokens {
                prompt: Some(105),
                generation: Some(15),
                cached: Some(90)
            })
        );
    }
}
