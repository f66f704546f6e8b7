//! `METRICS.md`, written from the catalogue.

use std::fmt::Write as _;

use super::catalog::METRICS;
use super::def::{Group, Kind, Label, MetricDef, Scope};

/// The text of `agent/METRICS.md`.
pub fn metrics_md() -> String {
    let mut md = String::from(HEAD);
    for &group in Group::ALL {
        let rows: Vec<_> = METRICS.iter().filter(|def| def.group == group).collect();
        if rows.is_empty() {
            continue;
        }
        // Writing to a string cannot fail.
        let _ = write!(md, "\n## `collect[]={}`\n", group.as_str());
        for def in rows {
            family(&mut md, def);
        }
    }
    md
}

const HEAD: &str = "\
<!-- Generated from agent/src/metrics/catalog.rs: BLESS=1 cargo test -p enginetap --lib metrics -->
# Metrics

A request starts with its first byte at the server's socket and ends once, with the byte or the
close that proves its end. `started = sum(requests) + sum(in flight)` holds on every page, per
workload. Families of latencies, tokens, gaps and ages hold `class=\"inference\"` only.

Every family of a workload carries `namespace`, `pod`, `container` (outside Kubernetes: empty,
empty, unit or executable), `engine` and `tier` in front of the labels named below.

- `model`: a name this workload served (a 2xx reply, its command line, its `/v1/models` reply),
  `unknown` when none was named, `other` when it was not served here or came past a cap (64 per
  workload, 1,024 per node). Admitted names stay. A name has 1 to 256 bytes of characters that
  print; anything else (control, format and direction characters, invalid UTF-8) names no model.
- `route`: a registered path of the engine from a closed list, else `other`.
- `status`: the code; `1xx` to `5xx` for codes nobody defined or when only the class is known;
  `other` for numbers that are no status; `none` without a response head.
- All outcomes of a combination of class, model, route and streaming appear together at 0, under
  `status` 200 (success), 500 (error), 400 (refused), 499 (abort), 504 (timeout) or `none`.
- Past the series budget new series fold into `other` and `enginetap_series_dropped_total` counts
  each update that did: on a full node (200,000) models first, then routes; in a full model (1,000
  per workload, of which three quarters for routes and rare statuses) its routes first, its
  statuses to their class. A model past its cap counts there too. What was shown stays.
- Context of the node and of cgroups (`collect[]=stalls`) is read every 5 s; a reading that fails
  leaves the last values, and `enginetap_task_last_success_timestamp_seconds` with task `node` or
  `cgroup` says how old they are. Its counters are the kernel's own totals, those of a workload's
  cgroup from before it was watched included; a cgroup made anew goes on from the sum.
- `enginetap_coverage` of aspect `stalls`: `full`; `partial` with `cgroup_v1` or `no_psi` (no
  pressure), `no_own_cgroup` (a plain executable), `cgroup_out_of_reach` (not under the agent's
  cgroup mounts), or `context_only` (the hooks on the scheduler do not work or are off); `none` with
  `not_read` (yet), or when both the hooks and the context are missing.
- Stalls are those of serving threads: the main thread of each watched process, and threads that
  have read from a watched connection. A clock runs while at least one of them is held up, and is
  read at a request's start, first token and end. A request is charged from the process that reads
  its connection and from the cores and workers behind that. `gil` is CPython's lock; `lock` and
  `event_loop` are told of CPython, Node.js and nginx only, `event_loop` from 10 ms on in one turn.
- Bounds are inclusive and exact. `--bucket-edge NAME=VALUE` adds one where a NAME is given.
- OpenMetrics pages add `_created` to counters and histograms and drop `_total` from family names.
";

fn family(md: &mut String, def: &MetricDef) {
    let labels = |labels: &[Label]| {
        let names: Vec<_> = labels
            .iter()
            .map(|label| format!("`{}`", label.as_str()))
            .collect();
        if names.is_empty() {
            String::from("none")
        } else {
            names.join(", ")
        }
    };
    let (kind, unit) = (def.kind.as_str(), def.unit.as_str());
    let labels = match def.scope {
        Scope::Workload if def.labels.is_empty() => String::from("identity"),
        Scope::Workload => format!("identity, {}", labels(def.labels)),
        Scope::Node => labels(def.labels),
    };
    let _ = write!(
        md,
        "\n### `{}`\n\n{}\n\n- {kind}, {unit}; labels: {labels}\n",
        def.name, def.help
    );
    if let Kind::Histogram(buckets) = def.kind {
        let le: Vec<_> = buckets.le.iter().map(f64::to_string).collect();
        let edge = match buckets.edge {
            Some(name) => format!("`--bucket-edge {name}=`"),
            None => String::from("fixed, sorted in the kernel"),
        };
        let _ = writeln!(md, "- buckets: {} ({edge})", le.join(" "));
    }
    let (appears, source, since) = (def.appears.as_str(), def.source.as_str(), def.since);
    let _ = writeln!(md, "- appears {appears}; source: {source}; since {since}");
}

#[cfg(test)]
mod tests {
    use super::super::def::IDENTITY;
    use super::*;

    #[test]
    fn metrics_md_is_what_the_catalogue_says() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/METRICS.md");
        let now = metrics_md();
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(path, &now).unwrap();
        }
        let on_disk = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            on_disk == now,
            "{path} differs from the catalogue; run this test with BLESS=1"
        );
    }

    #[test]
    fn every_family_is_documented_once() {
        let md = metrics_md();
        for def in METRICS {
            assert_eq!(
                md.matches(&format!("### `{}`\n", def.name)).count(),
                1,
                "{}",
                def.name
            );
        }
        assert!(
            IDENTITY
                .iter()
                .all(|label| md.contains(&format!("`{}`", label.as_str())))
        );
    }
}
