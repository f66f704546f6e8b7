//! `cargo xtask bench`, `cargo xtask soak` and `cargo xtask real table`: run a program of the tests
//! crate that measures, show what it prints, and keep its tables in the repository beside the machine
//! they are from. `ENGINETAP_BIN` names an agent to measure that is built already.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::Stdio,
};

use anyhow::{Context, Result, bail};

use crate::{
    build, real,
    shell::{self, capture, command, line, need_root, release, root},
};

/// A measuring program, and where its tables go.
#[derive(Debug, Clone, Copy)]
pub struct Report {
    pub command: &'static str,
    pub program: &'static str,
    pub title: &'static str,
    pub file: &'static str,
    /// Features of the tests crate that its program needs.
    pub features: &'static [&'static str],
}

pub const BENCH: Report = Report {
    command: "bench",
    program: "bench",
    title: "Cost and accuracy, measured",
    file: "agent/BENCH.md",
    features: &["bench"],
};
pub const SOAK: Report = Report {
    command: "soak",
    program: "soak",
    title: "Long proofs, measured",
    file: "agent/SOAK.md",
    features: &[],
};
pub const REAL: Report = Report {
    command: "real table",
    program: "real-table",
    title: "Real engines and gateways, measured",
    file: "agent/REAL.md",
    features: &[],
};

/// Runs the program with `args`. With `keep` its tables go to the file; a part of them should not.
pub fn run(report: Report, args: &[String], keep: bool) -> Result<()> {
    need_root(report.command)?;
    if !root()
        .join(format!("tests/src/bin/{}.rs", report.program))
        .is_file()
    {
        bail!("there is no tests/src/bin/{}.rs to run", report.program);
    }
    let agent = match env::var_os("ENGINETAP_BIN") {
        Some(built) => PathBuf::from(built),
        None => {
            build::agent()?;
            release("enginetap")
        }
    };
    build::test_programs(&[])?;
    build::measuring_program(report.program, report.features)?;
    let mut program = command(release(report.program));
    program
        .args(args)
        .env("ENGINETAP_BIN", agent)
        .env("ENGINETAP_XTASK", env::current_exe()?)
        .env("ENGINETAP_PROGRAMS", shell::target().join("release"))
        .env("ENGINETAP_REAL", real::place()?)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = program
        .spawn()
        .with_context(|| format!("cannot start {}", line(&program)))?;
    let output = child.stdout.take().context("no output")?;
    let mut kept = String::new();
    for text in BufReader::new(output).lines() {
        let text = text?;
        println!("{text}");
        // What belongs to a table or names one; the rest is progress.
        if text.starts_with('|') || text.starts_with("## ") || text.is_empty() {
            kept.push_str(&text);
            kept.push('\n');
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("{} failed ({status})", line(&program));
    }
    if !kept.contains('|') {
        bail!("{} printed no table", line(&program));
    }
    if keep {
        let file = root().join(report.file);
        fs::write(&file, format!("{}\n{}\n", heading(report)?, kept.trim()))?;
        println!("written: {}", file.display());
    }
    Ok(())
}

fn heading(report: Report) -> Result<String> {
    let kernel = capture(command("uname").arg("-r"))?;
    let date = capture(command("date").args(["-u", "+%F"]))?;
    let cores = std::thread::available_parallelism()?;
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| Some(line.strip_prefix("model name")?.split_once(": ")?.1.trim()))
        .unwrap_or("unknown CPU");
    Ok(format!(
        "# {}\n\nWritten by `cargo xtask {}` on {}: kernel {}, {cores} cores, {model}.\n",
        report.title,
        report.command,
        date.trim(),
        kernel.trim(),
    ))
}
