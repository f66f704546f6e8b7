//! Peers that speak no HTTP, or only half of it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use serde::Serialize;

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Garbage {
    /// Random bytes, by seed.
    Random,
    /// Random bytes without letters, digits or line ends: no method can begin.
    Binary,
    /// A TLS 1.3 client hello.
    Tls,
    /// Half of a request head.
    HalfHead,
    /// A request line with a 64 KiB target, then the end of the head.
    LongLine,
    /// A head with one 64 KiB header line.
    LongHeader,
    /// The HTTP/2 preface and an empty SETTINGS frame.
    H2,
    /// Connects and sends nothing.
    Silent,
}

/// Sends garbage to a port.
#[derive(Clone, Debug, Parser)]
#[command(name = "garbage-client")]
pub struct GarbageArgs {
    /// Server.
    #[arg(long)]
    pub target: SocketAddr,
    /// What to send; repeatable, used in turn.
    #[arg(long, value_enum, required = true)]
    pub mode: Vec<Garbage>,
    /// Connections, one after the other.
    #[arg(long, default_value_t = 1)]
    pub count: usize,
    /// Random bytes per connection.
    #[arg(long, default_value_t = 1_024)]
    pub bytes: usize,
    /// Seed of the random bytes.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Milliseconds to wait for an answer before closing.
    #[arg(long, default_value_t = 50)]
    pub hold_ms: u64,
    /// Closes with RST.
    #[arg(long)]
    pub rst: bool,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GarbageSummary {
    /// Connections opened.
    pub connections: u64,
    /// Bytes the kernel took.
    pub sent: u64,
    /// Bytes answered.
    pub received: u64,
    /// Connections the server closed while we waited.
    pub closed_by_server: u64,
}

/// A small generator (xorshift64*), so that a seed tells the bytes.
#[derive(Clone, Copy, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

/// The bytes of one connection.
pub fn bytes(mode: Garbage, size: usize, random: &mut Random) -> Vec<u8> {
    match mode {
        Garbage::Random => (0..size).map(|_| (random.draw() >> 32) as u8).collect(),
        Garbage::Binary => (0..size)
            .map(|_| 0x80 | (random.draw() >> 32) as u8)
            .collect(),
        Garbage::Tls => client_hello(random),
        Garbage::HalfHead => {
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: half\r\nContent-Le".to_vec()
        }
        Garbage::LongLine => {
            format!("GET /{} HTTP/1.1\r\nHost: long\r\n\r\n", "a".repeat(65_536)).into_bytes()
        }
        Garbage::LongHeader => format!(
            "GET /health HTTP/1.1\r\nX-Long: {}\r\n\r\n",
            "a".repeat(65_536)
        )
        .into_bytes(),
        Garbage::H2 => {
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00".to_vec()
        }
        Garbage::Silent => Vec::new(),
    }
}

fn client_hello(random: &mut Random) -> Vec<u8> {
    let mut hello = vec![0x03, 0x03];
    hello.extend((0..32).map(|_| (random.draw() >> 32) as u8));
    hello.extend_from_slice(&[0, 0, 4, 0x13, 0x01, 0x13, 0x02, 1, 0]);
    // supported_versions: TLS 1.3
    hello.extend_from_slice(&[0, 7, 0, 43, 0, 3, 2, 0x03, 0x04]);
    let length = hello.len() as u8;
    let mut record = vec![0x16, 0x03, 0x01, 0, length + 4, 1, 0, 0, length];
    record.extend(hello);
    record
}

/// Sends it all.
pub fn run(args: &GarbageArgs) -> io::Result<GarbageSummary> {
    let mut random = Random::new(args.seed);
    let mut sum = GarbageSummary::default();
    for n in 0..args.count {
        let bytes = bytes(args.mode[n % args.mode.len()], args.bytes, &mut random);
        let mut stream = TcpStream::connect(args.target)?;
        stream.set_nodelay(true)?;
        sum.connections += 1;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match stream.write(rest) {
                Ok(n) => rest = &rest[n..],
                Err(_) => break,
            }
        }
        sum.sent += (bytes.len() - rest.len()) as u64;
        stream.set_read_timeout(Some(Duration::from_millis(args.hold_ms.max(1))))?;
        let mut answer = [0u8; 4_096];
        loop {
            match stream.read(&mut answer) {
                Ok(0) => {
                    sum.closed_by_server += 1;
                    break;
                }
                Ok(n) => sum.received += n as u64,
                Err(e) => {
                    sum.closed_by_server += u64::from(e.kind() == io::ErrorKind::ConnectionReset);
                    break;
                }
            }
        }
        if args.rst {
            socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
        }
    }
    Ok(sum)
}
