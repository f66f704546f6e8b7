//! One request and its reply.

use super::conn::Conn;
use super::dialect::Dialect;
use super::reply::Reply;
use super::request::{BodyKind, Request, dechunk};
use super::server::Shared;
use super::truth::{EngineRow, Note};
use super::{Route, conn::Gone};
use crate::event::{Outcome, Tally};
use crate::script::{End, Framing, Script, millis};

const HEAD_LIMIT: usize = 65_536;

/// What to do with the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    Keep,
    Close,
    Reset,
}

/// Serves the next request of a connection.
pub(super) async fn exchange(conn: &mut Conn, shared: &Shared, number: u64) -> After {
    let Ok(mut request) = read_head(conn).await else {
        if !conn.buf.is_empty() {
            shared.sink.note(Note::Garbage);
            let _ = conn
                .write(
                    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                    None,
                    |_, _| {},
                )
                .await;
        }
        return After::Close;
    };
    shared.sink.note(Note::Start);
    let mut row = blank_row(&request, number);
    if read_body(conn, &mut request).await.is_err() {
        row.outcome = Outcome::Abort;
        shared.sink.note(Note::Row(Box::new(row)));
        return After::Close;
    }
    row.read_ns = request.read_ns;
    row.request_bytes = request.body.len() as u64;
    answer(conn, shared, &request, row).await
}

async fn answer(conn: &mut Conn, shared: &Shared, request: &Request, mut row: EngineRow) -> After {
    let fields = request.fields();
    let script = match script_of(shared, request, &fields) {
        Ok(script) => script,
        Err(error) => {
            eprintln!("bad script: {error}");
            Script {
                status: 400,
                ..Script::default()
            }
        }
    };
    let route = row.route;
    let found = route != Route::Other || request.method == "POST";
    let script = if found {
        script
    } else {
        Script {
            status: 404,
            ..script
        }
    };
    let asked = fields
        .stream_options
        .is_some_and(|options| options.include_usage);
    row.streaming = route.generates()
        && script.stream.unwrap_or(fields.stream)
        && script.status == 200
        && request.method == "POST";
    let model = script.model.clone().or(fields.model);
    let model = model.unwrap_or_else(|| shared.args.served_model().to_owned());
    let id = format!("req-{}", row.conn);
    let framing = match script.framing {
        Some(framing) => framing,
        None if request.old => Framing::Close,
        None if row.streaming => Framing::Chunked,
        None => Framing::Length,
    };
    conn.tolerate_half_close(script.half_close_ok);
    let usage = script.usage.unwrap_or(asked || !row.streaming);
    let dialect = Dialect {
        route,
        script: &script,
        model: &model,
        id: &id,
        usage,
    };
    let mut reply = Reply {
        conn,
        shared,
        request,
        dialect,
        framing,
        row,
    };
    let result = reply.run().await;
    let mut row = reply.row;
    row.outcome = match result {
        Err(Gone) => Outcome::Abort,
        Ok(true) if script.end == End::Rst && framing == Framing::Close => Outcome::Reset,
        Ok(true) => Outcome::of(row.status, row.tally.error),
        Ok(false) => Outcome::Reset,
    };
    shared.sink.note(Note::Row(Box::new(row)));
    let stays = result.as_ref().is_ok_and(|complete| *complete)
        && script.end == End::Keep
        && framing != Framing::Close
        && !request.wants_close();
    if stays {
        return After::Keep;
    }
    let _ = conn.wait(millis(script.close_delay_ms)).await;
    if script.end == End::Exit {
        std::process::exit(0);
    }
    if script.end == End::Rst && result.is_ok() {
        After::Reset
    } else {
        After::Close
    }
}

