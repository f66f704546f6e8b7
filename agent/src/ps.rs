//! `enginetap ps`: what a running agent watches, from its `/targets`.

use anyhow::Result;
use serde_json::Value;

use crate::slow::fetch;

/// Asks the agent at `address` and prints a table.
pub fn ps(address: &str) -> Result<()> {
    let targets = fetch(address, "/targets")?;
    print!("{}", table(&targets));
    Ok(())
}

/// The name of a process without characters that would move a terminal's cursor or hide others.
fn name(value: &Value) -> String {
    let strange = |c: char| c.is_control() || c.escape_debug().len() > 2;
    let shown = |c: char| if strange(c) { '?' } else { c };
    text(value, "comm").chars().map(shown).collect()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The table.
pub fn table(targets: &Value) -> String {
    let mut out = String::new();
    let workloads = list(&targets["workloads"]);
    if workloads.is_empty() {
        out.push_str("nothing is watched\n");
    }
    for w in workloads {
        let listeners: Vec<&str> = list(&w["listeners"])
            .iter()
            .filter_map(Value::as_str)
            .collect();
        let pod = if text(w, "pod").is_empty() {
            String::new()
        } else {
            format!("{}/", text(w, "pod"))
        };
        out += &format!(
            "{}{}  engine={} tier={}  listens on {}\n",
            pod,
            text(w, "container"),
            text(w, "engine"),
            text(w, "tier"),
            if listeners.is_empty() {
                "nothing now".to_owned()
            } else {
                listeners.join(", ")
            },
        );
        for p in list(&w["processes"]) {
            out += &format!(
                "  pid {:<8} {:<16} {:<12} ended {:<8} in flight {:<4} because: {}\n",
                p["pid"],
                name(p),
                text(p, "role"),
                p["ended"],
                p["in_flight"],
                text(p, "why"),
            );
        }
        for c in list(&w["coverage"]) {
            let reason = text(c, "reason");
            let why = if reason.is_empty() {
                String::new()
            } else {
                format!(" ({reason})")
            };
            out += &format!("  {}: {}{why}\n", text(c, "aspect"), text(c, "state"));
        }
    }
    let others = list(&targets["not_watched"]);
    if !others.is_empty() {
        out.push_str("not watched:\n");
        for o in others {
            out += &format!("  pid {:<8} {:<16} {}\n", o["pid"], name(o), text(o, "why"));
        }
    }
    for p in list(&targets["probes"])
        .iter()
        .filter(|p| text(p, "state") != "ok")
    {
        out += &format!(
            "hook {} is {}: {}\n",
            text(p, "probe"),
            text(p, "state"),
            text(p, "detail")
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watched_workload_is_shown_with_its_reason_and_coverage() {
        let targets = serde_json::json!({"workloads": [{
            "pod": "", "container": "llama-server", "engine": "llamacpp", "tier": "engine",
            "listeners": ["127.0.0.1:8080"],
            "processes": [{"pid": 7, "comm": "llama-server", "role": "api", "why": "title", "ended": 3, "in_flight": 1}],
            "coverage": [{"aspect": "wire", "state": "partial", "reason": "nat"}],
        }]});
        let text = table(&targets);
        for part in [
            "llama-server",
            "engine=llamacpp",
            "127.0.0.1:8080",
            "because: title",
            "wire: partial (nat)",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
