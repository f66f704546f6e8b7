//! Both ends of a connection in one hand: what one end sends is read by the other before anything
//! else happens, so a test knows every byte on the wire and in which order the bytes passed.

use std::hash::{DefaultHasher, Hasher};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use crate::pair;

/// Longest write: both ends are driven by one thread, so it must fit the socket's buffers.
const MOST: usize = 32 * 1024;

/// A port whose connections a test holds on both sides.
#[derive(Debug)]
pub struct RawServer {
    listener: TcpListener,
}

impl RawServer {
    /// Listens on a free port of 127.0.0.1.
    pub fn bind() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        Self { listener }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("bound")
    }

    /// A new connection.
    pub fn connect(&self) -> Wire {
        let (client, server) = pair::connect(&self.listener);
        let end = |stream| End {
            stream,
            received: DefaultHasher::new(),
        };
        Wire {
            client: end(client),
            server: end(server),
            buffer: vec![0; MOST],
        }
    }
}

#[derive(Debug)]
struct End {
    stream: TcpStream,
    received: DefaultHasher,
}

/// A connection with both its ends; closed by the client first when it is dropped.
#[derive(Debug)]
pub struct Wire {
    // Dropped in this order.
    client: End,
    server: End,
    buffer: Vec<u8>,
}

/// Sends, and reads as much at the other end.
fn pass(from: &mut End, to: &mut End, bytes: &[u8], size: usize, buffer: &mut [u8]) {
    for piece in bytes.chunks(size.clamp(1, MOST)) {
        from.stream.write_all(piece).expect("the other end reads");
        let got = &mut buffer[..piece.len()];
        to.stream.read_exact(got).expect("what was sent");
        assert!(got == piece, "other bytes arrived than were sent");
        to.received.write(got);
    }
}

impl Wire {
    /// The client sends.
    pub fn request(&mut self, bytes: &[u8]) {
        self.request_in(bytes, MOST);
    }

    /// The client sends in writes of at most `size` bytes.
    pub fn request_in(&mut self, bytes: &[u8], size: usize) {
        pass(
            &mut self.client,
            &mut self.server,
            bytes,
            size,
            &mut self.buffer,
        );
    }

    /// The server sends.
    pub fn reply(&mut self, bytes: &[u8]) {
        self.reply_in(bytes, MOST);
    }

    /// The server sends in writes of at most `size` bytes.
    pub fn reply_in(&mut self, bytes: &[u8], size: usize) {
        pass(
            &mut self.server,
            &mut self.client,
            bytes,
            size,
            &mut self.buffer,
        );
    }

    /// A request and its reply.
    pub fn exchange(&mut self, request: &[u8], reply: &[u8]) {
        self.request(request);
        self.reply(reply);
    }

    /// The server ends its side, and the client has seen it.
    pub fn server_ends(&mut self) {
        let sent = self.server.stream.shutdown(Shutdown::Write);
        let seen = sent.and_then(|()| self.client.stream.read(&mut self.buffer[..1]));
        assert_eq!(seen.ok(), Some(0), "the end of the stream");
    }

    /// Digests of the bytes that the server and the client have read.
    pub fn received(&self) -> [u64; 2] {
        [self.server.received.finish(), self.client.received.finish()]
    }
}

/// A request with a JSON body, as a client of an engine sends it.
pub fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// A reply with a JSON body.
pub fn json(status: u16, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// A reply that streams this body in chunks of at most `size` bytes.
pub fn stream(body: &[u8], size: usize) -> Vec<u8> {
    let mut out =
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            .to_vec();
    for piece in body.chunks(size.max(1)) {
        out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        out.extend_from_slice(piece);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_read_what_the_other_sent() {
        let server = RawServer::bind();
        let (mut one, mut other) = (server.connect(), server.connect());
        let body = vec![b'x'; 100_000];
        one.exchange(&post("/a", &body), &json(200, b"{}"));
        other.request_in(&post("/a", &body), 1_000);
        other.reply_in(&json(200, b"{}"), 1);
        let pieces = |bytes: &[u8], size: usize| {
            let mut hash = DefaultHasher::new();
            bytes.chunks(size).for_each(|piece| hash.write(piece));
            hash.finish()
        };
        assert_eq!(one.received()[0], pieces(&post("/a", &body), MOST));
        assert_eq!(one.received()[1], other.received()[1], "cuts do not matter");
        other.server_ends();
    }
}