fn blank_row(request: &Request, conn: u64) -> EngineRow {
    EngineRow {
        id: request.header("x-row").unwrap_or_default().to_owned(),
        pid: std::process::id(),
        conn,
        method: request.method.clone(),
        route: Route::of(&request.target),
        status: 0,
        streaming: false,
        model: String::new(),
        outcome: Outcome::Abort,
        request_bytes: 0,
        reply_bytes: 0,
        tally: Tally::default(),
        usage: None,
        start_ns: request.start_ns,
        read_ns: 0,
        head_ns: 0,
        body_end_ns: 0,
        end_ns: 0,
    }
}

fn script_of(
    shared: &Shared,
    request: &Request,
    fields: &super::request::Fields,
) -> Result<Script, serde_json::Error> {
    let base = &shared.script;
    let mut script = match (request.header("x-script"), &fields.script) {
        (Some(json), _) => base.overlay(json)?,
        (None, Some(json)) => base.overlay(&json.to_string())?,
        (None, None) => Script {
            events: fields.max_tokens.unwrap_or(base.events),
            ..base.clone()
        },
    };
    if shared.args.reply_from_header {
        if let Some(model) = request.header("x-reply-model") {
            script.model = Some(model.to_owned());
        }
        let number = |name| {
            request
                .header(name)
                .and_then(|value| value.parse::<usize>().ok())
        };
        if let Some(status) = number("x-reply-status") {
            script.status = status as u16;
        }
        script.events = number("x-reply-events").unwrap_or(script.events);
    }
    Ok(script)
}

async fn read_head(conn: &mut Conn) -> Result<Request, Gone> {
    let mut looked = 0;
    let mut start_ns = if conn.buf.is_empty() { 0 } else { conn.read_ns };
    loop {
        // Blank lines before a request line are allowed and ignored.
        while conn.buf.starts_with(b"\r\n") {
            conn.buf.drain(..2);
            looked = 0;
        }
        let from = looked.min(conn.buf.len());
        if let Some(end) = conn.buf[from..].windows(4).position(|w| w == b"\r\n\r\n") {
            let end = from + end;
            if end > HEAD_LIMIT {
                return Err(Gone);
            }
            let request = Request::parse(&conn.buf[..end]).ok_or(Gone)?;
            conn.buf.drain(..end + 4);
            return Ok(Request {
                start_ns,
                read_ns: conn.read_ns,
                ..request
            });
        }
        looked = conn.buf.len().saturating_sub(3);
        if conn.buf.len() > HEAD_LIMIT
            || !plausible(&conn.buf)
            || conn.fin
            || conn.fill().await? == 0
        {
            return Err(Gone);
        }
        if start_ns == 0 {
            start_ns = conn.read_ns;
        }
    }
}

/// Whether these first bytes can begin a request line.
fn plausible(bytes: &[u8]) -> bool {
    let method = bytes
        .iter()
        .position(|b| *b == b' ')
        .unwrap_or(bytes.len())
        .min(20);
    bytes[..method].iter().all(u8::is_ascii_uppercase)
}

async fn read_body(conn: &mut Conn, request: &mut Request) -> Result<(), Gone> {
    let kind = request.body_kind().ok_or(Gone)?;
    if request.wants_continue() && conn.buf.is_empty() && kind != BodyKind::None {
        conn.write(b"HTTP/1.1 100 Continue\r\n\r\n", None, |_, _| {})
            .await?;
    }
    match kind {
        BodyKind::None => {}
        BodyKind::Length(length) => {
            while conn.buf.len() < length {
                if conn.fin || conn.fill().await? == 0 {
                    return Err(Gone);
                }
            }
            request.body = conn.buf.drain(..length).collect();
        }
        BodyKind::Chunked => loop {
            if let Some((body, used)) = dechunk(&conn.buf).map_err(|()| Gone)? {
                conn.buf.drain(..used);
                request.body = body;
                break;
            }
            if conn.fin || conn.fill().await? == 0 {
                return Err(Gone);
            }
        },
    }
    request.read_ns = conn.read_ns;
    Ok(())
}
