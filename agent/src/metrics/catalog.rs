//! Every family, declared once. The page, METRICS.md and the checks below are derived from this
//! table; a family that is not here cannot be written.

use super::def::{Appears, Buckets, Family, Group, Kind, Label, MetricDef, Scope, Source, Unit};

impl Buckets {
    /// Time from the start of a request to its end or its head.
    pub const DURATION: Buckets = Buckets {
        le: &[
            0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0,
            1200.0, 1800.0, 3600.0, 7200.0,
        ],
        edge: Some("duration"),
    };
    /// As `DURATION`, with its own name for extra edges.
    pub const HEAD: Buckets = Buckets {
        le: Buckets::DURATION.le,
        edge: Some("head"),
    };
    /// Time to the first token.
    pub const TTFT: Buckets = Buckets {
        le: &[
            0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0,
            7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0,
        ],
        edge: Some("ttft"),
    };
    /// Gaps between events; sorted in the kernel by `enginetap_ebpf::hist::gap_bucket`.
    pub const GAP: Buckets = Buckets {
        le: &[
            0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2,
            0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
        ],
        edge: None,
    };
    /// Time per output token: the bounds of `GAP`, sorted in the agent.
    pub const TPOT: Buckets = Buckets {
        le: Buckets::GAP.le,
        edge: Some("tpot"),
    };
    /// Age of a request that did not succeed.
    pub const UNFINISHED: Buckets = Buckets {
        le: &[0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0],
        edge: Some("unfinished"),
    };
    /// Tokens of a request.
    pub const TOKENS: Buckets = Buckets {
        le: &[
            1.0, 4.0, 16.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0,
            32768.0, 131072.0, 1048576.0,
        ],
        edge: Some("tokens"),
    };
    /// A share.
    pub const RATIO: Buckets = Buckets {
        le: &[0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0],
        edge: None,
    };
    /// Size of a request body, in powers of 1,024.
    pub const BODY: Buckets = Buckets {
        le: &[
            256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0,
            67108864.0,
        ],
        edge: Some("body"),
    };
    /// Time until a process reads; sorted in the kernel.
    pub const READ_DELAY: Buckets = Buckets {
        le: &[
            0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
            10.0,
        ],
        edge: None,
    };
}

/// A row about requests: of a workload, in group `core`.
const CORE: MetricDef = MetricDef {
    family: Family::RequestsStarted,
    name: "",
    kind: Kind::Counter,
    unit: Unit::Count,
    scope: Scope::Workload,
    labels: &[],
    help: "",
    source: Source::Kernel,
    appears: Appears::Workload,
    group: Group::Core,
    since: "0.1.0",
};

/// A row about the agent: of the node, in group `self`.
const AGENT: MetricDef = MetricDef {
    scope: Scope::Node,
    source: Source::Agent,
    appears: Appears::Agent,
    group: Group::Agent,
    ..CORE
};

/// A row about a workload's cgroup: a container's or a unit's.
const CGROUP: MetricDef = MetricDef {
    source: Source::Cgroup,
    appears: Appears::Known,
    group: Group::Stalls,
    ..CORE
};

/// A row about the node as a whole.
const NODE: MetricDef = MetricDef {
    scope: Scope::Node,
    source: Source::Proc,
    ..CGROUP
};

