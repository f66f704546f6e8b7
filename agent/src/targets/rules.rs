//! `--match` and `--exclude` rules: which processes are watched, and as what.
//!
//! A rule is one selector, for `--match` optionally followed by `,engine=NAME`:
//! `exe=GLOB` (a glob with a `/` is matched against the whole path, one without against the file
//! name), `cmdline=REGEX` (anywhere in the arguments joined by spaces), `port=N` (a TCP port it
//! listens on), `cgroup=GLOB` (the whole path of any of its cgroups). `*` matches `/` as well.

use std::fmt;

use anyhow::{Context, Result, anyhow, bail, ensure};
use globset::{GlobBuilder, GlobMatcher};
use regex::{Regex, RegexBuilder};

use crate::vocab::Engine;

/// A compiled regular expression may take this much memory.
const REGEX_CAP: usize = 1 << 20;

/// What a rule looks at.
#[derive(Clone, Copy, Debug)]
pub struct ProcessView<'a> {
    /// Path of the executable.
    pub exe: &'a str,
    /// Arguments joined by spaces.
    pub cmdline: &'a str,
    /// TCP ports it listens on.
    pub ports: &'a [u16],
    /// Paths of its cgroups.
    pub cgroups: &'a [String],
}

#[derive(Clone, Debug)]
enum Selector {
    ExeName(GlobMatcher),
    ExePath(GlobMatcher),
    Cmdline(Regex),
    Port(u16),
    Cgroup(GlobMatcher),
}

/// One rule.
#[derive(Clone, Debug)]
pub struct Rule {
    text: String,
    selector: Selector,
    engine: Option<Engine>,
}

impl Rule {
    /// Reads a `--match` rule.
    pub fn parse_match(text: &str) -> Result<Self> {
        Self::parse(text, true).with_context(|| format!("match rule `{text}`"))
    }

    /// Reads an `--exclude` rule, which names no engine.
    pub fn parse_exclude(text: &str) -> Result<Self> {
        Self::parse(text, false).with_context(|| format!("exclude rule `{text}`"))
    }

    fn parse(text: &str, engine_allowed: bool) -> Result<Self> {
        // The last comma only: a regular expression may hold others.
        let (selector, engine) = match text.rsplit_once(",engine=") {
            Some((selector, engine)) => (selector, Some(engine)),
            None => (text, None),
        };
        if engine.is_some() && !engine_allowed {
            bail!("an excluded process has no engine: leave out `,engine=...`");
        }
        Ok(Self {
            text: text.to_owned(),
            selector: parse_selector(selector)?,
            engine: engine.map(parse_engine).transpose()?,
        })
    }

    /// Whether the rule is about this process.
    pub fn matches(&self, process: &ProcessView<'_>) -> bool {
        match &self.selector {
            Selector::ExeName(glob) => {
                let name = process.exe.rsplit('/').next().unwrap_or_default();
                !name.is_empty() && glob.is_match(name)
            }
            Selector::ExePath(glob) => glob.is_match(process.exe),
            Selector::Cmdline(regex) => regex.is_match(process.cmdline),
            Selector::Port(port) => process.ports.contains(port),
            Selector::Cgroup(glob) => process.cgroups.iter().any(|path| glob.is_match(path)),
        }
    }

