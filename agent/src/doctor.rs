//! `enginetap doctor`: kernel, fields, capabilities and hooks; what works here, and what is off
//! because of what.

use enginetap_ebpf::abi::offsets::MISSING;

use crate::bpf::load;
use crate::config::Switch;
use crate::probes::{PROBES, State};

/// A capability, its bit, and the feature that needs it.
const CAPABILITIES: &[(&str, u32, &str)] = &[
    ("CAP_BPF", 39, "loading programs and maps"),
    (
        "CAP_PERFMON",
        38,
        "tracing programs that read kernel memory",
    ),
    ("CAP_NET_RAW", 13, "packet sockets: the tap"),
    (
        "CAP_NET_ADMIN",
        12,
        "socket filters on other namespaces' devices, sock_diag of other users",
    ),
    ("CAP_SYS_ADMIN", 21, "entering network namespaces (setns)"),
    (
        "CAP_SYS_PTRACE",
        19,
        "reading /proc of other users' processes: links, maps, descriptors",
    ),
    (
        "CAP_DAC_READ_SEARCH",
        2,
        "reading /proc entries that are closed to others",
    ),
    (
        "CAP_SYS_NICE",
        23,
        "hearing of new servers in time on a busy node",
    ),
];

/// Prints the report. True when the agent can run here.
pub fn doctor() -> bool {
    let (text, ok) = report();
    print!("{text}");
    ok
}

fn effective() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("CapEff:"))
        .unwrap_or("0");
    u64::from_str_radix(line.trim(), 16).unwrap_or(0)
}

fn report() -> (String, bool) {
    let mut out = String::new();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    out += &format!("kernel {}\n\ncapabilities\n", release.trim());
    let caps = effective();
    for (name, bit, gives) in CAPABILITIES {
        let state = if caps >> bit & 1 == 1 { "yes" } else { "NO " };
        out += &format!("  {state} {name:<20} {gives}\n");
    }
    out += "\nkernel fields (from BTF)\n";
    let mut ok = true;
    match load::offsets() {
        Ok(offsets) => {
            for (name, offset) in offsets.named() {
                if offset == MISSING {
                    out += &format!("  MISSING {name}\n");
                } else {
                    out += &format!("  {offset:>7} {name}\n");
                }
            }
        }
        Err(error) => {
            out += &format!("  none: {error:#}\n");
            ok = false;
        }
    }
    out += "\nhooks\n";
    match load::load(Switch::On) {
        Ok(loaded) => {
            for probe in PROBES {
                let Some(v) = loaded.verdicts.get(probe.name) else {
                    continue;
                };
                out += &format!(
                    "  {:<14} {:<16} {} ({})\n",
                    v.state.as_str(),
                    probe.name,
                    probe.gives,
                    probe.hook
                );
                if v.state != State::Ok {
                    out += &format!("  {:<14} because: {}\n", "", v.detail);
                }
            }
            out += "\nthe agent can run here\n";
        }
        Err(error) => {
            out += &format!("  none: {error:#}\n\nthe agent cannot run here\n");
            ok = false;
        }
    }
    (out, ok)
}
