//! Error codes of replies: the closed list behind the label `code`, spelled as on the wire, and
//! where the engines put them. A code not on the list is `other`; message texts are never looked
//! at. Sources: OpenAI, Anthropic, vLLM, SGLang, TensorRT-LLM, llama.cpp, MindIE and TGI, mstar,
//! Dynamo, SMG, LiteLLM.

use super::json::Json;

/// A code that is not on the list, or an error without one.
pub const OTHER: &str = "other";

/// A choice of a stream that finished with `finish_reason="error"`.
pub const FINISH_ERROR: &str = "finish_error";

/// Every code, sorted by bytes.
pub const CODES: &[&str] = &[
    "APIConnectionError",
    "APIError",
    "APITimeoutError",
    "AuthenticationError",
    "Bad Gateway",
    "Bad Request",
    "BadRequest",
    "BadRequestError",
    "ConflictError",
    "ContextWindowExceededError",
    "EngineDeadError",
    "EngineGenerateError",
    "Forbidden",
    "Gateway Timeout",
    "GatewayTimeout",
    "GenerationError",
    "Incomplete Generation",
    "Input Validation Error",
    "Internal Server Error",
    "InternalServerError",
    "Not Found",
    "Not Implemented",
    "NotFoundError",
    "NotImplementedError",
    "Overloaded",
    "PermissionDeniedError",
    "RateLimitError",
    "Request Timeout",
    "RequestTimeout",
    "Service Unavailable",
    "ServiceUnavailable",
    "ServiceUnavailableError",
    "Timeout",
    "TimeoutError",
    "Too Many Requests",
    "Unauthorized",
    "Unprocessable Entity",
    "UnprocessableEntityError",
    "UnsupportedParamsError",
    "ValidationError",
    "ValueError",
    "abort",
    "admission_queue_full",
    "admission_queue_timeout",
    "api_error",
    "auth_error",
    "authentication_error",
    "bad_gateway",
    "bad_request",
    "bad_request_error",
    "bad_response_status_code",
    "billing_error",
    "budget_exceeded",
    "cancelled",
    "client_closed_request",
    "content_filter",
    "content_policy_violation",
    "context_length_exceeded",
    "deadline_exceeded",
    "engine_error",
    "engine_overloaded",
    "exceed_context_size_error",
    "expired_key",
    "finish_error",
    "gateway_timeout",
    "generation",
    "incomplete_generation",
    "insufficient_quota",
    "internal",
    "internal_error",
    "internal_server_error",
    "invalid_api_key",
    "invalid_argument",
    "invalid_decisions_response",
    "invalid_prompt",
    "invalid_request",
    "invalid_request_error",
    "invalid_type",
    "invalid_value",
    "key_model_access_denied",
    "missing_required_parameter",
    "model_not_found",
    "no_available_workers",
    "no_compatible_pd_pair",
    "no_db_connection",
    "not_found",
    "not_found_error",
    "not_implemented",
    "not_implemented_error",
    "not_supported_error",
    "org_model_access_denied",
    "other",
    "overloaded",
    "overloaded_error",
    "permission_denied",
    "permission_error",
    "prefill_queue_full",
    "prefill_queue_timeout",
    "previous_response_not_found",
    "rate_limit_error",
    "rate_limit_exceeded",
    "request_timeout",
    "request_too_large",
    "resource_exhausted",
    "response_not_found",
    "selection_queue_timeout",
    "server_error",
    "service_unavailable",
    "stream_error",
    "string_above_max_length",
    "team_model_access_denied",
    "tenant_rate_limit_exceeded",
    "throttling_error",
    "timeout",
    "timeout_error",
    "token_not_found_in_db",
    "tokenizer_load_failed",
    "tokenizer_not_ready",
    "too_many_requests",
    "unavailable",
    "unavailable_error",
    "unsupported_parameter",
    "unsupported_value",
    "user_model_access_denied",
    "validation",
    "validation_error",
    "vector_store_timeout",
    "worker_overload_protection_shed",
];

/// The codes by which an engine says that its own time limit ran out. Refusals of a queue that
/// timed out are among them.
const TIMEOUTS: &[&str] = &[
    "APITimeoutError",
    "Gateway Timeout",
    "GatewayTimeout",
    "Request Timeout",
    "RequestTimeout",
    "Timeout",
    "TimeoutError",
    "admission_queue_timeout",
    "deadline_exceeded",
    "gateway_timeout",
    "prefill_queue_timeout",
    "request_timeout",
    "selection_queue_timeout",
    "timeout",
    "timeout_error",
    "vector_store_timeout",
];

/// The listed code with exactly this text.
pub fn known(text: &[u8]) -> Option<&'static str> {
    CODES
        .binary_search_by(|code| code.as_bytes().cmp(text))
        .ok()
        .map(|at| CODES[at])
}

