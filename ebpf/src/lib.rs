//! Types and pure functions shared by the kernel programs and the agent, and the stream machine
//! that both can run.
#![cfg_attr(target_arch = "bpf", no_std)]
#![cfg_attr(target_arch = "bpf", feature(core_intrinsics))]
#![cfg_attr(
    target_arch = "bpf",
    expect(internal_features, reason = "atomics on bpfel have no stable form")
)]
#![expect(
    unsafe_code,
    reason = "map values are shared with other CPUs and reached through pointers"
)]

pub mod abi;
pub mod atomics;
pub mod hist;
pub mod stream;
