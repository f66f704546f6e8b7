//! The tap alone, on six segments, by `BPF_PROG_TEST_RUN`.
//!
//! The object is loaded in this process, a listener is entered into its maps, and a real
//! connection in a namespace of its own gives the tuple that confirms the flow. The segments are
//! then run with that tuple, one per call with advancing sequence numbers, since a repeated one is
//! bytes already taken. So each run is timed alone, by the two clock reads that the kernel puts
//! around it: an empty program taken the same way is the floor, printed beside.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use enginetap::bpf::bench::{empty_program, time_once};
use enginetap::bpf::control::Control;
use enginetap::bpf::load::{Loaded, load};
use enginetap::bpf::ring::Ring;
use enginetap::bpf::tables::Tables;
use enginetap_ebpf::abi::flow::FlowKey;
use enginetap_ebpf::abi::listener::{Listener, ListenerKey, mode};

use super::stats::quantile;
use super::stream::{HEAD, SEGMENT, chunk, request};
use super::table::{Detail, Report, Verdict};
use super::{Args, OTHER_PORT, PORT};
use crate::guard::NetNs;

const SYN: u8 = 2;
const ACK: u8 = 16;
const LOCAL: [u32; 4] = [0, 0, 0xffff_0000, u32::from_ne_bytes([127, 0, 0, 1])];
/// No test packet carries more than this: the kernel wants one page for all of it.
const MOST: usize = 3_000;

/// One end's place in the connection.
struct End {
    port: u16,
    seq: u32,
}

/// An IPv4 packet from `from` to `to` behind an Ethernet header. `length` is the payload's length
/// as the IP header says it.
fn packet(from: &End, to: &End, flags: u8, payload: &[u8], length: usize) -> Vec<u8> {
    let carried = &payload[..payload.len().min(MOST)];
    let mut p = vec![0; 12];
    p.extend_from_slice(&[8, 0]);
    let total = u16::try_from(20 + 32 + length).expect("fits an IP packet");
    p.extend_from_slice(&[0x45, 0]);
    p.extend_from_slice(&total.to_be_bytes());
    p.extend_from_slice(&[0, 0, 0x40, 0, 64, 6, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1]);
    p.extend_from_slice(&from.port.to_be_bytes());
    p.extend_from_slice(&to.port.to_be_bytes());
    p.extend_from_slice(&from.seq.to_be_bytes());
    p.extend_from_slice(&to.seq.to_be_bytes());
    // Eight words: with timestamps, as Linux sends.
    p.extend_from_slice(&[
        0x80, flags, 2, 0, 0, 0, 0, 0, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 1,
    ]);
    p.extend_from_slice(carried);
    if carried.len() == length {
        // Of what comes from outside the tap tests the checksums.
        crate::relay::complete(&mut p);
    }
    p
}

struct Bench {
    loaded: Loaded,
    ring: Ring,
    tables: Tables,
    client: End,
    server: End,
    flow: u64,
}

impl Bench {
    fn tap(&self) -> BorrowedFd<'_> {
        self.loaded.wire.as_fd()
    }

    fn time(&self, packet: &[u8]) -> f64 {
        f64::from(time_once(self.tap(), packet).expect("a test run"))
    }

    fn drain(&mut self) {
        while self.ring.next(|_| {}) {}
    }

    /// The client sends `bytes`.
    fn ask(&mut self, bytes: &[u8]) -> f64 {
        let ns = self.time(&packet(&self.client, &self.server, ACK, bytes, bytes.len()));
        self.client.seq = self.client.seq.wrapping_add(bytes.len() as u32);
        ns
    }

    /// The server sends a payload of `length` bytes that begins so.
    fn answer(&mut self, bytes: &[u8], length: usize) -> f64 {
        let ns = self.time(&packet(&self.server, &self.client, ACK, bytes, length));
        self.server.seq = self.server.seq.wrapping_add(length as u32);
        ns
    }
}

/// Makes a confirmed flow through the tap itself.
fn prepare(inum: u32) -> Bench {
    // The connection is older than the hooks, so that they do not adopt it by themselves.
    let listener = TcpListener::bind(("127.0.0.1", PORT)).expect("listen");
    let mut stream = TcpStream::connect(("127.0.0.1", PORT)).expect("connect");
    let (mut accepted, peer) = listener.accept().expect("accept");
    let mut loaded = load(enginetap::config::Switch::Off).expect("the object loads");
    let ring = Ring::take(&mut loaded.ebpf).expect("ring");
    let mut tables = Tables::take(&mut loaded.ebpf).expect("maps");
    let key = ListenerKey {
        netns: inum,
        port: PORT,
        pad: 0,
        addr: LOCAL,
    };
    tables
        .set_listener(
            key,
            Listener {
                workload: 1,
                mode: mode::WATCHED,
                since_ns: 0,
            },
        )
        .expect("listener");
    let control = loaded.control.try_clone().expect("its program");
    Control::new(control).look(PORT, true).expect("ports");
    let client = End {
        port: peer.port(),
        seq: 1_000,
    };
    let server = End {
        port: PORT,
        seq: 5_000,
    };
    let mut bench = Bench {
        loaded,
        ring,
        tables,
        client,
        server,
        flow: 0,
    };
    bench.time(&packet(&bench.client, &bench.server, SYN, &[], 0));
    bench.client.seq += 1;
    bench.time(&packet(&bench.server, &bench.client, SYN | ACK, &[], 0));
    bench.server.seq += 1;
    stream.write_all(b"x").expect("write");
    accepted.read_exact(&mut [0]).expect("read");
    let key = FlowKey {
        netns: inum,
        server_port: PORT,
        client_port: peer.port(),
        server: LOCAL,
        client: LOCAL,
    };
    let flow = bench.tables.flow(&key).expect("the SYN made a flow");
    assert_eq!({ flow.confirmed }, 1, "the read confirmed it");
    bench.flow = flow.id;
    // Closing the connection would retire the flow.
    std::mem::forget((listener, stream, accepted));
    bench
}

