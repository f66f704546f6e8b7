//! The event streams of the engines: which events, in which order, in which
//! words. Shapes after vLLM (chat, completions, responses, messages), SGLang
//! (`/generate`), mstar (NDJSON) and llama.cpp (`/completion`).

use super::Route;
use crate::event::{Kind, Usage};
use crate::script::{Content, Script};

/// One event: its kind and its index among content events, or among the
/// envelope events of its dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub kind: Kind,
    pub index: usize,
}

/// What the events of one reply share.
#[derive(Clone, Debug)]
pub(super) struct Dialect<'a> {
    pub route: Route,
    pub script: &'a Script,
    pub model: &'a str,
    pub id: &'a str,
    /// Whether a usage event (or field) is sent.
    pub usage: bool,
}

fn steps(kind: Kind, count: usize) -> impl Iterator<Item = Step> {
    (0..count).map(move |index| Step { kind, index })
}

/// A text as a JSON string, quotes included.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

impl Dialect<'_> {
    fn ndjson(&self) -> bool {
        self.script.ndjson && self.route == Route::Generate
    }

    /// The events in order.
    pub fn sequence(&self) -> Vec<Step> {
        let script = self.script;
        let one = |kind, index| Step { kind, index };
        let mut all: Vec<Step> = match self.route {
            Route::Chat | Route::Other if script.role => vec![one(Kind::Role, 0)],
            Route::Responses | Route::Messages => steps(Kind::Other, 2).collect(),
            _ => Vec::new(),
        };
        if !self.ndjson() {
            all.extend(steps(Kind::Comment, script.comments));
            all.extend(steps(Kind::Ping, script.pings));
        }
        all.extend(steps(Kind::Empty, script.empty).map(|_| one(Kind::Empty, 0)));
        let count = script
            .error_after
            .unwrap_or(script.events)
            .min(script.events);
        for index in 0..count {
            all.push(one(Kind::Content, index));
            if script.empty_every > 0 && (index + 1) % script.empty_every == 0 {
                all.push(one(Kind::Empty, index + 1));
            }
            if script.comment_every > 0 && (index + 1) % script.comment_every == 0 && !self.ndjson()
            {
                all.push(one(Kind::Comment, index));
            }
        }
        if script.error_after.is_some() {
            all.push(one(Kind::Error, 0));
            all.extend(steps(Kind::Done, usize::from(script.error_done)));
        } else {
            self.finish(&mut all);
        }
        all.truncate(script.stop_after.unwrap_or(usize::MAX));
        all
    }

    fn finish(&self, all: &mut Vec<Step>) {
        let one = |kind, index| Step { kind, index };
        match self.route {
            Route::Responses => all.extend([one(Kind::Other, 2), one(Kind::Finish, 0)]),
            Route::Messages => {
                all.extend([
                    one(Kind::Other, 2),
                    one(Kind::Finish, 0),
                    one(Kind::Other, 3),
                ]);
            }
            Route::Llama => all.push(one(Kind::Finish, 0)),
            Route::Generate if self.ndjson() => all.push(one(Kind::Finish, 0)),
            Route::Generate => all.extend(steps(Kind::Done, usize::from(self.script.done))),
            _ => {
                all.push(one(Kind::Finish, 0));
                all.extend(steps(Kind::Usage, usize::from(self.usage)));
                all.extend(steps(Kind::Done, usize::from(self.script.done)));
            }
        }
    }

    /// Tokens after `contents` content events.
    pub fn tokens(&self, contents: usize) -> Usage {
        Usage {
            prompt: self.script.prompt_tokens,
            generation: contents as u64 * self.script.tokens_per_event,
            cached: self.script.cached_tokens,
        }
    }

    /// The usage that a reader has after this event; `None` when it tells none.
    pub fn usage_at(&self, step: Step) -> Option<Usage> {
        let all = self.tokens(self.script.events);
        match (self.route, step.kind) {
            (Route::Messages, Kind::Other) if step.index == 0 => Some(Usage {
                generation: 0,
                ..all
            }),
            (Route::Messages | Route::Responses | Route::Llama, Kind::Finish) => Some(all),
            (Route::Generate, Kind::Content) if !self.ndjson() => Some(self.tokens(step.index + 1)),
            (Route::Chat | Route::Completions | Route::Other, Kind::Usage) => Some(all),
            (Route::Chat | Route::Completions | Route::Other, Kind::Content)
                if self.script.usage_every =>
            {
                Some(self.tokens(step.index + 1))
            }
            _ => None,
        }
    }

    /// Whether this event names the model.
    pub fn names_model(&self, step: Step) -> bool {
        match (self.route, step.kind) {
            (_, Kind::Comment | Kind::Ping | Kind::Done | Kind::Error) => false,
            (Route::Chat | Route::Completions | Route::Other, _) => true,
            (Route::Responses, Kind::Other) => step.index < 2,
            (Route::Messages, Kind::Other) => step.index == 0,
            (Route::Responses | Route::Llama, Kind::Finish) => true,
            _ => false,
        }
    }

    /// The bytes of one event, its blank line (or newline) included.
    pub fn render(&self, step: Step) -> Vec<u8> {
        if self.ndjson() {
            return self.ndjson_line(step).into_bytes();
        }
        let text = match step.kind {
            Kind::Comment => ": keep-alive\n\n".to_owned(),
            Kind::Ping => "event: ping\ndata: {\"type\": \"ping\"}\n\n".to_owned(),
            Kind::Done => "data: [DONE]\n\n".to_owned(),
            Kind::Error => self.error_event(),
            _ => match self.route {
                Route::Completions => self.completions(step),
                Route::Responses => self.responses(step),
                Route::Messages => self.messages(step),
                Route::Generate => self.generate(step),
                Route::Llama => self.llama(step),
                _ => self.chat(step),
            },
        };
        let text = if self.script.crlf {
            text.replace('\n', "\r\n")
        } else {
            text
        };
        text.into_bytes()
    }

    fn error_event(&self) -> String {
        let (code, event) = (
            quoted(&self.script.error_code),
            match self.route {
                Route::Messages => "event: error\n",
                _ => "",
            },
        );
        let kind = if event.is_empty() {
            ""
        } else {
            "\"type\":\"error\","
        };
        format!(
            "{event}data: {{{kind}\"error\":{{\"message\":\"scripted\",\"type\":\"server_error\",\"param\":null,\"code\":{code}}}}}\n\n"
        )
    }

    fn openai_usage(&self, contents: usize) -> String {
        let usage = self.tokens(contents);
        let details = match usage.cached {
            0 => String::new(),
            n => format!(",\"prompt_tokens_details\":{{\"cached_tokens\":{n}}}"),
        };
        format!(
            "{{\"prompt_tokens\":{},\"total_tokens\":{},\"completion_tokens\":{}{details}}}",
            usage.prompt,
            usage.prompt + usage.generation,
            usage.generation
        )
    }

    fn choice_chunk(&self, object: &str, step: Step, choices: &str) -> String {
        let usage = match step.kind {
            Kind::Usage => format!(",\"usage\":{}", self.openai_usage(self.script.events)),
            Kind::Content if self.script.usage_every => {
                format!(",\"usage\":{}", self.openai_usage(step.index + 1))
            }
            _ => String::new(),
        };
        format!(
            "data: {{\"id\":\"{}\",\"object\":\"{object}\",\"created\":1754000000,\"model\":{},\"choices\":[{choices}]{usage}}}\n\n",
            self.id,
            quoted(self.model)
        )
    }

    fn chat(&self, step: Step) -> String {
        let text = quoted(&self.script.text);
        let (delta, finish) = match (step.kind, self.script.content) {
            (Kind::Role, _) => (
                "{\"role\":\"assistant\",\"content\":\"\"}".to_owned(),
                "null",
            ),
            (Kind::Content, Content::Text) => (format!("{{\"content\":{text}}}"), "null"),
            (Kind::Content, Content::Reasoning) => {
                (format!("{{\"reasoning_content\":{text}}}"), "null")
            }
            (Kind::Content, Content::Tool) => {
                let call = format!("{{\"index\":0,\"function\":{{\"arguments\":{text}}}}}");
                (format!("{{\"tool_calls\":[{call}]}}"), "null")
            }
            (Kind::Finish, _) => ("{\"content\":\"\"}".to_owned(), "\"stop\""),
            _ => ("{\"content\":\"\"}".to_owned(), "null"),
        };
        let choices = match step.kind {
            Kind::Usage => String::new(),
            _ => format!(
                "{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\"finish_reason\":{finish}}}"
            ),
        };
        self.choice_chunk("chat.completion.chunk", step, &choices)
    }

    fn completions(&self, step: Step) -> String {
        let (text, finish) = match step.kind {
            Kind::Content => (quoted(&self.script.text), "null"),
            Kind::Finish => ("\"\"".to_owned(), "\"length\""),
            _ => ("\"\"".to_owned(), "null"),
        };
        let choices = match step.kind {
            Kind::Usage => String::new(),
            _ => format!(
                "{{\"index\":0,\"text\":{text},\"logprobs\":null,\"finish_reason\":{finish}}}"
            ),
        };
        self.choice_chunk("text_completion", step, &choices)
    }

    fn responses(&self, step: Step) -> String {
        let usage = self.tokens(self.script.events);
        let response = |status: &str, usage: &str| {
            format!(
                "{{\"id\":\"{}\",\"object\":\"response\",\"status\":\"{status}\",\"model\":{}{usage}}}",
                self.id,
                quoted(self.model)
            )
        };
        let (name, rest) = match (step.kind, step.index) {
            (Kind::Other, 0) => (
                "response.created",
                format!("\"response\":{}", response("in_progress", "")),
            ),
            (Kind::Other, 1) => (
                "response.in_progress",
                format!("\"response\":{}", response("in_progress", "")),
            ),
            (Kind::Other, _) => ("response.output_text.done", "\"text\":\"all\"".to_owned()),
            (Kind::Finish, _) => {
                let tokens = format!(
                    ",\"usage\":{{\"input_tokens\":{},\"input_tokens_details\":{{\"cached_tokens\":{}}},\"output_tokens\":{},\"total_tokens\":{}}}",
                    usage.prompt,
                    usage.cached,
                    usage.generation,
                    usage.prompt + usage.generation
                );
                (
                    "response.completed",
                    format!("\"response\":{}", response("completed", &tokens)),
                )
            }
            (Kind::Content, _) => (
                match self.script.content {
                    Content::Text => "response.output_text.delta",
                    Content::Reasoning => "response.reasoning_text.delta",
                    Content::Tool => "response.function_call_arguments.delta",
                },
                format!(
                    "\"item_id\":\"msg_1\",\"delta\":{}",
                    quoted(&self.script.text)
                ),
            ),
            _ => (
                "response.output_text.delta",
                "\"item_id\":\"msg_1\",\"delta\":\"\"".to_owned(),
            ),
        };
        format!("event: {name}\ndata: {{\"type\":\"{name}\",{rest}}}\n\n")
    }

    fn messages(&self, step: Step) -> String {
        let usage = self.tokens(self.script.events);
        let text = quoted(&self.script.text);
        let (name, rest) = match (step.kind, step.index) {
            (Kind::Other, 0) => {
                let cached = match usage.cached {
                    0 => String::new(),
                    n => format!(",\"cache_read_input_tokens\":{n}"),
                };
                (
                    "message_start",
                    format!(
                        "\"message\":{{\"id\":\"{}\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"model\":{},\"stop_reason\":null,\"usage\":{{\"input_tokens\":{},\"output_tokens\":0{cached}}}}}",
                        self.id,
                        quoted(self.model),
                        usage.prompt
                    ),
                )
            }
            (Kind::Other, 1) => (
                "content_block_start",
                "\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}".to_owned(),
            ),
            (Kind::Other, 2) => ("content_block_stop", "\"index\":0".to_owned()),
            (Kind::Other, _) => {
                return "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n".to_owned();
            }
            (Kind::Finish, _) => (
                "message_delta",
                format!(
                    "\"delta\":{{\"stop_reason\":\"end_turn\",\"stop_sequence\":null}},\"usage\":{{\"output_tokens\":{}}}",
                    usage.generation
                ),
            ),
            (Kind::Content, _) => (
                "content_block_delta",
                match self.script.content {
                    Content::Text => {
                        format!("\"index\":0,\"delta\":{{\"type\":\"text_delta\",\"text\":{text}}}")
                    }
                    Content::Reasoning => format!(
                        "\"index\":0,\"delta\":{{\"type\":\"thinking_delta\",\"thinking\":{text}}}"
                    ),
                    Content::Tool => format!(
                        "\"index\":0,\"delta\":{{\"type\":\"input_json_delta\",\"partial_json\":{text}}}"
                    ),
                },
            ),
            _ => (
                "content_block_delta",
                "\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"\"}".to_owned(),
            ),
        };
        format!("event: {name}\ndata: {{\"type\":\"{name}\",{rest}}}\n\n")
    }

    fn meta_info(&self, contents: usize) -> String {
        let usage = self.tokens(contents);
        let finish = match contents == self.script.events {
            true => "{\"type\":\"length\",\"length\":1}",
            false => "null",
        };
        format!(
            "{{\"id\":\"{}\",\"finish_reason\":{finish},\"prompt_tokens\":{},\"completion_tokens\":{},\"cached_tokens\":{},\"weight_version\":\"default\"}}",
            self.id, usage.prompt, usage.generation, usage.cached
        )
    }

    fn generate(&self, step: Step) -> String {
        let contents = if step.kind == Kind::Content {
            step.index + 1
        } else {
            step.index
        };
        let text = quoted(&self.script.text.repeat(contents));
        format!(
            "data: {{\"text\":{text},\"meta_info\":{}}}\n\n",
            self.meta_info(contents)
        )
    }

    fn ndjson_line(&self, step: Step) -> String {
        let (modality, data) = match step.kind {
            Kind::Content => ("text", quoted(&self.script.text)),
            Kind::Error => ("error", "\"scripted\"".to_owned()),
            _ => ("text", "\"\"".to_owned()),
        };
        let finished = step.kind == Kind::Finish;
        format!(
            "{{\"modality\":\"{modality}\",\"data\":{data},\"metadata\":{{\"finished\":{finished}}}}}\n"
        )
    }

    fn llama(&self, step: Step) -> String {
        let usage = self.tokens(self.script.events);
        match step.kind {
            Kind::Finish => format!(
                "data: {{\"index\":0,\"content\":\"\",\"tokens\":[],\"id_slot\":0,\"stop\":true,\"model\":{},\"tokens_predicted\":{},\"tokens_evaluated\":{},\"tokens_cached\":{},\"stop_type\":\"limit\",\"timings\":{{\"prompt_n\":{},\"prompt_ms\":1.5,\"predicted_n\":{},\"predicted_ms\":2.5}}}}\n\n",
                quoted(self.model),
                usage.generation,
                usage.prompt,
                usage.cached,
                usage.prompt,
                usage.generation
            ),
            kind => {
                let text = if kind == Kind::Content {
                    quoted(&self.script.text)
                } else {
                    "\"\"".to_owned()
                };
                format!(
                    "data: {{\"index\":0,\"content\":{text},\"tokens\":[1],\"stop\":false,\"id_slot\":-1}}\n\n"
                )
            }
        }
    }
}
