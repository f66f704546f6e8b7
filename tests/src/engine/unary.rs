//! Bodies of replies that do not stream.

use super::Route;
use super::dialect::{Dialect, quoted};
use crate::event::Usage;

impl Dialect<'_> {
    /// The body of a complete unary reply, and whether it is one of the
    /// dialect: below the size the JSON needs, filler is sent instead.
    pub(super) fn unary_body(&self) -> (String, bool) {
        let text = self.script.text.repeat(self.script.events);
        let json = self.unary(&text);
        match self.script.unary_bytes {
            Some(size) if size < json.len() => ("x".repeat(size), false),
            Some(size) if self.route.generates() => {
                (self.unary(&(text + &"x".repeat(size - json.len()))), true)
            }
            Some(size) => ("x".repeat(size), false),
            None => (json, true),
        }
    }

    /// The usage a complete unary reply tells.
    pub(super) fn unary_usage(&self) -> Option<Usage> {
        let all = self.tokens(self.script.events);
        match self.route {
            Route::Embeddings => Some(Usage {
                prompt: all.prompt,
                ..Usage::default()
            }),
            route if route.generates() && (self.usage || route.always_usage()) => Some(all),
            _ => None,
        }
    }

    /// Whether a complete unary reply names the model.
    pub(super) fn unary_names_model(&self) -> bool {
        self.route == Route::Embeddings || self.route.generates() && self.route != Route::Generate
    }

    fn unary(&self, text: &str) -> String {
        let (model, usage) = (quoted(self.model), self.tokens(self.script.events));
        let text = quoted(text);
        let openai = format!(
            "{{\"prompt_tokens\":{},\"total_tokens\":{},\"completion_tokens\":{},\"prompt_tokens_details\":{{\"cached_tokens\":{}}}}}",
            usage.prompt,
            usage.prompt + usage.generation,
            usage.generation,
            usage.cached
        );
        let openai = if self.usage {
            openai
        } else {
            "null".to_owned()
        };
        let id = self.id;
        match self.route {
            Route::Completions => format!(
                "{{\"id\":\"{id}\",\"object\":\"text_completion\",\"created\":1754000000,\"model\":{model},\"choices\":[{{\"index\":0,\"text\":{text},\"finish_reason\":\"length\"}}],\"usage\":{openai}}}"
            ),
            Route::Responses => format!(
                "{{\"id\":\"{id}\",\"object\":\"response\",\"status\":\"completed\",\"model\":{model},\"output\":[{{\"type\":\"message\",\"content\":[{{\"type\":\"output_text\",\"text\":{text}}}]}}],\"usage\":{{\"input_tokens\":{},\"input_tokens_details\":{{\"cached_tokens\":{}}},\"output_tokens\":{}}}}}",
                usage.prompt, usage.cached, usage.generation
            ),
            Route::Messages => format!(
                "{{\"id\":\"{id}\",\"type\":\"message\",\"role\":\"assistant\",\"model\":{model},\"content\":[{{\"type\":\"text\",\"text\":{text}}}],\"stop_reason\":\"end_turn\",\"usage\":{{\"input_tokens\":{},\"cache_read_input_tokens\":{},\"output_tokens\":{}}}}}",
                usage.prompt, usage.cached, usage.generation
            ),
            Route::Generate => format!(
                "{{\"text\":{text},\"meta_info\":{{\"id\":\"{id}\",\"finish_reason\":{{\"type\":\"length\"}},\"prompt_tokens\":{},\"completion_tokens\":{},\"cached_tokens\":{}}}}}",
                usage.prompt, usage.generation, usage.cached
            ),
            Route::Llama => format!(
                "{{\"index\":0,\"content\":{text},\"stop\":true,\"model\":{model},\"tokens_predicted\":{},\"tokens_evaluated\":{},\"tokens_cached\":{}}}",
                usage.generation, usage.prompt, usage.cached
            ),
            Route::Embeddings => format!(
                "{{\"object\":\"list\",\"model\":{model},\"data\":[{{\"object\":\"embedding\",\"index\":0,\"embedding\":[0.1,0.2]}}],\"usage\":{{\"prompt_tokens\":{},\"total_tokens\":{}}}}}",
                usage.prompt, usage.prompt
            ),
            Route::Tokenize => "{\"count\":2,\"max_model_len\":2048,\"tokens\":[1,2]}".to_owned(),
            Route::Models => format!(
                "{{\"object\":\"list\",\"data\":[{{\"id\":{model},\"object\":\"model\",\"created\":1754000000,\"owned_by\":\"enginetap\"}}]}}"
            ),
            Route::Health => String::new(),
            Route::Version => "{\"version\":\"0.0.1\"}".to_owned(),
            Route::Metrics => format!(
                "# HELP vllm:num_requests_running Number of requests in model execution batches.\n# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{model_name={model}}} 1.0\n"
            ),
            Route::Chat | Route::Other => format!(
                "{{\"id\":\"{id}\",\"object\":\"chat.completion\",\"created\":1754000000,\"model\":{model},\"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":{text}}},\"finish_reason\":\"stop\"}}],\"usage\":{openai}}}"
            ),
        }
    }

    /// An error body.
    pub(super) fn error_body(&self, status: u16) -> String {
        let code = quoted(&self.script.error_code);
        match self.route {
            Route::Messages => format!(
                "{{\"type\":\"error\",\"error\":{{\"type\":\"api_error\",\"message\":\"scripted {status}\"}}}}"
            ),
            Route::Generate => format!(
                "{{\"object\":\"error\",\"message\":\"scripted {status}\",\"type\":\"BadRequest\",\"param\":null,\"code\":{code}}}"
            ),
            _ => format!(
                "{{\"error\":{{\"message\":\"scripted {status}\",\"type\":\"server_error\",\"param\":null,\"code\":{code}}}}}"
            ),
        }
    }

    /// `Content-Type` of a unary reply.
    pub(super) fn unary_type(&self) -> &'static str {
        if self.route == Route::Metrics {
            "text/plain; version=0.0.4"
        } else {
            "application/json"
        }
    }
}
