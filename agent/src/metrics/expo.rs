//! The page as text: Prometheus 0.0.4 (byte for byte what the `prometheus` crate's encoder
//! writes) or OpenMetrics 1.0 (with `# EOF`, `# UNIT` and `_created`). Written straight from the
//! snapshot: the labels of a series are put together once, whatever number of lines it has.

use std::fmt::Write as _;

use super::def::{Family, Group, IDENTITY, Kind, MetricDef};
use super::input::PageInput;
use super::proto::identity_values;
use super::store::Snapshot;
use super::walk::{HistView, SeriesView, Sink, Value, walk};
use crate::vocab::{Identity, WorkloadId};

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus text 0.0.4.
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Format {
    /// The value of `Content-Type`.
    pub const fn content_type(self) -> &'static str {
        match self {
            Format::Text => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// What the page ends with.
    pub const fn end(self) -> &'static str {
        match self {
            Format::Text => "",
            Format::OpenMetrics => "# EOF\n",
        }
    }
}

/// Chooses the format a scraper prefers by its `Accept` header; text when it does not care.
pub fn negotiate(accept: Option<&str>) -> Format {
    let mut best = (0.0, Format::Text);
    for range in accept.unwrap_or("").split(',') {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next().unwrap_or("").to_ascii_lowercase();
        let (mut quality, mut version) = (1.0_f64, None);
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            let value = value.trim().trim_matches('"');
            match name.trim().to_ascii_lowercase().as_str() {
                "q" => quality = value.parse().unwrap_or(0.0),
                "version" => version = Some(value),
                _ => {}
            }
        }
        let format = match (media.as_str(), version) {
            ("application/openmetrics-text", None | Some("1.0.0")) => Format::OpenMetrics,
            ("text/plain", None | Some("0.0.4")) | ("text/*" | "*/*", _) => Format::Text,
            _ => continue,
        };
        if quality > best.0 {
            best = (quality, format);
        }
    }
    best.1
}

/// The parts of a page that were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups(u8);

impl Groups {
    /// Every part.
    pub const ALL: Groups = Groups(u8::MAX);

    /// Reads the values of `collect[]`; none means everything. The error is text for a 400.
    pub fn parse<'a>(values: impl IntoIterator<Item = &'a str>) -> Result<Groups, String> {
        let mut groups = 0;
        for value in values {
            let Some(group) = Group::from_label(value) else {
                let known: Vec<_> = Group::ALL.iter().map(|group| group.as_str()).collect();
                let shown: String = value.chars().take(64).collect();
                return Err(format!(
                    "unknown group {shown:?} in collect[]; groups: {}",
                    known.join(", ")
                ));
            };
            groups |= 1 << group as u8;
        }
        Ok(if groups == 0 {
            Groups::ALL
        } else {
            Groups(groups)
        })
    }

    /// Whether a part was asked for.
    pub const fn contains(self, group: Group) -> bool {
        self.0 & (1 << group as u8) != 0
    }
}

/// Writes a whole page.
pub fn render(snapshot: &Snapshot, input: &PageInput, format: Format, groups: Groups) -> String {
    let mut page = String::new();
    render_to(snapshot, input, format, groups, &mut |chunk| {
        page.push_str(chunk)
    });
    page.push_str(format.end());
    page
}

/// Writes a page in chunks of about 64 KiB, without its `Format::end`, so that others can add
/// families of their own and a large page need not be held in memory.
pub fn render_to(
    snapshot: &Snapshot,
    input: &PageInput,
    format: Format,
    groups: Groups,
    out: &mut dyn FnMut(&str),
) {
    let le = snapshot
        .bounds
        .iter()
        .map(|bounds| bounds.le.iter().map(|&x| le_text(x, format)).collect());
    let mut sink = TextSink {
        format,
        out,
        chunk: String::with_capacity(CHUNK + CHUNK / 4),
        def: Family::BuildInfo.def(),
        le: le.collect(),
        labels: String::new(),
        identity: (None, String::new()),
    };
    walk(snapshot, input, |group| groups.contains(group), &mut sink);
    (sink.out)(&sink.chunk);
}

const CHUNK: usize = 64 * 1024;

/// Writes text.
struct TextSink<'a> {
    format: Format,
    out: &'a mut dyn FnMut(&str),
    chunk: String,
    /// The current family.
    def: &'static MetricDef,
    /// Bounds as text, by family.
    le: Vec<Vec<String>>,
    /// The labels of the current series, without braces.
    labels: String,
    /// The identity labels of a workload, kept from series to series.
    identity: (Option<WorkloadId>, String),
}

