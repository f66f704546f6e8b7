//! The relay's thread: frames in, faults, frames out.

use std::collections::HashMap;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::counts::{Counts, Deed, Kind};
use super::faults::{Draw, Fault, Faults, Way};
use super::frame::{Segment, cut, flag};
use super::port::Port;
use super::spoof::{Known, Spoof};

/// How long a frame is held for others to overtake it.
const HELD: Duration = Duration::from_millis(20);

/// What the test asks of the thread.
#[derive(Debug)]
pub(super) enum Order {
    /// New faults for a way.
    Faults(Way, Faults),
    /// A forged segment on every live connection; answers how many were sent.
    Spoof(Spoof, Sender<usize>),
    /// Answers how many connections are live.
    Live(Sender<usize>),
}

/// Both ports of a connection, the client's first.
type Ports = (u16, u16);

/// A connection as it passes by.
#[derive(Debug, Default)]
struct Conn {
    /// The client's latest frame without its payload, and where things lie in it.
    header: Option<(Vec<u8>, Segment)>,
    /// Per way: sequence number behind all bytes so far.
    next: [Option<u32>; 2],
    /// Per way: frames that carried bytes for the first time.
    carriers: [u32; 2],
    over: bool,
}

struct Held {
    way: Way,
    ports: Ports,
    kind: Kind,
    frame: Vec<u8>,
    /// Frames that are still to overtake it.
    behind: u8,
    until: Instant,
    overtaken: bool,
}

/// The relay between two ports, by [`Way`] that frames come from them.
pub(super) struct Wire {
    pub ports: [Port; 2],
    pub faults: [Faults; 2],
    pub draws: [Draw; 2],
    pub mtu: usize,
    pub counts: Arc<Mutex<Counts>>,
    held: Vec<Held>,
    conns: HashMap<Ports, Conn>,
}

impl Wire {
    pub fn new(ports: [Port; 2], faults: [Faults; 2], seed: u64, mtu: usize) -> Self {
        Self {
            ports,
            faults,
            draws: [Draw::new(seed), Draw::new(!seed)],
            mtu,
            counts: Arc::default(),
            held: Vec::new(),
            conns: HashMap::new(),
        }
    }

    /// Runs until the other end of `orders` is gone. `wake` becomes readable with every order.
    pub fn run(mut self, orders: &Receiver<Order>, mut wake: UnixStream) {
        wake.set_nonblocking(true).expect("non-blocking");
        let mut buffer = vec![0; 128 * 1024];
        loop {
            self.wait(&wake);
            if matches!(wake.read(&mut buffer), Ok(0)) {
                return;
            }
            while let Ok(order) = orders.try_recv() {
                self.obey(order);
            }
            for way in [Way::ToServer, Way::ToClient] {
                // A bound, so that neither way nor the held frames starve.
                for _ in 0..64 {
                    match self.ports[way as usize].read(&mut buffer) {
                        Ok(Some(n)) => self.take(way, &buffer[..n]),
                        Ok(None) => break,
                        // The device is going away with its namespace.
                        Err(_) => return,
                    }
                }
            }
            self.release(|held| held.until <= Instant::now());
        }
    }

    fn wait(&self, wake: &UnixStream) {
        let next = self.held.iter().map(|held| held.until).min();
        let timeout = next.map_or(PollTimeout::NONE, |until| {
            let left = until.saturating_duration_since(Instant::now());
            PollTimeout::from(left.as_millis() as u16 + 1)
        });
        let mut fds = [
            PollFd::new(self.ports[0].as_fd(), PollFlags::POLLIN),
            PollFd::new(self.ports[1].as_fd(), PollFlags::POLLIN),
            PollFd::new(wake.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(e) => panic!("poll: {e}"),
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Faults(way, faults) => self.faults[way as usize] = faults,
            Order::Live(answer) => {
                let _ = answer.send(self.live().len());
            }
            Order::Spoof(spoof, answer) => {
                let mut sent = 0;
                for known in self.live() {
                    if let Some(frame) = spoof.forge(&known, &mut self.draws[0]) {
                        self.write(Way::ToServer, &frame);
                        let kind = Segment::read(&frame).map_or(Kind::Other, |s| Kind::of(&s));
                        self.count(Way::ToServer, Deed::Injected, kind);
                        sent += 1;
                    }
                }
                let _ = answer.send(sent);
            }
        }
    }

    /// What is known of the connections whose clients have sent bytes and that neither side has
    /// ended.
    fn live(&self) -> Vec<Known> {
        let live = |c: &&Conn| !c.over && c.carriers[Way::ToServer as usize] > 0;
        let known = |c: &Conn| {
            Some(Known {
                header: c.header.clone()?,
                client_next: c.next[0]?,
                server_next: c.next[1]?,
            })
        };
        let conns = self.conns.values().filter(live);
        conns.filter_map(known).collect()
    }

    fn count(&self, way: Way, deed: Deed, kind: Kind) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.add(way, deed, kind);
    }

