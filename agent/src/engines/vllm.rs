//! vLLM: API servers (FastAPI, uvicorn; or the Rust front end), EngineCore, workers. Titles are
//! only there when setproctitle is installed and their prefix can be configured. Routes and titles
//! read in 0.32 and 0.33.

use super::process::{Process, Program, Why};
use super::routes::{Route, computes, controls, generates, probes};
use super::{Profile, args, openai};
use crate::vocab::{Engine, Role};

pub(super) const PROFILE: Profile = Profile {
    engine: Engine::Vllm,
    recognise,
    routes: &[
        openai::OPENAI,
        openai::ANTHROPIC,
        openai::SCORING,
        openai::PROBES,
        NATIVE,
        openai::GRPC,
    ],
    models,
    only_when_named: false,
};

const NATIVE: &[Route] = &[
    generates("/inference/v1/generate"),
    generates("/cohere/v2/chat"),
    generates("/v1/chat/completions/batch"),
    controls("/v1/chat/completions/render"),
    controls("/v1/completions/render"),
    computes("/generative_scoring"),
    generates("/generate"),
    controls("/tokenizer_info"),
    controls("/server_info"),
    controls("/v1/load_lora_adapter"),
    controls("/v1/unload_lora_adapter"),
    controls("/start_profile"),
    controls("/stop_profile"),
    controls("/reset_prefix_cache"),
    controls("/reset_mm_cache"),
    controls("/reset_encoder_cache"),
    controls("/sleep"),
    controls("/wake_up"),
    probes("/is_sleeping"),
    controls("/pause"),
    controls("/resume"),
    probes("/is_paused"),
    controls("/abort_requests"),
    controls("/collective_rpc"),
    controls("/scale_elastic_ep"),
    probes("/is_scaling_elastic_ep"),
    controls("/init_weight_transfer_engine"),
    controls("/update_weights"),
    controls("/get_world_size"),
];

const TITLES: [(&str, Role, Why); 4] = [
    ("::APIServer", Role::Api, "title VLLM::APIServer"),
    ("::EngineCore", Role::Core, "title VLLM::EngineCore"),
    ("::Worker", Role::Worker, "title VLLM::Worker"),
    ("::DPCoordinator", Role::Other, "title VLLM::DPCoordinator"),
];

fn recognise(process: &Process<'_>) -> Option<(Role, Why)> {
    let ours = process.maps("/vllm/");
    for (part, role, why) in TITLES {
        // With another prefix than the built-in one the files must agree.
        let configured = ours && process.title().is_some_and(|title| title.contains(part));
        if process.titled(&format!("VLLM{part}")) || configured {
            return Some((role, why));
        }
    }
    if process.runs("vllm", "serve") || process.runs("vllm.entrypoints.cli.main", "serve") {
        return Some((Role::Api, "argv vllm serve"));
    }
    if process.module(&["vllm.entrypoints.openai.api_server"]) {
        return Some((Role::Api, "module vllm.entrypoints.openai.api_server"));
    }
    if process.module(&[
        "vllm.entrypoints.api_server",
        "vllm.entrypoints.grpc_server",
    ]) {
        return Some((Role::Api, "module vllm.entrypoints"));
    }
    if process.module(&["dynamo.vllm"]) {
        return Some((Role::Api, "module dynamo.vllm"));
    }
    if process.binary(&["vllm-rs"]) {
        return Some((Role::Api, "executable vllm-rs"));
    }
    let titled = matches!(process.program, Program::Title(title) if title.to_ascii_lowercase().contains("vllm"));
    (titled && process.maps("vllm/_C")).then_some((Role::Other, "maps vllm/_C.abi3.so"))
}

fn models(cmdline: &[String]) -> Vec<String> {
    let mut model = args::operand(cmdline, "serve")
        .into_iter()
        .collect::<Vec<_>>();
    model.extend(args::values(cmdline, &["--model", "--model-path"], false));
    let served = args::values(
        cmdline,
        &["--served-model-name", "--served_model_name"],
        true,
    );
    let adapters = args::values(cmdline, &["--lora-modules", "--lora_modules"], true);
    args::served_or_model(served, model, args::adapters(&adapters))
}
