//! The page under fire: 200 workloads under load, 20 scrapers at a time, and some that never finish.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use enginetap_tests::garbage::{Garbage, Random, bytes};
use enginetap_tests::guard::{Agent, Engine, NetNs, poll};
use enginetap_tests::http;
use enginetap_tests::page::Page;

const WORKLOADS: usize = 200;
const SCRAPERS: usize = 20;
const DRIVERS: usize = 8;
/// How long it goes on.
const FIRE: Duration = Duration::from_secs(12);
/// How long an agent on a busy machine may take to find what is there or to catch up.
const LONG: Duration = Duration::from_secs(60);
/// Scrapers that stop reading, and what the agent may need for all of them together: far less than
/// a page for each.
const STUCK: usize = 100;
/// When they are cut off at the latest.
const CUT_OFF: Duration = Duration::from_secs(90);
const STUCK_BYTES: f64 = 32.0 * 1_048_576.0;

const REQUEST: &[u8] = b"POST /v1/chat/completions HTTP/1.1\r\nHost: fire\r\n\
    Content-Type: application/json\r\nContent-Length: 74\r\n\r\n\
    {\"model\":\"fire-model\",\"stream\":true,\"max_tokens\":8,\"messages\":[1,2,3,4,5]}";

/// Engines in one namespace, each a workload under its name.
struct Fleet {
    ns: NetNs,
    prefix: String,
    engines: Vec<Engine>,
}

impl Fleet {
    fn start(test: &str, count: usize) -> Self {
        let ns = NetNs::new();
        let prefix = format!("fire-{test}-{}", std::process::id());
        let engine = |n: usize| {
            Engine::builder()
                .exe_name(&format!("{prefix}-{n:03}"))
                .netns(&ns)
                .args(["--no-rows", "--no-event-log"])
                .start()
        };
        let engines = (0..count).map(engine).collect();
        Self {
            ns,
            prefix,
            engines,
        }
    }

    fn name(&self, n: usize) -> String {
        format!("{}-{n:03}", self.prefix)
    }

    fn agent(&self) -> Agent {
        let agent = Agent::builder()
            .matching(&format!("exe={}-*,engine=vllm", self.prefix))
            .args(["--recognise", "off"])
            .start();
        agent.wait_for(LONG, |p| {
            p.series("enginetap_requests_started_total").len() == self.engines.len()
        });
        agent
    }

    /// Requests to each engine in turn, on kept connections, until `over`; how many were answered
    /// whole, by engine.
    fn drive(&self, over: &AtomicBool) -> Vec<u64> {
        let addresses: Vec<SocketAddr> = self.engines.iter().map(Engine::address).collect();
        let share = addresses.len().div_ceil(DRIVERS);
        self.ns.run_in(|| {
            std::thread::scope(|scope| {
                let drivers: Vec<_> = addresses
                    .chunks(share)
                    .map(|own| scope.spawn(move || drive(own, over)))
                    .collect();
                let answered = drivers.into_iter().flat_map(|d| d.join().expect("driver"));
                answered.collect()
            })
        })
    }

    /// The page counts for each engine what it and its client counted. On a machine that has no
    /// time left for the agent some labels are unknown, and it is said how many records that were.
    fn assert_exact(&mut self, page: &Page, answered: &[u64]) {
        let lost = page.value("enginetap_events_lost_total", &[]);
        let full = [("reason", "ring_full")];
        page.assert_value("enginetap_events_lost_total", &full, lost);
        println!("{lost} records found no room");
        for (n, sent) in answered.iter().enumerate() {
            let truth = self.engines[n].ended(*sent);
            let (name, count) = (self.name(n), *sent as f64);
            let own = [("container", name.as_str())];
            assert_eq!((truth.started, truth.count()), (*sent, *sent), "{name}");
            page.assert_value("enginetap_requests_started_total", &own, count);
            page.assert_value("enginetap_requests_total", &own, count);
            let good = [own[0], ("outcome", "success")];
            page.assert_value("enginetap_requests_total", &good, count);
            if lost == 0.0 {
                let told = [good[0], good[1], ("model", "fire-model"), ("status", "200")];
                page.assert_value("enginetap_requests_total", &told, count);
            }
            let events = truth.events as f64;
            page.assert_value("enginetap_stream_events_total", &own, events);
        }
        page.assert_value("enginetap_requests_in_flight", &[], 0.0);
    }
}

