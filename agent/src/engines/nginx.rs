//! nginx as a gateway in front of engines. It fronts anything, so it is watched only when a rule
//! names it or its upstream is watched.

use super::process::{Process, Why, base};
use super::{Profile, no_models, openai};
use crate::vocab::{Engine, Role};

pub(super) const PROFILE: Profile = Profile {
    engine: Engine::Nginx,
    recognise,
    routes: openai::ANY,
    models: no_models,
    only_when_named: true,
};

fn recognise(process: &Process<'_>) -> Option<(Role, Why)> {
    let first = process
        .facts
        .cmdline
        .first()
        .map(String::as_str)
        .unwrap_or_default();
    let called = first.starts_with("nginx: ") || base(first) == "nginx";
    (process.binary(&["nginx"]) && called).then_some((Role::Gateway, "executable nginx"))
}
