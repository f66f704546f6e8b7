//! The endpoints: `/metrics`, `/healthz`, `/readyz`, `/targets`, `/requests/slow`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::{ConnectInfo, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::ListenerExt;
use nix::sys::socket::{setsockopt, sockopt::TcpUserTimeout};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::Shared;
use crate::metrics::{Groups, negotiate, render};
use crate::page;
use crate::watch::hold;

/// A scraper that takes nothing for so long, in milliseconds, is cut off: what is meant for it would
/// be held for good.
const STUCK_MS: u32 = 30_000;

/// Binds the endpoints' address. A taken port fails start-up.
pub async fn bind(address: std::net::SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("cannot listen on {address}: choose another address with --listen, or stop what listens there")
    })
}

/// Serves until `stop` changes.
pub async fn serve(
    listener: TcpListener,
    shared: Arc<Shared>,
    mut stop: watch::Receiver<bool>,
) -> Result<()> {
    let app = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/targets", get(targets))
        .route("/requests/slow", get(slow))
        .with_state(shared)
        .into_make_service_with_connect_info::<SocketAddr>();
    let stopped = async move {
        // An error means that the sender is gone, which is a stop too.
        let _ = stop.wait_for(|s| *s).await;
    };
    let listener = listener.tap_io(|stream| {
        if let Err(error) = setsockopt(stream, TcpUserTimeout, &STUCK_MS) {
            tracing::debug!(%error, "a scraper that stops reading will not be cut off");
        }
    });
    tokio::select! {
        served = async { axum::serve(listener, app).await } => served.context("the endpoints failed"),
        () = stopped => Ok(()),
    }
}

/// The groups that a query string asks for.
fn groups(query: Option<&str>) -> Result<Groups, String> {
    let wanted: Vec<String> = query
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .filter(|(key, _)| matches!(*key, "collect[]" | "collect%5B%5D" | "collect%5b%5d"))
        .map(|(_, value)| value.to_owned())
        .collect();
    Groups::parse(wanted.iter().map(String::as_str))
}

/// `GET /metrics[?collect[]=GROUP]...`: the page, as text 0.0.4 or OpenMetrics 1.0.
async fn metrics(
    State(shared): State<Arc<Shared>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let groups = match groups(query.as_deref()) {
        Ok(groups) => groups,
        Err(text) => return (StatusCode::BAD_REQUEST, text + "\n").into_response(),
    };
    let format = negotiate(headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()));
    let writer = shared.clone();
    let made = shared.pages.get((format, groups), move || {
        let began = Instant::now();
        let (snapshot, mut input) = {
            let inventory = hold(&writer.inventory).clone();
            page::collect(&mut hold(&writer.ingest), &inventory)
        };
        page::own(&mut input.node, &writer);
        page::context(&mut input, &writer);
        let text = render(&snapshot, &input, format, groups);
        writer.cost.add(began.elapsed(), text.len() as u64);
        text
    });
    match made.await {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the page failed: {error}\n"),
        )
            .into_response(),
    }
}

/// `GET /readyz`: 200 once the first scan is attached.
async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    if hold(&shared.inventory).ready {
        (StatusCode::OK, "ready\n").into_response()
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "the first scan is not attached yet\n",
        )
            .into_response()
    }
}

/// `GET /requests/slow`: the worst requests of late. For those on this node only: it tells when
/// each request was, where the page gives sums.
async fn slow(
    State(shared): State<Arc<Shared>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
) -> Response {
    if !peer.ip().to_canonical().is_loopback() {
        let text = "single requests are shown to this node's loopback only: ask from there, or use `enginetap slow`\n";
        return (StatusCode::FORBIDDEN, text).into_response();
    }
    let inventory = hold(&shared.inventory).clone();
    // Copied first: the numbers wait for whoever holds their lock.
    let found: Vec<_> = {
        let ingest = hold(&shared.ingest);
        let ids = inventory.workloads.keys();
        ids.map(|id| ingest.slow.of(*id)).collect()
    };
    let workloads: Vec<serde_json::Value> = inventory
        .workloads
        .values()
        .zip(found)
        .filter(|(_, requests)| !requests.is_empty())
        .map(|(w, requests)| {
            serde_json::json!({
                "namespace": w.identity.namespace,
                "pod": w.identity.pod,
                "container": w.identity.container,
                "engine": w.identity.engine.as_str(),
                "requests": requests,
            })
        })
        .collect();
    (
        [(header::CONTENT_TYPE, "application/json")],
        serde_json::json!({ "workloads": workloads }).to_string(),
    )
        .into_response()
}

/// `GET /targets`: what is watched, why, and how it is covered.
async fn targets(State(shared): State<Arc<Shared>>) -> Response {
    let inventory = hold(&shared.inventory).clone();
    let workloads: Vec<serde_json::Value> = inventory
        .workloads
        .values()
        .map(|w| {
            let coverage: Vec<_> = w
                .coverage
                .iter()
                .map(|c| serde_json::json!({"aspect": c.aspect.as_str(), "state": c.state.as_str(), "reason": c.reason}))
                .collect();
            serde_json::json!({
                "namespace": w.identity.namespace,
                "pod": w.identity.pod,
                "container": w.identity.container,
                "engine": w.identity.engine.as_str(),
                "tier": w.identity.engine.tier().as_str(),
                "listeners": w.listeners.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "processes": w.processes.values().collect::<Vec<_>>(),
                "coverage": coverage,
            })
        })
        .collect();
    let others: Vec<_> = inventory
        .others
        .iter()
        .map(|(pid, (comm, why))| serde_json::json!({"pid": pid, "comm": comm, "why": why}))
        .collect();
    let probes: Vec<_> = shared
        .verdicts
        .iter()
        .map(|(name, v)| serde_json::json!({"probe": name, "state": v.state.as_str(), "detail": v.detail}))
        .collect();
    let spaces: Vec<_> = inventory
        .spaces
        .iter()
        .map(|(id, devices)| serde_json::json!({"netns": id, "devices": devices}))
        .collect();
    let body = serde_json::json!({
        "workloads": workloads, "not_watched": others, "probes": probes, "namespaces": spaces,
    });
    (
        [(header::CONTENT_TYPE, "application/json")],
        body.to_string(),
    )
        .into_response()
}
