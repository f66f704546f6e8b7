use super::*;
use crate::vocab::Engine;

const FULL: &str = r#"
listen = "127.0.0.1:9000"
match = ["port=8000,engine=vllm", "exe=llama-*"]
exclude = ["cgroup=*ci*"]
recognise = "off"
log-level = "debug"
series-budget = 1000
models-per-workload = 3
bucket-edge = ["ttft=0.8", "duration=90"]
proc-root = "/host/proc"
"#;

fn refusal(text: &str) -> String {
    let error = parse(text).and_then(|file| Settings::merge(file, FileConfig::default()));
    format!("{:#}", error.unwrap_err())
}

#[test]
fn every_key_is_read() {
    let settings = Settings::merge(parse(FULL).unwrap(), FileConfig::default()).unwrap();
    assert_eq!(settings.listen, "127.0.0.1:9000".parse().unwrap());
    assert_eq!(settings.rules.matches.len(), 2);
    assert_eq!(settings.rules.matches[0].engine(), Some(Engine::Vllm));
    assert_eq!(settings.rules.excludes[0].to_string(), "cgroup=*ci*");
    assert_eq!(
        (settings.recognise, settings.log_level),
        (Switch::Off, LogLevel::Debug)
    );
    assert_eq!(
        (settings.series_budget, settings.models_per_workload),
        (1000, 3)
    );
    let edges = ["ttft=0.8", "duration=90"].map(|text| parse_bucket_edge(text).unwrap());
    assert_eq!(settings.bucket_edges, edges);
    assert_eq!(settings.proc_root, Path::new("/host/proc"));
}

#[test]
fn nothing_said_is_the_defaults() {
    let settings = Settings::merge(parse("").unwrap(), FileConfig::default()).unwrap();
    assert_eq!(settings, Settings::default());
    assert_eq!(
        (settings.series_budget, settings.models_per_workload),
        (200_000, 64)
    );
}

#[test]
fn flags_win_over_the_file_and_a_list_replaces_a_list() {
    let flags = FileConfig {
        recognise: Some("on".into()),
        r#match: Some(vec!["port=1".into()]),
        exclude: Some(Vec::new()),
        ..FileConfig::default()
    };
    let settings = Settings::merge(parse(FULL).unwrap(), flags).unwrap();
    assert_eq!(settings.recognise, Switch::On);
    assert_eq!(settings.rules.matches.len(), 1);
    assert!(settings.rules.excludes.is_empty());
    assert_eq!(
        settings.log_level,
        LogLevel::Debug,
        "what no flag says is the file's"
    );
}

#[test]
fn an_error_names_the_key_and_the_remedy() {
    for (text, key, remedy) in [
        ("recognize = 'on'", "recognize", "recognise"),
        ("recognise = 'maybe'", "key `recognise`", "on, off"),
        ("recognise = true", "recognise = true", "expected a string"),
        ("series-budget = 0", "key `series-budget`", "above 0"),
        ("series-budget = -1", "series-budget = -1", "expected u64"),
        (
            "models-per-workload = 0",
            "key `models-per-workload`",
            "above 0",
        ),
        ("listen = '9000'", "key `listen`", "127.0.0.1:9469"),
        (
            "match = 'port=1'",
            "match = 'port=1'",
            "expected a sequence",
        ),
        (
            "match = ['port=x']",
            "key `match`: match rule `port=x`",
            "1 to 65535",
        ),
        (
            "exclude = ['x']",
            "key `exclude`: exclude rule `x`",
            "write exe=GLOB",
        ),
        (
            "log-level = 'loud'",
            "key `log-level`",
            "error, warn, info, debug, trace",
        ),
        (
            "bucket-edge = ['ttft']",
            "key `bucket-edge`",
            "one of head, ttft",
        ),
        ("bucket-edge = ['gap=1']", "key `bucket-edge`", "ttft"),
        ("bucket-edge = ['ttft=-1']", "key `bucket-edge`", "above 0"),
        ("bucket-edge = ['ttft=inf']", "key `bucket-edge`", "above 0"),
    ] {
        let error = refusal(text);
        assert!(
            error.contains(key) && error.contains(remedy),
            "{text}:\n{error}"
        );
    }
}

#[test]
fn a_wrong_flag_is_told_as_a_flag() {
    let flags = FileConfig {
        recognise: Some("x".into()),
        ..FileConfig::default()
    };
    let error = format!(
        "{:#}",
        Settings::merge(FileConfig::default(), flags).unwrap_err()
    );
    assert!(error.contains("flag `--recognise`"), "{error}");
}

#[test]
fn a_file_is_named_in_its_errors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("enginetap.toml");
    let error = format!("{:#}", load(&path).unwrap_err());
    assert!(error.contains("enginetap.toml: cannot be read"), "{error}");
    std::fs::write(&path, "nonsense = 1").unwrap();
    let error = format!("{:#}", load(&path).unwrap_err());
    assert!(
        error.contains("enginetap.toml") && error.contains("`nonsense`"),
        "{error}"
    );
    std::fs::write(&path, FULL).unwrap();
    assert_eq!(load(&path).unwrap(), parse(FULL).unwrap());
}

#[test]
fn a_port_alone_is_every_address() {
    assert_eq!(address(":80").unwrap(), "0.0.0.0:80".parse().unwrap());
    assert_eq!(address("[::1]:80").unwrap(), "[::1]:80".parse().unwrap());
}
