//! The name of a program that runs outside units and containers: the file name of its
//! executable, or of what an interpreter was told to run.
//!
//! `python -m vllm.entrypoints.api_server` is `vllm.entrypoints.api_server` (a module's last
//! part alone would say `api_server`), `python /opt/bin/vllm serve` is `vllm`, `java -jar x.jar`
//! is `x.jar`. Code given with `-c` or `-e` never becomes a name. Names are bounded and hold only
//! letters, digits and `._@+-`.

use super::proc::Process;

/// Longest name.
const NAME_CAP: usize = 64;

/// A name and whether the process told it itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProgramName {
    pub text: String,
    /// False for an interpreter whose arguments do not say what it runs.
    pub telling: bool,
}

/// How an interpreter's command line is read.
struct Grammar {
    /// Start of the executable's file name; the rest may be a version (`python3.11`).
    stem: &'static str,
    /// Single-letter options that take a value.
    valued: &'static str,
    /// Single-letter options whose value is the module to run.
    module: &'static str,
    /// Single-letter options whose value is code.
    code: &'static str,
    /// Long options that take the next argument as value.
    long_valued: &'static [&'static str],
    /// Long options after which no script follows.
    long_code: &'static [&'static str],
}

const SHELL: Grammar = Grammar {
    stem: "sh",
    valued: "oO",
    module: "",
    code: "c",
    long_valued: &["--rcfile", "--init-file"],
    long_code: &[],
};

const GRAMMARS: &[Grammar] = &[
    Grammar {
        stem: "python",
        valued: "WX",
        module: "m",
        code: "c",
        long_valued: &["--check-hash-based-pycs"],
        long_code: &[],
    },
    Grammar {
        stem: "pypy",
        valued: "WX",
        module: "m",
        code: "c",
        long_valued: &[],
        long_code: &[],
    },
    Grammar {
        stem: "node",
        valued: "rC",
        module: "",
        code: "ep",
        long_valued: &[
            "--require",
            "--import",
            "--loader",
            "--experimental-loader",
            "--env-file",
        ],
        long_code: &["--eval", "--print"],
    },
    Grammar {
        stem: "ruby",
        valued: "rIEC",
        module: "",
        code: "e",
        long_valued: &[],
        long_code: &[],
    },
    Grammar {
        stem: "perl",
        valued: "",
        module: "",
        code: "eE",
        long_valued: &[],
        long_code: &[],
    },
    SHELL,
    Grammar {
        stem: "bash",
        ..SHELL
    },
    Grammar {
        stem: "dash",
        ..SHELL
    },
];

/// The name of a program.
pub(super) fn program_name(process: &Process) -> ProgramName {
    let file = base_name(&process.exe);
    let file = if file.is_empty() {
        process.comm.as_str()
    } else {
        file
    };
    let arguments = process.cmdline.get(1..).unwrap_or_default();
    let told = if file == "java" {
        Some(java_target(arguments))
    } else {
        GRAMMARS
            .iter()
            .find(|grammar| grammar.speaks(file))
            .map(|grammar| grammar.target(arguments))
    };
    let (text, telling) = match told {
        Some(Some(target)) => (target, true),
        Some(None) => (file, false),
        None => (file, true),
    };
    ProgramName {
        text: bounded(text),
        telling,
    }
}

impl Grammar {
    /// The stem alone or followed by a version.
    fn speaks(&self, file: &str) -> bool {
        file.strip_prefix(self.stem)
            .is_some_and(|version| version.bytes().all(|b| b.is_ascii_digit() || b == b'.'))
    }

    /// The script or module among the arguments.
    fn target<'a>(&self, arguments: &'a [String]) -> Option<&'a str> {
        let mut arguments = arguments.iter().map(String::as_str);
        while let Some(argument) = arguments.next() {
            if argument == "--" {
                return arguments.next().map(base_name);
            }
            if argument.starts_with("--") {
                let option = argument.split('=').next().unwrap_or_default();
                if self.long_code.contains(&option) {
                    return None;
                }
                if self.long_valued.contains(&argument) {
                    arguments.next();
                }
                continue;
            }
            let Some(cluster) = argument.strip_prefix('-').filter(|rest| !rest.is_empty()) else {
                // `-` alone is standard input.
                return (argument != "-").then(|| base_name(argument));
            };
            // `-um vllm`: a cluster ends at the first option that takes a value.
            let Some(at) = cluster.find(|c| {
                self.valued.contains(c) || self.module.contains(c) || self.code.contains(c)
            }) else {
                continue;
            };
            let (option, attached) = cluster[at..].split_at(1);
            if self.code.contains(option) {
                return None;
            }
            let value = if attached.is_empty() {
                arguments.next()
            } else {
                Some(attached)
            };
            if self.module.contains(option) {
                return value;
            }
        }
        None
    }
}

