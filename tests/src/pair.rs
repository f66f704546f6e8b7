//! Both ends of a connection as sockets of the caller, so that the order of every segment is known.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// A chat request.
pub const REQUEST: &[u8] =
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 13\r\n\r\n{\"model\":\"m\"}";
/// A complete reply.
pub const UNARY: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{\"model\":\"m\"}";
/// A reply that ends with the connection.
pub const UNTIL_CLOSE: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"model\":\"m\"}";
/// The head of a stream and its first event.
pub const STREAM: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n";
/// Another event and the end of the stream.
pub const REST: &[u8] = b"9\r\ndata: 2\n\n\r\n0\r\n\r\n";
/// An event of a stream.
pub const EVENT: &[u8] = b"9\r\ndata: 3\n\n\r\n";

/// A connection: the client's end and the server's.
pub fn connect(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(listener.local_addr().expect("an address")).expect("connect");
    let (server, peer) = listener.accept().expect("accept");
    assert_eq!(Some(peer), client.local_addr().ok(), "another client");
    for s in [&client, &server] {
        let limit = Some(Duration::from_secs(20));
        s.set_nodelay(true).expect("nodelay");
        s.set_read_timeout(limit).expect("a read timeout");
        s.set_write_timeout(limit).expect("a write timeout");
    }
    (client, server)
}

/// Reads exactly what the other side wrote.
pub fn take(stream: &mut TcpStream, len: usize) {
    let mut got = vec![0; len];
    stream.read_exact(&mut got).expect("the other side's bytes");
}

/// Waits for the other side's FIN.
pub fn end(stream: &mut TcpStream) {
    let n = stream.read(&mut [0; 64]).expect("the end of the stream");
    assert_eq!(n, 0, "no more bytes were expected");
}

/// One side writes, the other reads all of it.
pub fn pass(from: &mut TcpStream, to: &mut TcpStream, bytes: &[u8]) {
    from.write_all(bytes).expect("write");
    take(to, bytes.len());
}
