//! Reads one flow of the kernel's table without leaving a copy of captured bytes: a flow holds the
//! start of the current line and the end of the reply, which nobody here needs.

use std::os::fd::{AsRawFd, BorrowedFd};

use enginetap_ebpf::abi::flow::{Dir, Flow, FlowKey};
use zeroize::Zeroize;

const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;

/// The fields of `union bpf_attr` for a look-up.
#[repr(C)]
struct Lookup {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The flow with this key, without its captured bytes; `None` when the table has none. A map
/// library would hand it over by value, which leaves copies on the stack.
pub fn flow(table: BorrowedFd<'_>, key: &FlowKey) -> Option<Box<Flow>> {
    // SAFETY: a flow is plain data, valid for any bit pattern.
    let mut value: Box<Flow> = unsafe { Box::<Flow>::new_zeroed().assume_init() };
    let attr = Lookup {
        map_fd: table.as_raw_fd() as u32,
        pad: 0,
        key: std::ptr::from_ref(key) as u64,
        value: std::ptr::from_mut(&mut *value) as u64,
        flags: 0,
    };
    // SAFETY: the kernel reads the attributes and the key and writes one value; all are alive and
    // of the sizes that the table was made with.
    let done = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_MAP_LOOKUP_ELEM,
            std::ptr::from_ref(&attr),
            size_of::<Lookup>(),
        )
    };
    wipe(&mut value);
    (done == 0).then_some(value)
}

fn wipe(flow: &mut Flow) {
    let line = |dir: &mut Dir| {
        dir.line.zeroize();
        dir.word.zeroize();
    };
    line(&mut flow.requests);
    line(&mut flow.replies);
    flow.tail.zeroize();
}
