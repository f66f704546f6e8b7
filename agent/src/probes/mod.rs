//! The table of hooks: what each is, what it needs, and what became of it on this kernel.

/// How a hook is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A socket filter, attached per device or run on demand.
    SocketFilter,
    /// A BTF tracepoint.
    BtfTracepoint,
    /// The return of a kernel function.
    FExit,
}

/// A hook of the object.
#[derive(Debug)]
pub struct Probe {
    /// Name of its program, as `bpftool prog` shows it.
    pub name: &'static str,
    /// How it is attached.
    pub kind: Kind,
    /// Kernel tracepoint or function.
    pub hook: &'static str,
    /// Kernel fields it reads.
    pub fields: &'static [&'static str],
    /// A hook that makes this one needless where it works.
    pub instead_of: Option<&'static str>,
    /// What is off without it.
    pub gives: &'static str,
}

impl Probe {
    /// Whether it serves nothing but stalls.
    pub fn is_for_stalls(&self) -> bool {
        ["stall_", "reclaim_", "memcg_", "compact_"]
            .iter()
            .any(|begin| self.name.starts_with(begin))
    }
}

const SOCK: &[&str] = &[
    "sock_common.skc_family",
    "sock_common.skc_num",
    "sock_common.skc_dport",
    "sock_common.skc_rcv_saddr",
    "sock_common.skc_daddr",
    "sock_common.skc_v6_rcv_saddr",
    "sock_common.skc_v6_daddr",
    "sock_common.skc_net.net",
    "inet_sock.inet_sport",
    "net.ns.inum",
];

const TASK: &[&str] = &[
    "task_struct.tgid",
    "task_struct.group_leader",
    "task_struct.start_boottime",
];

const SWITCH: &[&str] = &[
    "task_struct.pid",
    "task_struct.jobctl",
    "task_struct.in_iowait@bit",
    "pt_regs.orig_ax",
    "pt_regs.di",
];

/// Every hook. A new one is one row here.
pub const PROBES: &[Probe] = &[
    Probe {
        name: "wire_tap",
        kind: Kind::SocketFilter,
        hook: "packet socket",
        fields: &["sk_buff.dev", "net_device.nd_net.net", "net.ns.inum"],
        instead_of: None,
        gives: "every number taken from the wire",
    },
    Probe {
        name: "wire_entry",
        kind: Kind::SocketFilter,
        hook: "packet socket",
        fields: &[],
        instead_of: None,
        gives: "the way into the tap",
    },
    Probe {
        name: "control_order",
        kind: Kind::SocketFilter,
        hook: "on demand",
        fields: &[],
        instead_of: None,
        gives: "adopting old connections, ending those whose socket is gone",
    },
    Probe {
        name: "owner_state",
        kind: Kind::BtfTracepoint,
        hook: "inet_sock_set_state",
        fields: SOCK,
        instead_of: None,
        gives: "confirmed connections, new listeners, how connections end",
    },
    Probe {
        name: "owner_twin",
        kind: Kind::BtfTracepoint,
        hook: "inet_sock_set_state",
        fields: SOCK,
        instead_of: None,
        gives: "changes of sockets that interrupt the hook above",
    },
    Probe {
        name: "owner_recv",
        kind: Kind::BtfTracepoint,
        hook: "sock_recv_length",
        fields: SOCK,
        instead_of: None,
        gives: "which process reads a connection, read delay",
    },
    Probe {
        name: "owner_recvmsg",
        kind: Kind::FExit,
        hook: "tcp_recvmsg",
        fields: SOCK,
        instead_of: Some("owner_recv"),
        gives: "the same on kernels before 6.3",
    },
    Probe {
        name: "life_exec",
        kind: Kind::BtfTracepoint,
        hook: "sched_process_exec",
        fields: TASK,
        instead_of: None,
        gives: "news of a process that executes another program",
    },
    Probe {
        name: "life_fork",
        kind: Kind::BtfTracepoint,
        hook: "sched_process_fork",
        fields: TASK,
        instead_of: None,
        gives: "news of children of watched processes",
    },
    Probe {
        name: "life_exit",
        kind: Kind::BtfTracepoint,
        hook: "sched_process_exit",
        fields: TASK,
        instead_of: None,
        gives: "telling a killed server from one that closed",
    },
    Probe {
        name: "stall_switch",
        kind: Kind::BtfTracepoint,
        hook: "sched_switch",
        fields: SWITCH,
        instead_of: None,
        gives: "why serving threads do not run",
    },
    Probe {
        name: "stall_wakeup",
        kind: Kind::BtfTracepoint,
        hook: "sched_wakeup",
        fields: SWITCH,
        instead_of: None,
        gives: "how long a woken thread waits for a processor",
    },
    Probe {
        name: "stall_exit",
        kind: Kind::BtfTracepoint,
        hook: "sched_process_exit",
        fields: &[],
        instead_of: None,
        gives: "leaving threads alone that have ended",
    },
    reclaim("reclaim_on", "mm_vmscan_direct_reclaim_begin"),
    reclaim("reclaim_off", "mm_vmscan_direct_reclaim_end"),
    reclaim("memcg_on", "mm_vmscan_memcg_reclaim_begin"),
    reclaim("memcg_off", "mm_vmscan_memcg_reclaim_end"),
    reclaim("compact_on", "mm_compaction_begin"),
    reclaim("compact_off", "mm_compaction_end"),
];

/// One of the two ends of a stretch in which a thread frees memory.
const fn reclaim(name: &'static str, hook: &'static str) -> Probe {
    Probe {
        name,
        kind: Kind::BtfTracepoint,
        hook,
        fields: &[],
        instead_of: None,
        gives: "time a thread frees memory for itself",
    }
}

/// What became of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It works.
    Ok,
    /// This kernel does not have what it needs.
    Unsupported,
    /// It should work and does not.
    Broken,
    /// It is not needed here.
    NotApplicable,
}

impl State {
    /// The label value.
    pub const fn as_str(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Unsupported => "unsupported",
            State::Broken => "broken",
            State::NotApplicable => "not_applicable",
        }
    }
}

/// A hook's state with its reason.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// State.
    pub state: State,
    /// Reason from a closed set; empty when it works.
    pub reason: &'static str,
    /// The reason in words, for people.
    pub detail: String,
}

impl Verdict {
    /// It works.
    pub fn ok() -> Verdict {
        Verdict {
            state: State::Ok,
            reason: "",
            detail: String::new(),
        }
    }

    /// This kernel does not have what it needs.
    pub fn unsupported(reason: &'static str, detail: String) -> Verdict {
        Verdict {
            state: State::Unsupported,
            reason,
            detail,
        }
    }

    /// It should work and does not.
    pub fn broken(reason: &'static str, detail: String) -> Verdict {
        Verdict {
            state: State::Broken,
            reason,
            detail,
        }
    }

    /// It was not wanted.
    pub fn turned_off(by: &str) -> Verdict {
        Verdict {
            state: State::NotApplicable,
            reason: "turned_off",
            detail: by.to_owned(),
        }
    }

    /// It is not needed here.
    pub fn not_applicable(detail: String) -> Verdict {
        Verdict {
            state: State::NotApplicable,
            reason: "served_by_other",
            detail,
        }
    }
}
