//! What runs on this node, read from outside: processes, their network namespaces, sockets and
//! devices, and the names and rules that turn a process into a workload.
//!
//! Everything here is a plain function over `/proc` or a netlink dump. Nothing reads a target's
//! environment, and a process that exits while it is looked at is a normal answer.

pub mod devices;
pub mod fdscan;
pub mod files;
mod interpreter;
mod netlink;
pub mod netns;
pub mod proc;
pub mod rules;
pub mod scan;
pub mod sockdiag;
pub mod workload;

#[cfg(test)]
pub(crate) mod testing;
