//! A streaming server and its client, each as bare as can be, so that what a tap adds to a write
//! stands out. Every event is one write and one segment of [`SEGMENT`] bytes: a chunk with one
//! server-sent event. The server is this program run again, inside the namespace, so that it is a
//! process like any engine; the client is a thread here.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{PORT, cpu};
use crate::guard::{Agent, Child, ChildBuilder, NetNs, poll as poll_until};
use crate::page::Page;

/// Bytes of a segment with one event.
pub(super) const SEGMENT: usize = 268;
/// The workload that the agent makes of the server: others on the machine are not ours to count.
pub(super) const OURS: [(&str, &str); 1] = [("container", "bench")];
/// The reply's head.
pub(super) const HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
const LAST: &[u8] = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
const BODY: &str = "{\"model\":\"bench-model\",\"stream\":true,\"messages\":[]}";

/// A request.
pub(super) fn request() -> Vec<u8> {
    let length = BODY.len();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    (head + BODY).into_bytes()
}

/// A chunk of [`SEGMENT`] bytes with one event.
pub(super) fn chunk() -> Vec<u8> {
    // Five bytes of size line, two of line end behind the data.
    let data = SEGMENT - 7;
    let shell = "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"bench-model\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"finish_reason\":null}]}\n\n";
    let text = "x".repeat(data - shell.len());
    let event = shell.replace("\"content\":\"\"", &format!("\"content\":\"{text}\""));
    let chunk = format!("{data:x}\r\n{event}\r\n").into_bytes();
    assert_eq!(chunk.len(), SEGMENT);
    chunk
}

/// Streams at a steady rate over kept connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steady {
    /// Connections.
    pub connections: usize,
    /// Events per second over all of them.
    pub rate: u64,
    /// Events of each stream.
    pub per_stream: u64,
}

impl FromStr for Steady {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Vec<u64> = text.split(':').filter_map(|n| n.parse().ok()).collect();
        let [connections, rate, per_stream] = numbers[..] else {
            return Err(format!("not CONNECTIONS:RATE:EVENTS: {text}"));
        };
        Ok(Self {
            connections: connections as usize,
            rate,
            per_stream,
        })
    }
}

/// A server in a namespace; killed on drop.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts one.
    pub fn start(ns: &NetNs, load: Steady) -> Self {
        let own = std::env::current_exe().expect("this program");
        let word = format!("{}:{}:{}", load.connections, load.rate, load.per_stream);
        let mut child = ChildBuilder::new(own)
            .args(["--serve", &word])
            .netns(ns)
            .start();
        let line = child.wait_line("ready ", Duration::from_secs(10));
        let address = line["ready ".len()..].parse().expect("an address");
        Self { child, address }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }
}

/// A counter of this thread's namespace, from a file of /proc/net with pairs of lines.
fn counter(file: &str, group: &str, name: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).expect("counters");
    let mut lines = text
        .lines()
        .filter(|l| l.starts_with(group))
        .map(str::split_whitespace);
    let (mut names, mut values) = (lines.next().expect("names"), lines.next().expect("values"));
    let at = names
        .position(|n| n == name)
        .expect("a counter of that name");
    values
        .nth(at)
        .and_then(|v| v.parse().ok())
        .expect("a number")
}

fn out_segments() -> f64 {
    counter("snmp", "Tcp:", "OutSegs")
}

/// Segments that reached a receiver before an earlier one of the same connection.
fn out_of_order() -> f64 {
    counter("netstat", "TcpExt:", "TCPOFOQueue")
}

/// Waits until the page has so many events; those that it lacks in the end, and that page.
pub(super) fn missing(agent: &Agent, events: u64) -> (f64, Page) {
    let mut page = agent.scrape();
    poll_until(Duration::from_secs(4), || {
        page = agent.scrape();
        (page.value("enginetap_stream_events_total", &OURS) >= events as f64).then_some(())
    });
    (
        events as f64 - page.value("enginetap_stream_events_total", &OURS),
        page,
    )
}

/// What the client counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    /// Events read, `[DONE]` included.
    pub events: u64,
    /// Replies read to their end.
    pub replies: u64,
    /// Events per second reached while measured.
    pub rate: f64,
    /// Requests per second while measured.
    pub requests: f64,
    /// Segments that arrived out of order.
    pub out_of_order: f64,
    /// Segments sent in both directions per event.
    pub segments: f64,
}

/// What the client has read so far.
#[derive(Debug, Default)]
struct Progress {
    bytes: AtomicU64,
    replies: AtomicU64,
}

impl Progress {
    fn events(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed) / SEGMENT as u64
    }
}

impl Steady {
    /// The server: listens, says so, and serves until it is killed.
    pub fn play(self) {
        cpu::pin(0);
        let listener = TcpListener::bind(("127.0.0.1", PORT)).expect("listen");
        println!("ready {}", listener.local_addr().expect("bound"));
        loop {
            self.serve(&listener);
        }
    }

