//! Gives orders to the control program through `BPF_PROG_TEST_RUN`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use anyhow::{Result, bail};
use enginetap_ebpf::abi::control::{Order, Sent, answer, order};
use enginetap_ebpf::abi::flow::FlowKey;
use enginetap_ebpf::abi::listener::ListenerKey;

const BPF_PROG_TEST_RUN: libc::c_long = 10;
/// An Ethernet header with a protocol of no meaning; the kernel wants one before the payload.
const ETHERNET: [u8; 14] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x88, 0xb5];

/// The key of orders that are about no flow.
const NO_FLOW: FlowKey = FlowKey {
    netns: 0,
    server_port: 0,
    client_port: 0,
    server: [0; 4],
    client: [0; 4],
};

/// The fields of `union bpf_attr` for a test run.
#[repr(C)]
#[derive(Default)]
struct TestRun {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    pad: u32,
}

/// The control program.
pub struct Control {
    program: OwnedFd,
}

impl Control {
    /// Wraps the loaded program.
    pub fn new(program: OwnedFd) -> Control {
        Control { program }
    }

    /// Makes a flow for a connection older than the tap. True when there was none yet.
    pub fn adopt(&self, key: &FlowKey, workload: u32) -> Result<bool> {
        Ok(self.give(order::ADOPT, workload, 0, key)? == answer::DONE)
    }

    /// Ends what is open on a flow and forgets it. `closer` says who closed, unless that is known.
    /// False when a lock was held: try again.
    pub fn settle(&self, key: &FlowKey, flow: u64, closer: u64) -> Result<bool> {
        Ok(self.give(order::SETTLE, closer as u32, flow, key)? != answer::BUSY)
    }

    /// Forgets a flow that was never confirmed.
    pub fn drop_unconfirmed(&self, key: &FlowKey, flow: u64) -> Result<bool> {
        Ok(self.give(order::DROP, 0, flow, key)? == answer::DONE)
    }

    /// Makes a port worth a look: each connection to it, or only inference requests.
    pub fn look(&self, port: u16, watched: bool) -> Result<()> {
        self.give(order::LOOK, port.into(), watched.into(), &NO_FLOW)?;
        Ok(())
    }

    /// Looks at a thread, or no longer.
    pub fn serve(&self, tid: u32, begins: bool) -> Result<()> {
        let what = if begins { order::SERVE } else { order::UNSERVE };
        self.give(what, tid, 0, &NO_FLOW)?;
        Ok(())
    }

    /// Leaves ports of a cell alone again.
    pub fn leave(&self, cell: u32, bits: u64) -> Result<()> {
        self.give(order::LEAVE, cell, bits, &NO_FLOW)?;
        Ok(())
    }

    /// Forgets a listener that began at `upto` or before. False when a newer one is there.
    pub fn unlisten(&self, listener: &ListenerKey, upto: u64) -> Result<bool> {
        let key = FlowKey {
            netns: listener.netns,
            server_port: listener.port,
            server: listener.addr,
            ..NO_FLOW
        };
        Ok(self.give(order::UNLISTEN, 0, upto, &key)? != answer::BUSY)
    }

    fn give(&self, what: u32, argument: u32, flow: u64, key: &FlowKey) -> Result<i64> {
        let sent = Sent {
            order: Order {
                what,
                argument,
                flow,
                pad: 0,
            },
            key: *key,
        };
        let mut packet = [0u8; 14 + size_of::<Sent>()];
        packet[..14].copy_from_slice(&ETHERNET);
        // SAFETY: `Sent` is plain data without padding.
        let bytes = unsafe {
            std::slice::from_raw_parts(std::ptr::from_ref(&sent).cast::<u8>(), size_of::<Sent>())
        };
        packet[14..].copy_from_slice(bytes);
        let ran = test_run(self.program.as_fd(), &packet)?;
        let answer = ran.answer as i64;
        if answer == answer::REJECTED {
            bail!("the control program could not read an order");
        }
        Ok(answer)
    }
}

/// What one test run gave.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    /// The program's return value.
    pub answer: u32,
    /// Nanoseconds it took, by the kernel's own clock around it.
    pub nanos: u32,
}

/// Runs a socket filter once on `packet`, which begins with an Ethernet header; the program sees it
/// from the network header on, received on `lo` of the caller's namespace.
pub(super) fn test_run(program: BorrowedFd<'_>, packet: &[u8]) -> Result<Ran> {
    let mut attr = TestRun {
        prog_fd: program.as_raw_fd() as u32,
        data_size_in: packet.len() as u32,
        data_in: packet.as_ptr() as u64,
        repeat: 1,
        ..TestRun::default()
    };
    // SAFETY: `attr` describes `packet`, and both live through the call.
    let r = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_TEST_RUN,
            std::ptr::from_mut(&mut attr),
            size_of::<TestRun>() as libc::c_long,
        )
    };
    if r != 0 {
        bail!(
            "a program could not be run (BPF_PROG_TEST_RUN): {}",
            std::io::Error::last_os_error()
        );
    }
    Ok(Ran {
        answer: attr.retval,
        nanos: attr.duration,
    })
}
