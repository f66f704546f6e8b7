//! The closed vocabularies of the numbers: every label value that does not come from an
//! admitted model name is one of these. Plain data, no behaviour beyond names.

use std::time::Duration;

/// Declares an enum whose variants have one fixed label value each.
macro_rules! labels {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident => $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            /// Every value, in the order of declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The value as it stands in a label.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text),+ }
            }

            /// The value with this label text.
            pub fn from_label(text: &str) -> Option<$name> {
                match text { $($text => Some($name::$variant),)+ _ => None }
            }
        }
    };
}
pub(crate) use labels;

labels! {
    /// What kind of program a workload is.
    Engine {
        Vllm => "vllm", Sglang => "sglang", LlamaCpp => "llamacpp", TensorRtLlm => "tensorrt_llm",
        MindIe => "mindie", Mstar => "mstar", Smg => "smg", Dynamo => "dynamo", LiteLlm => "litellm",
        ModelExpress => "modelexpress", Nginx => "nginx", Envoy => "envoy",
        /// No profile matched; recognised because it answers an inference route.
        OpenAi => "openai",
    }
}

labels! {
    /// Whether a workload computes tokens or relays them.
    Tier { Engine => "engine", Gateway => "gateway" }
}

labels! {
    /// What a request is for.
    Class {
        Inference => "inference", Control => "control", Probe => "probe", Other => "other",
        /// Its head has not been read yet, or was lost before it was decoded.
        Unknown => "unknown",
    }
}

labels! {
    /// What became of a request. Each request ends once, in one of these.
    Outcome {
        Success => "success", Error => "error", Refused => "refused", Abort => "abort",
        Timeout => "timeout", Reset => "reset", Unobserved => "unobserved",
    }
}

labels! {
    /// Whether the reply was a stream of events.
    Streaming { True => "true", False => "false", Unknown => "unknown" }
}

labels! {
    /// How far a request had come when it ended without success.
    Phase { BeforeHead => "before_head", BeforeFirstToken => "before_first_token", Streaming => "streaming" }
}

labels! {
    /// Where a number of generated tokens comes from.
    TokenSource { Usage => "usage", Events => "events" }
}

labels! {
    /// The part a process plays in its workload.
    Role {
        Api => "api", Core => "core", Worker => "worker", Detokenizer => "detokenizer",
        Gateway => "gateway", Other => "other",
    }
}

labels! {
    /// Which part of a request a stall fell into.
    StallPhase {
        /// From its start to its first token, of those that had one.
        Ttft => "ttft",
        /// From its first token to its end, of those that succeeded.
        Stream => "stream",
        /// From its start to its end, of those that succeeded without a stream.
        Unary => "unary",
        /// What no latency is written of.
        Unfinished => "unfinished",
    }
}

labels! {
    /// Why serving threads did not run, in the order of `abi::stall::cause`.
    StallCause {
        Runqueue => "runqueue", Throttled => "throttled", Stopped => "stopped",
        BlockIo => "block_io", PageFault => "page_fault", Reclaim => "reclaim", Gil => "gil",
        Lock => "lock", EventLoop => "event_loop",
    }
}

impl StallCause {
    /// Whose fault it is.
    pub const fn domain(self) -> &'static str {
        match self {
            StallCause::Gil | StallCause::Lock | StallCause::EventLoop => "runtime",
            _ => "host",
        }
    }
}

impl Engine {
    /// The tier this engine belongs to.
    pub const fn tier(self) -> Tier {
        match self {
            Engine::Smg | Engine::Dynamo | Engine::LiteLlm | Engine::Nginx | Engine::Envoy => {
                Tier::Gateway
            }
            _ => Tier::Engine,
        }
    }
}

/// An HTTP status, or the honest lack of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Status {
    /// No response head was sent.
    None,
    /// Only the class is known: 1 to 5 for `1xx` to `5xx`.
    ClassOnly(u8),
    /// The code of the response head (499 for a client that left before it).
    Code(u16),
}

/// Number of a workload, given by the agent and stored in the kernel maps. 0 means none yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadId(pub u32);

/// The identity labels of a workload.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// Kubernetes namespace, empty outside Kubernetes.
    pub namespace: String,
    /// Kubernetes pod, empty outside Kubernetes.
    pub pod: String,
    /// Container name or id; systemd unit or executable outside Kubernetes.
    pub container: String,
    /// Which engine or gateway it is.
    pub engine: Engine,
}

/// Token counts of one request. `None` is unknown, never 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Tokens of the prompt.
    pub prompt: Option<u64>,
    /// Tokens generated.
    pub generation: Option<u64>,
    /// Prompt tokens served from a cache.
    pub cached: Option<u64>,
}

/// Gaps between consecutive data events of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gaps {
    /// How many gaps.
    pub count: u64,
    /// Their sum in nanoseconds.
    pub sum_ns: u64,
    /// Gaps per bucket, not cumulative; bounds are `enginetap_ebpf::hist::GAP_BOUNDS_NS`,
    /// the last cell is `+Inf`.
    pub buckets: [u64; enginetap_ebpf::hist::GAP_BUCKETS],
}

/// Everything that is known of a request when it ends.
#[derive(Clone, Debug)]
pub struct RequestEnd {
    /// Whose request it was.
    pub workload: WorkloadId,
    /// What it was for.
    pub class: Class,
    /// The model it named (or its reply did); `None` = none named.
    pub model: Option<String>,
    /// The engine's registered path, from a closed list, or `other`.
    pub route: &'static str,
    /// Whether its reply was a stream.
    pub streaming: Streaming,
    /// What became of it.
    pub outcome: Outcome,
    /// Its status.
    pub status: Status,
    /// How far it came.
    pub phase: Phase,
    /// From its first byte to its last; `None` when a gap or a late start makes it unusable.
    pub duration: Option<Duration>,
    /// Gaps between its events, those after the first event with content. `None` = not a stream
    /// or not usable.
    pub gaps: Option<Gaps>,
    /// Seconds per output token and where the number of tokens comes from.
    pub time_per_output_token: Option<(f64, TokenSource)>,
    /// Token counts and their source; `None` = unknown.
    pub tokens: Option<(Tokens, TokenSource)>,
    /// A stream whose first event with content was not seen.
    pub first_token_unknown: bool,
    /// Events sent that have not been reported with `stream_events` before.
    pub events: u64,
    /// Bytes of the request body.
    pub request_body_bytes: Option<u64>,
    /// Code of an error body or error event, from the closed list in `protocol::errors`.
    pub error_code: Option<&'static str>,
}
