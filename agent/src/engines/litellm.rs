//! LiteLLM's proxy: FastAPI under uvicorn, gunicorn, hypercorn or granian. Its routes stand with
//! and without `/v1`, and providers have pass-through paths of their own. Read in 1.110.2.

use super::process::{Process, Program, Why};
use super::routes::{Route, computes, controls, generates, probes};
use super::{Profile, args, openai};
use crate::vocab::{Engine, Role};

pub(super) const PROFILE: Profile = Profile {
    engine: Engine::LiteLlm,
    recognise,
    routes: &[
        openai::OPENAI,
        openai::ANTHROPIC,
        openai::BARE,
        openai::SCORING,
        NATIVE,
        openai::PROBES,
    ],
    models,
    only_when_named: false,
};

const NATIVE: &[Route] = &[
    generates("/engines/{model}/chat/completions"),
    generates("/engines/{model}/completions"),
    computes("/engines/{model}/embeddings"),
    generates("/openai/deployments/{model}/chat/completions"),
    generates("/openai/deployments/{model}/completions"),
    computes("/openai/deployments/{model}/embeddings"),
    generates("/v1beta/models/{model}:generateContent"),
    generates("/v1beta/models/{model}:streamGenerateContent"),
    controls("/v1beta/models/{model}:countTokens"),
    generates("/audio/transcriptions"),
    generates("/audio/speech"),
    generates("/images/generations"),
    computes("/moderations"),
    generates("/anthropic/v1/messages"),
    controls("/anthropic/{path}"),
    controls("/vertex_ai/{path}"),
    controls("/vertex-ai/{path}"),
    controls("/gemini/{path}"),
    controls("/bedrock/{path}"),
    controls("/cohere/{path}"),
    controls("/azure/{path}"),
    controls("/openai/{path}"),
    controls("/key/{path}"),
    controls("/team/{path}"),
    controls("/user/{path}"),
    controls("/model/{path}"),
    controls("/spend/{path}"),
    controls("/global/{path}"),
    controls("/sso/{path}"),
    controls("/ui/{path}"),
    controls("/v1/model/info"),
    probes("/health/liveliness"),
    probes("/health/liveness"),
    probes("/health/readiness"),
    probes("/health/services"),
];

fn recognise(process: &Process<'_>) -> Option<(Role, Why)> {
    let serves = process.args.iter().any(|arg| arg.starts_with('-')) || process.args.is_empty();
    if serves
        && (process.script(&["litellm"]) || process.module(&["litellm", "litellm.proxy.proxy_cli"]))
    {
        return Some((Role::Gateway, "argv litellm"));
    }
    let server = matches!(process.program, Program::Script(name) | Program::Module(name)
        if matches!(name, "uvicorn" | "gunicorn" | "hypercorn" | "granian"));
    let app = process
        .args
        .iter()
        .any(|arg| arg == "litellm.proxy.proxy_server:app");
    (server && app).then_some((Role::Gateway, "argv litellm.proxy.proxy_server:app"))
}

fn models(cmdline: &[String]) -> Vec<String> {
    let alias = args::values(cmdline, &["--alias"], false);
    args::served_or_model(
        alias,
        args::values(cmdline, &["--model", "-m"], false),
        Vec::new(),
    )
}
