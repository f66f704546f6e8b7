//! Envoy as a gateway in front of engines, also as a sidecar. It fronts anything, so it is watched
//! only when a rule names it or its upstream is watched.

use super::process::{Process, Why};
use super::{Profile, no_models, openai};
use crate::vocab::{Engine, Role};

pub(super) const PROFILE: Profile = Profile {
    engine: Engine::Envoy,
    recognise,
    routes: openai::ANY,
    models: no_models,
    only_when_named: true,
};

fn recognise(process: &Process<'_>) -> Option<(Role, Why)> {
    process
        .binary(&["envoy", "envoy-static", "envoy-contrib"])
        .then_some((Role::Gateway, "executable envoy"))
}