    /// Streams while `during` runs, which is called once the rate stands, then lets every stream
    /// end.
    pub fn run(self, ns: &NetNs, server: &Server, during: impl FnOnce() + Send) -> Counted {
        let address = server.address;
        let (stop, progress) = (AtomicBool::new(false), Progress::default());
        let mut counted = Counted::default();
        ns.run_in(|| {
            let (before, sent) = (out_of_order(), out_segments());
            std::thread::scope(|scope| {
                let client = scope.spawn(|| self.consume(address, &stop, &progress));
                while progress.events() < self.rate / 4 && !client.is_finished() {
                    std::thread::sleep(Duration::from_millis(10));
                }
                let replies = || progress.replies.load(Ordering::Relaxed);
                let (began, events, ended) = (Instant::now(), progress.events(), replies());
                during();
                let seconds = began.elapsed().as_secs_f64();
                counted.rate = (progress.events() - events) as f64 / seconds;
                counted.requests = (replies() - ended) as f64 / seconds;
                stop.store(true, Ordering::Relaxed);
                client.join().expect("client");
            });
            counted.out_of_order = out_of_order() - before;
            counted.segments = out_segments() - sent;
        });
        counted.replies = progress.replies.into_inner();
        counted.events = counted.replies * (self.per_stream + 1);
        counted.segments /= counted.events as f64;
        counted
    }

    fn serve(self, listener: &TcpListener) {
        let mut streams: Vec<Served> = (0..self.connections)
            .map(|_| Served::new(listener.accept().expect("accept").0))
            .collect();
        let (chunk, request) = (chunk(), request());
        let (began, mut sent, mut at) = (Instant::now(), 0u64, 0);
        while !streams.iter().all(|s| s.closed) {
            let due = (began.elapsed().as_secs_f64() * self.rate as f64) as u64;
            let mut idle = 0;
            while sent < due && idle < streams.len() {
                let served = &mut streams[at];
                at = (at + 1) % self.connections;
                if served.left == 0 {
                    idle += 1;
                    continue;
                }
                idle = 0;
                sent += 1;
                served.write(&chunk);
                served.left -= 1;
                if served.left == 0 {
                    served.write(LAST);
                }
            }
            if idle > 0 {
                // Nobody is waiting: the rate that was missed is not made up for later.
                sent = due;
            }
            std::thread::sleep(Duration::from_millis(1));
            for served in streams.iter_mut().filter(|s| s.left == 0) {
                served.await_request(&request, self.per_stream);
            }
        }
    }

    fn consume(self, address: SocketAddr, stop: &AtomicBool, progress: &Progress) {
        cpu::pin(1);
        let whole = HEAD.len() as u64 + self.per_stream * SEGMENT as u64 + LAST.len() as u64;
        let request = request();
        let mut streams: Vec<(TcpStream, u64)> = (0..self.connections)
            .map(|_| {
                let stream = TcpStream::connect(address).expect("connect");
                stream.set_nodelay(true).expect("nodelay");
                (stream, whole)
            })
            .collect();
        let stagger =
            Duration::from_secs_f64((self.per_stream as f64 / self.rate as f64).min(0.01));
        for (stream, _) in &mut streams {
            stream.write_all(&request).expect("request");
            std::thread::sleep(stagger);
        }
        let mut buf = vec![0; 65_536];
        while !streams.is_empty() {
            let mut fds: Vec<PollFd<'_>> = streams
                .iter()
                .map(|(s, _)| PollFd::new(s.as_fd(), PollFlags::POLLIN))
                .collect();
            let _ = poll(&mut fds, PollTimeout::from(100u16));
            let ready: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(false)).collect();
            for at in (0..streams.len()).rev().filter(|at| ready[*at]) {
                let (stream, left) = &mut streams[at];
                let n = stream.read(&mut buf).expect("read");
                assert!(n > 0, "the server left early");
                *left -= n as u64;
                progress.bytes.fetch_add(n as u64, Ordering::Relaxed);
                if *left > 0 {
                    continue;
                }
                progress.replies.fetch_add(1, Ordering::Relaxed);
                if stop.load(Ordering::Relaxed) {
                    streams.swap_remove(at);
                } else {
                    *left = whole;
                    stream.write_all(&request).expect("request");
                }
            }
        }
    }
}

/// The server's side of a connection.
struct Served {
    stream: TcpStream,
    /// Events left of the stream under way; 0 = waits for a request.
    left: u64,
    got: usize,
    closed: bool,
}

impl Served {
    fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).expect("nodelay");
        stream.set_nonblocking(true).expect("nonblocking");
        Self {
            stream,
            left: 0,
            got: 0,
            closed: false,
        }
    }

    fn await_request(&mut self, request: &[u8], per_stream: u64) {
        let mut buf = [0; 1024];
        match self.stream.read(&mut buf[..request.len() - self.got]) {
            Ok(0) => self.closed = true,
            Ok(n) => self.got += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => panic!("read: {e}"),
        }
        if self.got == request.len() {
            self.got = 0;
            self.write(HEAD);
            self.left = per_stream;
        }
    }

    fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(e) => panic!("write: {e}"),
            }
        }
    }
}