impl TextSink<'_> {
    /// Puts the labels of a series together.
    fn set_labels(&mut self, series: &SeriesView<'_>) {
        self.labels.clear();
        if let Some((id, identity)) = series.identity {
            if self.identity.0 != Some(id) {
                self.identity.0 = Some(id);
                set_identity(&mut self.identity.1, identity);
            }
            self.labels.push_str(&self.identity.1);
        }
        for (label, value) in self.def.labels.iter().zip(series.labels) {
            push_label(&mut self.labels, label.as_str(), value);
        }
    }

    /// Begins a line: name, suffix, labels.
    fn line(&mut self, suffix: &str, le: Option<&str>) {
        let page = &mut self.chunk;
        page.push_str(match self.format {
            Format::Text => self.def.name,
            Format::OpenMetrics => self.def.open_metrics_name(),
        });
        page.push_str(suffix);
        if le.is_some() || !self.labels.is_empty() {
            page.push('{');
            page.push_str(&self.labels);
            if let Some(le) = le {
                page.push_str(if self.labels.is_empty() {
                    "le=\""
                } else {
                    ",le=\""
                });
                page.push_str(le);
                page.push('"');
            }
            page.push('}');
        }
        page.push(' ');
    }

    fn end_line(&mut self, value: Value) {
        match value {
            Value::Int(n) => push_int(&mut self.chunk, n),
            Value::Float(x) => push_float(&mut self.chunk, x),
        }
        self.chunk.push('\n');
    }

    fn created(&mut self, series: &SeriesView<'_>) {
        if self.format == Format::OpenMetrics {
            self.line("_created", None);
            self.end_line(Value::Float(series.created));
        }
    }

    fn flush(&mut self) {
        if self.chunk.len() >= CHUNK {
            (self.out)(&self.chunk);
            self.chunk.clear();
        }
    }
}

impl Sink for TextSink<'_> {
    fn family(&mut self, def: &'static MetricDef) {
        self.def = def;
        let open = self.format == Format::OpenMetrics;
        let name = if open {
            def.open_metrics_name()
        } else {
            def.name
        };
        let page = &mut self.chunk;
        page.push_str("# HELP ");
        page.push_str(name);
        page.push(' ');
        escape(page, def.help, open);
        for part in ["\n# TYPE ", name, " ", def.kind.as_str(), "\n"] {
            page.push_str(part);
        }
        if let (true, Some(unit)) = (open, def.unit.open_metrics()) {
            for part in ["# UNIT ", name, " ", unit, "\n"] {
                page.push_str(part);
            }
        }
    }

    fn value(&mut self, series: &SeriesView<'_>, value: Value) {
        self.set_labels(series);
        let counter = self.def.kind == Kind::Counter;
        let suffix = if counter && self.format == Format::OpenMetrics {
            "_total"
        } else {
            ""
        };
        self.line(suffix, None);
        self.end_line(value);
        if counter {
            self.created(series);
        }
        self.flush();
    }

    fn histogram(&mut self, series: &SeriesView<'_>, hist: &HistView<'_>) {
        self.set_labels(series);
        let les = std::mem::take(&mut self.le[self.def.family as usize]);
        let mut count = 0;
        for (le, n) in les.iter().zip(hist.cells) {
            count += n;
            self.line("_bucket", Some(le));
            self.end_line(Value::Int(count));
        }
        self.le[self.def.family as usize] = les;
        let count = Value::Int(hist.cells.iter().sum());
        self.line("_bucket", Some("+Inf"));
        self.end_line(count);
        self.line("_sum", None);
        self.end_line(Value::Float(hist.sum));
        self.line("_count", None);
        self.end_line(count);
        self.created(series);
        self.flush();
    }
}

fn set_identity(text: &mut String, identity: &Identity) {
    text.clear();
    for (label, value) in IDENTITY.iter().zip(identity_values(identity)) {
        push_label(text, label.as_str(), value);
    }
}

fn push_label(text: &mut String, name: &str, value: &str) {
    if !text.is_empty() {
        text.push(',');
    }
    text.push_str(name);
    text.push_str("=\"");
    escape(text, value, true);
    text.push('"');
}

