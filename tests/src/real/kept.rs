//! A connection that is kept and driven by hand.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use crate::guard::NetNs;

/// A keep-alive connection; every call is one request and its whole reply.
#[derive(Debug)]
pub struct Kept {
    stream: TcpStream,
}

impl Kept {
    /// Connects inside a namespace.
    pub fn open(ns: &NetNs, target: SocketAddr) -> Self {
        let stream = ns.run_in(|| TcpStream::connect(target).expect("a connection"));
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("a socket's timeout");
        Self { stream }
    }

    /// GET; the status.
    pub fn get(&mut self, path: &str) -> u16 {
        self.exchange("GET", path, "").0
    }

    /// A unary chat; the status and the reply.
    pub fn chat(&mut self, model: &str, max_tokens: usize) -> (u16, Value) {
        let body = format!(
            "{{\"model\":\"{model}\",\"max_tokens\":{max_tokens},\"messages\":[{{\"role\":\"user\",\"content\":\"Say hello.\"}}]}}"
        );
        let (status, reply) = self.exchange("POST", "/v1/chat/completions", &body);
        (status, serde_json::from_str(&reply).expect("a JSON reply"))
    }

    fn exchange(&mut self, method: &str, path: &str, body: &str) -> (u16, String) {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: kept\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        self.stream
            .write_all(request.as_bytes())
            .expect("an open connection");
        let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            if let Some(reply) = whole(&bytes) {
                return reply;
            }
            let n = self.stream.read(&mut piece).expect("a reply");
            assert!(n > 0, "closed: {:?}", String::from_utf8_lossy(&bytes));
            bytes.extend_from_slice(&piece[..n]);
        }
    }
}

/// Status and body of a reply with a length, once it is complete.
fn whole(bytes: &[u8]) -> Option<(u16, String)> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..end]);
    let field = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let length = name.eq_ignore_ascii_case("content-length");
        length.then(|| value.trim().parse::<usize>().ok())?
    };
    let length = head.lines().find_map(field).expect("a reply with a length");
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let body = bytes.get(end + 4..end + 4 + length)?;
    Some((status, String::from_utf8_lossy(body).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::whole;

    #[test]
    fn a_reply_is_whole_when_its_length_has_come() {
        let reply = b"HTTP/1.1 200 OK\r\ncontent-LENGTH: 4\r\n\r\nabcd";
        for end in 0..reply.len() {
            assert_eq!(whole(&reply[..end.min(15)]), None);
        }
        assert_eq!(whole(&reply[..reply.len() - 1]), None);
        assert_eq!(whole(reply), Some((200, "abcd".to_owned())));
    }
}
