//! Everything that speaks to the kernel's BPF side; the only modules of the agent with `unsafe`.

#![expect(
    unsafe_code,
    reason = "raw system calls and plain-data casts that no safe crate offers"
)]

pub mod bench;
pub mod btf;
pub mod control;
pub mod load;
pub mod ring;
pub mod tables;
pub mod tap;