fn drive(addresses: &[SocketAddr], over: &AtomicBool) -> Vec<u64> {
    let open = |a: &SocketAddr| TcpStream::connect(a).expect("connect to an engine");
    let mut streams: Vec<TcpStream> = addresses.iter().map(open).collect();
    let mut answered = vec![0; streams.len()];
    let mut buf = vec![0; 65_536];
    while !over.load(Ordering::Relaxed) {
        for (stream, count) in streams.iter_mut().zip(&mut answered) {
            stream.write_all(REQUEST).expect("send");
            let mut held = Vec::new();
            while !held.ends_with(b"\r\n0\r\n\r\n") {
                let n = stream.read(&mut buf).expect("reply");
                assert!(n > 0, "an engine closed");
                held.extend_from_slice(&buf[..n]);
            }
            *count += 1;
        }
    }
    answered
}

/// What a page says, read without the cost of [`Page`], which would take the machine from what is
/// tested: requests begun less those ended and open, by workload, and every series that only grows.
#[derive(Default)]
struct Glance {
    sides: HashMap<String, f64>,
    grows: HashMap<String, f64>,
}

impl Glance {
    fn of(text: &str) -> Self {
        let mut glance = Self::default();
        assert!(text.ends_with('\n'), "the last line has no end");
        for line in text.lines().filter(|l| !l.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').expect(line);
            let value: f64 = value.parse().expect(line);
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let sign = match name {
                "enginetap_requests_started_total" => 1.0,
                "enginetap_requests_total" | "enginetap_requests_in_flight" => -1.0,
                _ => 0.0,
            };
            if sign != 0.0 {
                let name = labels.split("container=\"").nth(1).expect(line);
                let name = name.split('"').next().unwrap_or_default();
                *glance.sides.entry(name.to_owned()).or_default() += sign * value;
            }
            if ["_total", "_bucket", "_count"]
                .iter()
                .any(|e| name.ends_with(e))
            {
                let twice = glance.grows.insert(series.to_owned(), value);
                assert_eq!(twice, None, "{series} is there twice");
            }
        }
        glance
    }

    fn assert_good(&self, last: &Self) {
        assert!(self.sides.len() >= last.sides.len(), "a workload is gone");
        for (name, rest) in &self.sides {
            assert_eq!(*rest, 0.0, "{name}: started is not ended + in flight");
        }
        for (series, value) in &last.grows {
            let now = self.grows.get(series);
            assert!(now >= Some(value), "{series}: {value} -> {now:?}");
        }
    }
}

/// A scraper that asks again as soon as it has a page: how many there were, and the longest that
/// one took.
fn scrape(address: SocketAddr, over: &AtomicBool) -> (u64, Duration) {
    let (mut pages, mut slowest) = (0, Duration::ZERO);
    let mut last = Glance::default();
    while !over.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let reply = http::get(address, "/metrics", &[]).expect("a page");
        slowest = slowest.max(asked.elapsed());
        assert_eq!(reply.status, 200);
        // The head's own length, so that a page that was cut off is seen.
        let length = reply.header("content-length").and_then(|n| n.parse().ok());
        assert_eq!(length, Some(reply.body.len()), "cut off");
        let glance = Glance::of(&reply.text());
        glance.assert_good(&last);
        last = glance;
        pages += 1;
        if pages == 3 {
            Page::parse(&reply.text()).assert_invariant();
        }
    }
    (pages, slowest)
}

