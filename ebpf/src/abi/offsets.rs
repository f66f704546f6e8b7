//! Where fields of kernel structures lie on the running kernel.
//!
//! The agent fills them from BTF before it loads the object; no kernel offset is written down
//! anywhere else. A field that the kernel lacks is [`MISSING`] and turns off the hooks that need it.

use super::pod;

/// Marks a field that this kernel does not have.
pub const MISSING: u32 = u32::MAX;

macro_rules! offsets {
    ($($(#[$doc:meta])* $field:ident = $ty:literal . $path:literal),+ $(,)?) => {
        /// Byte offsets, by structure and field.
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Offsets { $($(#[$doc])* pub $field: u32),+ }

        impl Offsets {
            /// Names of the fields: the Rust field, the structure, the path within it.
            pub const FIELDS: &[(&str, &str, &str)] = &[$((stringify!($field), $ty, $path)),+];

            /// Offsets of which none is known.
            pub const UNKNOWN: Offsets = Offsets { $($field: MISSING),+ };

            /// Builds the table by asking `find` for each structure and path.
            pub fn fill(mut find: impl FnMut(&str, &str) -> Option<u32>) -> Offsets {
                Offsets { $($field: find($ty, $path).unwrap_or(MISSING)),+ }
            }

            /// The offsets with the names of their fields.
            pub fn named(&self) -> [(&'static str, u32); Self::FIELDS.len()] {
                [$((concat!($ty, ".", $path), self.$field)),+]
            }
        }
    };
}

offsets! {
    /// Device of a packet.
    skb_dev = "sk_buff"."dev",
    /// State of a packet's checksum, as a number of bits.
    skb_ip_summed = "sk_buff"."ip_summed@bit",
    /// Namespace of a device.
    dev_net = "net_device"."nd_net.net",
    /// Inode number of a namespace.
    net_inum = "net"."ns.inum",
    /// Address family of a socket.
    sk_family = "sock_common"."skc_family",
    /// Local port, host order.
    sk_num = "sock_common"."skc_num",
    /// Remote port, network order.
    sk_dport = "sock_common"."skc_dport",
    /// Local IPv4 address.
    sk_rcv_saddr = "sock_common"."skc_rcv_saddr",
    /// Remote IPv4 address.
    sk_daddr = "sock_common"."skc_daddr",
    /// Local IPv6 address.
    sk_v6_rcv_saddr = "sock_common"."skc_v6_rcv_saddr",
    /// Remote IPv6 address.
    sk_v6_daddr = "sock_common"."skc_v6_daddr",
    /// Namespace of a socket.
    sk_net = "sock_common"."skc_net.net",
    /// Local port, network order; stays when the port is given back.
    inet_sport = "inet_sock"."inet_sport",
    /// Error that ended a socket.
    sk_err = "sock"."sk_err",
    /// Transport protocol of a socket.
    sk_protocol = "sock"."sk_protocol",
    /// Thread group of a task.
    task_tgid = "task_struct"."tgid",
    /// Group leader of a task.
    task_leader = "task_struct"."group_leader",
    /// Start of a task, nanoseconds since boot.
    task_start = "task_struct"."start_boottime",
    /// Signal state shared by a thread group.
    task_signal = "task_struct"."signal",
    /// How a task ended.
    task_exit_code = "task_struct"."exit_code",
    /// Number of a task.
    task_pid = "task_struct"."pid",
    /// Queue that a task waits in for the processor.
    task_cfs_rq = "task_struct"."se.cfs_rq",
    /// Throttled control groups above such a queue.
    cfs_rq_throttle_count = "cfs_rq"."throttle_count",
    /// What a task is about to do for signals, debuggers and the freezer.
    task_jobctl = "task_struct"."jobctl",
    /// The task waits for a disk, as a number of bits.
    task_in_iowait = "task_struct"."in_iowait@bit",
    /// The task waits for memory, as a number of bits.
    task_in_memstall = "task_struct"."in_memstall@bit",
    /// Number of the system call that a task is in.
    regs_call = "pt_regs"."orig_ax",
    /// First argument of that call.
    regs_first = "pt_regs"."di",
    /// Live threads of a thread group.
    signal_live = "signal_struct"."live.counter",
}
pod!(Offsets, 29 * 4);
