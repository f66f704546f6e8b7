//! What a request or a reply holds stays there: it is in no answer, no log and no memory of the
//! agent; and what a client and a server exchange is the same with and without the agent.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use enginetap_tests::garbage::Random;
use enginetap_tests::guard::{Agent, Engine, locate, poll};
use enginetap_tests::memory::{Mapping, holding};
use enginetap_tests::page::Page;
use enginetap_tests::raw::{RawServer, Wire, json, post, stream};
use enginetap_tests::scene::{SOON, agent_for};
use enginetap_tests::script::{Chunk, Script, Write as Writes};

const CHAT: &str = "/v1/chat/completions";
const REQUESTS: &str = "enginetap_requests_total";

/// 32 random letters that are nowhere else on this machine.
fn secret() -> String {
    let mut bytes = [0; 32];
    let mut source = std::fs::File::open("/dev/urandom").unwrap();
    source.read_exact(&mut bytes).unwrap();
    bytes.iter().map(|b| char::from(b'a' + b % 26)).collect()
}

/// A request that holds the secret wherever one can.
fn ask(n: usize, secret: &str) -> Vec<u8> {
    let pad = "p".repeat([0, 10, 900, 5_000, 20_000][n % 5]);
    let head = |kind: &str, more: &str| {
        format!(
            "POST {CHAT}?key={secret} HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {secret}\r\n\
             Cookie: session={secret}\r\nContent-Type: {kind}\r\n{more}X-Api-Key: {secret}\r\n\r\n"
        )
    };
    let body = match n % 4 {
        0 => format!(
            r#"{{"model":"shown-model","messages":[{{"role":"user","content":"{secret}{pad}{secret}"}}],"user":"{secret}"}}"#
        ),
        1 => format!(
            r#"{{"messages":[{{"role":"user","content":"{secret}{pad}"}}],"user":"{secret}","model":"shown-model","stream":true}}"#
        ),
        2 => format!("prompt={secret}{pad}&model=shown-model&user={secret}"),
        _ => format!(
            "--b\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\n{secret}{pad}\r\n--b\r\n\
             Content-Disposition: form-data; name=\"model\"\r\n\r\nshown-model\r\n--b--\r\n"
        ),
    };
    let kind = match n % 4 {
        0 | 1 => "application/json",
        2 => "application/x-www-form-urlencoded",
        _ => "multipart/form-data; boundary=b",
    };
    if n.is_multiple_of(7) {
        let chunks: String = body
            .as_bytes()
            .chunks(777)
            .map(|c| format!("{:x}\r\n{}\r\n", c.len(), String::from_utf8_lossy(c)))
            .collect();
        return (head(kind, "Transfer-Encoding: chunked\r\n") + &chunks + "0\r\n\r\n").into_bytes();
    }
    (head(kind, &format!("Content-Length: {}\r\n", body.len())) + &body).into_bytes()
}

