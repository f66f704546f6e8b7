//! Label values of any text: every line of a page can be read back, and names what was given.

use std::collections::BTreeSet;
use std::time::Duration;

use super::fuzz;
use crate::metrics::input::PageInput;
use crate::metrics::{Format, Groups, Store, StoreConfig, render};
use crate::protocol::json::model_name;
use crate::vocab::{Engine, Identity, WorkloadId};

/// The labels of a sample line, read by the grammar of the format; `None` = no such line.
fn labels(line: &str) -> Option<Vec<(String, String)>> {
    let (name, rest) = line.split_once('{')?;
    let plain = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    let mut found = Vec::new();
    let mut rest = rest;
    loop {
        let (label, after) = rest.split_once("=\"")?;
        let (mut value, mut chars) = (String::new(), after.char_indices());
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next()?.1 {
                    'n' => '\n',
                    c @ ('"' | '\\') => c,
                    _ => return None,
                }),
                (_, c) => value.push(c),
            }
        };
        found.push((label.to_owned(), value));
        rest = &after[end + 1..];
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => break,
        }
    }
    let number = rest.strip_prefix("} ")?.parse::<f64>().is_ok();
    (plain(name) && found.iter().all(|(l, _)| plain(l)) && number).then_some(found)
}

fn property(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let id = WorkloadId(1);
    let mut store = Store::new(StoreConfig::default());
    let identity = Identity {
        namespace: String::new(),
        pod: String::new(),
        container: text.clone().into_owned(),
        engine: Engine::Vllm,
    };
    store.add_workload(id, identity);
    store.serve_model(id, &text);
    store.first_token(id, Some(&text), "other", Duration::from_millis(3));
    let names = [text.clone().into_owned(), "unknown".into(), "other".into()];
    for format in [Format::Text, Format::OpenMetrics] {
        let page = render(
            &store.snapshot(),
            &PageInput::default(),
            format,
            Groups::ALL,
        );
        let mut models = BTreeSet::new();
        for line in page
            .split('\n')
            .filter(|line| line.contains('{') && !line.starts_with('#'))
        {
            let labels = labels(line).unwrap_or_else(|| panic!("{line:?}"));
            for (label, value) in labels {
                match label.as_str() {
                    "container" => assert_eq!(value, text),
                    "model" => assert!(models.insert(value.clone()) || names.contains(&value)),
                    _ => assert!(value.len() < 64),
                }
            }
        }
        let own = models.contains(text.as_ref());
        assert_eq!(
            own,
            model_name(&text).is_some() || names[1..].contains(&names[0]),
            "{text:?}"
        );
    }
}

#[test]
fn label_values_of_any_text_are_read_back_from_the_page() {
    fuzz("labels", property);
}
