//! The engines and gateways: how to recognise each, its routes, the models its command line names.
//! One file per program, one row in `PROFILES`; nothing else in the agent matches over engines.
//! Recognition is strict, since a wrong name is worse than none: an executable's name alone proves
//! nothing for Python, and tools, clients and wrappers that mention an engine are not the engine.

pub mod process;
pub mod routes;

mod args;
mod dynamo;
mod envoy;
mod litellm;
mod llamacpp;
mod mindie;
mod modelexpress;
mod mstar;
mod nginx;
mod openai;
mod sglang;
mod smg;
mod tensorrt_llm;
mod vllm;

#[cfg(test)]
mod tests;

use crate::protocol::errors;
use crate::protocol::head::{Method, RequestHead};
use crate::vocab::{Class, Engine, Outcome, Role};
use process::Process;
pub use process::{ProcessFacts, Why};
pub use routes::RouteMatch;
use routes::{OTHER, Route};

/// What is known of one kind of program.
struct Profile {
    engine: Engine,
    /// The part this process plays in it, and by what it is recognised.
    recognise: fn(&Process<'_>) -> Option<(Role, Why)>,
    /// Its registered paths; the first match counts.
    routes: &'static [&'static [Route]],
    /// The model names its command line announces.
    models: fn(&[String]) -> Vec<String>,
    /// Watched only when a rule names it or its upstream is watched: it fronts anything.
    only_when_named: bool,
}

/// Every program, the more special before those it is built from.
const PROFILES: &[Profile] = &[
    dynamo::PROFILE,
    smg::PROFILE,
    litellm::PROFILE,
    vllm::PROFILE,
    sglang::PROFILE,
    tensorrt_llm::PROFILE,
    llamacpp::PROFILE,
    mindie::PROFILE,
    mstar::PROFILE,
    modelexpress::PROFILE,
    nginx::PROFILE,
    envoy::PROFILE,
    openai::PROFILE,
];

/// A process that belongs to an engine or gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recognised {
    /// Which program it belongs to.
    pub engine: Engine,
    /// The part it plays.
    pub role: Role,
    /// By what it was recognised.
    pub why: Why,
}

/// Says what a process is, `None` if it is none of ours.
pub fn recognise(facts: &ProcessFacts) -> Option<Recognised> {
    let process = Process::read(facts);
    PROFILES.iter().find_map(|profile| {
        let (role, why) = (profile.recognise)(&process)?;
        Some(Recognised {
            engine: profile.engine,
            role,
            why,
        })
    })
}

/// Whether a program is watched only when a rule names it or its upstream is watched.
pub fn only_when_named(engine: Engine) -> bool {
    profile(engine).is_some_and(|profile| profile.only_when_named)
}

/// The model names that a command line of this engine announces, in order, without doubles.
pub fn model_from_cmdline(engine: Engine, cmdline: &[String]) -> Vec<String> {
    let mut models = profile(engine)
        .map(|profile| (profile.models)(cmdline))
        .unwrap_or_default();
    models.retain(|name| crate::protocol::json::model_name(name).is_some());
    let mut seen = std::collections::HashSet::new();
    models.retain(|name| seen.insert(name.clone()));
    models
}

/// The class and the registered path of a request; `other` for a path that is not registered.
pub fn classify(engine: Engine, method: Method, path: &str) -> RouteMatch {
    let tables = profile(engine)
        .map(|profile| profile.routes)
        .unwrap_or_default();
    routes::find(tables, method, path)
}

/// As [`classify`], from a whole head: a request of a health checker is a probe on any path that
/// is not an inference route.
pub fn classify_head(engine: Engine, head: &RequestHead) -> RouteMatch {
    let found = classify(engine, head.method, &head.path);
    match found.class {
        Class::Other if head.prober => RouteMatch {
            class: Class::Probe,
            ..found
        },
        _ => found,
    }
}

/// Whether a successful request of this kind shows that its server is an inference engine or
/// gateway, whatever program it is. Paths that other services use too are left out.
pub fn is_inference_route(method: Method, path: &str) -> bool {
    let found = routes::find(openai::TELLING, method, path);
    found.class == Class::Inference && found.route != OTHER
}

/// Every route of an engine that may stand in a label, `other` last.
pub fn routes_of(engine: Engine) -> impl Iterator<Item = &'static str> {
    let tables = profile(engine)
        .map(|profile| profile.routes)
        .unwrap_or_default();
    tables
        .iter()
        .flat_map(|table| table.iter())
        .map(|route| route.path)
        .chain([OTHER])
}

/// What became of a complete reply with this status and error code.
pub fn outcome_of_status(status: u16, error: Option<&'static str>) -> Outcome {
    match status {
        408 | 504 => Outcome::Timeout,
        499 => Outcome::Abort,
        400.. if error.is_some_and(errors::is_timeout) => Outcome::Timeout,
        500.. => Outcome::Error,
        400.. => Outcome::Refused,
        _ => match error {
            Some(code) => outcome_of_error_event(code),
            None => Outcome::Success,
        },
    }
}

/// What became of a stream that carried an error event under a status below 400.
pub fn outcome_of_error_event(code: &'static str) -> Outcome {
    if errors::is_timeout(code) {
        Outcome::Timeout
    } else {
        Outcome::Error
    }
}

fn profile(engine: Engine) -> Option<&'static Profile> {
    PROFILES.iter().find(|profile| profile.engine == engine)
}

/// For programs whose command line names no model.
fn no_models(_: &[String]) -> Vec<String> {
    Vec::new()
}
