//! Settings: flags over the config file over defaults.
//!
//! The file is TOML; its keys are the names of the flags without dashes in front, and what is
//! checked of one is checked of the other. A list given by flags replaces the file's list.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, ensure};
use serde::Deserialize;

use crate::metrics::{BucketEdge, parse_bucket_edge};
use crate::targets::rules::{Rule, RuleSet};

/// What the file or the flags say, unchecked. `None` = not said.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct FileConfig {
    /// Address and port of the endpoints.
    pub listen: Option<String>,
    /// Match rules.
    pub r#match: Option<Vec<String>>,
    /// Exclude rules.
    pub exclude: Option<Vec<String>>,
    /// Whether engines are recognised without a rule: `on` or `off`.
    pub recognise: Option<String>,
    /// Whether stalls are told, which needs hooks on the scheduler: `on` or `off`.
    pub stalls: Option<String>,
    /// `error`, `warn`, `info`, `debug` or `trace`.
    pub log_level: Option<String>,
    /// Most series of the agent's own.
    pub series_budget: Option<u64>,
    /// Most models admitted per workload.
    pub models_per_workload: Option<u32>,
    /// More bucket edges: `FAMILY=SECONDS`.
    pub bucket_edge: Option<Vec<String>>,
    /// Seconds for which the series of a workload outlive it.
    pub workload_grace: Option<u64>,
    /// Where `/proc` of the host is.
    pub proc_root: Option<PathBuf>,
}

/// Reads a config file.
pub fn load(path: &Path) -> Result<FileConfig> {
    let text = std::fs::read_to_string(path).with_context(|| {
        format!(
            "config file {}: cannot be read; check the path given with --config",
            path.display()
        )
    })?;
    parse(&text).with_context(|| {
        format!(
            "config file {}: keys are the names of the flags, see --help",
            path.display()
        )
    })
}

fn parse(text: &str) -> Result<FileConfig> {
    toml::from_str(text).map_err(Error::new)
}

/// A closed set of words.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident => $text:literal),+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            /// The word.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $text),+ }
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                match text {
                    $($text => Ok($name::$variant),)+
                    _ => Err(anyhow!("`{text}` is not known: use one of {}", [$($text),+].join(", "))),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    /// Whether something is done.
    Switch {
        /// It is.
        On => "on",
        /// It is not.
        Off => "off"
    }
}

words! {
    /// How much is logged.
    LogLevel {
        /// What failed for good.
        Error => "error",
        /// What failed for now.
        Warn => "warn",
        /// What began and ended.
        Info => "info",
        /// What was decided.
        Debug => "debug",
        /// Everything.
        Trace => "trace"
    }
}

/// What a run goes by.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Where the endpoints listen.
    pub listen: SocketAddr,
    /// Which processes are watched and which never.
    pub rules: RuleSet,
    /// Whether engines are recognised without a rule.
    pub recognise: Switch,
    /// Whether stalls are told.
    pub stalls: Switch,
    /// How much is logged.
    pub log_level: LogLevel,
    /// Most series of the agent's own.
    pub series_budget: usize,
    /// Most models admitted per workload.
    pub models_per_workload: usize,
    /// More bucket edges.
    pub bucket_edges: Vec<BucketEdge>,
    /// How long the series of a workload outlive it.
    pub workload_grace: Duration,
    /// Where `/proc` of the host is.
    pub proc_root: PathBuf,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 9469)),
            rules: RuleSet::default(),
            recognise: Switch::On,
            stalls: Switch::On,
            log_level: LogLevel::Info,
            series_budget: 200_000,
            models_per_workload: 64,
            bucket_edges: Vec::new(),
            workload_grace: Duration::from_secs(300),
            proc_root: PathBuf::from("/proc"),
        }
    }
}

impl Settings {
    /// Flags over file over defaults. Every value is checked; an error names its key, where it
    /// was given and what to write instead.
    pub fn merge(file: FileConfig, flags: FileConfig) -> Result<Self> {
        let mut settings = Self::default();
        // The file's values are checked also where a flag wins: they would be next time.
        settings.apply(file, "key", "")?;
        settings.apply(flags, "flag", "--")?;
        Ok(settings)
    }

    fn apply(&mut self, said: FileConfig, source: &str, dashes: &str) -> Result<()> {
        let wrong = |key: &str| format!("{source} `{dashes}{key}`");
        if let Some(text) = said.listen {
            self.listen = address(&text).with_context(|| wrong("listen"))?;
        }
        set_all(&mut self.rules.matches, said.r#match, Rule::parse_match)
            .with_context(|| wrong("match"))?;
        set_all(&mut self.rules.excludes, said.exclude, Rule::parse_exclude)
            .with_context(|| wrong("exclude"))?;
        set(&mut self.recognise, said.recognise, str::parse).with_context(|| wrong("recognise"))?;
        set(&mut self.stalls, said.stalls, str::parse).with_context(|| wrong("stalls"))?;
        set(&mut self.log_level, said.log_level, str::parse).with_context(|| wrong("log-level"))?;
        if let Some(budget) = said.series_budget {
            self.series_budget = above_0(budget).with_context(|| wrong("series-budget"))?;
        }
        if let Some(models) = said.models_per_workload {
            self.models_per_workload =
                above_0(models.into()).with_context(|| wrong("models-per-workload"))?;
        }
        set_all(&mut self.bucket_edges, said.bucket_edge, edge)
            .with_context(|| wrong("bucket-edge"))?;
        if let Some(seconds) = said.workload_grace {
            self.workload_grace = Duration::from_secs(seconds);
        }
        if let Some(root) = said.proc_root {
            self.proc_root = root;
        }
        Ok(())
    }
}

fn set<T>(slot: &mut T, text: Option<String>, read: impl Fn(&str) -> Result<T>) -> Result<()> {
    if let Some(text) = text {
        *slot = read(&text)?;
    }
    Ok(())
}

fn set_all<T>(
    slot: &mut Vec<T>,
    texts: Option<Vec<String>>,
    read: impl Fn(&str) -> Result<T>,
) -> Result<()> {
    if let Some(texts) = texts {
        *slot = texts.iter().map(|text| read(text)).collect::<Result<_>>()?;
    }
    Ok(())
}

fn edge(text: &str) -> Result<BucketEdge> {
    parse_bucket_edge(text).map_err(Error::msg)
}

fn above_0(number: u64) -> Result<usize> {
    ensure!(
        number > 0,
        "is 0: write a number above 0, or leave it out for the default"
    );
    usize::try_from(number).context("is too large")
}

/// `:9469` is every address.
fn address(text: &str) -> Result<SocketAddr> {
    let full = if text.starts_with(':') {
        format!("0.0.0.0{text}")
    } else {
        text.to_owned()
    };
    full.parse().map_err(|_| {
        anyhow!("`{text}` is no address: write ADDRESS:PORT, like 127.0.0.1:9469 or [::1]:9469")
    })
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
