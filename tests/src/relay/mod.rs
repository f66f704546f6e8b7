//! A wire of our own between two network namespaces, with faults.
//!
//! Client and server live in a namespace each; the far ends of their devices lie in a third one,
//! where a thread moves every frame from one to the other. It loses, repeats and overtakes frames
//! by a list that a seed determines, forges segments, and counts all it did. It does what a
//! network card does for its host: it completes checksums and cuts what is longer than the wire
//! takes.
//!
//! Which frames the list meets depends on what the two ends send, so the same seed gives the same
//! list, not the same run.

mod counts;
mod faults;
mod features;
mod frame;
mod port;
mod run;
mod spoof;

pub use counts::{Counts, Deed, Kind};
pub use faults::{Fault, Faults, Way};
pub use spoof::Spoof;

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::guard::{NetNs, Veth, VethEnd};
use port::Port;
use run::{Order, Wire};

/// Sets the lengths and the checksums of an Ethernet frame that holds a TCP segment.
#[cfg(feature = "bench")]
pub(crate) fn complete(frame: &mut [u8]) {
    let s = frame::Segment::read(frame).expect("a TCP segment");
    frame::complete(frame, &s);
}

const MTU: usize = 1_500;
const ANSWER: Duration = Duration::from_secs(20);

/// How a relay is to be.
#[derive(Debug)]
pub struct RelayBuilder {
    faults: [Faults; 2],
    seed: u64,
    offloads: bool,
}

impl Default for RelayBuilder {
    fn default() -> Self {
        Self {
            faults: Default::default(),
            seed: 1,
            offloads: false,
        }
    }
}

impl RelayBuilder {
    /// Faults of one way.
    #[must_use]
    pub fn faults(mut self, way: Way, faults: Faults) -> Self {
        self.faults[way as usize] = faults;
        self
    }

    /// The same faults both ways, each by its own list.
    #[must_use]
    pub fn both(self, faults: &Faults) -> Self {
        self.faults(Way::ToServer, faults.clone())
            .faults(Way::ToClient, faults.clone())
    }

    /// The seed of the lists.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Leaves segmentation to the devices on the way out and joins segments on the way in (TSO and
    /// GRO), so that a tap at either end sees packets far longer than the wire's.
    #[must_use]
    pub fn offloads(mut self) -> Self {
        self.offloads = true;
        self
    }

    /// Makes the namespaces, the devices and the thread.
    pub fn start(self) -> Relay {
        let (client, server, middle) = (NetNs::new(), NetNs::new(), NetNs::new());
        // The relay's namespace says nothing by itself.
        middle.sh("echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6");
        let (near, far) = (
            ["10.79.0.2/24", "fd79::2/64"],
            ["10.79.0.1/24", "fd79::1/64"],
        );
        let link = |ns: &NetNs, addresses: &[&str]| {
            let end = VethEnd {
                ns: Some(ns),
                addresses,
            };
            let relay = VethEnd {
                ns: Some(&middle),
                addresses: &[],
            };
            let veth = Veth::new(end, relay, MTU as u32);
            let (outer, inner) = veth.devices();
            if self.offloads {
                ns.run_in(|| features::set(outer, &[("rx-gro", true)]));
                // Only what the relay sends in wire-size pieces may be joined by its peer.
                let off = ["tx-tcp-segmentation", "tx-tcp-ecn-segmentation"];
                let more = ["tx-tcp-mangleid-segmentation", "tx-tcp6-segmentation"];
                let off: Vec<(&str, bool)> = off.iter().chain(&more).map(|f| (*f, false)).collect();
                middle.run_in(|| features::set(inner, &off));
            } else {
                ns.ip(&format!("link set {outer} gso_max_segs 1"));
            }
            veth
        };
        let veths = [link(&client, &near), link(&server, &far)];
        let open = |veth: &Veth| middle.run_in(|| Port::open(veth.devices().1));
        let ports = [open(&veths[0]), open(&veths[1])];
        let wire = Wire::new(ports, self.faults, self.seed, MTU);
        let counts = Arc::clone(&wire.counts);
        let (orders, inbox) = channel();
        let (wake, woken) = UnixStream::pair().expect("a pair of sockets");
        let thread = std::thread::spawn(move || wire.run(&inbox, woken));
        Relay {
            orders,
            wake: Some(wake),
            thread: Some(thread),
            counts,
            _veths: veths,
            client,
            server,
            _middle: middle,
        }
    }
}

/// A running relay; all of it is gone on drop.
#[derive(Debug)]
pub struct Relay {
    orders: Sender<Order>,
    wake: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    counts: Arc<Mutex<Counts>>,
    _veths: [Veth; 2],
    /// Where clients live.
    pub client: NetNs,
    /// Where servers live.
    pub server: NetNs,
    _middle: NetNs,
}

impl Relay {
    /// For faults.
    pub fn builder() -> RelayBuilder {
        RelayBuilder::default()
    }

