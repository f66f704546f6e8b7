//! llama.cpp: `llama-server`, its library inside a Python process (xllamacpp), and
//! llama-cpp-python's server. One process, one thread per live request. Routes read in August 2026.

use super::process::{Process, Program, Why, base};
use super::routes::{Route, computes, controls, generates};
use super::{Profile, args, openai};
use crate::vocab::{Engine, Role};

pub(super) const PROFILE: Profile = Profile {
    engine: Engine::LlamaCpp,
    recognise,
    routes: &[
        openai::OPENAI,
        openai::ANTHROPIC,
        openai::BARE,
        openai::PROBES,
        NATIVE,
        openai::SCORING,
    ],
    models,
    only_when_named: false,
};

/// llama.cpp's own paths.
pub(super) const NATIVE: &[Route] = &[
    generates("/completion"),
    generates("/infill"),
    generates("/api/chat"),
    computes("/embedding"),
    computes("/reranking"),
    computes("/v1/reranking"),
    controls("/apply-template"),
    controls("/props"),
    controls("/slots"),
    controls("/slots/{id}"),
    controls("/lora-adapters"),
    controls("/models/load"),
    controls("/models/unload"),
    controls("/api/tags"),
    controls("/api/show"),
    controls("/extras/tokenize"),
    controls("/extras/detokenize"),
];

fn recognise(process: &Process<'_>) -> Option<(Role, Why)> {
    if process.binary(&["llama-server"]) && plausible(process) {
        return Some((Role::Api, "executable llama-server"));
    }
    if process.module(&["llama_cpp.server"]) {
        return Some((Role::Api, "module llama_cpp.server"));
    }
    let python = !matches!(process.program, Program::Binary(_));
    (python && process.maps("xllamacpp/xllamacpp."))
        .then_some((Role::Api, "maps xllamacpp/xllamacpp.abi3.so"))
}

/// Whether the command line is one of a server: called by its name, with options only.
fn plausible(process: &Process<'_>) -> bool {
    let called = process
        .facts
        .cmdline
        .first()
        .is_some_and(|name| base(name).starts_with("llama-server"));
    let asks = process.args.iter().any(|arg| {
        matches!(
            arg.as_str(),
            "-h" | "--usage" | "--list-devices" | "--completion-bash"
        )
    });
    called && !asks && process.args.first().is_none_or(|arg| arg.starts_with('-'))
}

/// The aliases; without one the file's name, or the repository it comes from.
fn models(cmdline: &[String]) -> Vec<String> {
    let aliases = args::values(cmdline, &["-a", "--alias"], false);
    let names: Vec<&str> = aliases
        .iter()
        .flat_map(|names| names.split(','))
        .map(str::trim)
        .collect();
    if !names.is_empty() {
        return names.into_iter().map(str::to_owned).collect();
    }
    if let Some(file) = args::values(cmdline, &["-m", "--model", "--model_alias"], false).last() {
        return vec![base(file).to_owned()];
    }
    let repositories = args::values(cmdline, &["-hf", "-hfr", "--hf-repo"], false);
    repositories
        .last()
        .map(|name| (*name).to_owned())
        .into_iter()
        .collect()
}
