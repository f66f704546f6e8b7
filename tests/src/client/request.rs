//! The bytes of a request.

use super::ClientArgs;

/// A request ready to be written: the head and the body as sent.
#[derive(Clone, Debug, Default)]
pub(super) struct Outgoing {
    pub id: String,
    pub target: String,
    pub method: String,
    pub head: Vec<u8>,
    pub body: Vec<u8>,
    /// Bytes of the body without its framing.
    pub body_bytes: u64,
}

const READ: [&str; 4] = ["/v1/models", "/health", "/metrics", "/version"];
const DECOY: &str = "GET / HTTP/1.1\r\nHost: decoy\r\n\r\nPOST /v1/completions HTTP/1.1\r\nContent-Length: 9999\r\n\r\n";

fn pick(list: &[String], turn: usize) -> &str {
    if list.is_empty() {
        ""
    } else {
        &list[turn % list.len()]
    }
}

impl Outgoing {
    /// Request `seq` of connection `conn`.
    pub fn build(args: &ClientArgs, conn: usize, seq: usize) -> Self {
        let turn = conn + seq;
        let target = pick(&args.route, turn).to_owned();
        let path = target.split('?').next().unwrap_or_default();
        let reads = READ.contains(&path);
        let method = match &args.method {
            Some(method) => method.clone(),
            None => if reads { "GET" } else { "POST" }.to_owned(),
        };
        let id = format!("{}-{conn}-{seq}", args.tag);
        let version = if args.http10 { "1.0" } else { "1.1" };
        let mut head = format!(
            "{method} {target} HTTP/{version}\r\nHost: {}\r\nx-row: {id}\r\n",
            args.target
        );
        let script = pick(&args.script, turn);
        if !script.is_empty() && script != "{}" {
            head.push_str(&format!("x-script: {script}\r\n"));
        }
        for line in &args.header {
            head.push_str(&format!("{line}\r\n"));
        }
        if args.say_close {
            head.push_str("Connection: close\r\n");
        }
        let mut body = Vec::new();
        if !reads && method != "HEAD" && method != "GET" {
            body = json(args, path, pick(&args.model, turn)).into_bytes();
            head.push_str("Content-Type: application/json\r\n");
        }
        let body_bytes = body.len() as u64;
        match args.chunked {
            Some(size) if !body.is_empty() => {
                head.push_str("Transfer-Encoding: chunked\r\n");
                body = chunked(&body, size);
            }
            _ if body.is_empty() => {}
            _ => head.push_str(&format!("Content-Length: {}\r\n", body.len())),
        }
        if args.expect && !body.is_empty() {
            head.push_str("Expect: 100-continue\r\n");
        }
        let head = (head + "\r\n").into_bytes();
        Self {
            id,
            target,
            method,
            head,
            body,
            body_bytes,
        }
    }
}

fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut framed = Vec::new();
    for piece in body.chunks(size.max(1)) {
        framed.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        framed.extend_from_slice(piece);
        framed.extend_from_slice(b"\r\n");
    }
    framed.extend_from_slice(b"0\r\n\r\n");
    framed
}

/// The JSON body, fields in the order the test wants them.
fn json(args: &ClientArgs, path: &str, model: &str) -> String {
    let text = "x".repeat(args.prompt_bytes);
    let limit = args
        .max_tokens
        .map(|n| format!(",\"max_tokens\":{n}"))
        .unwrap_or_default();
    let prompt = match path {
        "/v1/completions" => format!("\"prompt\":\"{text}\"{limit}"),
        "/v1/responses" => format!("\"input\":\"{text}\""),
        "/v1/embeddings" => format!("\"input\":[\"{text}\"]"),
        "/generate" => format!("\"text\":\"{text}\",\"sampling_params\":{{}}{limit}"),
        "/completion" => format!("\"prompt\":\"{text}\"{limit}"),
        "/tokenize" => format!("\"prompt\":\"{text}\""),
        _ => format!("\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}]{limit}"),
    };
    let model = serde_json::Value::from(model);
    let mut control = format!("\"model\":{model},\"stream\":{}", !args.unary);
    if args.include_usage && !args.unary {
        control.push_str(",\"stream_options\":{\"include_usage\":true}");
    }
    let object = match args.model_last {
        true => format!("{{{prompt},{control}}}"),
        false => format!("{{{control},{prompt}}}"),
    };
    if args.smuggle {
        format!("{DECOY}{object}")
    } else {
        object
    }
}