/// A reply that holds it too.
fn answer(n: usize, secret: &str) -> Vec<u8> {
    let pad = "r".repeat([0, 3_000, 40, 20_000][n % 4]);
    let events = |end: &str| {
        let token =
            format!(r#"data: {{"choices":[{{"delta":{{"content":"{secret}"}}}}]}}{end}{end}"#);
        format!(
            ": {secret}{end}{end}event: {secret}{end}{}",
            token.repeat(40)
        )
    };
    match n % 5 {
        0 => json(200, format!(r#"{{"choices":[{{"text":"{secret}{pad}{secret}"}}],"usage":{{"prompt_tokens":3,"completion_tokens":4}}}}"#).as_bytes()),
        1 => stream((events("\n") + "data: [DONE]\n\n").as_bytes(), 50),
        2 => stream((events("\r\n") + &format!("data: {secret}{pad}\r\n\r\ndata: {secret}\r\n\r\n")).as_bytes(), 9_000),
        3 => json(400, format!(r#"{{"error":{{"message":"bad {secret}{pad}","type":"{secret}","code":"{secret}"}}}}"#).as_bytes()),
        _ => stream(format!("data: {{\"error\":{{\"message\":\"{secret}\",\"code\":500}}}}\n\nerror: {secret}\n\n").as_bytes(), 30),
    }
}

/// Plays `count` exchanges, some cut short, over a few connections, and leaves these open and idle:
/// the kernel still holds the last bytes that passed on them.
fn play(server: &RawServer, count: usize, secret: &str) -> Vec<Wire> {
    let mut wires: Vec<Wire> = (0..8).map(|_| server.connect()).collect();
    for n in 0..count {
        let wire = &mut wires[n % 8];
        wire.request_in(&ask(n, secret), [32_000, 1_448, 100][n % 3]);
        wire.reply_in(&answer(n, secret), [32_000, 700, 1_448, 99][n % 4]);
        if n % 50 == 49 {
            // One that is left in the middle, and a new connection.
            let request = ask(n, secret);
            wire.request(&request[..request.len() - 20]);
            *wire = server.connect();
        }
    }
    for wire in &mut wires {
        wire.exchange(&ask(3, secret), &answer(1, secret));
    }
    wires
}

/// The ring's own pages: the kernel lets nobody write them, so nobody can zero them, and leaves
/// them out of core dumps.
fn is_ring(mapping: &Mapping) -> bool {
    mapping.name.contains("bpf-map") && !mapping.mode.contains('w') && mapping.undumped
}

#[test]
fn a_secret_is_in_no_answer_no_log_and_no_memory_of_the_agent() {
    let secret = secret();
    let (watched, other) = (RawServer::bind(), RawServer::bind());
    let mut agent = Agent::builder()
        .matching(&format!("port={},engine=vllm", watched.address().port()))
        .args(["--log-level", "trace"])
        .start();
    // Traffic of a port that no rule names is looked at as well.
    let open_wires = [play(&other, 200, &secret), play(&watched, 1_000, &secret)];
    let page = agent.wait_for(SOON, |p| {
        p.value(REQUESTS, &[("model", "shown-model")]) >= 750.0
    });
    page.assert_invariant();

    let open = [("Accept", "application/openmetrics-text; version=1.0.0")];
    let mut paths = vec![
        "/metrics".to_owned(),
        "/healthz".into(),
        "/readyz".into(),
        "/targets".into(),
        "/".into(),
    ];
    paths.extend(
        ["core", "stalls", "engines", "dialects", "self"]
            .map(|g| format!("/metrics?collect[]={g}")),
    );
    for path in &paths {
        for reply in [
            agent.get(path).unwrap(),
            agent.get_with(path, &open).unwrap(),
        ] {
            let all = format!("{:?} {}", reply.headers, reply.text());
            assert!(!all.contains(&secret), "{path}");
        }
    }
    let address = agent.address().to_string();
    for args in [&["ps", "--listen", &address][..], &["doctor"]] {
        let out = Command::new(locate("enginetap"))
            .args(args)
            .output()
            .unwrap();
        let said = [out.stdout, out.stderr].concat();
        assert!(
            !String::from_utf8_lossy(&said).contains(&secret),
            "{args:?}"
        );
    }

    // The agent looks through the kernel's table of connections from time to time.
    let task = [("task", "sweep")];
    let stamp = |p: &Page| p.value("enginetap_task_last_success_timestamp_seconds", &task);
    for _ in 0..2 {
        let before = stamp(&agent.scrape());
        agent.wait_for(Duration::from_secs(20), |p| stamp(p) > before);
    }
    let pid = agent.child().pid();
    let shown = holding(pid, &[b"shown-model"]);
    let dumped = |m: &&Mapping| !is_ring(m);
    assert!(
        shown.iter().any(|m| dumped(&m)),
        "the search finds what is there"
    );
    // Half of it is too much.
    let words = [&secret.as_bytes()[..16], &secret.as_bytes()[16..]];
    let mut left = Vec::new();
    // What was cut short ends first, and what nobody claims expires.
    let gone = poll(Duration::from_secs(20), || {
        left = holding(pid, &words);
        left.iter().all(is_ring).then_some(())
    });
    let left: Vec<_> = left.iter().filter(dumped).collect();
    assert!(gone.is_some(), "still there: {left:?}");
    drop(open_wires);
    let finished = agent.stop();
    assert!(finished.stdout.len() + finished.stderr.len() > 0, "it logs");
    assert!(!format!("{finished:?}").contains(&secret), "in the log");
}

/// What both ends read, for a load that a seed makes.
fn exchanged(server: &RawServer, seed: u64) -> Vec<[u64; 2]> {
    let mut random = Random::new(seed);
    let mut below = |n: usize| (random.draw() >> 20) as usize % n;
    let mut wires: Vec<Wire> = (0..6).map(|_| server.connect()).collect();
    for n in 0..300 {
        let wire = &mut wires[below(6)];
        let body = format!(
            r#"{{"model":"m{}","prompt":"{}"}}"#,
            below(9),
            "x".repeat(below(9_000))
        );
        wire.request_in(&post(CHAT, body.as_bytes()), 1 + below(3_000));
        let text = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{n}\"}}}}]}}\n\n")
            .repeat(1 + below(60));
        let reply = if below(2) == 0 {
            stream(text.as_bytes(), 1 + below(500))
        } else {
            json(200, text.as_bytes())
        };
        wire.reply_in(&reply, 1 + below(2_000));
    }
    // Bytes that are no HTTP at all, both ways.
    let junk: Vec<u8> = (0..50_000).map(|_| below(256) as u8).collect();
    for wire in &mut wires {
        wire.exchange(&junk, &junk);
    }
    wires.iter().map(Wire::received).collect()
}

/// Everything that an engine answers to a list of scripts, each on a connection of its own.
fn answers(engine: SocketAddr) -> Vec<Vec<u8>> {
    let base = Script {
        events: 6,
        pings: 2,
        comments: 1,
        ..Script::default()
    };
    let scripts = [
        base.clone(),
        Script {
            crlf: true,
            chunk: Chunk::Bytes(7),
            ..base.clone()
        },
        Script {
            write: Writes::Split(5),
            error_after: Some(2),
            ..base.clone()
        },
        Script {
            status: 503,
            ..base.clone()
        },
        Script {
            unary_bytes: Some(30_000),
            stream: Some(false),
            ..base
        },
    ];
    let body = r#"{"model":"m","stream":true,"messages":[]}"#;
    let paths = [CHAT, "/v1/completions", "/v1/messages", "/generate"];
    let each = scripts
        .iter()
        .flat_map(|script| paths.iter().map(move |path| (path, script)));
    each.map(|(path, script)| {
        let mut client = TcpStream::connect(engine).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nx-script: {}\r\nContent-Length: {}\r\n\r\n",
            script.to_header(), body.len()
        );
        client.write_all((head + body).as_bytes()).unwrap();
        let mut reply = Vec::new();
        client.read_to_end(&mut reply).unwrap();
        reply
    })
    .collect()
}

#[test]
fn what_is_exchanged_is_the_same_with_and_without_the_agent() {
    let server = RawServer::bind();
    let alone = exchanged(&server, 5);
    assert_ne!(alone, exchanged(&server, 6), "another seed, another load");
    let agent = agent_for(server.address().port());
    assert_eq!(exchanged(&server, 5), alone);
    agent.wait_for(SOON, |p| p.value(REQUESTS, &[]) >= 300.0);
    agent.stop();

    let mut engine = Engine::start();
    let alone = answers(engine.address());
    let n = alone.len() as u64;
    let before = engine.ended(n);
    // Replies are numbered.
    let mut engine = Engine::start();
    let agent = agent_for(engine.address().port());
    let beside = answers(engine.address());
    assert!(alone.iter().all(|reply| reply.starts_with(b"HTTP/1.1 ")));
    assert_eq!(beside, alone);
    let after = engine.ended(n);
    let read = |t: &enginetap_tests::engine::Truth| -> Vec<_> {
        t.rows
            .iter()
            .map(|r| (r.route, r.status, r.request_bytes, r.reply_bytes))
            .collect()
    };
    assert_eq!(read(&after), read(&before));
    agent.wait_for(SOON, |p| p.value(REQUESTS, &[]) >= n as f64);
    agent.stop();
}
