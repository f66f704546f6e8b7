//! What a process shows of itself from outside, and how its command line is to be read. Python
//! programs are told by module or script, programs that overwrote their command line by title,
//! others by executable. The environment is not read.

/// What `/proc` says of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessFacts {
    /// `/proc/PID/comm`, at most 15 bytes.
    pub comm: String,
    /// The arguments in `/proc/PID/cmdline`, the program's own name first.
    pub cmdline: Vec<String>,
    /// Where `/proc/PID/exe` points; empty if it cannot be read.
    pub exe: String,
    /// Paths of the distinct files it has mapped.
    pub mapped: Vec<String>,
}

/// By what a process was recognised: a short text from a closed set.
pub type Why = &'static str;

/// What a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program<'a> {
    /// A Python module: `python -m NAME`.
    Module(&'a str),
    /// A Python script, by the last component of its path.
    Script(&'a str),
    /// A native executable, by the last component of its path.
    Binary(&'a str),
    /// A title written over the command line of an interpreter.
    Title(&'a str),
    /// A Python process started by `multiprocessing`, or code on the command line.
    Code,
}

/// A process and the reading of its command line.
pub(super) struct Process<'a> {
    pub(super) facts: &'a ProcessFacts,
    pub(super) program: Program<'a>,
    /// The arguments of the program itself.
    pub(super) args: &'a [String],
}

impl<'a> Process<'a> {
    pub(super) fn read(facts: &'a ProcessFacts) -> Process<'a> {
        let used = facts
            .cmdline
            .iter()
            .rposition(|arg| !arg.is_empty())
            .map_or(0, |last| last + 1);
        let cmdline = &facts.cmdline[..used];
        let exe = base(facts.exe.trim_end_matches(" (deleted)"));
        let Some(first) = cmdline.first() else {
            let program = if exe.is_empty() || is_python(exe) {
                Program::Title(&facts.comm)
            } else {
                Program::Binary(exe)
            };
            return Process {
                facts,
                program,
                args: &[],
            };
        };
        let named = base(first);
        let (program, args) = if is_python(named) && (exe.is_empty() || is_python(exe)) {
            python(&cmdline[1..])
        } else if is_python(exe) || (exe.is_empty() && cmdline.len() == 1 && first.contains("::")) {
            (Program::Title(first), &[][..])
        } else {
            (
                Program::Binary(if exe.is_empty() { named } else { exe }),
                &cmdline[1..],
            )
        };
        Process {
            facts,
            program,
            args,
        }
    }

    /// The title an interpreter process gave itself.
    pub(super) fn title(&self) -> Option<&'a str> {
        match self.program {
            Program::Title(title) => Some(title),
            Program::Binary(_) => None,
            _ => self
                .facts
                .comm
                .contains("::")
                .then_some(self.facts.comm.as_str()),
        }
    }

    /// Whether its title begins so; a title cut to 15 bytes is compared as far as it goes.
    pub(super) fn titled(&self, start: &str) -> bool {
        self.title().is_some_and(|title| {
            title.starts_with(start) || (title.len() == 15 && start.starts_with(title))
        })
    }

    /// Whether it has mapped a file whose path contains `part`.
    pub(super) fn maps(&self, part: &str) -> bool {
        self.facts.mapped.iter().any(|path| path.contains(part))
    }

    /// Whether it runs this script or module with this as its first argument.
    pub(super) fn runs(&self, name: &str, command: &str) -> bool {
        matches!(self.program, Program::Script(n) | Program::Module(n) if n == name)
            && self.args.first().is_some_and(|arg| arg == command)
            && !self.only_asks()
    }

    /// Whether it runs one of these modules.
    pub(super) fn module(&self, names: &[&str]) -> bool {
        matches!(self.program, Program::Module(name) if names.contains(&name)) && !self.only_asks()
    }

    /// Whether it runs one of these scripts.
    pub(super) fn script(&self, names: &[&str]) -> bool {
        matches!(self.program, Program::Script(name) if names.contains(&name)) && !self.only_asks()
    }

    /// Whether it runs one of these executables.
    pub(super) fn binary(&self, names: &[&str]) -> bool {
        matches!(self.program, Program::Binary(name) if names.contains(&name)) && !self.only_asks()
    }

    /// Whether it was only started for its help or version.
    fn only_asks(&self) -> bool {
        self.args
            .iter()
            .any(|arg| matches!(arg.as_str(), "--help" | "--version"))
    }
}

/// The last component of a path.
pub(super) fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn is_python(name: &str) -> bool {
    let rest = name
        .strip_prefix("python")
        .or_else(|| name.strip_prefix("pypy"));
    rest.is_some_and(|rest| {
        rest.bytes()
            .all(|b| b.is_ascii_digit() || b".tdm".contains(&b))
    })
}

/// What the arguments of a Python interpreter run.
fn python(args: &[String]) -> (Program<'_>, &[String]) {
    let mut at = 0;
    while let Some(arg) = args.get(at) {
        at += 1;
        if let Some(module) = arg.strip_prefix("-m").filter(|module| !module.is_empty()) {
            return (Program::Module(module), &args[at..]);
        }
        match arg.as_str() {
            "-W" | "-X" | "--check-hash-based-pycs" => at += 1,
            "-" => return (Program::Code, &[]),
            flag if flag.starts_with("--") => {}
            flag if flag.starts_with('-') && flag.ends_with('m') => {
                let Some(module) = args.get(at) else { break };
                return (Program::Module(module), &args[at + 1..]);
            }
            flag if flag.starts_with('-') && flag.ends_with('c') => return (Program::Code, &[]),
            flag if flag.starts_with('-') => {}
            script => return (Program::Script(base(script)), &args[at..]),
        }
    }
    (Program::Code, &[])
}