    fn write(&self, way: Way, frame: &[u8]) {
        let to = &self.ports[1 - way as usize];
        // A device that has gone down meanwhile takes no frame, as a wire that was pulled.
        let _ = to.write(frame);
    }

    /// Takes a frame as a sender's device handed it over.
    fn take(&mut self, way: Way, frame: &[u8]) {
        let Some(s) = Segment::read(frame) else {
            self.write(way, frame);
            self.count(way, Deed::Passed, Kind::Other);
            return;
        };
        for part in cut(frame, &s, self.mtu) {
            if let Some(s) = Segment::read(&part) {
                self.one(way, part, &s);
            }
        }
    }

    /// Takes a frame of the size of the wire.
    fn one(&mut self, way: Way, frame: Vec<u8>, s: &Segment) {
        let ports = match way {
            Way::ToServer => (s.source, s.target),
            Way::ToClient => (s.target, s.source),
        };
        let first = self.note(way, ports, &frame, s);
        let fault = self.faults[way as usize].of(first, &mut self.draws[way as usize]);
        let kind = Kind::of(s);
        match fault {
            Some(Fault::Drop) => return self.count(way, Deed::Dropped, kind),
            Some(Fault::Behind(behind)) => {
                self.held.push(Held {
                    way,
                    ports,
                    kind,
                    frame,
                    behind,
                    until: Instant::now() + HELD,
                    overtaken: false,
                });
                return;
            }
            Some(Fault::Duplicate) => {
                self.write(way, &frame);
                self.count(way, Deed::Duplicated, kind);
            }
            None => self.count(way, Deed::Passed, kind),
        }
        self.write(way, &frame);
        for held in &mut self.held {
            if held.way == way && held.ports == ports {
                held.behind = held.behind.saturating_sub(1);
                held.overtaken = true;
            }
        }
        self.release(|held| held.behind == 0);
    }

    /// Remembers what passes; the frame's number among those that carry bytes for the first time.
    fn note(&mut self, way: Way, ports: Ports, frame: &[u8], s: &Segment) -> Option<u32> {
        let way = way as usize;
        if s.has(flag::SYN) && !s.has(flag::ACK) {
            self.conns.insert(ports, Conn::default());
        }
        let conn = self.conns.entry(ports).or_default();
        conn.over |= s.has(flag::FIN | flag::RST);
        if way == 0 && !s.has(flag::SYN) {
            conn.header = Some((frame[..s.payload].to_vec(), *s));
        }
        let next = s.next();
        let fresh = conn.next[way].is_none_or(|at| (next.wrapping_sub(at) as i32) > 0);
        if !fresh {
            return None;
        }
        conn.next[way] = Some(next);
        if s.len() == 0 {
            return None;
        }
        conn.carriers[way] += 1;
        Some(conn.carriers[way])
    }

    /// Passes on the held frames that `which` names.
    fn release(&mut self, which: impl Fn(&Held) -> bool) {
        let mut at = 0;
        while at < self.held.len() {
            if !which(&self.held[at]) {
                at += 1;
                continue;
            }
            let held = self.held.remove(at);
            self.write(held.way, &held.frame);
            let deed = if held.overtaken {
                Deed::Reordered
            } else {
                Deed::Delayed
            };
            self.count(held.way, deed, held.kind);
        }
    }
}
