//! What a target says of itself: its command line, its stat line, its mappings and cgroups; and the
//! operator's rules.

use std::path::PathBuf;

use super::fuzz;
use crate::config::{FileConfig, Settings};
use crate::engines::{self, ProcessFacts};
use crate::protocol::json::model_name;
use crate::targets::proc::{MAPPED_FILES_CAP, parse_cmdline, parse_maps, parse_stat};
use crate::targets::rules::{ProcessView, RuleSet, Verdict};
use crate::targets::testing::process;
use crate::targets::workload;
use crate::vocab::Engine;

/// A name that a page and a terminal can show.
fn shows(name: &str) -> bool {
    name.len() <= 255 && name.bytes().all(|b| b.is_ascii_graphic())
}

#[test]
fn command_lines_of_any_bytes_give_names_that_can_be_shown() {
    fuzz("cmdline", |bytes| {
        let arguments = parse_cmdline(bytes);
        let joined = arguments.join("\0");
        let text = String::from_utf8_lossy(bytes);
        assert_eq!(
            joined,
            text.trim_end_matches(['\0', ' ']),
            "split at NULs, padding left out"
        );
        for exe in [
            "/usr/bin/python3.11",
            "/usr/bin/node",
            "/usr/bin/java",
            "/bin/sh",
            &text,
            "",
        ] {
            let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let mut process = process(exe, &words);
            process.comm = text.chars().take(15).collect();
            let name = workload::name(&process);
            assert!(shows(&name.container), "{name:?}");
            let facts = ProcessFacts {
                comm: process.comm.clone(),
                cmdline: arguments.clone(),
                exe: exe.to_owned(),
                mapped: vec![text.clone().into_owned()],
            };
            let _ = engines::recognise(&facts);
        }
        for &engine in Engine::ALL {
            let models = engines::model_from_cmdline(engine, &arguments);
            assert!(
                models.iter().all(|name| model_name(name).is_some()),
                "{models:?}"
            );
        }
    });
}

#[test]
fn stat_lines_of_any_bytes_are_read_behind_their_last_bracket() {
    fuzz("stat", |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let Some(stat) = parse_stat(7, &text) else {
            return;
        };
        let (head, tail) = text.rsplit_once(')').expect("a bracket");
        assert_eq!(
            head.split_once('(').map(|(_, name)| name),
            Some(stat.comm.as_str())
        );
        let fields: Vec<&str> = tail.split_whitespace().collect();
        assert_eq!(fields[19].parse(), Ok(stat.key.start_ticks));
        assert_eq!((stat.key.tgid, fields[1].parse()), (7, Ok(stat.ppid)));
    });
}

#[test]
fn mappings_of_any_bytes_are_whole_lines_and_bounded() {
    fuzz("maps", |bytes| {
        let mapped = parse_maps(bytes).expect("bytes in memory");
        assert!(mapped.len() <= MAPPED_FILES_CAP);
        let text = String::from_utf8_lossy(bytes);
        let (whole, _cut) = text.rsplit_once('\n').unwrap_or_default();
        for (n, file) in mapped.iter().enumerate() {
            assert!(file.inode != 0 && file.path.starts_with('/') && !mapped[..n].contains(file));
            assert!(
                whole.split('\n').any(|line| line.contains(&file.path)),
                "{file:?}"
            );
        }
    });
}

#[test]
fn cgroups_of_any_bytes_give_names_that_can_be_shown() {
    fuzz("cgroup", |bytes| {
        let mut process = process("/usr/bin/true", &["true"]);
        process.cgroups = String::from_utf8_lossy(bytes)
            .lines()
            .map(str::to_owned)
            .collect();
        let name = workload::name(&process);
        for part in [
            &name.container,
            &name.pod,
            &name.namespace,
            &name.container_id,
        ] {
            assert!(shows(part), "{name:?}");
        }
        assert!(!name.container.is_empty());
        let paths = process.cgroup_paths();
        assert!(paths.len() <= process.cgroups.len());
    });
}

#[test]
fn rules_of_any_text_are_read_or_refused_with_their_own_words() {
    let paths = [
        "/system.slice/x.service".to_owned(),
        "/a\u{202e}\n".to_owned(),
    ];
    let views = [
        ProcessView {
            exe: "/usr/bin/python3",
            cmdline: "python3 -m vllm",
            ports: &[8000],
            cgroups: &paths,
        },
        ProcessView {
            exe: "",
            cmdline: "",
            ports: &[],
            cgroups: &[],
        },
    ];
    fuzz("rules", |bytes| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        match RuleSet::parse(&[text.as_str()], &[]) {
            Ok(rules) => {
                assert_eq!(rules.matches[0].to_string(), text);
                for view in &views {
                    assert!(!matches!(rules.verdict(view), Verdict::Excluded(_)));
                }
                let port = text
                    .strip_prefix("port=")
                    .and_then(|n| n.parse::<u16>().ok());
                if let Some(port) = port {
                    assert_eq!(
                        matches!(rules.verdict(&views[0]), Verdict::Matched(_)),
                        port == 8000
                    );
                }
            }
            Err(error) => assert!(format!("{error:#}").contains(&format!("match rule `{text}`"))),
        }
    });
}

#[test]
fn configurations_of_any_text_are_read_or_refused() {
    fuzz("config", |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let Ok(file) = toml::from_str::<FileConfig>(&text) else {
            return;
        };
        let root = file.proc_root.clone();
        if let Ok(settings) = Settings::merge(file, FileConfig::default()) {
            assert_eq!(
                settings.proc_root,
                root.unwrap_or_else(|| PathBuf::from("/proc"))
            );
            assert!(settings.series_budget > 0 && settings.models_per_workload > 0);
        }
    });
}
