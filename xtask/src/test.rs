//! `cargo xtask test`: unit tests, then the kernel tests against the release agent, as root on this
//! kernel. Ends with one line that sums up all test programs.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, bail};

use crate::{
    build, real, setup,
    shell::{self, cargo, line, need_root, release},
};

/// Real programs that are quick enough to install for every run.
const REAL: [&str; 4] = ["xllama", "smg", "clients", "nginx"];

/// Sums of cargo's `test result:` lines.
#[derive(Debug, Default, Clone)]
pub struct Tally {
    passed: u64,
    failed: u64,
    /// Test programs that ended without such a line, or did not build.
    broken: u64,
    /// Tests that are named in lines of their own.
    names: Vec<String>,
}

/// All tests. `filter` goes to the kernel tests' programs.
pub fn run(with_real: bool, filter: &[String]) -> Result<()> {
    need_root("test")?;
    setup::check()?;
    if with_real {
        real::install(&REAL)?;
    }
    build::agent()?;
    build::test_programs(&[])?;
    let mut tally = if filter.is_empty() {
        units()?
    } else {
        Tally::default()
    };
    tally.add(kernel(with_real, filter)?);
    tally.close()
}

/// The tests that need no privilege.
pub fn unit() -> Result<()> {
    units()?.close()
}

fn units() -> Result<Tally> {
    run_counted(&mut cargo([
        "test",
        "--workspace",
        "--exclude",
        "enginetap-tests",
        "--locked",
        "--no-fail-fast",
    ]))
}

fn kernel(with_real: bool, filter: &[String]) -> Result<Tally> {
    let mut tests = cargo([
        "test",
        "--package",
        "enginetap-tests",
        "--release",
        "--locked",
        "--no-fail-fast",
        "--lib",
        "--bins",
        "--tests",
        "--",
        "--test-threads=1",
    ]);
    tests
        .args(filter)
        .env("ENGINETAP_BIN", release("enginetap"))
        .env("ENGINETAP_PROGRAMS", shell::target().join("release"))
        .env("ENGINETAP_PROMTOOL", setup::promtool_path()?)
        .env("ENGINETAP_XTASK", own_program()?)
        .env("ENGINETAP_REQUIRE", "1");
    if with_real {
        tests.env("ENGINETAP_REAL", real::place()?);
    }
    run_counted(&mut tests)
}

/// This program, which tests call for `real start`.
fn own_program() -> Result<PathBuf> {
    env::current_exe().context("cannot tell where xtask itself is")
}

/// Shows a cargo test run as it goes and counts its results.
fn run_counted(command: &mut Command) -> Result<Tally> {
    println!("$ {}", line(command));
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", line(command)))?;
    let output = child.stdout.take().context("no output of cargo test")?;
    let mut tally = Tally::default();
    let mut reader = BufReader::new(output);
    let (mut text, mut out) = (Vec::new(), std::io::stdout());
    while reader.read_until(b'\n', &mut text)? > 0 {
        out.write_all(&text)?;
        tally.read(&String::from_utf8_lossy(&text));
        text.clear();
    }
    let status = child.wait()?;
    if !status.success() && tally.failed == 0 {
        tally.broken += 1;
    }
    println!("({} s)", started.elapsed().as_secs());
    Ok(tally)
}

impl Tally {
    /// Takes in a line such as `test result: ok. 12 passed; 0 failed; 0 ignored; ...`.
    pub fn read(&mut self, line: &str) {
        let Some((_, result)) = line.split_once("test result: ") else {
            let named = line
                .strip_prefix("test ")
                .and_then(|l| l.split_once(" ..."));
            self.names.extend(named.map(|(name, _)| name.to_owned()));
            return;
        };
        let number = |what: &str| {
            result
                .split(['.', ';'])
                .find_map(|part| part.trim().strip_suffix(what)?.trim().parse().ok())
                .unwrap_or(0)
        };
        self.passed += number("passed");
        self.failed += number("failed");
    }

    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.broken += other.broken;
        self.names.extend(other.names);
    }

    /// Whether a test ran whose name has this part.
    pub fn ran(&self, part: &str) -> bool {
        self.names.iter().any(|name| name.contains(part))
    }

    pub fn has_failures(&self) -> bool {
        self.failed > 0
    }

    /// Prints the closing line; fails unless every test ran and passed.
    pub fn close(self) -> Result<()> {
        println!(
            "{} passed, {} failed",
            self.passed,
            self.failed + self.broken
        );
        if self.broken > 0 {
            bail!("{} test runs ended without a result", self.broken);
        }
        if self.failed > 0 {
            bail!("{} tests failed", self.failed);
        }
        if self.passed == 0 {
            bail!("no test ran");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Tally;

    #[test]
    fn a_part_of_no_test_s_name_is_told_from_that_of_one() {
        let mut tally = Tally::default();
        tally.read("test a::one_of_them ... ok");
        tally.read("test result: ok. 1 passed; 0 failed; 0 ignored");
        assert!(tally.ran("one_of") && !tally.ran("ok") && !tally.ran("other"));
    }

    #[test]
    fn result_lines_add_up_and_other_lines_do_not_count() {
        let mut tally = Tally::default();
        tally.read(
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; finished in 0.00s\n",
        );
        tally.read("test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured\n");
        tally.read("test tests::a_test ... ok\n");
        assert_eq!((tally.passed, tally.failed), (15, 2));
    }

    #[test]
    fn a_run_without_tests_does_not_pass() {
        assert!(Tally::default().close().is_err());
    }
}
