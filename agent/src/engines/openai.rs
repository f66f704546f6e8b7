//! Servers known only by what they answer: the paths of the OpenAI and Anthropic interfaces and of
//! KServe, which all engines and gateways share in part. The tables here are used by the other
//! profiles. WebSocket paths are `other` until that protocol is read.

use super::process::{Process, Why};
use super::routes::{Route, computes, controls, generates, others, probes};
use super::{Profile, llamacpp, mindie, no_models, sglang};
use crate::vocab::{Engine, Role};

pub(super) const PROFILE: Profile = Profile {
    engine: Engine::OpenAi,
    recognise: by_traffic_only,
    routes: ANY,
    models: no_models,
    only_when_named: false,
};

/// The tables of a program that may front or be anything.
pub(super) const ANY: &[&[Route]] = &[
    OPENAI,
    ANTHROPIC,
    SCORING,
    PROBES,
    KSERVE,
    BARE,
    sglang::NATIVE,
    llamacpp::NATIVE,
    mindie::NATIVE,
    GRPC,
];

/// Tables of paths that no other kind of service has.
pub(super) const TELLING: &[&[Route]] = &[OPENAI, ANTHROPIC, KSERVE, TELLING_NATIVE];

fn by_traffic_only(_: &Process<'_>) -> Option<(Role, Why)> {
    None
}

/// The OpenAI interface.
pub(super) const OPENAI: &[Route] = &[
    generates("/v1/chat/completions"),
    generates("/v1/completions"),
    generates("/v1/responses"),
    controls("/v1/responses/{id}"),
    controls("/v1/responses/{id}/cancel"),
    controls("/v1/responses/{id}/input_items"),
    computes("/v1/embeddings"),
    generates("/v1/audio/transcriptions"),
    generates("/v1/audio/translations"),
    generates("/v1/audio/speech"),
    generates("/v1/images/generations"),
    generates("/v1/images/edits"),
    computes("/v1/images/variations"),
    computes("/v1/moderations"),
    computes("/v1/videos"),
    computes("/v1/videos/generations"),
    controls("/v1/videos/{id}"),
    controls("/v1/videos/{id}/content"),
    controls("/v1/models"),
    controls("/v1/models/{id}"),
    controls("/v1/files"),
    controls("/v1/files/{id}"),
    controls("/v1/files/{id}/content"),
    controls("/v1/batches"),
    controls("/v1/batches/{id}"),
    controls("/v1/batches/{id}/cancel"),
    controls("/v1/conversations"),
    controls("/v1/conversations/{id}"),
    controls("/v1/conversations/{id}/items"),
    controls("/v1/conversations/{id}/items/{item}"),
    others("/v1/realtime"),
    controls("/v1/realtime/sessions"),
    controls("/v1/realtime/client_secrets"),
    controls("/v1/realtime/transcription_sessions"),
    others("/v1/realtime/calls"),
];

/// The Anthropic interface.
pub(super) const ANTHROPIC: &[Route] = &[
    generates("/v1/messages"),
    controls("/v1/messages/count_tokens"),
];

/// Scores, ranks and pooled outputs.
pub(super) const SCORING: &[Route] = &[
    computes("/score"),
    computes("/v1/score"),
    computes("/rerank"),
    computes("/v1/rerank"),
    computes("/v2/rerank"),
    computes("/classify"),
    computes("/v1/classify"),
    computes("/pooling"),
    computes("/v1/pooling"),
    computes("/v2/embed"),
    computes("/encode"),
    generates("/invocations"),
    controls("/tokenize"),
    controls("/detokenize"),
    controls("/v1/tokenize"),
    controls("/v1/detokenize"),
];

/// Health, metrics, load, version.
pub(super) const PROBES: &[Route] = &[
    probes("/health"),
    probes("/healthz"),
    probes("/v1/health"),
    probes("/health_generate"),
    probes("/live"),
    probes("/livez"),
    probes("/liveness"),
    probes("/ready"),
    probes("/readyz"),
    probes("/readiness"),
    probes("/ping"),
    probes("/metrics"),
    probes("/load"),
    probes("/version"),
];

