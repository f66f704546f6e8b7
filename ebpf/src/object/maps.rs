//! Every map, who writes it and who reads it.

use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, PerCpuArray, ProgramArray, RingBuf};
use enginetap_ebpf::abi::counters::{LOST_CELLS, WORKLOADS, Workload};
use enginetap_ebpf::abi::flow::{Flow, FlowKey};
use enginetap_ebpf::abi::listener::{Listener, ListenerKey, PORT_CELLS, Ports};
use enginetap_ebpf::abi::offsets::Offsets;
use enginetap_ebpf::abi::process::{Process, ProcessKey};
use enginetap_ebpf::abi::stall::{Clock, SETS, Serving, Thread};
use enginetap_ebpf::stream::Cursor;

use super::ahead::{Ahead, AheadKey};

const NO_PREALLOC: u32 = 1;

/// Kernel offsets, set by the agent before the object is loaded.
#[unsafe(no_mangle)]
pub static OFFSETS: Offsets = Offsets::UNKNOWN;

/// Connections. Written by the tap, the owner hooks (atomics only) and the control program.
#[map]
pub static FLOWS: HashMap<FlowKey, Flow> = HashMap::with_max_entries(32_768, NO_PREALLOC);

/// An empty flow to begin from; never written.
#[map]
pub static FLOW_NEW: Array<Flow> = Array::with_max_entries(1, 0);

/// Number of the last flow, by atomic adds.
#[map]
pub static FLOW_SEQ: Array<u64> = Array::with_max_entries(1, 0);

/// Listening sockets. Written by the owner hook (new ones) and the agent.
#[map]
pub static LISTENERS: HashMap<ListenerKey, Listener> = HashMap::with_max_entries(8192, NO_PREALLOC);

/// Ports worth a look, of all namespaces together. Set by the owner hook, written by the agent.
#[map]
pub static PORTS: Array<Ports> = Array::with_max_entries(PORT_CELLS, 0);

/// Counters per workload, by atomic adds; read by the agent.
#[map]
pub static WORK: Array<Workload> = Array::with_max_entries(WORKLOADS, 0);

/// Requests whose end record found no room, by atomic adds; read by the agent.
#[map]
pub static LOST: Array<u64> = Array::with_max_entries(LOST_CELLS, 0);

/// Processes that read from a watched connection. Made by the owner hook, deleted by the agent.
#[map]
pub static PROCS: HashMap<ProcessKey, Process> = HashMap::with_max_entries(16_384, NO_PREALLOC);

/// Per flow number modulo the size: the flow whose first events the agent has seen enough of.
/// Written by the agent.
#[map]
pub static TOLD: Array<u64> = Array::with_max_entries(65_536, 0);

/// The tap itself, behind its entry; set by the agent.
#[map]
pub static WIRE_PROGS: ProgramArray = ProgramArray::with_max_entries(1, 0);

/// Records for the agent.
#[map]
pub static RING: RingBuf = RingBuf::with_byte_size(8 * 1024 * 1024, 0);

/// What was lost of confirmed flows, by reason; one writer class per CPU and index.
#[map]
pub static EVENTS_LOST: PerCpuArray<u64> = PerCpuArray::with_max_entries(8, 0);

/// Provisional flows given up, by reason.
#[map]
pub static FLOWS_DROPPED: PerCpuArray<u64> = PerCpuArray::with_max_entries(8, 0);

/// Connections not readable as HTTP/1.1, by reason.
#[map]
pub static UNPARSED: PerCpuArray<u64> = PerCpuArray::with_max_entries(16, 0);

/// The tap's cursor. Bottom halves are off in a tap, so one per CPU is enough.
#[map]
pub static WIRE_TMP: PerCpuArray<Cursor> = PerCpuArray::with_max_entries(1, 0);

/// Request segments held behind a hole. Written by the tap under the request direction's lock.
#[map]
pub static AHEAD: HashMap<AheadKey, Ahead> = HashMap::with_max_entries(2048, NO_PREALLOC);

/// Where such a segment is put together.
#[map]
pub static AHEAD_TMP: PerCpuArray<Ahead> = PerCpuArray::with_max_entries(1, 0);

/// Threads that serve, by number. Made by the agent and the owner hook, changed by the scheduler's hooks.
#[map]
pub static THREADS: HashMap<u32, Thread> = HashMap::with_max_entries(16_384, NO_PREALLOC);

/// Processes whose threads serve when they read from a watched connection. Written by the agent.
#[map]
pub static SERVING: HashMap<ProcessKey, Serving> = HashMap::with_max_entries(16_384, NO_PREALLOC);

/// Clocks per set. Words are changed by atomics.
#[map]
pub static CLOCKS: Array<Clock> = Array::with_max_entries(SETS, 0);

/// Per workload: the set its requests are charged from when their process is not known yet; 0 when
/// it has none or several. Written by the agent.
#[map]
pub static SET_OF: Array<u32> = Array::with_max_entries(WORKLOADS, 0);

/// Adds one to a counter of this CPU.
///
/// A tap and a tracing program may interrupt each other here, so the add is atomic.
#[inline(always)]
pub fn bump(map: &PerCpuArray<u64>, index: u32) {
    if let Some(p) = map.get_ptr_mut(index) {
        // SAFETY: a live, aligned map value.
        unsafe { enginetap_ebpf::atomics::add(p, 1) };
    }
}
