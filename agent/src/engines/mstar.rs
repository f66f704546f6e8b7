//! mstar: `mstar serve` (FastAPI), the optional Rust front end, nodes. Its own `/generate` answers
//! in NDJSON. Children carry no title.

use super::process::{Process, Why};
use super::routes::{Route, controls, generates, others};
use super::{Profile, args, openai};
use crate::vocab::{Engine, Role};

pub(super) const PROFILE: Profile = Profile {
    engine: Engine::Mstar,
    recognise,
    routes: &[openai::OPENAI, NATIVE, openai::PROBES],
    models,
    only_when_named: false,
};

const NATIVE: &[Route] = &[
    generates("/generate"),
    others("/generate/ws"),
    controls("/status"),
];

fn recognise(process: &Process<'_>) -> Option<(Role, Why)> {
    if process.runs("mstar", "serve") || process.runs("mstar.cli", "serve") {
        return Some((Role::Api, "argv mstar serve"));
    }
    if process.script(&["mstar-serve"]) {
        return Some((Role::Api, "argv mstar-serve"));
    }
    if process.script(&["mstar-node"]) {
        return Some((Role::Worker, "argv mstar-node"));
    }
    process
        .binary(&["mstar-server"])
        .then_some((Role::Api, "executable mstar-server"))
}

fn models(cmdline: &[String]) -> Vec<String> {
    let mut model = args::operand(cmdline, "serve")
        .into_iter()
        .collect::<Vec<_>>();
    model.extend(args::values(
        cmdline,
        &["--model", "--model-name", "--model-path"],
        false,
    ));
    let served = args::values(cmdline, &["--served-model-name"], true);
    args::served_or_model(served, model, Vec::new())
}
