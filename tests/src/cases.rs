//! Cases of known bytes, each on a connection of its own, and what each adds to the page; a
//! connection beside them must never be disturbed.

use crate::guard::Agent;
use crate::page::Page;
use crate::raw::{RawServer, Wire, json, post};
use crate::scene::{SOON, agent_for};

const CHAT: &str = "/v1/chat/completions";

/// A server with an agent beside it and a connection that must never be disturbed.
#[derive(Debug)]
pub struct Bench {
    server: RawServer,
    agent: Agent,
    quiet: Wire,
    page: Page,
}

/// What a case adds to the page.
#[derive(Clone, Copy, Debug, Default)]
pub struct Adds<'a> {
    /// Requests that end.
    pub ended: u32,
    /// Labels that all of them carry.
    pub with: &'a [(&'a str, &'a str)],
    /// A reason why its connection cannot be read.
    pub unparsed: Option<&'a str>,
    /// Events of streams.
    pub events: u32,
    /// Streams whose first token is not known.
    pub unknown: u32,
}

const REQUESTS: &str = "enginetap_requests_total";
const UNPARSED: &str = "enginetap_unparsed_total";
const EVENTS: &str = "enginetap_stream_events_total";
const UNKNOWN: &str = "enginetap_first_token_unknown_total";

impl Bench {
    /// Starts both and waits for a first request on the page.
    pub fn start() -> Self {
        let server = RawServer::bind();
        let agent = agent_for(server.address().port());
        let quiet = server.connect();
        let page = agent.scrape();
        let mut bench = Self {
            server,
            agent,
            quiet,
            page,
        };
        bench.check("a first request", Adds::default(), |_| {});
        bench
    }

    /// Plays a case on a connection of its own and checks what the page says of it, and that the
    /// connection beside it goes on.
    pub fn check(&mut self, name: &str, adds: Adds<'_>, play: impl FnOnce(&mut Wire)) {
        let mut wire = self.server.connect();
        play(&mut wire);
        drop(wire);
        self.quiet
            .exchange(&post(CHAT, br#"{"model":"quiet"}"#), &json(200, b"{}"));
        let before = &self.page;
        let more = |p: &Page, family: &str, labels: &[(&str, &str)]| {
            p.value(family, labels) - before.value(family, labels)
        };
        let quiet = [
            ("model", "quiet"),
            ("outcome", "success"),
            ("status", "200"),
        ];
        let unparsed = f64::from(u32::from(adds.unparsed.is_some()));
        let page = self.agent.wait_for(SOON, |p| {
            more(p, REQUESTS, &quiet) >= 1.0
                && more(p, REQUESTS, &[]) >= f64::from(adds.ended) + 1.0
                && more(p, UNPARSED, &[]) >= unparsed
                && more(p, EVENTS, &[]) >= f64::from(adds.events)
        });
        page.assert_invariant();
        page.assert_not_below(before);
        let says = |family: &str, labels: &[(&str, &str)], n: f64| {
            assert_eq!(
                more(&page, family, labels),
                n,
                "{name}: {family}{labels:?}\n{}\nbefore:\n{}",
                page.lines(family),
                before.lines(family)
            );
        };
        says(REQUESTS, &quiet, 1.0);
        says(REQUESTS, &[], f64::from(adds.ended) + 1.0);
        let own = |p: &Page| -> f64 {
            let mine = p.matching(REQUESTS, adds.with);
            let mine = mine.iter().filter(|s| s.label("model") != "quiet");
            mine.map(|s| s.value).sum()
        };
        assert_eq!(
            own(&page) - own(before),
            f64::from(adds.ended),
            "{name}: {:?}\n{}\nbefore:\n{}",
            adds.with,
            page.lines(REQUESTS),
            before.lines(REQUESTS)
        );
        says(UNPARSED, &[], unparsed);
        if let Some(reason) = adds.unparsed {
            says(UNPARSED, &[("reason", reason)], 1.0);
        }
        says(EVENTS, &[], f64::from(adds.events));
        says(UNKNOWN, &[], f64::from(adds.unknown));
        says("enginetap_events_lost_total", &[], 0.0);
        page.assert_value("enginetap_requests_in_flight", &[], 0.0);
        self.page = page;
    }

    /// Stops the agent.
    pub fn stop(self) {
        self.agent.stop();
    }
}

/// A case that ends one request.
pub fn one<'a>(with: &'a [(&'a str, &'a str)]) -> Adds<'a> {
    Adds {
        ended: 1,
        with,
        ..Adds::default()
    }
}

/// A case of which nothing can be read, for this reason.
pub fn bad(reason: &str) -> Adds<'_> {
    Adds {
        unparsed: Some(reason),
        ..Adds::default()
    }
}