/// The rows: name, samples.
type Timed = Vec<(&'static str, Vec<f64>)>;

fn measure(inum: u32, runs: usize) -> (Timed, u64) {
    let mut b = prepare(inum);
    let nothing = empty_program().expect("an empty program");
    let far = (
        End {
            port: 40_000,
            seq: 1,
        },
        End {
            port: OTHER_PORT,
            seq: 1,
        },
    );
    let bulk = vec![b'x'; 1_448];
    let ack = packet(&far.0, &far.1, ACK, &[], 0);
    let data = packet(&far.0, &far.1, ACK, &bulk, bulk.len());
    let mut timed: Timed = Vec::new();
    let on_nothing = |p: &[u8]| f64::from(time_once(nothing.as_fd(), p).expect("a test run"));
    timed.push((
        "(floor: an empty program)",
        (0..runs).map(|_| on_nothing(&ack)).collect(),
    ));
    timed.push((
        "a bare ACK on an unwatched port",
        (0..runs).map(|_| b.time(&ack)).collect(),
    ));
    timed.push((
        "1,448 bytes on an unwatched port",
        (0..runs).map(|_| b.time(&data)).collect(),
    ));

    // A live stream, past its first events.
    let (request, chunk) = (request(), chunk());
    b.ask(&request);
    b.answer(HEAD, HEAD.len());
    b.tables.tell(b.flow, 1).expect("tell");
    for _ in 0..200 {
        b.answer(&chunk, chunk.len());
    }
    let (mut events, mut acks) = (Vec::new(), Vec::new());
    for n in 0..runs {
        events.push(b.answer(&chunk, chunk.len()));
        acks.push(b.time(&packet(&b.client, &b.server, ACK, &[], 0)));
        if n % 256 == 0 {
            b.drain();
        }
    }
    timed.push(("a bare ACK on a live stream", acks));
    timed.push((ONE_EVENT, events));
    let last = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
    b.answer(last, last.len());
    b.drain();

    // Unary replies over the same connection, each of ten segments of 65,000 bytes.
    let head =
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 650000\r\n\r\n";
    let body = vec![b'x'; MOST];
    let (mut pieces, mut heads, mut unary) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..runs / 10 {
        pieces.push(b.ask(&request[..24]));
        b.ask(&request[24..]);
        heads.push(b.answer(head, head.len()));
        (0..10).for_each(|_| unary.push(b.answer(&body, 65_000)));
        b.drain();
    }
    timed.push(("the first 24 bytes of a request", pieces));
    timed.push(("the head of a reply", heads));
    timed.push(("65,000 bytes of a body of known length", unary));
    let workload = b.tables.workload(1).expect("counters");
    (timed, workload.started)
}

const ONE_EVENT: &str = "268 bytes, one event, on a live stream";

pub(super) fn run(args: &Args, report: &mut Report) {
    let runs = args.pick(20_000, 2_000);
    let ns = NetNs::new();
    let inum = u32::try_from(ns.inum()).expect("an inode number");
    let (timed, started) = ns.run_in(|| measure(inum, runs));
    assert_eq!(
        started,
        1 + (runs / 10) as u64,
        "the tap followed what it was shown"
    );
    let floor = quantile(&timed[0].1, 0.5);
    let mut detail = Detail::new(
        "The tap by BPF_PROG_TEST_RUN, ns, one run per call",
        &["segment", "median", "p90", "median less the floor", "runs"],
    );
    for (name, samples) in &timed {
        let median = quantile(samples, 0.5);
        detail.line(&[
            (*name).to_owned(),
            format!("{median:.0}"),
            format!("{:.0}", quantile(samples, 0.9)),
            format!("{:.0}", median - floor),
            samples.len().to_string(),
        ]);
        if *name == ONE_EVENT {
            report.row(
                "TEST_RUN of the tap on a 268-byte segment with one event",
                "<= 500 ns",
                &format!("{median:.0} ns; {:.0} ns less an empty program", median - floor),
                Verdict::of(median <= 500.0),
                &format!(
                    "median of {runs} calls of one run each with advancing sequence numbers on a confirmed flow past its first events ({SEGMENT} bytes; a repeat in one call would be bytes already taken), so caches are as a system call leaves them and two clock reads are within; of 65,000 bytes of a body the test packet carries {MOST}, as no more fits"
                ),
            );
        }
    }
    report.detail(detail);
}
