//! Reads a Prometheus text page: fetch, parse, add up, quantiles of what happened between two pages.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use anyhow::{Context, Result, bail};

/// One sample line.
#[derive(Debug)]
struct Sample {
    name: String,
    labels: String,
    value: f64,
}

/// A parsed page.
#[derive(Debug, Default)]
pub struct Page {
    samples: Vec<Sample>,
}

/// The body of `path` at `address`, if the answer is 200.
pub fn get(address: &str, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).with_context(|| format!("connect {address}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    // HTTP/1.0: the reply ends with the connection and is never chunked.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    let (head, body) = reply.split_once("\r\n\r\n").context("half a reply")?;
    if head.split(' ').nth(1) != Some("200") {
        bail!("{path}: {}", head.lines().next().unwrap_or_default());
    }
    Ok(body.to_owned())
}

impl Page {
    pub fn fetch(address: &str) -> Result<Self> {
        Ok(Self::parse(&get(address, "/metrics")?))
    }

    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Self {
            samples: lines.filter_map(sample).collect(),
        }
    }

    /// Sum of a family's series whose label text contains `with`.
    pub fn sum(&self, name: &str, with: &str) -> f64 {
        self.samples
            .iter()
            .filter(|sample| sample.name == name && sample.labels.contains(with))
            .map(|sample| sample.value)
            .fold(0.0, |sum, value| sum + value)
    }

    /// A family added up by the values of one label.
    pub fn by(&self, name: &str, with: &str, label: &str) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for sample in self
            .samples
            .iter()
            .filter(|s| s.name == name && s.labels.contains(with))
        {
            if let Some(value) = label_value(&sample.labels, label) {
                *sums.entry(value.to_owned()).or_insert(0.0) += sample.value;
            }
        }
        sums
    }

    /// The `q` quantile of a histogram over what `self` has beyond `earlier`, all series together;
    /// interpolated inside a bucket as Prometheus does it.
    pub fn quantile_since(&self, earlier: &Self, name: &str, q: f64) -> Option<f64> {
        let buckets = format!("{name}_bucket");
        let before = earlier.by(&buckets, "", "le");
        let mut edges: Vec<(f64, f64)> = self
            .by(&buckets, "", "le")
            .into_iter()
            .filter_map(|(le, count)| {
                Some((
                    le.parse().ok()?,
                    count - before.get(&le).copied().unwrap_or(0.0),
                ))
            })
            .collect();
        edges.sort_by(|a, b| a.0.total_cmp(&b.0));
        let total = edges.last()?.1;
        if total <= 0.0 {
            return None;
        }
        let (mut low, mut below) = (0.0, 0.0);
        for (edge, count) in edges {
            if count >= total * q {
                if edge.is_infinite() || count <= below {
                    return Some(low);
                }
                return Some(low + (edge - low) * (total * q - below) / (count - below));
            }
            (low, below) = (edge, count);
        }
        None
    }
}

fn sample(line: &str) -> Option<Sample> {
    let (series, rest) = match line.split_once('{') {
        Some((name, rest)) => {
            let (labels, value) = rest.rsplit_once("} ")?;
            ((name, labels), value)
        }
        None => {
            let (name, value) = line.split_once(' ')?;
            ((name, ""), value)
        }
    };
    let value = rest.split(' ').next()?.parse().ok()?;
    Some(Sample {
        name: series.0.to_owned(),
        labels: series.1.to_owned(),
        value,
    })
}

fn label_value<'a>(labels: &'a str, label: &str) -> Option<&'a str> {
    let start = format!("{label}=\"");
    let at = labels
        .match_indices(&start)
        .map(|(at, _)| at)
        .find(|at| *at == 0 || labels.as_bytes()[at - 1] == b',')?;
    labels[at + start.len()..].split('"').next()
}

#[cfg(test)]
mod tests {
    use super::Page;

    const EARLIER: &str = "# HELP h x\nh_bucket{a=\"1\",le=\"1\"} 1\nh_bucket{a=\"1\",le=\"2\"} 1\n\
        h_bucket{a=\"1\",le=\"+Inf\"} 1\nn_total{outcome=\"success\"} 2\n";
    const LATER: &str = "h_bucket{a=\"1\",le=\"1\"} 1\nh_bucket{a=\"1\",le=\"2\"} 11\n\
        h_bucket{a=\"1\",le=\"+Inf\"} 11\nn_total{outcome=\"success\"} 5\nn_total{outcome=\"abort\"} 1\n";

    #[test]
    fn quantiles_are_of_what_was_added_and_interpolated() {
        let (earlier, later) = (Page::parse(EARLIER), Page::parse(LATER));
        assert_eq!(later.quantile_since(&earlier, "h", 0.5), Some(1.5));
        assert_eq!(later.quantile_since(&later, "h", 0.5), None);
    }

    #[test]
    fn sums_are_by_family_and_label() {
        let later = Page::parse(LATER);
        assert_eq!(later.sum("n_total", ""), 6.0);
        assert_eq!(later.by("n_total", "", "outcome")["abort"], 1.0);
        assert!(later.by("n_total", "", "come").is_empty());
    }
}
