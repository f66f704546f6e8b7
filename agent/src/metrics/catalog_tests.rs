use super::*;
use std::collections::BTreeSet;

#[test]
fn every_family_has_its_row_at_its_place() {
    assert_eq!(METRICS.len(), Family::ALL.len());
    for (place, def) in METRICS.iter().enumerate() {
        assert_eq!(def.family as usize, place, "{}", def.name);
    }
}

#[test]
fn names_are_unique_prefixed_and_in_lower_snake() {
    let mut seen = BTreeSet::new();
    for def in METRICS {
        assert!(seen.insert(def.name), "{} twice", def.name);
        let own = def.name.starts_with("enginetap_");
        let process = def.name.starts_with("process_") && def.scope == Scope::Node;
        assert!(own || process, "{}", def.name);
        let snake = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        assert!(def.name.chars().all(snake), "{}", def.name);
    }
}

#[test]
fn no_two_families_write_the_same_sample_name_in_open_metrics() {
    let mut seen = BTreeSet::new();
    for def in METRICS {
        let base = def.open_metrics_name();
        let suffixes: &[&str] = match def.kind {
            Kind::Counter => &["", "_total", "_created"],
            Kind::Gauge => &[""],
            Kind::Histogram(_) => &["", "_bucket", "_sum", "_count", "_created"],
        };
        for suffix in suffixes {
            assert!(seen.insert(format!("{base}{suffix}")), "{base}{suffix}");
        }
    }
}

#[test]
fn suffixes_follow_unit_and_kind() {
    for def in METRICS {
        let total = def.name.ends_with("_total");
        assert_eq!(total, def.kind == Kind::Counter, "{}", def.name);
        let base = def.open_metrics_name();
        assert!(
            base.ends_with(def.unit.suffix()),
            "{} is not in {:?}",
            def.name,
            def.unit
        );
        for unit in [Unit::Seconds, Unit::Bytes, Unit::Tokens, Unit::Info] {
            let named = base.ends_with(unit.suffix());
            assert_eq!(named, def.unit == unit, "{} and {unit:?}", def.name);
        }
        for word in ["percent", "milli", "micro", "counter", "gauge", "histogram"] {
            assert!(!def.name.contains(word), "{} names {word}", def.name);
        }
        for tail in ["_count", "_sum", "_bucket", "_created"] {
            assert!(!base.ends_with(tail), "{}", def.name);
        }
    }
}

#[test]
fn help_is_one_sentence() {
    for def in METRICS {
        let help = def.help;
        assert!(help.ends_with('.'), "{}: {help}", def.name);
        assert!(
            !help[..help.len() - 1].contains(". "),
            "{}: {help}",
            def.name
        );
        assert!(
            help.len() >= 30 && help.len() <= 200,
            "{}: {}",
            def.name,
            help.len()
        );
        assert!(
            !help.contains('\n') && !help.contains("  "),
            "{}: {help}",
            def.name
        );
        let first = help.chars().next().unwrap();
        assert!(first.is_ascii_uppercase(), "{}: {help}", def.name);
        if matches!(def.kind, Kind::Histogram(_)) && def.unit == Unit::Seconds {
            let lower = help.to_lowercase();
            assert!(
                lower.contains("from ") && lower.contains(" to "),
                "{}: {help}",
                def.name
            );
        }
    }
}

#[test]
fn labels_are_distinct_and_never_the_identity_again() {
    for def in METRICS {
        let set: BTreeSet<_> = def.labels.iter().collect();
        assert_eq!(set.len(), def.labels.len(), "{}", def.name);
        assert!(
            def.labels
                .iter()
                .all(|l| !super::super::def::IDENTITY.contains(l))
        );
        assert!(
            def.labels
                .iter()
                .all(|l| l.as_str() != "le" && l.as_str() != "pid")
        );
    }
}

#[test]
fn bounds_ascend_and_edge_names_are_unique() {
    let mut seen = BTreeSet::new();
    for def in METRICS {
        if let Kind::Histogram(buckets) = def.kind {
            assert!(buckets.le.windows(2).all(|w| w[0] < w[1]), "{}", def.name);
            assert!(buckets.le[0] > 0.0);
            if let Some(edge) = buckets.edge {
                assert!(seen.insert(edge), "edge {edge} twice");
            }
        }
    }
}

#[test]
fn the_gap_bounds_are_those_of_the_kernel() {
    let ns: Vec<u64> = Buckets::GAP
        .le
        .iter()
        .map(|le| (le * 1e9).round() as u64)
        .collect();
    assert_eq!(ns, enginetap_ebpf::hist::GAP_BOUNDS_NS);
}

#[test]
fn every_row_came_with_a_released_version() {
    for def in METRICS {
        assert_eq!(def.since, "0.1.0", "{}", def.name);
    }
}
