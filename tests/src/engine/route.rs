//! The routes the engine serves, in the words of the label `route`.

use serde::{Deserialize, Serialize};

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Route {
    /// OpenAI chat.
    #[serde(rename = "/v1/chat/completions")]
    Chat,
    /// OpenAI completions.
    #[serde(rename = "/v1/completions")]
    Completions,
    /// OpenAI responses.
    #[serde(rename = "/v1/responses")]
    Responses,
    /// Anthropic messages.
    #[serde(rename = "/v1/messages")]
    Messages,
    /// SGLang native (cumulative text) or, with `ndjson`, mstar.
    #[serde(rename = "/generate")]
    Generate,
    /// llama.cpp native.
    #[serde(rename = "/completion")]
    Llama,
    /// OpenAI embeddings.
    #[serde(rename = "/v1/embeddings")]
    Embeddings,
    /// vLLM tokenize.
    #[serde(rename = "/tokenize")]
    Tokenize,
    /// OpenAI models.
    #[serde(rename = "/v1/models")]
    Models,
    /// Health.
    #[serde(rename = "/health")]
    Health,
    /// The engine's own page.
    #[serde(rename = "/metrics")]
    Metrics,
    /// vLLM version.
    #[serde(rename = "/version")]
    Version,
    /// Anything else; answered like chat when it is a POST, 404 otherwise.
    #[serde(rename = "other")]
    Other,
}

const PATHS: [(Route, &str); 12] = [
    (Route::Chat, "/v1/chat/completions"),
    (Route::Completions, "/v1/completions"),
    (Route::Responses, "/v1/responses"),
    (Route::Messages, "/v1/messages"),
    (Route::Generate, "/generate"),
    (Route::Llama, "/completion"),
    (Route::Embeddings, "/v1/embeddings"),
    (Route::Tokenize, "/tokenize"),
    (Route::Models, "/v1/models"),
    (Route::Health, "/health"),
    (Route::Metrics, "/metrics"),
    (Route::Version, "/version"),
];

impl Route {
    /// The route of a request target.
    pub fn of(target: &str) -> Self {
        let path = target.split(['?', '#']).next().unwrap_or_default();
        PATHS
            .iter()
            .find(|(_, known)| *known == path)
            .map_or(Self::Other, |(route, _)| *route)
    }

    /// The label value.
    pub fn as_str(self) -> &'static str {
        PATHS
            .iter()
            .find(|(route, _)| *route == self)
            .map_or("other", |(_, path)| path)
    }

    /// Whether it generates, and so may stream.
    pub fn generates(self) -> bool {
        matches!(
            self,
            Self::Chat
                | Self::Completions
                | Self::Responses
                | Self::Messages
                | Self::Generate
                | Self::Llama
                | Self::Other
        )
    }

    /// Whether its replies always carry usage.
    pub fn always_usage(self) -> bool {
        matches!(
            self,
            Self::Responses | Self::Messages | Self::Generate | Self::Llama
        )
    }
}