/// The OpenAI interface without its version.
pub(super) const BARE: &[Route] = &[
    generates("/chat/completions"),
    generates("/completions"),
    generates("/responses"),
    computes("/embeddings"),
    controls("/models"),
];

/// The HTTP interface of KServe and Triton.
pub(super) const KSERVE: &[Route] = &[
    computes("/v2/models/{model}/infer"),
    generates("/v2/models/{model}/generate"),
    generates("/v2/models/{model}/generate_stream"),
    controls("/v2/models/{model}/stopInfer"),
    probes("/v2/models/{model}/ready"),
    controls("/v2/models/{model}/config"),
    probes("/v2/models/{model}/getSlotCount"),
    controls("/v2/models/{model}"),
    probes("/v2/health/live"),
    probes("/v2/health/ready"),
    probes("/v2/health/stopped"),
    controls("/v2"),
];

/// The engines' own paths that no other kind of service has.
const TELLING_NATIVE: &[Route] = &[
    generates("/chat/completions"),
    generates("/inference/v1/generate"),
    generates("/generate_stream"),
    generates("/infill"),
    computes("/v1/rerank"),
    computes("/v1/score"),
    generates("/v1beta/models/{model}:generateContent"),
    generates("/v1beta/models/{model}:streamGenerateContent"),
];

/// gRPC interfaces of engines and of KServe, and the standard health service.
pub(super) const GRPC: &[Route] = &[
    generates("/vllm.grpc.engine.VllmEngine/Generate"),
    computes("/vllm.grpc.engine.VllmEngine/Embed"),
    controls("/vllm.grpc.engine.VllmEngine/Abort"),
    controls("/vllm.grpc.engine.VllmEngine/FlushCache"),
    controls("/vllm.grpc.engine.VllmEngine/GetModelInfo"),
    controls("/vllm.grpc.engine.VllmEngine/GetServerInfo"),
    controls("/vllm.grpc.engine.VllmEngine/GetTokenizer"),
    controls("/vllm.grpc.engine.VllmEngine/SubscribeKvEvents"),
    probes("/vllm.grpc.engine.VllmEngine/GetLoads"),
    probes("/vllm.grpc.engine.VllmEngine/HealthCheck"),
    generates("/sglang.grpc.scheduler.SglangScheduler/Generate"),
    computes("/sglang.grpc.scheduler.SglangScheduler/Embed"),
    controls("/sglang.grpc.scheduler.SglangScheduler/Abort"),
    controls("/sglang.grpc.scheduler.SglangScheduler/FlushCache"),
    controls("/sglang.grpc.scheduler.SglangScheduler/GetModelInfo"),
    controls("/sglang.grpc.scheduler.SglangScheduler/GetServerInfo"),
    controls("/sglang.grpc.scheduler.SglangScheduler/GetTokenizer"),
    controls("/sglang.grpc.scheduler.SglangScheduler/SubscribeKvEvents"),
    controls("/sglang.grpc.scheduler.SglangScheduler/StartProfile"),
    controls("/sglang.grpc.scheduler.SglangScheduler/StopProfile"),
    probes("/sglang.grpc.scheduler.SglangScheduler/GetLoads"),
    probes("/sglang.grpc.scheduler.SglangScheduler/HealthCheck"),
    generates("/sglang.runtime.v1.SglangService/TextGenerate"),
    generates("/sglang.runtime.v1.SglangService/Generate"),
    generates("/sglang.runtime.v1.SglangService/ChatComplete"),
    generates("/sglang.runtime.v1.SglangService/Complete"),
    computes("/sglang.runtime.v1.SglangService/Embed"),
    controls("/sglang.runtime.v1.SglangService/Abort"),
    computes("/inference.GRPCInferenceService/ModelInfer"),
    generates("/inference.GRPCInferenceService/ModelStreamInfer"),
    controls("/inference.GRPCInferenceService/ModelMetadata"),
    controls("/inference.GRPCInferenceService/ModelConfig"),
    probes("/inference.GRPCInferenceService/ModelReady"),
    probes("/inference.GRPCInferenceService/ServerLive"),
    probes("/inference.GRPCInferenceService/ServerReady"),
    probes("/grpc.health.v1.Health/Check"),
    probes("/grpc.health.v1.Health/Watch"),
];