/// Reads a byte each 100 ms until `over`.
fn crawl(address: SocketAddr, over: &AtomicBool) {
    let mut stream = TcpStream::connect(address).expect("connect");
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: slow\r\n\r\n")
        .expect("send");
    // A reset by the agent is an end like another.
    while !over.load(Ordering::Relaxed) && stream.read(&mut [0]).is_ok_and(|n| n == 1) {
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Sends what is no request, over and over.
fn disturb(address: SocketAddr, over: &AtomicBool) {
    let mut random = Random::new(7);
    let kinds = [
        Garbage::Random,
        Garbage::Binary,
        Garbage::Tls,
        Garbage::HalfHead,
        Garbage::LongLine,
        Garbage::LongHeader,
        Garbage::H2,
    ];
    while !over.load(Ordering::Relaxed) {
        for kind in kinds {
            let mut stream = TcpStream::connect(address).expect("connect");
            // It may close before it has read all.
            let _ = stream.write_all(&bytes(kind, 4_096, &mut random));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn pages_under_fire_are_whole_and_right_and_hold_nothing_up() {
    let mut fleet = Fleet::start("all", WORKLOADS);
    let agent = fleet.agent();
    let address = agent.address();
    let silent: Vec<TcpStream> = (0..5)
        .map(|_| TcpStream::connect(address).expect("connect"))
        .collect();
    let over = AtomicBool::new(false);
    let (answered, scraped) = std::thread::scope(|scope| {
        let (over, fleet) = (&over, &fleet);
        let driver = scope.spawn(move || fleet.drive(over));
        scope.spawn(move || crawl(address, over));
        scope.spawn(move || disturb(address, over));
        let scrapers: Vec<_> = (0..SCRAPERS)
            .map(|_| scope.spawn(move || scrape(address, over)))
            .collect();
        std::thread::sleep(FIRE);
        over.store(true, Ordering::Relaxed);
        let scraped: Vec<(u64, Duration)> = scrapers
            .into_iter()
            .map(|s| s.join().expect("a scraper"))
            .collect();
        (driver.join().expect("the drivers"), scraped)
    });
    drop(silent);
    let total: u64 = answered.iter().sum();
    let pages: u64 = scraped.iter().map(|s| s.0).sum();
    let slowest = scraped.iter().map(|s| s.1).max();
    println!("{total} requests, {pages} pages, the slowest {slowest:?}");
    assert!(scraped.iter().all(|s| s.0 > 1), "{scraped:?}");
    let page = agent.wait_for(LONG, |p| {
        p.value("enginetap_requests_total", &[]) >= total as f64
    });
    page.assert_invariant();
    fleet.assert_exact(&page, &answered);
    assert_eq!(page.lint(), Vec::<String>::new());
    page.assert_promtool_clean();
    agent.stop();
}

#[test]
fn scrapers_that_stop_reading_hold_no_page_each() {
    let mut fleet = Fleet::start("stuck", 100);
    let agent = fleet.agent();
    let address = agent.address();
    let resident = || {
        let page = agent.scrape();
        page.value("process_resident_memory_bytes", &[])
    };
    // What a few pages at a time need is there from now on.
    std::thread::scope(|scope| {
        let once = || http::get(address, "/metrics", &[]).expect("a page");
        let all: Vec<_> = (0..4).map(|_| scope.spawn(once)).collect();
        all.into_iter().for_each(|s| drop(s.join()));
    });
    let before = resident();
    let descriptors = || agent.scrape().value("process_open_fds", &[]);
    let open = descriptors();
    let stuck: Vec<TcpStream> = (0..STUCK)
        .map(|_| {
            let stream = TcpStream::connect(address).expect("connect");
            // So little that the kernel does not hold the page instead.
            let _ = socket2::SockRef::from(&stream).set_recv_buffer_size(4_096);
            let ask = b"GET /metrics HTTP/1.1\r\nHost: stuck\r\n\r\n";
            (&stream).write_all(ask).expect("send");
            stream
        })
        .collect();
    // Others are answered meanwhile, and requests are counted.
    let over = AtomicBool::new(false);
    let answered = std::thread::scope(|scope| {
        let (over, fleet) = (&over, &fleet);
        let driver = scope.spawn(move || fleet.drive(over));
        let scraper = scope.spawn(move || scrape(address, over));
        std::thread::sleep(Duration::from_secs(3));
        over.store(true, Ordering::Relaxed);
        let (pages, slowest) = scraper.join().expect("the scraper");
        println!("{pages} pages meanwhile, the slowest {slowest:?}");
        assert!(pages > 1);
        driver.join().expect("the drivers")
    });
    let total: u64 = answered.iter().sum();
    let page = agent.wait_for(LONG, |p| {
        p.value("enginetap_requests_total", &[]) >= total as f64
    });
    fleet.assert_exact(&page, &answered);
    let mut grown = f64::NAN;
    let bounded = poll(LONG, || {
        grown = resident() - before;
        (grown < STUCK_BYTES).then_some(())
    });
    let length = page.text().len() as f64;
    println!("grown by {grown} bytes for {STUCK} that hold pages of {length} bytes");
    assert!(
        bounded.is_some(),
        "{STUCK} stuck scrapers of a page of {length} bytes cost {grown} bytes"
    );
    // They are cut off in the end, without a word from them.
    let cut = poll(CUT_OFF, || (descriptors() <= open + 5.0).then_some(()));
    assert!(
        cut.is_some(),
        "{} descriptors, {open} before",
        descriptors()
    );
    drop(stuck);
    agent.stop();
}
