//! The shape of a metric definition. A family is one row of `catalog::METRICS`; everything else
//! (page, documentation, checks) is derived from the row.

use crate::vocab::labels;

/// What kind of family it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Only ever grows while its workload (or the agent) lives.
    Counter,
    /// A value of this moment.
    Gauge,
    /// Cumulative buckets with inclusive upper bounds.
    Histogram(Buckets),
}

impl Kind {
    /// The type word of the exposition formats.
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        }
    }
}

/// Upper bounds of a histogram, ascending, `+Inf` left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Buckets {
    /// The bounds in the family's unit.
    pub le: &'static [f64],
    /// The name of these bounds in `--bucket-edge NAME=VALUE`; `None` where the kernel sorts the
    /// samples, so that no edge can be added.
    pub edge: Option<&'static str>,
}

/// What a value is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds, of duration or since 1970.
    Seconds,
    /// Bytes.
    Bytes,
    /// Tokens.
    Tokens,
    /// Always 1; the labels are the message.
    Info,
    /// A plain number of things.
    Count,
    /// A share of 1.
    Ratio,
}

impl Unit {
    /// What the name must end in, `_total` aside; empty for a plain number.
    pub const fn suffix(self) -> &'static str {
        match self {
            Unit::Seconds => "_seconds",
            Unit::Bytes => "_bytes",
            Unit::Tokens => "_tokens",
            Unit::Info => "_info",
            Unit::Count => "",
            Unit::Ratio => "_ratio",
        }
    }

    /// The word of OpenMetrics' `# UNIT` line, if there is one.
    pub const fn open_metrics(self) -> Option<&'static str> {
        match self {
            Unit::Seconds => Some("seconds"),
            Unit::Bytes => Some("bytes"),
            Unit::Tokens => Some("tokens"),
            Unit::Info | Unit::Count => None,
            Unit::Ratio => Some("ratio"),
        }
    }

    /// The word in the documentation.
    pub const fn as_str(self) -> &'static str {
        match self {
            Unit::Info => "1 (information)",
            Unit::Count => "number",
            unit => match unit.open_metrics() {
                Some(word) => word,
                None => "number",
            },
        }
    }

    /// How many of the integers kept internally make one of this unit (nanoseconds per second).
    pub const fn scale(self) -> u64 {
        match self {
            Unit::Seconds | Unit::Ratio => 1_000_000_000,
            _ => 1,
        }
    }
}

labels! {
    /// Every label name of the catalogue, except `le`.
    Label {
        Namespace => "namespace", Pod => "pod", Container => "container", Engine => "engine",
        Tier => "tier", Class => "class", Model => "model", Route => "route",
        Streaming => "streaming", Outcome => "outcome", Status => "status", AgeGt => "age_gt",
        AgeLe => "age_le", Source => "source", Phase => "phase", Type => "type",
        Direction => "direction", Reason => "reason", Code => "code", Addr => "addr",
        EngineVersion => "engine_version", Version => "version", Aspect => "aspect",
        State => "state", Probe => "probe", Map => "map", Task => "task", Resource => "resource",
        Kind => "kind", Event => "event", Role => "role", Domain => "domain", Cause => "cause",
    }
}

labels! {
    /// The parts of a page that `collect[]` selects.
    Group {
        Core => "core", Stalls => "stalls", Engines => "engines", Dialects => "dialects",
        /// About the agent itself.
        Agent => "self",
    }
}

/// Whose series they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One set per workload, with the identity labels in front.
    Workload,
    /// One set per agent, without identity labels.
    Node,
}

/// The identity labels in front of every series of a workload.
pub const IDENTITY: [Label; 5] = [
    Label::Namespace,
    Label::Pod,
    Label::Container,
    Label::Engine,
    Label::Tier,
];

/// Where a number comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Counted or timed by the kernel programs on what crosses the sockets.
    Kernel,
    /// Decoded by the agent from the heads and bodies the kernel programs hand over.
    Decoded,
    /// Read from `/proc`.
    Proc,
    /// Read from the cgroup of the workload.
    Cgroup,
    /// The agent's own state.
    Agent,
}

