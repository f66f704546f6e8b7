//! TensorRT-LLM: `trtllm-serve` and its MPI workers. Its `/metrics` and `/perf_metrics` are drained
//! by whoever reads them. Routes read in August 2026.

use super::process::{Process, Why, base};
use super::routes::{Route, controls, probes};
use super::{Profile, args, openai};
use crate::vocab::{Engine, Role};

pub(super) const PROFILE: Profile = Profile {
    engine: Engine::TensorRtLlm,
    recognise,
    routes: &[
        openai::OPENAI,
        openai::PROBES,
        NATIVE,
        openai::KSERVE,
        openai::GRPC,
    ],
    models,
    only_when_named: false,
};

const NATIVE: &[Route] = &[
    probes("/prometheus/metrics"),
    probes("/perf_metrics"),
    controls("/kv_cache_events"),
    controls("/server_info"),
    controls("/steady_clock_offset"),
    controls("/cluster_info"),
    controls("/release_memory"),
    controls("/resume_memory"),
    controls("/update_weights"),
];

fn recognise(process: &Process<'_>) -> Option<(Role, Why)> {
    if process.script(&["trtllm-serve"]) || process.module(&["tensorrt_llm.commands.serve"]) {
        return match process.args.first().map(String::as_str) {
            Some("disaggregated") => Some((Role::Gateway, "argv trtllm-serve disaggregated")),
            Some("disaggregated_mpi_worker") => Some((Role::Worker, "argv trtllm-serve")),
            Some(_) => Some((Role::Api, "argv trtllm-serve")),
            None => None,
        };
    }
    if process.module(&["dynamo.trtllm"]) {
        return Some((Role::Api, "module dynamo.trtllm"));
    }
    let worker = process.module(&["mpi4py.futures.server"]) && process.maps("tensorrt_llm/");
    worker.then_some((Role::Worker, "maps tensorrt_llm"))
}

/// The name given, else the last component of the model's path; a name of a hub stays whole.
fn models(cmdline: &[String]) -> Vec<String> {
    let named = args::values(
        cmdline,
        &["--served_model_name", "--served-model-name"],
        false,
    );
    if let Some(name) = named.last() {
        return vec![(*name).to_owned()];
    }
    let model = args::operand(cmdline, "serve")
        .or_else(|| args::operand(cmdline, "trtllm-serve").filter(|word| *word != "serve"))
        .or_else(|| {
            args::values(cmdline, &["--model", "--model-path"], false)
                .last()
                .copied()
        });
    let name = |model: &str| {
        let path = model.trim_end_matches('/');
        if path.starts_with(['/', '.']) {
            base(path).to_owned()
        } else {
            path.to_owned()
        }
    };
    model.map(name).into_iter().collect()
}
