//! What an event of any dialect carries, read from its JSON: written apart
//! from the engine's writer, so that each checks the other.

use serde_json::Value;

use crate::event::{Kind, Usage};

/// What replies tell beside events.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub model: String,
    pub usage: Option<Usage>,
    /// Length of the text so far, where every event repeats it.
    cumulative: usize,
}

fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value
        .pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn filled(value: &Value, path: &str) -> bool {
    match value.pointer(path) {
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        _ => false,
    }
}

impl Facts {
    fn number(&mut self, value: Option<&Value>, set: impl Fn(&mut Usage, u64)) {
        if let Some(number) = value.and_then(Value::as_u64) {
            set(self.usage.get_or_insert_default(), number);
        }
    }

    /// Takes model and usage from a JSON object.
    pub fn learn(&mut self, value: &Value) {
        for path in ["/model", "/message/model", "/response/model"] {
            if self.model.is_empty() {
                self.model = text(value, path).to_owned();
            }
        }
        for place in ["", "/message", "/response"] {
            let get = |path: &str| value.pointer(&format!("{place}/usage/{path}"));
            for name in ["prompt_tokens", "input_tokens"] {
                self.number(get(name), |u, n| u.prompt = n);
            }
            for name in ["completion_tokens", "output_tokens"] {
                self.number(get(name), |u, n| u.generation = n);
            }
            for name in [
                "prompt_tokens_details/cached_tokens",
                "input_tokens_details/cached_tokens",
                "cache_read_input_tokens",
            ] {
                self.number(get(name), |u, n| u.cached = n);
            }
        }
        self.number(value.pointer("/meta_info/prompt_tokens"), |u, n| {
            u.prompt = n
        });
        self.number(value.pointer("/meta_info/completion_tokens"), |u, n| {
            u.generation = n
        });
        self.number(value.pointer("/meta_info/cached_tokens"), |u, n| {
            u.cached = n
        });
        self.number(value.get("tokens_evaluated"), |u, n| u.prompt = n);
        self.number(value.get("tokens_predicted"), |u, n| u.generation = n);
        self.number(value.get("tokens_cached"), |u, n| u.cached = n);
    }
}

/// The kind of an event; model and usage go to `facts`.
pub(super) fn classify(name: &str, data: &str, facts: &mut Facts) -> Kind {
    if data == "[DONE]" {
        return Kind::Done;
    }
    let Ok(value) = serde_json::from_str::<Value>(data) else {
        return Kind::Other;
    };
    let kind = text(&value, "/type");
    if kind == "ping" || name == "ping" {
        return Kind::Ping;
    }
    let failed = value.get("error").is_some_and(|error| !error.is_null());
    if failed || kind == "error" || text(&value, "/modality") == "error" {
        return Kind::Error;
    }
    facts.learn(&value);
    if let Some(choices) = value.get("choices").and_then(Value::as_array) {
        return choices.first().map_or(Kind::Usage, choice);
    }
    if !kind.is_empty() {
        return typed(kind, &value);
    }
    if value.get("meta_info").is_some() {
        let before = std::mem::replace(&mut facts.cumulative, text(&value, "/text").len());
        return if facts.cumulative > before {
            Kind::Content
        } else {
            Kind::Empty
        };
    }
    if value.get("modality").is_some() {
        let finished = value.pointer("/metadata/finished") == Some(&Value::Bool(true));
        return match filled(&value, "/data") {
            true => Kind::Content,
            false if finished => Kind::Finish,
            false => Kind::Empty,
        };
    }
    match value.get("stop") {
        Some(Value::Bool(true)) => Kind::Finish,
        Some(_) if filled(&value, "/content") => Kind::Content,
        Some(_) => Kind::Empty,
        None => Kind::Other,
    }
}

fn choice(choice: &Value) -> Kind {
    let places = [
        "/delta/content",
        "/delta/reasoning_content",
        "/delta/reasoning",
        "/delta/tool_calls",
        "/text",
    ];
    if places.iter().any(|path| filled(choice, path)) {
        return Kind::Content;
    }
    if choice
        .get("finish_reason")
        .is_some_and(|reason| !reason.is_null())
    {
        return Kind::Finish;
    }
    if choice.pointer("/delta/role").is_some() {
        Kind::Role
    } else {
        Kind::Empty
    }
}

fn typed(kind: &str, value: &Value) -> Kind {
    match kind {
        "content_block_delta" => {
            let places = ["/delta/text", "/delta/thinking", "/delta/partial_json"];
            let content = places.iter().any(|path| filled(value, path));
            if content { Kind::Content } else { Kind::Empty }
        }
        "message_delta" | "response.completed" => Kind::Finish,
        _ if kind.ends_with(".delta") => {
            if filled(value, "/delta") {
                Kind::Content
            } else {
                Kind::Empty
            }
        }
        _ => Kind::Other,
    }
}
