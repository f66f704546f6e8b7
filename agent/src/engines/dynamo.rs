//! Dynamo: the front end (axum inside a Python process) and its routers. Its workers are the
//! engines they run and are recognised as those. Overload is answered with 529, an error.

use super::process::{Process, Why};
use super::routes::{Route, computes, controls, generates, probes};
use super::{Profile, args, openai};
use crate::vocab::{Engine, Role};

pub(super) const PROFILE: Profile = Profile {
    engine: Engine::Dynamo,
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
    generates("/generate"),
    computes("/v1/images"),
    controls("/clear_kv_blocks"),
    controls("/busy_threshold"),
    controls("/openapi.json"),
    probes("/v1/health/ready"),
];

fn recognise(process: &Process<'_>) -> Option<(Role, Why)> {
    if process.module(&["dynamo.frontend", "dynamo.frontend.main"])
        || process.script(&["dynamo-frontend"])
    {
        return Some((Role::Gateway, "module dynamo.frontend"));
    }
    if process.module(&["dynamo.router", "dynamo.global_router"]) {
        return Some((Role::Gateway, "module dynamo.router"));
    }
    process
        .module(&["dynamo.mocker"])
        .then_some((Role::Worker, "module dynamo.mocker"))
}

fn models(cmdline: &[String]) -> Vec<String> {
    args::values(cmdline, &["--model-name", "--served-model-name"], false)
        .into_iter()
        .map(str::to_owned)
        .collect()
}
