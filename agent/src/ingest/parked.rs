//! Ends of requests to listeners that have no workload yet. They are held for a few seconds: if
//! the listener turns out to be an engine's, its first request counts too.

use std::collections::HashMap;

use enginetap_ebpf::abi::flow::FlowKey;
use enginetap_ebpf::abi::listener::ListenerKey;
use enginetap_ebpf::abi::record::End;
use zeroize::Zeroizing;

use super::entry::Entry;

const MOST: usize = 4096;
/// Longer than the time between two scans: whoever could not be looked at when it began to listen is
/// found by the next one. Counted from the moment it is held and not from the end: an agent that was
/// stopped has not had its say yet.
const KEEP_NS: u64 = 15_000_000_000;
/// Time after which the same listener may be asked about again.
const ASK_AGAIN_NS: u64 = 2_000_000_000;

/// A held end.
pub type Held = (Box<End>, Zeroizing<Vec<u8>>, Entry);

/// See the module.
#[derive(Default)]
pub struct Parked {
    ends: Vec<(u64, Held)>,
    asked: HashMap<(u32, u16, [u32; 4]), u64>,
}

/// The listeners that a connection may have reached, the most exact first.
pub fn listeners_of(flow: &FlowKey) -> [ListenerKey; 3] {
    let at = |addr| ListenerKey {
        netns: flow.netns,
        port: flow.server_port,
        pad: 0,
        addr,
    };
    let s = flow.server;
    [at(s), at([s[0], s[1], s[2], 0]), at([0; 4])]
}

/// Whether a connection reaches a listener.
pub fn reaches(flow: &FlowKey, listener: &ListenerKey) -> bool {
    let v4 = |a: &[u32; 4]| a[0] == 0 && a[1] == 0 && a[2] == u32::from_be(0xffff);
    flow.netns == listener.netns
        && flow.server_port == listener.port
        && (flow.server == listener.addr
            || listener.addr == [0; 4]
            || (v4(&listener.addr) && listener.addr[3] == 0 && v4(&flow.server)))
}

impl Parked {
    /// Holds an end; the oldest goes when there are too many.
    pub fn hold(&mut self, end: Box<End>, tail: Zeroizing<Vec<u8>>, entry: Entry) {
        if self.ends.len() >= MOST {
            self.ends.remove(0);
        }
        self.ends.push((super::monotonic_ns(), (end, tail, entry)));
    }

    /// Whether the watcher should be asked about the listener of this flow now.
    pub fn ask(&mut self, flow: &FlowKey) -> bool {
        let now = super::monotonic_ns();
        let key = (flow.netns, flow.server_port, flow.server);
        if self
            .asked
            .get(&key)
            .is_some_and(|at| now < at + ASK_AGAIN_NS)
        {
            return false;
        }
        self.asked.insert(key, now);
        true
    }

    /// Takes the ends held for a listener.
    pub fn take(&mut self, listener: &ListenerKey) -> Vec<Held> {
        let (ours, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.ends)
            .into_iter()
            .partition(|(_, (_, _, entry))| reaches(&entry.key, listener));
        self.ends = rest;
        ours.into_iter().map(|(_, held)| held).collect()
    }

    /// Forgets what nobody asked for.
    pub fn expire(&mut self, now: u64) {
        self.ends.retain(|(since, _)| now < since + KEEP_NS);
        self.asked.retain(|_, at| now < *at + KEEP_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(last: u8) -> [u32; 4] {
        [
            0,
            0,
            u32::from_be(0xffff),
            u32::from_ne_bytes([127, 0, 0, last]),
        ]
    }

    fn flow(server: [u32; 4]) -> FlowKey {
        FlowKey {
            netns: 1,
            server_port: 80,
            client_port: 9,
            server,
            client: v4(9),
        }
    }

    fn listener(addr: [u32; 4]) -> ListenerKey {
        ListenerKey {
            netns: 1,
            port: 80,
            pad: 0,
            addr,
        }
    }

    #[test]
    fn a_connection_reaches_its_address_and_the_wildcards_of_its_family() {
        let any4 = [0, 0, u32::from_be(0xffff), 0];
        assert!(reaches(&flow(v4(1)), &listener(v4(1))));
        assert!(!reaches(&flow(v4(1)), &listener(v4(2))));
        assert!(reaches(&flow(v4(1)), &listener(any4)));
        assert!(reaches(&flow(v4(1)), &listener([0; 4])));
        assert!(!reaches(&flow([1, 2, 3, 4]), &listener(any4)));
        assert!(reaches(&flow([1, 2, 3, 4]), &listener([0; 4])));
        for to in [v4(1), any4, [0; 4]] {
            assert!(listeners_of(&flow(v4(1))).contains(&listener(to)));
        }
        let other = ListenerKey {
            netns: 2,
            ..listener(v4(1))
        };
        assert!(!reaches(&flow(v4(1)), &other));
    }
}