/// Escapes backslash and newline, and the quote where it would end a value.
fn escape(text: &mut String, value: &str, quote: bool) {
    let special = |c: char| c == '\\' || c == '\n' || (quote && c == '"');
    let mut rest = value;
    while let Some(at) = rest.find(special) {
        text.push_str(&rest[..at]);
        text.push_str(match rest.as_bytes()[at] {
            b'\\' => "\\\\",
            b'\n' => "\\n",
            _ => "\\\"",
        });
        rest = &rest[at + 1..];
    }
    text.push_str(rest);
}

/// Writes a whole number. Most lines of a page end in one, so it is spelled out here.
fn push_int(text: &mut String, mut n: u64) {
    let mut digits = [0_u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    text.extend(digits[at..].iter().map(|&digit| char::from(digit)));
}

fn push_float(text: &mut String, x: f64) {
    if x.is_finite() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{x}");
    } else {
        text.push_str(if x.is_nan() {
            "NaN"
        } else if x > 0.0 {
            "+Inf"
        } else {
            "-Inf"
        });
    }
}

/// A bound as text: as the `prometheus` crate writes it, or OpenMetrics' canonical form (`%g`
/// with `.0` for whole numbers), which Prometheus 3 also makes of the former.
fn le_text(x: f64, format: Format) -> String {
    if format == Format::Text {
        return x.to_string();
    }
    let shortest = format!("{x:e}");
    let Some((mantissa, exponent)) = shortest.split_once('e') else {
        return shortest;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    // Go's rule for the shortest form.
    if !(-4..6).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    let plain = x.to_string();
    if plain.contains('.') {
        plain
    } else {
        format!("{plain}.0")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_have_the_canonical_text_of_open_metrics() {
        // The examples of the OpenMetrics specification.
        for (x, text) in [
            (0.001, "0.001"),
            (0.01, "0.01"),
            (0.1, "0.1"),
            (0.9, "0.9"),
            (0.95, "0.95"),
            (1.0, "1.0"),
            (1.7, "1.7"),
            (10.0, "10.0"),
            (1e-10, "1e-10"),
            (1e-9, "1e-09"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (100_000.0, "100000.0"),
            (1e6, "1e+06"),
            (1e10, "1e+10"),
            (1_048_576.0, "1.048576e+06"),
            (131_072.0, "131072.0"),
            (16_777_216.0, "1.6777216e+07"),
            (7200.0, "7200.0"),
        ] {
            assert_eq!(le_text(x, Format::OpenMetrics), text);
        }
        assert_eq!(le_text(1_048_576.0, Format::Text), "1048576");
    }

    #[test]
    fn numbers_are_written_exactly() {
        for n in [0, 9, 10, 1_234_567_890, u64::MAX] {
            let mut text = String::new();
            push_int(&mut text, n);
            assert_eq!(text, n.to_string());
        }
        let mut text = String::new();
        push_float(&mut text, f64::INFINITY);
        assert_eq!(text, "+Inf");
    }

    #[test]
    fn the_accept_header_decides() {
        let prometheus_2 = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let prometheus_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, format) in [
            (None, Format::Text),
            (Some(""), Format::Text),
            (Some("*/*"), Format::Text),
            (Some("text/html, */*;q=0.8"), Format::Text),
            (Some(prometheus_2), Format::OpenMetrics),
            (Some(prometheus_3), Format::OpenMetrics),
            (Some("application/openmetrics-text"), Format::OpenMetrics),
            (
                Some("Application/OpenMetrics-Text; Version=\"1.0.0\""),
                Format::OpenMetrics,
            ),
            (
                Some("application/openmetrics-text;version=0.0.1"),
                Format::Text,
            ),
            (Some("application/openmetrics-text;q=0"), Format::Text),
            (
                Some("application/openmetrics-text;q=0.3,text/plain;q=0.5"),
                Format::Text,
            ),
            (
                Some("text/plain,application/openmetrics-text"),
                Format::Text,
            ),
            (
                Some("application/vnd.google.protobuf;q=1,text/plain;q=0.1"),
                Format::Text,
            ),
            (Some(";;;=,=,q"), Format::Text),
        ] {
            assert_eq!(negotiate(accept), format, "{accept:?}");
        }
    }

    #[test]
    fn collect_selects_groups_and_names_those_it_knows() {
        assert_eq!(Groups::parse([]), Ok(Groups::ALL));
        let some = Groups::parse(["self", "stalls"]).unwrap();
        assert!(some.contains(Group::Agent) && some.contains(Group::Stalls));
        assert!(!some.contains(Group::Core));
        let error = Groups::parse(["core", "all"]).unwrap_err();
        assert!(
            error.contains("\"all\"") && error.contains("core, stalls, engines, dialects, self")
        );
    }
}
