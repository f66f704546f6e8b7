//! JSON by spans: values are slices of the capture, looked into on demand and never copied, so no
//! prompt or completion outlives the buffer it came in. Tolerates a cut end (`prefix`) and a cut
//! start (`Ending`). The cut start works because strings can be walked backwards without doubt
//! from a place known to be outside a string: an opening quote is never preceded by a backslash.
//! Nesting is a counter, so depth costs nothing. Not a validator: brackets are only balanced.

/// Longest model name kept, in bytes.
pub const MODEL_BYTES: usize = 256;

/// Most fields remembered of an object whose start is missing.
const ENDING_FIELDS: usize = 128;

/// One JSON value inside a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Json<'a> {
    span: &'a [u8],
    whole: bool,
}

impl<'a> Json<'a> {
    /// The value `bytes` begin with, whether or not they hold its end.
    pub fn prefix(bytes: &'a [u8]) -> Json<'a> {
        let start = skip_space(bytes, 0);
        let (end, whole) = skip_value(bytes, start);
        Json {
            span: &bytes[start..end],
            whole,
        }
    }

    /// The value that is all of `bytes`, or `None` when they are cut or hold more than one.
    pub fn exact(bytes: &'a [u8]) -> Option<Json<'a>> {
        let value = Json::prefix(bytes);
        let end = skip_space(bytes, skip_space(bytes, 0) + value.span.len());
        (end == bytes.len() && (value.whole || value.is_scalar())).then_some(Json {
            whole: true,
            ..value
        })
    }

    /// Whether its end was captured.
    pub fn whole(&self) -> bool {
        self.whole
    }

    /// Whether it is an object.
    pub fn is_object(&self) -> bool {
        self.span.first() == Some(&b'{')
    }

    /// Whether it is an array.
    pub fn is_array(&self) -> bool {
        self.span.first() == Some(&b'[')
    }

    /// Whether it is the literal `null`.
    pub fn is_null(&self) -> bool {
        self.span == b"null"
    }

    fn is_scalar(&self) -> bool {
        !self.span.is_empty() && !matches!(self.span[0], b'{' | b'[' | b'"')
    }

    /// Whether it is a string of at least one character.
    pub fn is_filled_text(&self) -> bool {
        self.span.len() > 1 && self.span[0] == b'"' && self.span[1] != b'"'
    }

    /// Whether it holds anything: a non-empty string, array or object. Numbers and literals do not
    /// count.
    pub fn is_filled(&self) -> bool {
        match self.span.first() {
            Some(b'"') => self.is_filled_text(),
            Some(b'[') => self.items().next().is_some(),
            Some(b'{') => self.fields().next().is_some(),
            _ => false,
        }
    }

    /// The fields of an object in order; of anything else none.
    pub fn fields(&self) -> Fields<'a> {
        Fields {
            bytes: if self.is_object() { self.span } else { &[] },
            at: 1,
        }
    }

    /// The items of an array in order; of anything else none.
    pub fn items(&self) -> Items<'a> {
        Items {
            bytes: if self.is_array() { self.span } else { &[] },
            at: 1,
        }
    }

    /// The field with this key; of several the last, as decoders do.
    pub fn get(&self, key: &str) -> Option<Json<'a>> {
        self.fields()
            .filter(|(name, _)| *name == key.as_bytes())
            .last()
            .map(|(_, value)| value)
    }

    /// The raw inside of a whole string, escapes as they stand.
    pub fn raw_text(&self) -> Option<&'a [u8]> {
        (self.whole && self.span.len() > 1 && self.span[0] == b'"')
            .then(|| &self.span[1..self.span.len() - 1])
    }

    /// A non-negative whole number.
    pub fn number(&self) -> Option<u64> {
        if !self.whole || self.span.is_empty() || !self.span.iter().all(u8::is_ascii_digit) {
            return None;
        }
        std::str::from_utf8(self.span).ok()?.parse().ok()
    }

    /// `true` or `false`.
    pub fn boolean(&self) -> Option<bool> {
        match self.span {
            b"true" if self.whole => Some(true),
            b"false" if self.whole => Some(false),
            _ => None,
        }
    }

    /// A string that may be a model name: see [`model_name`].
    pub fn model(&self) -> Option<String> {
        let raw = self.raw_text()?;
        if raw.len() > MODEL_BYTES * 6 {
            return None;
        }
        model_name(&serde_json::from_slice::<String>(self.span).ok()?)
    }
}