/// The archive or main class.
fn java_target(arguments: &[String]) -> Option<&str> {
    let mut arguments = arguments.iter().map(String::as_str);
    while let Some(argument) = arguments.next() {
        match argument {
            "-jar" => return arguments.next().map(base_name),
            "-m" | "--module" => return arguments.next(),
            "-cp" | "-classpath" | "--class-path" | "-p" | "--module-path" | "--add-opens"
            | "--add-exports" | "--add-modules" => {
                arguments.next();
            }
            _ if argument.starts_with('-') || argument.starts_with('@') => {}
            class => return Some(class),
        }
    }
    None
}

fn base_name(path: &str) -> &str {
    path.trim_end_matches('/')
        .rsplit('/')
        .next()
        .unwrap_or_default()
}

fn bounded(text: &str) -> String {
    text.chars()
        .take(NAME_CAP)
        .map(|c| {
            if c.is_ascii_alphanumeric() || "._@+-".contains(c) {
                c
            } else {
                '_'
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::testing::process;

    fn named(exe: &str, cmdline: &[&str]) -> (String, bool) {
        let name = program_name(&process(exe, cmdline));
        (name.text, name.telling)
    }

    #[test]
    fn an_interpreter_is_named_by_what_it_runs() {
        for (exe, cmdline, expected) in [
            (
                "/usr/bin/python3.11",
                &["python3", "/usr/local/bin/vllm", "serve", "m"][..],
                "vllm",
            ),
            (
                "/usr/bin/python3.11",
                &["python3", "-u", "-m", "sglang.launch_server"],
                "sglang.launch_server",
            ),
            ("/usr/bin/python3", &["python3", "-um", "vllm"], "vllm"),
            ("/usr/bin/python3", &["python3", "-mvllm"], "vllm"),
            (
                "/usr/bin/python3",
                &["python3", "-W", "ignore", "-X", "dev", "a/run.py"],
                "run.py",
            ),
            (
                "/usr/bin/python3",
                &["python3", "-Wignore", "run.py"],
                "run.py",
            ),
            ("/usr/bin/python3", &["python3", "--", "run.py"], "run.py"),
            (
                "/usr/bin/node",
                &["node", "--require", "x.js", "--inspect=1", "/app/server.js"],
                "server.js",
            ),
            (
                "/usr/bin/bash",
                &["/bin/bash", "-ex", "/start.sh"],
                "start.sh",
            ),
            (
                "/usr/bin/java",
                &["java", "-Xmx1g", "-cp", "a:b", "com.x.Main", "z"],
                "com.x.Main",
            ),
            ("/usr/bin/java", &["java", "-jar", "/srv/x.jar"], "x.jar"),
        ] {
            assert_eq!(
                named(exe, cmdline),
                (expected.to_owned(), true),
                "{cmdline:?}"
            );
        }
    }

    #[test]
    fn code_and_titles_do_not_become_names() {
        for (exe, cmdline, expected) in [
            (
                "/usr/bin/python3.11",
                &["python3", "-c", "from secret import x"][..],
                "python3.11",
            ),
            (
                "/usr/bin/python3.11",
                &["python3", "-Ic", "import x"],
                "python3.11",
            ),
            ("/usr/bin/python3.11", &["VLLM::EngineCore"], "python3.11"),
            ("/usr/bin/python3.11", &["python3"], "python3.11"),
            ("/usr/bin/python3.11", &["python3", "-"], "python3.11"),
            ("/usr/bin/node", &["node", "--eval", "secret"], "node"),
            ("/usr/bin/bash", &["bash", "-c", "secret"], "bash"),
        ] {
            assert_eq!(
                named(exe, cmdline),
                (expected.to_owned(), false),
                "{cmdline:?}"
            );
        }
    }

    #[test]
    fn another_executable_is_named_by_its_file() {
        let long = "a".repeat(80);
        for (exe, expected) in [
            ("/opt/llama.cpp/llama-server", "llama-server"),
            ("/opt/pythonista", "pythonista"),
            ("/opt/a b\"{c}", "a_b__c_"),
            (&format!("/opt/{long}"), &long[..64]),
        ] {
            assert_eq!(named(exe, &["x", "-m", "y"]), (expected.to_owned(), true));
        }
        let mut thread = process("", &[]);
        thread.comm = "kworker/0:1".into();
        assert_eq!(program_name(&thread).text, "kworker_0_1");
    }
}
