//! SMG: the gateway in Rust, as its own executable or as a wheel inside Python, and under its
//! former name sglang-router. Routes read in 1.13.0.

use super::process::{Process, Program, Why};
use super::routes::{Route, computes, controls, generates, probes};
use super::{Profile, no_models, openai, sglang};
use crate::vocab::{Engine, Role};

pub(super) const PROFILE: Profile = Profile {
    engine: Engine::Smg,
    recognise,
    routes: &[
        openai::OPENAI,
        openai::ANTHROPIC,
        openai::SCORING,
        openai::PROBES,
        NATIVE,
        sglang::NATIVE,
        openai::GRPC,
    ],
    models: no_models,
    only_when_named: false,
};

const NATIVE: &[Route] = &[
    generates("/v1/interactions"),
    controls("/v1/interactions/{id}"),
    computes("/v1/decisions"),
    computes("/v1/systemone"),
    probes("/engine_metrics"),
    controls("/workers"),
    controls("/workers/{id}"),
    controls("/v1/rl/{path}"),
    controls("/heap_profile"),
    controls("/parse/{path}"),
    controls("/wasm"),
    controls("/wasm/{id}"),
    controls("/v1/tokenizers"),
    controls("/v1/tokenizers/{id}"),
    controls("/v1/tokenizers/{id}/status"),
    controls("/ha/{path}"),
];

fn recognise(process: &Process<'_>) -> Option<(Role, Why)> {
    let wheel = process.maps("smg/smg_rs.") || process.maps("sglang_router/sglang_router_rs.");
    if process.titled("smg::") || (process.facts.comm.starts_with("smg::") && wheel) {
        return Some((Role::Gateway, "title smg::router"));
    }
    let launched = process
        .args
        .first()
        .is_some_and(|arg| arg == "launch" || arg == "server" || arg.starts_with('-'));
    if launched && process.binary(&["smg"]) {
        return Some((Role::Gateway, "executable smg"));
    }
    if launched && process.script(&["smg"]) {
        return Some((Role::Gateway, "argv smg launch"));
    }
    if process.module(&["sglang_router.launch_router"]) || process.script(&["sglang-router"]) {
        return Some((Role::Gateway, "module sglang_router.launch_router"));
    }
    if process.module(&["smg.launch_router", "smg.launch_server"]) {
        return Some((Role::Gateway, "module smg"));
    }
    let named = matches!(process.program, Program::Title(title) if title.starts_with("smg"));
    (named && wheel).then_some((Role::Gateway, "maps smg/smg_rs.abi3.so"))
}