/// `text` as a model name: 1 to 256 bytes of characters that print. Control, format and
/// direction characters (U+202E and the like), separators other than the blank, private and
/// unassigned ones would let two names look like one, or one break a page that shows it.
pub fn model_name(text: &str) -> Option<String> {
    let fits = !text.is_empty() && text.len() <= MODEL_BYTES && prints(text);
    fits.then(|| text.to_owned())
}

/// Whether every character prints and the first is no combining mark: whether the debug form,
/// which escapes all others, is longer by the backslashes of quotes and backslashes only.
fn prints(text: &str) -> bool {
    let quoted = text
        .chars()
        .filter(|c| matches!(c, '\\' | '"' | '\''))
        .count();
    text.escape_debug().count() == text.chars().count() + quoted
}

/// Iterator over an object's fields as raw key and value.
#[derive(Debug)]
pub struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Fields<'a> {
    type Item = (&'a [u8], Json<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let start = skip_separators(self.bytes, self.at);
        self.at = self.bytes.len();
        if self.bytes.get(start) != Some(&b'"') {
            return None;
        }
        let (end, true) = skip_string(self.bytes, start) else {
            return None;
        };
        let colon = skip_space(self.bytes, end);
        if self.bytes.get(colon) != Some(&b':') {
            return None;
        }
        let value = skip_space(self.bytes, colon + 1);
        let (value_end, whole) = skip_value(self.bytes, value);
        if value_end == value {
            return None;
        }
        self.at = value_end;
        Some((
            &self.bytes[start + 1..end - 1],
            Json {
                span: &self.bytes[value..value_end],
                whole,
            },
        ))
    }
}

/// Iterator over an array's items.
#[derive(Debug)]
pub struct Items<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Iterator for Items<'a> {
    type Item = Json<'a>;

    fn next(&mut self) -> Option<Json<'a>> {
        let start = skip_separators(self.bytes, self.at);
        let (end, whole) = skip_value(self.bytes, start);
        self.at = end;
        (end > start).then(|| Json {
            span: &self.bytes[start..end],
            whole,
        })
    }
}

/// What the last bytes of an object say: its last fields, and the last fields of the member that
/// was cut, whose own key is not known.
#[derive(Debug, Default)]
pub struct Ending<'a> {
    /// Fields of the object itself, last first. All whole.
    pub fields: Vec<(&'a [u8], Json<'a>)>,
    /// Fields of a cut object that is a member of it, last first. All whole.
    pub orphans: Vec<(&'a [u8], Json<'a>)>,
    /// Whether the object's own start was captured, so that no field is missing.
    pub from_start: bool,
}

impl<'a> Ending<'a> {
    /// Reads `bytes` backwards. `None` unless they end an object.
    pub fn read(bytes: &'a [u8]) -> Option<Ending<'a>> {
        let mut at = trim_end(bytes).len().checked_sub(1)?;
        if bytes[at] != b'}' {
            return None;
        }
        let mut ending = Ending::default();
        let mut depth = 1_usize;
        let mut ends = [at; 2];
        let mut colons = [None; 2];
        while at > 0 {
            at -= 1;
            match bytes[at] {
                b'"' => {
                    let Some(open) = string_open(bytes, at) else {
                        break;
                    };
                    if depth <= 2
                        && let Some(colon) = colons[depth - 1].take()
                    {
                        let value: usize = skip_space(bytes, colon + 1);
                        let span = trim_end(&bytes[value.min(ends[depth - 1])..ends[depth - 1]]);
                        let fields = if depth == 1 {
                            &mut ending.fields
                        } else {
                            &mut ending.orphans
                        };
                        if fields.len() < ENDING_FIELDS && !span.is_empty() {
                            fields.push((&bytes[open + 1..at], Json { span, whole: true }));
                        }
                    }
                    at = open;
                }
                b':' if depth <= 2 => colons[depth - 1] = Some(at),
                b',' if depth <= 2 => {
                    ends[depth - 1] = at;
                    colons[depth - 1] = None;
                }
                b'}' | b']' => {
                    depth += 1;
                    if depth == 2 {
                        ends[1] = at;
                        colons[1] = None;
                    }
                }
                b'{' | b'[' => {
                    depth -= 1;
                    if depth == 1 {
                        ending.orphans.clear();
                    }
                    if depth == 0 {
                        ending.from_start = true;
                        break;
                    }
                }
                _ => {}
            }
        }
        if depth < 2 {
            ending.orphans.clear();
        }
        Some(ending)
    }

    /// The field of the object with this key; of several the last.
    pub fn get(&self, key: &str) -> Option<Json<'a>> {
        self.fields
            .iter()
            .find(|(name, _)| *name == key.as_bytes())
            .map(|(_, value)| *value)
    }