/// Every family, in the order of the page.
pub const METRICS: &[MetricDef] = &[
    MetricDef {
        family: Family::RequestsStarted,
        name: "enginetap_requests_started_total",
        help: "Requests whose head has reached the server's socket, counted when it is complete and timed from its first byte.",
        ..CORE
    },
    MetricDef {
        family: Family::Requests,
        name: "enginetap_requests_total",
        labels: &[
            Label::Class,
            Label::Model,
            Label::Route,
            Label::Streaming,
            Label::Outcome,
            Label::Status,
        ],
        help: "Requests that have ended, each counted once at its end in the outcome that says what became of it.",
        source: Source::Decoded,
        appears: Appears::Combination,
        ..CORE
    },
    MetricDef {
        family: Family::InFlight,
        name: "enginetap_requests_in_flight",
        kind: Kind::Gauge,
        labels: &[Label::Class],
        help: "Requests open now, from their first byte to their end; started minus ended, exactly.",
        ..CORE
    },
    MetricDef {
        family: Family::InFlightByAge,
        name: "enginetap_requests_in_flight_by_age",
        kind: Kind::Gauge,
        labels: &[Label::AgeGt, Label::AgeLe],
        help: "Inference requests open now by time since their first byte, each in one cell: older than age_gt and at most age_le seconds.",
        ..CORE
    },
    MetricDef {
        family: Family::OldestAge,
        name: "enginetap_oldest_request_age_seconds",
        kind: Kind::Gauge,
        unit: Unit::Seconds,
        help: "Time from the first byte of the oldest open inference request to now, 0 when none is open.",
        ..CORE
    },
    MetricDef {
        family: Family::ResponseHead,
        name: "enginetap_response_head_seconds",
        kind: Kind::Histogram(Buckets::HEAD),
        unit: Unit::Seconds,
        labels: &[Label::Model, Label::Route],
        help: "Time from the first request byte at the server's socket to the first byte of the response head, inference only.",
        appears: Appears::Sample,
        ..CORE
    },
    MetricDef {
        family: Family::FirstToken,
        name: "enginetap_time_to_first_token_seconds",
        kind: Kind::Histogram(Buckets::TTFT),
        unit: Unit::Seconds,
        labels: &[Label::Model, Label::Route],
        help: "Time from the first request byte at the server's socket to the first event with generated content, streams only, written when it happens.",
        appears: Appears::Sample,
        ..CORE
    },
    MetricDef {
        family: Family::StreamGap,
        name: "enginetap_stream_gap_seconds",
        kind: Kind::Histogram(Buckets::GAP),
        unit: Unit::Seconds,
        labels: &[Label::Model],
        help: "Time from one data event of a stream to the next, from the first event with generated content on, written when the stream ends.",
        appears: Appears::Sample,
        ..CORE
    },
    MetricDef {
        family: Family::TimePerToken,
        name: "enginetap_time_per_output_token_seconds",
        kind: Kind::Histogram(Buckets::TPOT),
        unit: Unit::Seconds,
        labels: &[Label::Model, Label::Source],
        help: "Time from the first to the last event with generated content divided by the output tokens after the first, one sample per stream.",
        source: Source::Decoded,
        appears: Appears::Sample,
        ..CORE
    },
    MetricDef {
        family: Family::Duration,
        name: "enginetap_request_duration_seconds",
        kind: Kind::Histogram(Buckets::DURATION),
        unit: Unit::Seconds,
        labels: &[Label::Model, Label::Route, Label::Streaming],
        help: "Time from the first request byte to the last response byte of inference requests that ended in success.",
        appears: Appears::Sample,
        ..CORE
    },
    MetricDef {
        family: Family::Unfinished,
        name: "enginetap_unfinished_request_seconds",
        kind: Kind::Histogram(Buckets::UNFINISHED),
        unit: Unit::Seconds,
        labels: &[Label::Model, Label::Streaming, Label::Outcome, Label::Phase],
        help: "Time from the first request byte to the end of inference requests that ended in error, abort, timeout or reset.",
        appears: Appears::Sample,
        ..CORE
    },
    MetricDef {
        family: Family::Tokens,
        name: "enginetap_tokens_total",
        unit: Unit::Tokens,
        labels: &[Label::Model, Label::Type, Label::Source],
        help: "Tokens of inference requests whose count is known, added at the end of the request; an unknown count adds nothing.",
        source: Source::Decoded,
        appears: Appears::Sample,
        ..CORE
    },
    MetricDef {
        family: Family::RequestTokens,
        name: "enginetap_request_tokens",
        kind: Kind::Histogram(Buckets::TOKENS),
        unit: Unit::Tokens,
        labels: &[Label::Model, Label::Type, Label::Source],
        help: "Tokens per inference request whose count is known, one sample at the end of the request.",
        source: Source::Decoded,
        appears: Appears::Sample,
        ..CORE
    },
    MetricDef {
        family: Family::BodyBytes,
        name: "enginetap_request_body_bytes",
        kind: Kind::Histogram(Buckets::BODY),
        unit: Unit::Bytes,
        labels: &[Label::Model],
        help: "Size of an inference request's body from its first byte after the head to its last, before decompression.",
        appears: Appears::Sample,
        ..CORE
    },
    MetricDef {
        family: Family::StreamEvents,
        name: "enginetap_stream_events_total",
        labels: &[Label::Model],
        help: "Events sent in streams (server-sent events with a data field, `[DONE]` included, JSON lines, gRPC messages), counted when complete on the wire.",
        appears: Appears::WorkloadThenEvent,
        ..CORE
    },
    MetricDef {
        family: Family::FirstTokenUnknown,
        name: "enginetap_first_token_unknown_total",
        help: "Inference streams that ended without an event with generated content having been seen, so that they wrote no time to first token.",
        source: Source::Decoded,
        ..CORE
    },
    MetricDef {
        family: Family::ReplyErrors,
        name: "enginetap_reply_errors_total",
        labels: &[Label::Code],
        help: "Error bodies and error events sent by the server, by their error code, counted at the end of the request.",
        source: Source::Decoded,
        appears: Appears::WorkloadThenEvent,
        ..CORE
    },
    MetricDef {
        family: Family::ReadDelay,
        name: "enginetap_read_delay_seconds",
        kind: Kind::Histogram(Buckets::READ_DELAY),
        unit: Unit::Seconds,
        help: "Time from the first request byte at the server's socket to the process's first read of that socket.",
        appears: Appears::Sample,
        ..CORE
    },
    MetricDef {
        family: Family::Bytes,
        name: "enginetap_bytes_total",
        unit: Unit::Bytes,
        labels: &[Label::Direction],
        help: "Payload bytes of the workload's server connections, received from and sent to its clients.",
        ..CORE
    },
    MetricDef {
        family: Family::Connections,
        name: "enginetap_connections",
        kind: Kind::Gauge,
        help: "Server connections open now, from being established to being closed.",
        ..CORE
    },
    MetricDef {
        family: Family::ConnectionsClosed,
        name: "enginetap_connections_closed_total",
        labels: &[Label::Reason],
        help: "Server connections that have closed, by who or what ended them.",
        ..CORE
    },
    MetricDef {
        family: Family::WorkloadInfo,
        name: "enginetap_workload_info",
        kind: Kind::Gauge,
        unit: Unit::Info,
        labels: &[Label::EngineVersion],
        help: "What is known of a workload from its files, 1 once its version is known.",
        source: Source::Proc,
        appears: Appears::Known,
        ..CORE
    },
    MetricDef {
        family: Family::ListenerInfo,
        name: "enginetap_listener_info",
        kind: Kind::Gauge,
        unit: Unit::Info,
        labels: &[Label::Addr],
        help: "An address a workload listens on now, in its own network namespace.",
        appears: Appears::Known,
        ..CORE
    },
    MetricDef {
        family: Family::WorkloadStart,
        name: "enginetap_workload_start_time_seconds",
        kind: Kind::Gauge,
        unit: Unit::Seconds,
        help: "Time from 1970 to the start of the workload's oldest process.",
        source: Source::Proc,
        appears: Appears::Known,
        ..CORE
    },
    MetricDef {
        family: Family::Coverage,
        name: "enginetap_coverage",
        kind: Kind::Gauge,
        labels: &[Label::Aspect, Label::State, Label::Reason],
        help: "How much of a workload is seen from outside, one series of value 1 per aspect with its state and reason.",
        source: Source::Agent,
        appears: Appears::Known,
        group: Group::Agent,
        ..CORE
    },
    MetricDef {
        family: Family::RequestHostStall,
        name: "enginetap_request_host_stall_seconds_total",
        unit: Unit::Seconds,
        labels: &[Label::Phase],
        help: "Time of inference requests, by phase, in which the host kept a serving thread of their process or of those behind it from running, whatever the cause: at most the phase itself.",
        group: Group::Stalls,
        ..CORE
    },
    MetricDef {
        family: Family::RequestStall,
        name: "enginetap_request_stall_seconds_total",
        unit: Unit::Seconds,
        labels: &[Label::Phase, Label::Domain, Label::Cause],
        help: "Time of inference requests, by phase, in which serving threads of their process or of those behind it were held up by a cause; causes may overlap.",
        group: Group::Stalls,
        ..CORE
    },
    MetricDef {
        family: Family::TtftHostStallRatio,
        name: "enginetap_ttft_host_stall_ratio",
        kind: Kind::Histogram(Buckets::RATIO),
        unit: Unit::Ratio,
        help: "Share of a request's time to first token in which the host kept a serving thread from running.",
        appears: Appears::Sample,
        group: Group::Stalls,
        ..CORE
    },
    MetricDef {
        family: Family::ProcessStall,
        name: "enginetap_process_stall_seconds_total",
        unit: Unit::Seconds,
        labels: &[Label::Role, Label::Domain, Label::Cause],
        help: "Time in which at least one serving thread of the workload's processes of a role was held up by a cause, whether or not a request was open.",
        appears: Appears::Known,
        group: Group::Stalls,
        ..CORE
    },
    MetricDef {
        family: Family::WorkloadPressure,
        name: "enginetap_workload_pressure_seconds_total",
        unit: Unit::Seconds,
        labels: &[Label::Resource, Label::Kind],
        help: "Time in which some, or all non-idle, tasks of the workload's cgroup waited for a resource (pressure stall information, cgroup v2).",
        ..CGROUP
    },
    MetricDef {
        family: Family::WorkloadThrottled,
        name: "enginetap_workload_cpu_throttled_seconds_total",
        unit: Unit::Seconds,
        help: "Time for which the CPU quota of the workload's own cgroup held back its tasks, added up over CPUs.",
        ..CGROUP
    },
    MetricDef {
        family: Family::WorkloadPeriods,
        name: "enginetap_workload_cpu_periods_total",
        help: "Enforcement periods of the CPU quota in which the workload's cgroup had something to run.",
        ..CGROUP
    },
    MetricDef {
        family: Family::WorkloadThrottledPeriods,
        name: "enginetap_workload_cpu_throttled_periods_total",
        help: "Enforcement periods of the CPU quota in which the workload's cgroup used it up and was held back.",
        ..CGROUP
    },
    MetricDef {
        family: Family::WorkloadQuota,
        name: "enginetap_workload_cpu_quota_cores",
        kind: Kind::Gauge,
        help: "CPU quota of the workload's own cgroup in cores, quota divided by period; absent when it has no limit of its own.",
        ..CGROUP
    },
    MetricDef {
        family: Family::WorkloadCpu,
        name: "enginetap_workload_cpu_usage_seconds_total",
        unit: Unit::Seconds,
        help: "Processor time of all tasks of the workload's cgroup, user and system.",
        ..CGROUP
    },
    MetricDef {
        family: Family::WorkloadMemory,
        name: "enginetap_workload_memory_usage_bytes",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        help: "Memory charged to the workload's cgroup at the last reading, page cache included.",
        ..CGROUP
    },
    MetricDef {
        family: Family::WorkloadMemoryLimit,
        name: "enginetap_workload_memory_limit_bytes",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        help: "Memory limit of the workload's own cgroup; absent when it has no limit of its own.",
        ..CGROUP
    },
    MetricDef {
        family: Family::WorkloadMemoryEvents,
        name: "enginetap_workload_memory_events_total",
        labels: &[Label::Event],
        help: "What happened at a memory limit of the workload's cgroup, in the words of `memory.events`; cgroup v1 knows max (its failcnt) and oom_kill.",
        ..CGROUP
    },
    MetricDef {
        family: Family::NodePressure,
        name: "enginetap_node_pressure_seconds_total",
        unit: Unit::Seconds,
        labels: &[Label::Resource, Label::Kind],
        help: "Time in which some, or all non-idle, tasks of the node waited for a resource (pressure stall information).",
        ..NODE
    },
    MetricDef {
        family: Family::NodeCpu,
        name: "enginetap_node_cpu_seconds_total",
        unit: Unit::Seconds,
        help: "Processor time of all CPUs of the node in every state, idle included: what steal and softirq are a share of.",
        ..NODE
    },
    MetricDef {
        family: Family::NodeSteal,
        name: "enginetap_node_cpu_steal_seconds_total",
        unit: Unit::Seconds,
        help: "Processor time that the hypervisor gave to others while the node had something to run, over all CPUs.",
        ..NODE
    },
    MetricDef {
        family: Family::NodeSoftirq,
        name: "enginetap_node_cpu_softirq_seconds_total",
        unit: Unit::Seconds,
        help: "Processor time of the node in soft interrupts, network packets among them, over all CPUs.",
        ..NODE
    },
    MetricDef {
        family: Family::NodeRunnable,
        name: "enginetap_node_runnable_tasks",
        kind: Kind::Gauge,
        help: "Tasks of the node that ran or waited for a CPU at the last reading, the reading one included.",
        ..NODE
    },
    MetricDef {
        family: Family::NodeDiskTime,
        name: "enginetap_node_disk_time_seconds_total",
        unit: Unit::Seconds,
        labels: &[Label::Direction],
        help: "Time from issue to completion of the requests of the node's whole disks, added up; divided by the requests it is their mean latency.",
        ..NODE
    },
    MetricDef {
        family: Family::NodeDiskIos,
        name: "enginetap_node_disk_ios_total",
        labels: &[Label::Direction],
        help: "Completed read and write requests of the node's whole disks; partitions and stacked or memory-backed devices are not among them.",
        ..NODE
    },
    MetricDef {
        family: Family::NodeTcpSegments,
        name: "enginetap_node_tcp_segments_sent_total",
        help: "TCP segments sent in the node's first network namespace, those sent again not among them.",
        ..NODE
    },
    MetricDef {
        family: Family::NodeTcpRetransmits,
        name: "enginetap_node_tcp_retransmits_total",
        help: "TCP segments sent again in the node's first network namespace; those of pods are not among them.",
        ..NODE
    },
    MetricDef {
        family: Family::BuildInfo,
        name: "enginetap_build_info",
        kind: Kind::Gauge,
        unit: Unit::Info,
        labels: &[Label::Version],
        help: "The version of the agent that wrote this page.",
        ..AGENT
    },
    MetricDef {
        family: Family::ProbeState,
        name: "enginetap_probe_state",
        kind: Kind::Gauge,
        labels: &[Label::Probe, Label::State, Label::Reason],
        help: "What became of each hook when it was last attached, one series of value 1 per hook with its state and reason.",
        ..AGENT
    },
    MetricDef {
        family: Family::ProbeRunSeconds,
        name: "enginetap_probe_run_seconds_total",
        unit: Unit::Seconds,
        labels: &[Label::Probe],
        help: "Time spent inside a hook's kernel program from entry to exit, as the kernel's own run statistics sampled it.",
        source: Source::Kernel,
        ..AGENT
    },
    MetricDef {
        family: Family::ProbeRuns,
        name: "enginetap_probe_runs_total",
        labels: &[Label::Probe],
        help: "Runs of a hook's kernel program that the kernel's run statistics sampled, those that went into the seconds beside it.",
        source: Source::Kernel,
        ..AGENT
    },
    MetricDef {
        family: Family::EventsLost,
        name: "enginetap_events_lost_total",
        labels: &[Label::Reason],
        help: "Records lost between the kernel programs and the agent for a confirmed flow of a watched process; its requests are still counted.",
        source: Source::Kernel,
        ..AGENT
    },
    MetricDef {
        family: Family::FlowsDropped,
        name: "enginetap_flows_dropped_total",
        labels: &[Label::Reason],
        help: "Provisional flows given up between their first packet and the confirmation that a watched process owns them.",
        source: Source::Kernel,
        ..AGENT
    },
    MetricDef {
        family: Family::Unparsed,
        name: "enginetap_unparsed_total",
        labels: &[Label::Reason],
        help: "Flows of watched processes from whose bytes no requests are read to the end, by the reason why.",
        source: Source::Decoded,
        ..AGENT
    },
    MetricDef {
        family: Family::MapEntries,
        name: "enginetap_map_entries",
        kind: Kind::Gauge,
        labels: &[Label::Map],
        help: "Entries in a kernel map at its last count.",
        source: Source::Kernel,
        ..AGENT
    },
    MetricDef {
        family: Family::MapMemory,
        name: "enginetap_map_memory_bytes",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        labels: &[Label::Map],
        help: "Memory of a kernel map as the kernel accounts it.",
        source: Source::Kernel,
        ..AGENT
    },
    MetricDef {
        family: Family::Series,
        name: "enginetap_series",
        kind: Kind::Gauge,
        help: "Series of workloads that count against the node's series budget now.",
        ..AGENT
    },
    MetricDef {
        family: Family::SeriesDropped,
        name: "enginetap_series_dropped_total",
        help: "Updates written to a series of model or route `other` since the agent started because their own would have gone past the series budget, or the model past the cap on models.",
        ..AGENT
    },
    MetricDef {
        family: Family::TaskLastSuccess,
        name: "enginetap_task_last_success_timestamp_seconds",
        kind: Kind::Gauge,
        unit: Unit::Seconds,
        labels: &[Label::Task],
        help: "Time from 1970 to the last success of a periodic task; its values are as old as this.",
        appears: Appears::Known,
        ..AGENT
    },
    MetricDef {
        family: Family::Pages,
        name: "enginetap_pages_total",
        help: "Metric pages the agent has written, from its start up to the page before this one.",
        ..AGENT
    },
    MetricDef {
        family: Family::PageSeconds,
        name: "enginetap_page_build_seconds_total",
        unit: Unit::Seconds,
        help: "Time the agent spent from receiving a request for a metric page to having written it, up to the page before this one.",
        ..AGENT
    },
    MetricDef {
        family: Family::PageBytes,
        name: "enginetap_page_bytes_total",
        unit: Unit::Bytes,
        help: "Bytes of the metric pages written since the agent started, before compression, up to the page before this one.",
        ..AGENT
    },
    MetricDef {
        family: Family::ProcessCpu,
        name: "process_cpu_seconds_total",
        unit: Unit::Seconds,
        help: "Processor time of the agent, user and system, from its start to now.",
        source: Source::Proc,
        ..AGENT
    },
    MetricDef {
        family: Family::ProcessMemory,
        name: "process_resident_memory_bytes",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        help: "Resident memory of the agent now, kernel maps and rings not included.",
        source: Source::Proc,
        ..AGENT
    },
    MetricDef {
        family: Family::ProcessFds,
        name: "process_open_fds",
        kind: Kind::Gauge,
        help: "File descriptors the agent has open now.",
        source: Source::Proc,
        ..AGENT
    },
    MetricDef {
        family: Family::ProcessStart,
        name: "process_start_time_seconds",
        kind: Kind::Gauge,
        unit: Unit::Seconds,
        help: "Time from 1970 to the start of the agent.",
        source: Source::Proc,
        ..AGENT
    },
];

#[cfg(test)]
#[path = "catalog_tests.rs"]
mod tests;