impl Source {
    /// The words in the documentation.
    pub const fn as_str(self) -> &'static str {
        match self {
            Source::Kernel => "kernel programs",
            Source::Decoded => "decoded from the wire",
            Source::Proc => "/proc",
            Source::Cgroup => "cgroup files",
            Source::Agent => "the agent",
        }
    }
}

/// When a series appears on the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appears {
    /// With the workload, at 0 for every value of its closed labels.
    Workload,
    /// With the workload for its `unknown` series, then all outcomes at once, at 0, when a
    /// combination of model, route, class and streaming is first seen.
    Combination,
    /// With the workload for `unknown`, `other`, then with the first event of its labels.
    WorkloadThenEvent,
    /// With the first sample.
    Sample,
    /// As soon as the fact it states is known.
    Known,
    /// With the agent.
    Agent,
}

impl Appears {
    /// The words in the documentation.
    pub const fn as_str(self) -> &'static str {
        match self {
            Appears::Workload => "with the workload, at 0",
            Appears::Combination => {
                "at 0 for every outcome: with the workload as `unknown`, and again when a \
                 combination of class, model, route and streaming is first seen"
            }
            Appears::WorkloadThenEvent => {
                "with the workload at 0 for `unknown` or `other`, else with the first event"
            }
            Appears::Sample => "with the first sample",
            Appears::Known => "when the fact is known",
            Appears::Agent => "with the agent",
        }
    }
}

/// One family: all that is said about it anywhere.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MetricDef {
    /// The family as the code calls it; also its place in the table.
    pub family: Family,
    /// The name on the page, `_total` included.
    pub name: &'static str,
    /// Counter, gauge or histogram with its bounds.
    pub kind: Kind,
    /// What its values are counted in.
    pub unit: Unit,
    /// Whose series they are.
    pub scope: Scope,
    /// Label names after the identity labels.
    pub labels: &'static [Label],
    /// One sentence that says from where to where it measures.
    pub help: &'static str,
    /// Where the number comes from.
    pub source: Source,
    /// When a series appears.
    pub appears: Appears,
    /// The part of the page it belongs to.
    pub group: Group,
    /// The version that brought it.
    pub since: &'static str,
}

impl MetricDef {
    /// The family name of OpenMetrics: counters lose `_total`.
    pub fn open_metrics_name(&self) -> &'static str {
        match self.kind {
            Kind::Counter => self.name.strip_suffix("_total").unwrap_or(self.name),
            _ => self.name,
        }
    }
}

/// Declares the families' code names and their order.
macro_rules! families {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Every family, by the name the code calls it; `METRICS` holds one row for each, in this
        /// order.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(usize)]
        pub enum Family { $($(#[$doc])* #[doc = concat!("Row `", stringify!($name), "`.")] $name),+ }

        impl Family {
            /// Every family, in the order of the page.
            pub const ALL: &'static [Family] = &[$(Family::$name),+];
        }
    };
}

families! {
    RequestsStarted, Requests, InFlight, InFlightByAge, OldestAge, ResponseHead, FirstToken,
    StreamGap, TimePerToken, Duration, Unfinished, Tokens, RequestTokens, BodyBytes, StreamEvents,
    FirstTokenUnknown, ReplyErrors, ReadDelay, Bytes, Connections, ConnectionsClosed,
    WorkloadInfo, ListenerInfo, WorkloadStart, Coverage, RequestHostStall, RequestStall,
    TtftHostStallRatio, ProcessStall, WorkloadPressure, WorkloadThrottled,
    WorkloadPeriods, WorkloadThrottledPeriods, WorkloadQuota, WorkloadCpu, WorkloadMemory,
    WorkloadMemoryLimit, WorkloadMemoryEvents, NodePressure, NodeCpu, NodeSteal, NodeSoftirq,
    NodeRunnable, NodeDiskTime, NodeDiskIos, NodeTcpSegments, NodeTcpRetransmits, BuildInfo, ProbeState, ProbeRunSeconds,
    ProbeRuns, EventsLost, FlowsDropped, Unparsed, MapEntries, MapMemory, Series, SeriesDropped,
    TaskLastSuccess, Pages, PageSeconds, PageBytes, ProcessCpu, ProcessMemory, ProcessFds,
    ProcessStart,
}

impl Family {
    /// The row of this family.
    pub fn def(self) -> &'static MetricDef {
        &super::catalog::METRICS[self as usize]
    }
}