    /// The field of the cut member with this key.
    pub fn orphan(&self, key: &str) -> Option<Json<'a>> {
        self.orphans
            .iter()
            .find(|(name, _)| *name == key.as_bytes())
            .map(|(_, value)| *value)
    }
}

/// Where the string that closes at `close` opens; `None` when that cannot be told.
fn string_open(bytes: &[u8], close: usize) -> Option<usize> {
    let mut end = close;
    loop {
        let quote = bytes[..end].iter().rposition(|&b| b == b'"')?;
        let slashes = bytes[..quote]
            .iter()
            .rev()
            .take_while(|&&b| b == b'\\')
            .count();
        // At the very start of the capture a backslash may have been cut off.
        if slashes == quote {
            return None;
        }
        if slashes.is_multiple_of(2) {
            return Some(quote);
        }
        end = quote;
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

fn skip_space(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && is_space(bytes[at]) {
        at += 1;
    }
    at
}

fn skip_separators(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && (is_space(bytes[at]) || bytes[at] == b',') {
        at += 1;
    }
    at.min(bytes.len())
}

/// `bytes` without white space at the end.
pub fn trim_end(bytes: &[u8]) -> &[u8] {
    let end = bytes
        .iter()
        .rposition(|&b| !is_space(b))
        .map_or(0, |last| last + 1);
    &bytes[..end]
}

/// The place after the string that opens at `at`, and whether its end is there.
fn skip_string(bytes: &[u8], at: usize) -> (usize, bool) {
    let mut i = at + 1;
    while i < bytes.len() {
        match bytes[i] {
            b'"' => return (i + 1, true),
            b'\\' => i += 2,
            _ => i += 1,
        }
    }
    (bytes.len(), false)
}

/// The place after the value at `at`, and whether its end is there.
fn skip_value(bytes: &[u8], at: usize) -> (usize, bool) {
    match bytes.get(at) {
        None => (at.min(bytes.len()), false),
        Some(b'"') => skip_string(bytes, at),
        Some(b'{' | b'[') => skip_nested(bytes, at),
        Some(_) => {
            let length = bytes[at..]
                .iter()
                .position(|&b| is_space(b) || matches!(b, b',' | b':' | b'}' | b']' | b'"'));
            length.map_or((bytes.len(), false), |length| (at + length, true))
        }
    }
}

fn skip_nested(bytes: &[u8], at: usize) -> (usize, bool) {
    let mut depth = 0_usize;
    let mut i = at;
    while i < bytes.len() {
        match bytes[i] {
            b'"' => {
                let (end, whole) = skip_string(bytes, i);
                if !whole {
                    break;
                }
                i = end;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return (i + 1, true);
                }
            }
            _ => {}
        }
        i += 1;
    }
    (bytes.len(), false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::noise::Noise;

    #[test]
    fn fields_are_found_in_any_order_and_the_last_of_a_key_wins() {
        let json = Json::prefix(br#" {"a":1, "b" : {"c":[1,2,{"d":"x"}]},"a":2}"#);
        assert!(json.whole());
        assert_eq!(json.get("a").and_then(|v| v.number()), Some(2));
        let c = json.get("b").and_then(|b| b.get("c")).expect("c");
        assert_eq!(c.items().count(), 3);
        assert_eq!(json.get("d"), None, "nested keys are not top-level keys");
    }

    #[test]
    fn a_key_inside_a_string_is_no_key() {
        let json = Json::prefix(br#"{"prompt":"say \"model\":\"evil\", \\","model":"good"}"#);
        assert_eq!(
            json.get("model").and_then(|v| v.model()).as_deref(),
            Some("good")
        );
    }

    #[test]
    fn a_cut_number_is_not_a_number() {
        let json = Json::prefix(br#"{"a":12,"b":12"#);
        assert_eq!(json.get("a").and_then(|v| v.number()), Some(12));
        assert_eq!(json.get("b").and_then(|v| v.number()), None);
        assert!(!json.whole());
    }

    #[test]
    fn an_ending_gives_the_same_fields_wherever_it_is_cut() {
        let text = br#"{"p":"a \"model\":\"evil\" \\\\\"","list":[{"x":"}"},"]"],"o":{"model":"no"},"model":"m\u0041","s":true, "n" : 5 }"#;
        for cut in 0..text.len() - 1 {
            let ending = Ending::read(&text[cut..]).expect("ends an object");
            assert_eq!(ending.from_start, cut == 0, "cut at {cut}");
            if let Some(model) = ending.get("model") {
                assert_eq!(model.model().as_deref(), Some("mA"), "cut at {cut}");
            }
            if let Some(n) = ending.get("n") {
                assert_eq!(n.number(), Some(5));
            }
        }
        let ending = Ending::read(&text[60..]).expect("ends an object");
        assert_eq!(ending.get("s").and_then(|v| v.boolean()), Some(true));
    }

    #[test]
    fn fields_of_a_cut_member_are_orphans() {
        let ending = Ending::read(br#"xx","usage":{"output_tokens":5},"user":null},"type":"t"}"#)
            .expect("ending");
        assert_eq!(
            ending.get("type").and_then(|v| v.raw_text()),
            Some(&b"t"[..])
        );
        assert_eq!(ending.get("usage"), None);
        let usage = ending.orphan("usage").expect("orphan");
        assert_eq!(usage.get("output_tokens").and_then(|v| v.number()), Some(5));
    }

    #[test]
    fn an_escaped_quote_cut_from_its_backslash_is_not_trusted() {
        // The first byte may have been `\"` in the whole text: nothing before it is known.
        let ending = Ending::read(br#"","model":"x"}"#).expect("ending");
        assert_eq!(
            ending.get("model").and_then(|v| v.model()).as_deref(),
            Some("x")
        );
        let ending = Ending::read(br#"":"x"}"#).expect("ending");
        assert!(ending.fields.is_empty());
    }

    #[test]
    fn model_names_are_bounded_and_clean() {
        assert_eq!(Json::prefix(br#""a\u0007b""#).model(), None);
        assert_eq!(Json::prefix(br#""""#).model(), None);
        assert_eq!(Json::prefix(b"\"\xff\xfe\"").model(), None);
        for hostile in [
            "a\u{202e}b",
            "\u{2066}a",
            "a\u{200b}b",
            "a\u{feff}",
            "a\u{ad}b",
            "a\u{2028}b",
            "a\u{85}",
            "a\u{a0}b",
            "a\u{e0041}",
            "a\u{e000}",
            "\u{301}a",
            "a\nb",
            "a\tb",
            "a\0",
            "\u{7f}",
        ] {
            assert_eq!(model_name(hostile), None, "{hostile:?}");
        }
        for fine in [
            "org/m-1.5:q4",
            "a \"b\" \\ 'c'",
            "\u{e9}\u{4e2d}\u{301}",
            "{}=,;",
            "\u{1f999}",
        ] {
            assert_eq!(model_name(fine).as_deref(), Some(fine));
        }
        assert_eq!(
            Json::prefix(br#""\u00e9/x""#).model().as_deref(),
            Some("\u{e9}/x")
        );
        let long = format!("\"{}\"", "m".repeat(257));
        assert_eq!(Json::prefix(long.as_bytes()).model(), None);
        assert_eq!(Json::prefix(b"\"cut").model(), None);
    }

    #[test]
    fn exact_means_one_whole_value() {
        assert!(Json::exact(b" {\"a\":[1]} \n").is_some());
        assert!(Json::exact(b"{}{}").is_none());
        assert!(Json::exact(b"{\"a\":").is_none());
        assert!(Json::exact(b"12").is_some());
        assert!(Json::exact(b"").is_none());
    }

    #[test]
    fn deep_nesting_costs_no_stack() {
        let deep = vec![b'['; 1 << 20];
        assert!(!Json::prefix(&deep).whole());
        let mut closed = vec![b'}'; 1 << 20];
        assert!(Ending::read(&closed).is_some());
        closed.extend_from_slice(b"\"a\":1}");
        assert_eq!(
            Ending::read(&closed)
                .and_then(|e| e.get("a"))
                .and_then(|v| v.number()),
            Some(1)
        );
    }

    #[test]
    fn noise_never_panics() {
        let mut noise = Noise::new(7);
        for _ in 0..20_000 {
            let bytes = noise.bytes(120);
            let json = Json::prefix(&bytes);
            for (_, value) in json.fields().take(50) {
                let _ = (
                    value.model(),
                    value.number(),
                    value.is_filled(),
                    value.items().count(),
                );
            }
            let _ = Json::exact(&bytes);
            let _ = Ending::read(&bytes);
        }
    }
}