    /// The server's IPv4 address as clients reach it.
    pub fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 79, 0, 1], port))
    }

    /// The same over IPv6.
    pub fn address6(port: u16) -> SocketAddr {
        SocketAddr::from(([0xfd79, 0, 0, 0, 0, 0, 0, 1], port))
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.clone()
    }

    /// Other faults for a way, from now on.
    pub fn set(&self, way: Way, faults: Faults) {
        self.order(Order::Faults(way, faults));
    }

    /// Connections whose clients have sent bytes and that neither side has ended.
    pub fn live(&self) -> usize {
        let (answer, answered) = channel();
        self.order(Order::Live(answer));
        answered.recv_timeout(ANSWER).expect("the relay answers")
    }

    /// Forges a segment on each of them, right behind what their clients sent last; how many.
    pub fn spoof(&self, spoof: Spoof) -> usize {
        let (answer, answered) = channel();
        self.order(Order::Spoof(spoof, answer));
        answered.recv_timeout(ANSWER).expect("the relay answers")
    }

    fn order(&self, order: Order) {
        self.orders.send(order).expect("the relay runs");
        let mut wake = self.wake.as_ref().expect("it runs until dropped");
        wake.write_all(&[0]).expect("the relay listens");
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // The thread ends with its end of the pair.
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if std::thread::panicking() {
                eprintln!("relay: {:?}", self.counts());
            } else {
                ended.expect("the relay did not panic");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    /// Sends so many bytes from the client to the server and as many back over the relay.
    fn talk(relay: &Relay, address: SocketAddr, bytes: usize) {
        let body: Vec<u8> = (0..bytes).map(|n| (n % 251) as u8).collect();
        let listener = relay.server.run_in(|| TcpListener::bind(address).unwrap());
        let echo = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut all = vec![0; bytes];
            stream.read_exact(&mut all).unwrap();
            stream.write_all(&all).unwrap();
        });
        let mut stream = relay.client.run_in(|| TcpStream::connect(address).unwrap());
        stream.write_all(&body).unwrap();
        let mut back = vec![0; bytes];
        stream.read_exact(&mut back).unwrap();
        echo.join().unwrap();
        assert!(back == body, "the bytes changed on the way");
    }

    #[test]
    fn a_relay_without_faults_passes_all_in_order() {
        for builder in [Relay::builder(), Relay::builder().offloads()] {
            let relay = builder.start();
            talk(&relay, Relay::address(9000), 2_000_000);
            talk(&relay, Relay::address6(9001), 2_000_000);
            let counts = relay.counts();
            for way in [Way::ToServer, Way::ToClient] {
                let passed = counts.data(way, Deed::Passed);
                assert!(passed >= 2 * 2_000_000 / 1_448, "{counts:?}");
                for deed in [Deed::Dropped, Deed::Duplicated, Deed::Reordered] {
                    assert_eq!(counts.of(way, deed), 0, "{counts:?}");
                }
            }
        }
    }

    #[test]
    fn bytes_survive_every_fault_and_the_kernel_saw_what_the_relay_did() {
        let relay = Relay::builder().both(&Faults::all()).seed(3).start();
        talk(&relay, Relay::address(9000), 4_000_000);
        let counts = relay.counts();
        for way in [Way::ToServer, Way::ToClient] {
            for deed in [Deed::Dropped, Deed::Duplicated, Deed::Reordered] {
                assert!(counts.data(way, deed) >= 5, "{deed:?}: {counts:?}");
            }
        }
        let seen = relay
            .client
            .sh("nstat -asz TcpRetransSegs TcpExtTCPOFOQueue");
        let seen = String::from_utf8_lossy(&seen.stdout);
        let value = |name: &str| -> f64 {
            let line = seen.lines().find(|l| l.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        let dropped = counts.data(Way::ToServer, Deed::Dropped) as f64;
        assert!(value("TcpRetransSegs") >= dropped, "{seen} {counts:?}");
        assert!(value("TcpExtTCPOFOQueue") >= 5.0, "{seen} {counts:?}");
    }

    #[test]
    fn a_listed_frame_of_every_connection_meets_its_fault() {
        let relay = Relay::builder()
            .faults(Way::ToServer, Faults::exactly(&[(2, Fault::Behind(1))]))
            .faults(Way::ToClient, Faults::exactly(&[(3, Fault::Duplicate)]))
            .start();
        for port in 9000..9005 {
            talk(&relay, Relay::address(port), 20_000);
        }
        let counts = relay.counts();
        assert_eq!(counts.of(Way::ToServer, Deed::Reordered), 5, "{counts:?}");
        assert_eq!(counts.of(Way::ToClient, Deed::Duplicated), 5, "{counts:?}");
        assert_eq!(counts.of(Way::ToServer, Deed::Dropped), 0, "{counts:?}");
    }
}
