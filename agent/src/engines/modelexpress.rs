//! ModelExpress: a gRPC server of model metadata. Weights go by RDMA, so all it answers is control.
//! Services and methods read in 0.7 and the 0.8 nightly.

use super::process::{Process, Why};
use super::routes::{Route, controls, probes};
use super::{Profile, no_models};
use crate::vocab::{Engine, Role};

pub(super) const PROFILE: Profile = Profile {
    engine: Engine::ModelExpress,
    recognise,
    routes: &[GRPC],
    models: no_models,
    only_when_named: false,
};

const GRPC: &[Route] = &[
    controls("/model_express.api.ApiService/SendRequest"),
    probes("/model_express.health.HealthService/GetHealth"),
    controls("/model_express.model.ModelService/EnsureModelDownloaded"),
    controls("/model_express.model.ModelService/StreamModelFiles"),
    controls("/model_express.model.ModelService/ListModelFiles"),
    controls("/model_express.model.ModelService/DeleteModel"),
    controls("/model_express.p2p.P2pService/PublishMetadata"),
    controls("/model_express.p2p.P2pService/ListSources"),
    controls("/model_express.p2p.P2pService/GetMetadata"),
    controls("/model_express.p2p.P2pService/UpdateStatus"),
    controls("/model_express.refit.RefitService/CreateWeightVersion"),
    controls("/model_express.refit.RefitService/GetWeightVersion"),
    controls("/model_express.refit.RefitService/DeleteWeightVersion"),
    controls("/model_express.refit.RefitService/RegisterWorker"),
    controls("/model_express.refit.RefitService/CreateWeightVersionShard"),
    controls("/model_express.refit.RefitService/ListWeightVersionShards"),
    controls("/model_express.refit.RefitService/DeleteWeightVersionShard"),
    controls("/model_express.refit.RefitService/RegisterVersionLease"),
    controls("/model_express.refit.RefitService/DeleteVersionLease"),
    controls("/model_express.refit.RefitService/CreateTrainerMesh"),
    controls("/model_express.refit.RefitService/GetTrainerMesh"),
    controls("/model_express.refit.RefitService/UpdateTrainerMesh"),
    controls("/model_express.refit.RefitService/DeleteTrainerMesh"),
    controls("/model_express.refit.RefitService/ListWeightVersions"),
    controls("/model_express.refit.RefitService/UpdateWeightVersionState"),
    probes("/grpc.health.v1.Health/Check"),
    probes("/grpc.health.v1.Health/Watch"),
    probes("/metrics"),
    probes("/health"),
];

fn recognise(process: &Process<'_>) -> Option<(Role, Why)> {
    process
        .binary(&["modelexpress-server", "model-express-server"])
        .then_some((Role::Api, "executable modelexpress-server"))
}
