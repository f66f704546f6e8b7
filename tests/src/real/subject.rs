//! The programs that the table is of, as data.

use std::path::{Path, PathBuf};

use super::{MODEL, Place, Program};
use crate::guard::NetNs;

/// What there is to know of a program that is to be measured.
pub(super) struct Subject {
    pub name: &'static str,
    pub title: &'static str,
    /// Its labels.
    pub engine: &'static str,
    pub tier: &'static str,
    pub source: Source,
    pub model: &'static str,
    /// A rule, for what is watched only when named.
    pub rule: Option<&'static str>,
    pub behind: Behind,
}

/// Where its version is from.
pub(super) enum Source {
    /// A distribution in its Python environment.
    Wheel(&'static str),
    /// A program below the place, called with a flag.
    Says(&'static str, &'static str),
}

/// What serves behind it.
pub(super) enum Behind {
    /// Nothing: it is the engine. Its port, and the path that answers once it is up.
    Nothing(u16, &'static str),
    /// llama.cpp's server.
    LlamaCpp(fn(&Place, &NetNs, &Program) -> Program),
}

pub(super) const XLLAMA: Subject = Subject {
    name: "xllama",
    title: "llama.cpp server (xllamacpp)",
    engine: "llamacpp",
    tier: "engine",
    source: Source::Wheel("xllamacpp"),
    model: MODEL,
    rule: None,
    behind: Behind::Nothing(8113, "/health"),
};

pub(super) const SUBJECTS: &[Subject] = &[
    XLLAMA,
    Subject {
        name: "smg",
        title: "SMG, in front of llama.cpp",
        engine: "smg",
        tier: "gateway",
        source: Source::Wheel("smg"),
        behind: Behind::LlamaCpp(Program::smg),
        ..XLLAMA
    },
    Subject {
        name: "nginx",
        title: "nginx, in front of llama.cpp",
        engine: "nginx",
        tier: "gateway",
        source: Source::Says("nginx/usr/sbin/nginx", "-v"),
        rule: Some("exe=nginx"),
        behind: Behind::LlamaCpp(Program::nginx),
        ..XLLAMA
    },
    Subject {
        name: "vllm",
        title: "vLLM (CPU)",
        engine: "vllm",
        source: Source::Wheel("vllm"),
        behind: Behind::Nothing(8100, "/health"),
        ..XLLAMA
    },
    Subject {
        name: "sglang",
        title: "SGLang (CPU)",
        engine: "sglang",
        source: Source::Wheel("sglang"),
        model: "tiny",
        behind: Behind::Nothing(8120, "/v1/models"),
        ..XLLAMA
    },
    Subject {
        name: "llama",
        title: "llama-server (static)",
        source: Source::Says("bin/llama-server", "--version"),
        behind: Behind::Nothing(8110, "/health"),
        ..XLLAMA
    },
];

impl Subject {
    pub fn labels(&self) -> [(&'static str, &'static str); 2] {
        [("engine", self.engine), ("tier", self.tier)]
    }

    /// As its Python distribution, or as it says itself.
    pub fn version(&self, place: &Place) -> String {
        let wheel = match self.source {
            Source::Wheel(wheel) => wheel,
            Source::Says(program, flag) => return said(&place.join(program), flag),
        };
        let lib = place.join("venvs").join(self.name).join("lib");
        let below = |dir: &Path| -> Vec<PathBuf> {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect()
        };
        let names = below(&lib)
            .iter()
            .flat_map(|python| below(&python.join("site-packages")))
            .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
            .collect::<Vec<_>>();
        let version = |name: &String| {
            let rest = name.strip_prefix(wheel)?.strip_prefix('-')?;
            rest.strip_suffix(".dist-info").map(str::to_owned)
        };
        names.iter().find_map(version).unwrap_or_default()
    }
}

/// What a program says of itself after the word "version".
fn said(program: &Path, flag: &str) -> String {
    let output = std::process::Command::new(program).arg(flag).output();
    let text = output.map_or_else(
        |_| String::new(),
        |out| String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned(),
    );
    let line = text.lines().find(|line| line.contains("version"));
    let (_, version) = line
        .unwrap_or_default()
        .split_once("version")
        .unwrap_or_default();
    version.trim_start_matches([':', ' ']).to_owned()
}
