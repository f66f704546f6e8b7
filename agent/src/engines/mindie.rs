//! MindIE: the server's daemon, its back ends, and Motor's coordinator and controller. HTTPS by
//! default. `/dresult` is one long reply with the results of many requests: it is `control` and
//! must never count as a request for inference.

use super::process::{Process, Why};
use super::routes::{Route, computes, controls, generates, probes};
use super::{Profile, no_models, openai};
use crate::vocab::{Engine, Role};

pub(super) const PROFILE: Profile = Profile {
    engine: Engine::MindIe,
    recognise,
    routes: &[openai::OPENAI, openai::KSERVE, NATIVE, ROOT, openai::PROBES],
    models: no_models,
    only_when_named: false,
};

/// MindIE's own paths and those it shares with TGI.
pub(super) const NATIVE: &[Route] = &[
    generates("/generate"),
    generates("/generate_stream"),
    generates("/infer"),
    computes("/infer_token"),
    controls("/dresult"),
    controls("/stopService"),
    controls("/v1/config"),
    controls("/v1/role/{role}"),
    controls("/v1/tokenizer"),
    controls("/info"),
    probes("/metrics-json"),
    probes("/v1/engine-server/running-status"),
];

/// TGI's generation on the root.
const ROOT: &[Route] = &[generates("/")];

fn recognise(process: &Process<'_>) -> Option<(Role, Why)> {
    const BINARIES: [(&str, Role, Why); 5] = [
        (
            "mindieservice_daemon",
            Role::Api,
            "executable mindieservice_daemon",
        ),
        (
            "mindie_llm_server",
            Role::Api,
            "executable mindie_llm_server",
        ),
        (
            "mindie_llm_backend_connector",
            Role::Worker,
            "executable mindie_llm_backend_connector",
        ),
        ("ms_coordinator", Role::Gateway, "executable ms_coordinator"),
        ("ms_controller", Role::Other, "executable ms_controller"),
    ];
    let found = BINARIES
        .iter()
        .find(|(name, ..)| process.binary(&[*name]))?;
    Some((found.1, found.2))
}