/// Whether a code means that a time limit ran out.
pub fn is_timeout(code: &str) -> bool {
    TIMEOUTS.contains(&code)
}

/// The code of an error body or event whose fields `get` finds, `None` if it reports no error.
pub fn of_fields<'a>(get: impl Fn(&str) -> Option<Json<'a>>) -> Option<&'static str> {
    let text = |key: &str| get(key).and_then(|value| value.raw_text());
    if let Some(error) = get("error").filter(is_error_value) {
        return Some(if error.is_object() {
            first_known([error.get("code"), error.get("type")])
        } else {
            first_known([Some(error), get("error_type"), get("code"), get("type")])
        });
    }
    if get("error_type").is_some_and(|value| value.is_filled_text()) {
        return Some(first_known([get("error_type"), get("code")]));
    }
    let kind = text("type");
    if kind == Some(b"response.failed") {
        let error = get("response").and_then(|response| response.get("error"));
        return Some(first_known([
            error.and_then(|error| error.get("code")),
            error.and_then(|error| error.get("type")),
        ]));
    }
    // Dynamo's flat form has a number for a code and neither choices nor an object name.
    let flat = get("message").is_some_and(|value| value.raw_text().is_some())
        && get("code").is_some_and(|value| value.number().is_some())
        && get("choices").is_none();
    if text("object") == Some(b"error") || kind == Some(b"error") || flat {
        return Some(first_known([
            get("code"),
            get("type").filter(|_| kind != Some(b"error")),
        ]));
    }
    (text("modality") == Some(b"error")).then_some(OTHER)
}

fn is_error_value(value: &Json<'_>) -> bool {
    value.is_object() || value.is_filled_text()
}

fn first_known<const N: usize>(candidates: [Option<Json<'_>>; N]) -> &'static str {
    candidates
        .into_iter()
        .flatten()
        .filter_map(|value| value.raw_text())
        .find_map(known)
        .unwrap_or(OTHER)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> Option<&'static str> {
        let json = Json::prefix(text.as_bytes());
        of_fields(|key| json.get(key))
    }

    #[test]
    fn the_list_is_sorted_and_holds_every_timeout() {
        assert!(CODES.is_sorted(), "binary search needs it");
        for code in TIMEOUTS.iter().chain([&OTHER, &FINISH_ERROR]) {
            assert_eq!(known(code.as_bytes()), Some(*code), "{code}");
        }
    }

    #[test]
    fn each_engine_s_form_is_understood() {
        for (text, expected) in [
            (
                r#"{"error":{"message":"m","type":"invalid_request_error","param":null,"code":"context_length_exceeded"}}"#,
                Some("context_length_exceeded"),
            ),
            (
                r#"{"error":{"message":"m","type":"NotFoundError","param":"model","code":404}}"#,
                Some("NotFoundError"),
            ),
            (
                r#"{"object":"error","message":"m","type":"BadRequest","param":null,"code":400}"#,
                Some("BadRequest"),
            ),
            (
                r#"{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}"#,
                Some("unavailable_error"),
            ),
            (
                r#"{"type":"error","error":{"type":"overloaded_error","message":"m"}}"#,
                Some("overloaded_error"),
            ),
            (
                r#"{"type":"error","code":"server_error","message":"m","param":null}"#,
                Some("server_error"),
            ),
            (
                r#"{"type":"response.failed","response":{"id":"r","error":{"code":"rate_limit_exceeded","message":"m"}}}"#,
                Some("rate_limit_exceeded"),
            ),
            (
                r#"{"message":"m","type":"Service Unavailable","code":503}"#,
                Some("Service Unavailable"),
            ),
            (
                r#"{"error":{"message":"m","type":"None","param":"None","code":"429"}}"#,
                Some(OTHER),
            ),
            (
                r#"{"error":"Engine busy","error_type":"overloaded"}"#,
                Some("overloaded"),
            ),
            (r#"{"error":"some text"}"#, Some(OTHER)),
            (
                r#"{"modality":"error","data":"x","metadata":{"status":500}}"#,
                Some(OTHER),
            ),
            (
                r#"{"id":"r","object":"response","error":null,"type":"x"}"#,
                None,
            ),
            (r#"{"choices":[],"message":"m","code":1}"#, None),
            (r#"{"type":"message","content":[]}"#, None),
        ] {
            assert_eq!(code(text), expected, "{text}");
        }
    }

    #[test]
    fn timeouts_are_told_from_other_errors() {
        assert!(is_timeout("timeout_error") && is_timeout("Gateway Timeout"));
        assert!(!is_timeout("server_error") && !is_timeout("cancelled"));
    }
}
