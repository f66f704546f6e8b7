//! The exposition text, strictly: a line that is not of the format is an error.

use std::collections::BTreeMap;

use super::{Page, Sample};

pub(super) fn page(text: &str) -> Result<Page, String> {
    let mut page = Page {
        text: text.to_owned(),
        ..Page::default()
    };
    for (number, line) in text.lines().enumerate() {
        let at = |why: &str| format!("line {}: {why}: {line:?}", number + 1);
        if let Some(comment) = line.strip_prefix('#') {
            declare(&mut page, comment.trim_start()).map_err(|why| at(&why))?;
        } else if !line.trim().is_empty() {
            let sample = sample(line).ok_or_else(|| at("not a sample"))?;
            page.index
                .entry(sample.name.clone())
                .or_default()
                .push(page.samples.len());
            page.samples.push(sample);
        }
    }
    Ok(page)
}

fn declare(page: &mut Page, comment: &str) -> Result<(), String> {
    let mut words = comment.splitn(3, ' ');
    let (kind, name, rest) = (words.next(), words.next(), words.next().unwrap_or_default());
    let table = match kind {
        Some("TYPE") => &mut page.types,
        Some("HELP") => &mut page.help,
        _ => return Ok(()),
    };
    let name = name.ok_or("a declaration without a name")?;
    match table.insert(name.to_owned(), rest.to_owned()) {
        None => Ok(()),
        Some(_) => Err(format!("{name} is declared twice")),
    }
}

fn sample(line: &str) -> Option<Sample> {
    let name_end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(name_end);
    let first = name.chars().next()?;
    let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    if first.is_ascii_digit() || !name.chars().all(legal) {
        return None;
    }
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = label_set(inner, &mut labels)?;
    }
    // An exemplar of OpenMetrics follows ` # `.
    let rest = rest.split(" # ").next()?;
    let mut words = rest.split_whitespace();
    let value = number(words.next()?)?;
    if let Some(stamp) = words.next() {
        stamp.parse::<f64>().ok()?;
    }
    words.next().is_none().then(|| Sample {
        name: name.to_owned(),
        labels,
        value,
    })
}

fn label_set<'a>(mut rest: &'a str, labels: &mut BTreeMap<String, String>) -> Option<&'a str> {
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Some(after);
        }
        let (name, after) = rest.split_once("=\"")?;
        let (value, after) = quoted(after)?;
        if labels.insert(name.to_owned(), value).is_some() {
            return None;
        }
        rest = after.strip_prefix(',').unwrap_or(after);
    }
}

fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                c @ ('"' | '\\') => value.push(c),
                _ => return None,
            },
            c => value.push(c),
        }
    }
    None
}

fn number(word: &str) -> Option<f64> {
    match word {
        "+Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        "NaN" => Some(f64::NAN),
        word => word.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_unescaped_and_stamps_and_exemplars_are_dropped() {
        let text = "# TYPE a counter\na{x=\"q\\\"\\\\\\n\",y=\"\"} 3 1700000000000\na{x=\"z\"} 4 # {t=\"1\"} 2\nb +Inf\n# EOF\n";
        let page = page(text).unwrap();
        assert_eq!(page.samples[0].labels["x"], "q\"\\\n");
        assert_eq!(page.value("a", &[]), 7.0);
        assert_eq!(page.value("b", &[]), f64::INFINITY);
    }

    #[test]
    fn what_is_not_of_the_format_is_refused() {
        for text in [
            "a",
            "1a 2",
            "a{x=\"1\" 2",
            "a{x=1} 2",
            "a 1 2 3",
            "# TYPE a x\n# TYPE a y",
        ] {
            assert!(page(text).is_err(), "{text}");
        }
    }
}