    /// The engine the operator says it is.
    pub fn engine(&self) -> Option<Engine> {
        self.engine
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

fn parse_selector(text: &str) -> Result<Selector> {
    let (name, value) = text.split_once('=').ok_or_else(|| {
        anyhow!("has no selector: write exe=GLOB, cmdline=REGEX, port=N or cgroup=GLOB")
    })?;
    ensure!(
        !value.is_empty(),
        "`{name}=` is empty: say what to look for after the `=`"
    );
    match name {
        "exe" if value.contains('/') => Ok(Selector::ExePath(glob(value)?)),
        "exe" => Ok(Selector::ExeName(glob(value)?)),
        "cmdline" => RegexBuilder::new(value)
            .size_limit(REGEX_CAP)
            .build()
            .map(Selector::Cmdline)
            .map_err(|error| {
                anyhow!("`{value}` is no regular expression: {error}; escape special characters with `\\`")
            }),
        "port" => match value.parse() {
            Ok(port) if port != 0 => Ok(Selector::Port(port)),
            _ => bail!("`{value}` is no TCP port: write a number from 1 to 65535"),
        },
        "cgroup" => Ok(Selector::Cgroup(glob(value)?)),
        _ => bail!("`{name}` is no selector: use one of exe, cmdline, port, cgroup"),
    }
}

fn glob(text: &str) -> Result<GlobMatcher> {
    GlobBuilder::new(text)
        .literal_separator(false)
        .build()
        .map(|glob| glob.compile_matcher())
        .map_err(|error| {
            anyhow!(
                "{error}; escape `*`, `?`, `[` and `{{` with `\\` where they are meant literally"
            )
        })
}

fn parse_engine(name: &str) -> Result<Engine> {
    Engine::from_label(name).ok_or_else(|| {
        let known: Vec<&str> = Engine::ALL.iter().map(|engine| engine.as_str()).collect();
        anyhow!("`{name}` is no engine: use one of {}", known.join(", "))
    })
}

/// What the rules say about a process.
#[derive(Clone, Copy, Debug)]
pub enum Verdict<'a> {
    /// An exclude rule matched: not watched, whatever else matches.
    Excluded(&'a Rule),
    /// A match rule matched: watched.
    Matched(&'a Rule),
    /// No rule: recognition decides.
    Silent,
}

/// All rules of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleSet {
    /// The first that matches decides the engine.
    pub matches: Vec<Rule>,
    /// They win over every match.
    pub excludes: Vec<Rule>,
}

impl RuleSet {
    /// Reads both lists.
    pub fn parse<S: AsRef<str>>(matches: &[S], excludes: &[S]) -> Result<Self> {
        Ok(Self {
            matches: matches
                .iter()
                .map(|t| Rule::parse_match(t.as_ref()))
                .collect::<Result<_>>()?,
            excludes: excludes
                .iter()
                .map(|t| Rule::parse_exclude(t.as_ref()))
                .collect::<Result<_>>()?,
        })
    }

    /// What they say about a process.
    pub fn verdict(&self, process: &ProcessView<'_>) -> Verdict<'_> {
        if let Some(rule) = self.excludes.iter().find(|rule| rule.matches(process)) {
            return Verdict::Excluded(rule);
        }
        match self.matches.iter().find(|rule| rule.matches(process)) {
            Some(rule) => Verdict::Matched(rule),
            None => Verdict::Silent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VLLM: ProcessView<'static> = ProcessView {
        exe: "/usr/bin/python3.11",
        cmdline: "/usr/bin/python3 /usr/local/bin/vllm serve Qwen/Qwen3-8B --port 8000",
        ports: &[8000],
        cgroups: &[],
    };

    fn hits(rule: &str) -> bool {
        Rule::parse_match(rule).unwrap().matches(&VLLM)
    }

    #[test]
    fn a_glob_without_a_slash_is_about_the_file_name() {
        assert!(hits("exe=python*"));
        assert!(!hits("exe=python"));
        assert!(!hits("exe=bin"));
        assert!(hits("exe=/usr/*/python3.?*"));
        assert!(hits("exe=/usr/*"));
        assert!(!hits("exe=/opt/*"));
    }

    #[test]
    fn a_kernel_thread_has_no_name_to_match() {
        let view = ProcessView { exe: "", ..VLLM };
        assert!(!Rule::parse_match("exe=*").unwrap().matches(&view));
    }

    #[test]
    fn a_regular_expression_is_searched_and_may_hold_commas() {
        assert!(hits("cmdline=vllm serve"));
        assert!(hits(r"cmdline=--port \d{2,4}$"));
        assert!(!hits("cmdline=^vllm"));
    }

    #[test]
    fn a_port_is_one_it_listens_on() {
        assert!(hits("port=8000"));
        assert!(!hits("port=8001"));
    }

    #[test]
    fn a_cgroup_is_matched_as_a_whole_in_any_hierarchy() {
        let cgroups = vec!["/".to_owned(), "/system.slice/docker-ab.scope".to_owned()];
        let view = ProcessView {
            cgroups: &cgroups,
            ..VLLM
        };
        assert!(Rule::parse_match("cgroup=*docker*").unwrap().matches(&view));
        assert!(!Rule::parse_match("cgroup=docker").unwrap().matches(&view));
    }

    #[test]
    fn the_engine_follows_the_last_comma() {
        let rule = Rule::parse_match("cmdline=a{1,2},engine=vllm").unwrap();
        assert_eq!(rule.engine(), Some(Engine::Vllm));
        assert_eq!(Rule::parse_match("port=1").unwrap().engine(), None);
        for &engine in Engine::ALL {
            let rule = Rule::parse_match(&format!("port=1,engine={}", engine.as_str())).unwrap();
            assert_eq!(rule.engine(), Some(engine));
        }
    }

    #[test]
    fn an_error_names_the_rule_and_the_remedy() {
        for (text, says) in [
            ("vllm", "write exe=GLOB"),
            ("pid=3", "use one of exe, cmdline, port, cgroup"),
            ("exe=", "say what to look for"),
            ("exe=[a", "escape"),
            ("cmdline=(", "no regular expression"),
            ("cmdline=(a{1000}){1000}", "no regular expression"),
            ("port=0", "1 to 65535"),
            ("port=70000", "1 to 65535"),
            ("port=http", "1 to 65535"),
            ("port=1,engine=vlm", "use one of vllm, sglang"),
            ("", "has no selector"),
        ] {
            let error = format!("{:#}", Rule::parse_match(text).unwrap_err());
            assert!(error.contains(&format!("match rule `{text}`")), "{error}");
            assert!(error.contains(says), "{error}");
        }
        let error = format!(
            "{:#}",
            Rule::parse_exclude("port=1,engine=vllm").unwrap_err()
        );
        assert!(
            error.contains("exclude rule `port=1,engine=vllm`"),
            "{error}"
        );
    }

    #[test]
    fn an_exclusion_wins_and_the_first_match_decides() {
        let rules = RuleSet::parse(
            &["port=8000,engine=sglang", "exe=python*,engine=vllm"],
            &["cmdline=Qwen3-32B"],
        )
        .unwrap();
        assert!(
            matches!(rules.verdict(&VLLM), Verdict::Matched(r) if r.engine() == Some(Engine::Sglang))
        );
        let view = ProcessView {
            cmdline: "vllm serve Qwen3-32B",
            ..VLLM
        };
        assert!(matches!(rules.verdict(&view), Verdict::Excluded(_)));
        let view = ProcessView {
            exe: "/bin/sh",
            ports: &[],
            cmdline: "",
            cgroups: &[],
        };
        assert!(matches!(rules.verdict(&view), Verdict::Silent));
    }
}
