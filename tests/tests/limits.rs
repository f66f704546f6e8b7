//! Heads and bodies at every limit: each case on a connection of its own, every byte of it known.
//! What can be read is counted, what cannot is counted by its reason, and a connection beside it
//! is never disturbed.

use enginetap_tests::cases::{Adds, Bench, bad, one};
use enginetap_tests::raw::{json, post, stream};

const CHAT: &str = "/v1/chat/completions";
const ASK: &[u8] = br#"{"model":"m","stream":true}"#;

const GOOD: &[(&str, &str)] = &[
    ("model", "m"),
    ("class", "inference"),
    ("route", CHAT),
    ("status", "200"),
    ("outcome", "success"),
];
/// A request whose reply cannot be read.
const UNREAD: &[(&str, &str)] = &[
    ("model", "m"),
    ("status", "none"),
    ("outcome", "unobserved"),
];
const COMPLETE: &[(&str, &str)] = &[("status", "200"), ("outcome", "success")];

/// A head of exactly `size` bytes, blank line included, its padding in lines of `line` bytes.
fn head(first: &str, size: usize, line: usize) -> Vec<u8> {
    let mut out = format!("{first}\r\n").into_bytes();
    while out.len() + 2 < size {
        let left = size - 2 - out.len();
        let take = if left < line + 8 { left } else { line };
        let text = format!("x:{}\r\n", "y".repeat(take - 4));
        out.extend_from_slice(text.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    assert_eq!(out.len(), size);
    out
}

fn asked(first: &str, size: usize, line: usize) -> Vec<u8> {
    let first = format!("{first}\r\nContent-Length: {}", ASK.len());
    [&head(&first, size, line), ASK].concat()
}

#[test]
fn heads_of_every_length() {
    let mut b = Bench::start();
    for size in [4_095, 4_096, 4_097, 65_535, 65_536, 65_537] {
        let first = format!("POST {CHAT} HTTP/1.1");
        let request = asked(&first, size, 70);
        // 4 KiB of a head are handed over, and it is followed up to 64 KiB; the body behind it is
        // read all the same.
        let adds = match size {
            0..=65_536 => one(GOOD),
            _ => bad("head_too_long"),
        };
        b.check(&format!("a request's head of {size}"), adds, |w| {
            w.exchange(&request, &json(200, b"{}"));
        });
        let reply = [
            head("HTTP/1.1 200 OK\r\nContent-Length: 2", size, 70),
            b"{}".to_vec(),
        ]
        .concat();
        let adds = match size {
            ..=65_536 => one(GOOD),
            _ => Adds {
                unparsed: Some("head_too_long"),
                ..one(UNREAD)
            },
        };
        b.check(&format!("a reply's head of {size}"), adds, |w| {
            w.exchange(&post(CHAT, ASK), &reply);
        });
    }
    b.stop();
}

#[test]
fn header_lines_of_every_length() {
    let mut b = Bench::start();
    for (line, size) in [
        (6, 4_000),
        (63, 4_000),
        (64, 4_000),
        (65, 4_000),
        (66, 4_000),
        (3_000, 3_400),
    ] {
        b.check(&format!("lines of {line}"), one(GOOD), |w| {
            w.exchange(
                &asked(&format!("POST {CHAT} HTTP/1.1"), size, line),
                &json(200, b"{}"),
            );
        });
    }
    for (name, line) in [
        ("one byte", "a".to_owned()),
        ("a colon", ":".to_owned()),
        ("63", "b".repeat(63)),
        ("64", "b".repeat(64)),
        ("65", "b".repeat(65)),
        ("nothing but blanks", " ".repeat(9)),
        ("a fold", " folded: x".to_owned()),
    ] {
        let request = asked(&format!("POST {CHAT} HTTP/1.1\r\n{line}"), 1_000, 70);
        b.check(name, one(GOOD), |w| w.exchange(&request, &json(200, b"{}")));
    }
    let request = asked(&format!("POST {CHAT} HTTP/1.1"), 12_064, 12);
    assert!(request.iter().filter(|&&b| b == b'\n').count() > 1_000);
    b.check("1,000 headers", one(COMPLETE), |w| {
        w.exchange(&request, &json(200, b"{}"))
    });
    let long = format!("GET /health HTTP/1.1\r\nx:{}\r\n\r\n", "y".repeat(65_536));
    b.check("a line of 64 KiB", bad("head_too_long"), |w| {
        w.request(long.as_bytes())
    });
    b.stop();
}

#[test]
fn chunk_sizes_of_every_form() {
    let mut b = Bench::start();
    let body = br#"{"model":"m"}"#;
    let request = |size: &str| {
        let head = format!("POST {CHAT} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{size}\r\n");
        [head.as_bytes(), body, b"\r\n0\r\n\r\n"].concat()
    };
    let reply = |size: &str| {
        let head = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{size}\r\n");
        [head.as_bytes(), body, b"\r\n0\r\n\r\n"].concat()
    };
    let long = format!("d;{}", "e".repeat(200));
    for size in ["d", "D", "d;a=b", "d ", "000d", "000000000000000d", &long] {
        b.check(&format!("asked in a chunk of {size:?}"), one(GOOD), |w| {
            w.exchange(&request(size), &json(200, b"{}"));
        });
        b.check(
            &format!("answered in a chunk of {size:?}"),
            one(GOOD),
            |w| {
                w.exchange(&post(CHAT, ASK), &reply(size));
            },
        );
    }
    let adds = |with| Adds {
        unparsed: Some("bad_framing"),
        ..one(with)
    };
    // Sixteen digits at most, zeros included, and the largest of those numbers is none.
    for size in [
        "",
        "x",
        "-1",
        "0000000000000000d",
        "10000000000000000",
        "ffffffffffffffff",
    ] {
        b.check(
            &format!("asked in a chunk of {size:?}"),
            adds(COMPLETE),
            |w| {
                w.exchange(&request(size), &json(200, b"{}"));
            },
        );
        b.check(
            &format!("answered in a chunk of {size:?}"),
            adds(UNREAD),
            |w| {
                w.exchange(&post(CHAT, ASK), &reply(size));
            },
        );
    }
    b.stop();
}

#[test]
fn lengths_of_every_size() {
    let mut b = Bench::start();
    let reply =
        |lines: &str, body: &str| format!("HTTP/1.1 200 OK\r\n{lines}\r\n\r\n{body}").into_bytes();
    for (lines, body) in [
        ("Content-Length: 0", ""),
        ("Content-Length: 2\r\nContent-Length: 2", "{}"),
        ("Content-Length: 0000000000000000002", "{}"),
        (
            "Content-Length: 9\r\nTransfer-Encoding: chunked",
            "2\r\n{}\r\n0\r\n\r\n",
        ),
        (
            "Transfer-Encoding: chunked\r\nContent-Length: 9",
            "2\r\n{}\r\n0\r\n\r\n",
        ),
    ] {
        b.check(lines, one(GOOD), |w| {
            w.exchange(&post(CHAT, ASK), &reply(lines, body))
        });
    }
    for length in ["2147483648", "4294967296", "9223372036854775808"] {
        let with = &[("status", "200"), ("outcome", "reset"), ("model", "m")];
        b.check(length, one(with), |w| {
            w.exchange(
                &post(CHAT, ASK),
                &reply(&format!("Content-Length: {length}"), "{"),
            );
            w.server_ends();
        });
    }
    for lines in [
        "Content-Length: -1",
        "Content-Length: 2\r\nContent-Length: 3",
        "Content-Length: 18446744073709551616",
        "Content-Length: 0x2",
        "Content-Length: 2.0",
        "Content-Length:",
    ] {
        let adds = Adds {
            unparsed: Some("bad_framing"),
            ..one(UNREAD)
        };
        b.check(&format!("answered with {lines}"), adds, |w| {
            w.exchange(&post(CHAT, ASK), &reply(lines, "{}"))
        });
        let request = format!("POST {CHAT} HTTP/1.1\r\n{lines}\r\n\r\n{{}}");
        b.check(&format!("asked with {lines}"), bad("bad_framing"), |w| {
            w.exchange(request.as_bytes(), &json(200, b"{}"));
        });
    }
    b.stop();
}

#[test]
fn bodies_around_the_window_that_is_captured() {
    let mut b = Bench::start();
    for size in [1_023, 1_024, 1_025, 2_047, 2_048, 2_049, 100_000] {
        for last in [false, true] {
            let (before, after) = if last {
                (r#"{"prompt":""#, r#"","model":"m"}"#)
            } else {
                (r#"{"model":"m","prompt":""#, r#""}"#)
            };
            let body = format!(
                "{before}{}{after}",
                "p".repeat(size - before.len() - after.len())
            );
            assert_eq!(body.len(), size);
            for writes in [usize::MAX, 700] {
                b.check(
                    &format!("{size} bytes, model last: {last}, writes of {writes}"),
                    one(GOOD),
                    |w| {
                        w.request_in(&post(CHAT, body.as_bytes()), writes);
                        w.reply(&json(200, b"{}"));
                    },
                );
            }
        }
    }
    b.stop();
}

fn token(size: usize, end: &str) -> String {
    let (before, after) = (r#"data: {"choices":[{"delta":{"content":""#, r#""}}]}"#);
    let fixed = before.len() + after.len() + 2 * end.len();
    format!("{before}{}{after}{end}{end}", "t".repeat(size - fixed))
}

#[test]
fn events_of_every_length_and_line_end() {
    let mut b = Bench::start();
    for end in ["\n", "\r\n"] {
        for size in [127, 128, 129, 1_024, 65_536, 1 << 20] {
            let body = token(size, end) + &token(100, end) + &format!("data: [DONE]{end}{end}");
            let adds = Adds {
                events: 3,
                // The first event is longer than what is captured of a stream.
                unknown: u32::from(size > 32 * 1_024),
                ..one(GOOD)
            };
            for chunk in [usize::MAX, 4_000] {
                b.check(
                    &format!("an event of {size} in chunks of {chunk}, lines end in {end:?}"),
                    adds,
                    |w| {
                        w.exchange(&post(CHAT, ASK), &stream(body.as_bytes(), chunk));
                    },
                );
            }
        }
    }
    // No engine ends its lines so: it is no event, and the stream ends all the same.
    let adds = Adds {
        unknown: 1,
        ..one(GOOD)
    };
    b.check("lines that end in a lone CR", adds, |w| {
        let body = token(120, "\r");
        w.exchange(&post(CHAT, ASK), &stream(body.as_bytes(), usize::MAX));
    });
    b.stop();
}

#[test]
fn a_stream_split_at_every_byte_is_one_stream() {
    let mut b = Bench::start();
    for end in ["\n", "\r\n"] {
        let body = format!(": ping{end}{end}")
            + &token(60 + 2 * end.len(), end)
            + &format!("data: [DONE]{end}{end}");
        let reply = stream(body.as_bytes(), 50);
        let n = reply.len() as u32 - 1;
        let adds = Adds {
            ended: n,
            with: GOOD,
            events: 2 * n,
            ..Adds::default()
        };
        b.check(&format!("lines end in {end:?}"), adds, |w| {
            for at in 1..reply.len() {
                w.request(&post(CHAT, ASK));
                w.reply(&reply[..at]);
                w.reply(&reply[at..]);
            }
        });
    }
    b.stop();
}

#[test]
fn the_first_token_is_found_behind_63_pings_and_not_behind_64() {
    let mut b = Bench::start();
    for pings in [63, 64, 65, 200] {
        let unknown = u32::from(pings > 63);
        let adds = Adds {
            events: pings + 1,
            unknown,
            ..one(GOOD)
        };
        b.check(&format!("{pings} pings"), adds, |w| {
            w.request(&post(CHAT, ASK));
            w.reply(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
            // Comments are no events, and there may be any number of them.
            let ping = ": alive\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\n";
            let ping = format!("{:x}\r\n{ping}\r\n", ping.len());
            for _ in 0..pings {
                w.reply(ping.as_bytes());
            }
            let token = token(100, "\n");
            w.reply(format!("{:x}\r\n{token}\r\n0\r\n\r\n", token.len()).as_bytes());
        });
    }
    b.stop();
}

#[test]
fn replies_without_a_body_interim_ones_and_upgrades() {
    let mut b = Bench::start();
    let ask = |method: &str| format!("{method} {CHAT} HTTP/1.1\r\nHost: h\r\n\r\n").into_bytes();
    for status in ["204", "304"] {
        let adds = Adds {
            ended: 2,
            with: &[("status", status), ("outcome", "success")],
            ..Adds::default()
        };
        let reply = format!("HTTP/1.1 {status} X\r\nContent-Length: 7\r\n\r\n");
        b.check(status, adds, |w| {
            w.exchange(&post(CHAT, ASK), reply.as_bytes());
            w.exchange(&post(CHAT, ASK), reply.as_bytes());
        });
    }
    let adds = Adds {
        ended: 2,
        with: COMPLETE,
        ..Adds::default()
    };
    b.check("HEAD", adds, |w| {
        w.exchange(
            &ask("HEAD"),
            b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n",
        );
        w.exchange(
            &ask("HEAD"),
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        );
    });
    b.check("methods that begin like HEAD and CONNECT", adds, |w| {
        w.exchange(&ask("HEADERS"), &json(200, b"{}"));
        w.exchange(&ask("CONNECTED"), &json(200, b"{}"));
    });
    for interim in [
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 103 Hints\r\nLink: x\r\n\r\nHTTP/1.1 102 P\r\n\r\n",
    ] {
        b.check(interim, one(GOOD), |w| {
            let request = post(CHAT, ASK);
            let (head, body) = request.split_at(request.len() - ASK.len());
            w.request(head);
            w.reply(interim.as_bytes());
            w.request(body);
            w.reply(&json(200, b"{}"));
        });
    }
    let adds = Adds {
        unparsed: Some("upgraded"),
        ..one(&[("status", "101"), ("outcome", "success")])
    };
    b.check("101", adds, |w| {
        w.exchange(
            &ask("GET"),
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
        );
        w.exchange(b"\x81\x05hello", b"\x81\x05hello");
        w.exchange(&ask("GET"), &json(200, b"{}"));
    });
    b.stop();
}

#[test]
fn replies_without_a_request_and_bytes_that_are_no_reply() {
    let mut b = Bench::start();
    b.check("a reply nobody asked for", Adds::default(), |w| {
        w.reply(&json(200, b"{}"))
    });
    b.check("a reply nobody asked for, then a request", one(GOOD), |w| {
        w.reply(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n");
        w.exchange(&post(CHAT, ASK), &json(200, b"{}"));
    });
    for reply in [
        &b"220 mail ready\r\n"[..],
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 20x OK\r\n\r\n",
        b"\x16\x03\x03\x00\x01\x02\x03\n",
    ] {
        let adds = Adds {
            unparsed: Some("reply_not_http"),
            ..one(UNREAD)
        };
        b.check(&reply.escape_ascii().to_string(), adds, |w| {
            w.exchange(&post(CHAT, ASK), reply)
        });
    }
    b.stop();
}
