//! Whether a process is watched, and why.

use crate::config::{Settings, Switch};
use crate::engines::{self, ProcessFacts};
use crate::targets::proc::Process;
use crate::targets::rules::{ProcessView, Verdict};
use crate::vocab::{Engine, Role};

/// What is done with the listeners of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Watched.
    Watch {
        /// What it is.
        engine: Engine,
        /// Its part.
        role: Role,
        /// Why, in words.
        why: String,
    },
    /// Watched as soon as its traffic shows that it answers an inference route.
    Recognise {
        /// Why not watched yet.
        why: String,
    },
    /// Not looked at.
    Ignore {
        /// Why not.
        why: String,
    },
}

/// The facts by which profiles recognise a process.
pub fn facts_of(process: &Process) -> ProcessFacts {
    ProcessFacts {
        comm: process.comm.clone(),
        cmdline: process.cmdline.clone(),
        exe: process.exe.clone(),
        mapped: process.mapped.iter().map(|m| m.path.clone()).collect(),
    }
}

/// Decides about a process that listens on `ports`. `fronts` tells whether it was seen to call a
/// watched engine.
pub fn decide(settings: &Settings, process: &Process, ports: &[u16], fronts: bool) -> Decision {
    let cmdline = process.command_line();
    let cgroups = process.cgroup_paths();
    let view = ProcessView {
        exe: &process.exe,
        cmdline: &cmdline,
        ports,
        cgroups: &cgroups,
    };
    let found = engines::recognise(&facts_of(process));
    match settings.rules.verdict(&view) {
        Verdict::Excluded(rule) => {
            return Decision::Ignore {
                why: format!("excluded by `{rule}`"),
            };
        }
        Verdict::Matched(rule) => {
            let engine = rule
                .engine()
                .or(found.map(|f| f.engine))
                .unwrap_or(Engine::OpenAi);
            let role = found
                .filter(|f| f.engine == engine)
                .map_or(Role::Api, |f| f.role);
            return Decision::Watch {
                engine,
                role,
                why: format!("matches `{rule}`"),
            };
        }
        Verdict::Silent => {}
    }
    match found {
        Some(f) if !engines::only_when_named(f.engine) => Decision::Watch {
            engine: f.engine,
            role: f.role,
            why: f.why.to_owned(),
        },
        Some(f) if fronts => Decision::Watch {
            engine: f.engine,
            role: f.role,
            why: format!("{}, calls a watched engine", f.why),
        },
        Some(f) => Decision::Ignore {
            why: format!(
                "{} is watched when a rule names it or its upstream is watched",
                f.engine.as_str()
            ),
        },
        None if settings.recognise == Switch::On => Decision::Recognise {
            why: "no profile; its traffic is looked at".to_owned(),
        },
        None => Decision::Ignore {
            why: "no profile and no rule".to_owned(),
        },
    }
}
