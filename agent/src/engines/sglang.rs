//! SGLang: HTTP server with tokenizer manager, schedulers, detokenizer, controllers. The classic
//! titles and command lines, and the gRPC mode. Routes and titles read in 0.5.23. A health
//! generation makes a real token and is a probe all the same.

use super::process::{Process, Why};
use super::routes::{Route, computes, controls, generates, probes};
use super::{Profile, args, openai};
use crate::vocab::{Engine, Role};

pub(super) const PROFILE: Profile = Profile {
    engine: Engine::Sglang,
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

/// SGLang's own paths, which SMG relays.
pub(super) const NATIVE: &[Route] = &[
    generates("/generate"),
    generates("/generate_from_file"),
    computes("/vertex_generate"),
    generates("/api/generate"),
    generates("/api/chat"),
    controls("/api/tags"),
    controls("/api/show"),
    probes("/get_load"),
    probes("/get_loads"),
    probes("/v1/loads"),
    probes("/loads"),
    controls("/model_info"),
    controls("/get_model_info"),
    controls("/server_info"),
    controls("/get_server_info"),
    controls("/weight_version"),
    controls("/get_weight_version"),
    controls("/flush_cache"),
    controls("/abort_request"),
    controls("/start_profile"),
    controls("/stop_profile"),
    controls("/pause_generation"),
    controls("/continue_generation"),
    controls("/load_lora_adapter"),
    controls("/unload_lora_adapter"),
    controls("/update_weights_from_disk"),
    controls("/update_weights_from_tensor"),
    controls("/update_weights_from_distributed"),
    controls("/update_weights_from_ipc"),
    controls("/init_weights_update_group"),
    controls("/destroy_weights_update_group"),
    controls("/update_weight_version"),
    controls("/get_weights_by_name"),
    controls("/release_memory_occupation"),
    controls("/resume_memory_occupation"),
    controls("/set_internal_state"),
    controls("/get_internal_state"),
    controls("/open_session"),
    controls("/close_session"),
    controls("/parse_function_call"),
    controls("/separate_reasoning"),
    controls("/configure_logging"),
    controls("/slow_down"),
    controls("/route"),
];

const TITLES: [(&str, Role, Why); 6] = [
    ("sglang::scheduler", Role::Core, "title sglang::scheduler"),
    (
        "sglang::detokenizer_router",
        Role::Other,
        "title sglang::detokenizer_router",
    ),
    (
        "sglang::detokenizer",
        Role::Detokenizer,
        "title sglang::detokenizer",
    ),
    (
        "sglang::data_parallel_controller",
        Role::Other,
        "title sglang::data_parallel_controller",
    ),
    (
        "sglang::tokenizer_worker",
        Role::Api,
        "title sglang::tokenizer_worker",
    ),
    (
        "sglang::http_server",
        Role::Api,
        "title sglang::http_server",
    ),
];

fn recognise(process: &Process<'_>) -> Option<(Role, Why)> {
    for (title, role, why) in TITLES {
        // A title cut to 15 bytes is the same for detokenizer and its router: the rarer one needs
        // its whole name.
        let whole = title != "sglang::detokenizer_router"
            || process.title().is_some_and(|t| t.starts_with(title));
        if whole && process.titled(title) {
            return Some((role, why));
        }
    }
    if process.module(&["sglang.launch_server"]) {
        return Some((Role::Api, "module sglang.launch_server"));
    }
    if process.runs("sglang", "serve") {
        return Some((Role::Api, "argv sglang serve"));
    }
    if process.module(&["dynamo.sglang"]) {
        return Some((Role::Api, "module dynamo.sglang"));
    }
    let titled = process.titled("sglang::") || process.titled("sglang");
    (titled && process.maps("sgl_kernel/")).then_some((Role::Other, "maps sgl_kernel"))
}

fn models(cmdline: &[String]) -> Vec<String> {
    let mut model = args::operand(cmdline, "serve")
        .into_iter()
        .collect::<Vec<_>>();
    model.extend(args::values(cmdline, &["--model-path", "--model"], false));
    let served = args::values(cmdline, &["--served-model-name"], false);
    let adapters = args::values(cmdline, &["--lora-paths"], true);
    args::served_or_model(served, model, args::adapters(&adapters))
}
