//! The memory of another process, searched as whoever takes its core dump could.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// A mapping of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub from: u64,
    /// Address behind the last.
    pub to: u64,
    /// Permissions, as in `/proc/PID/maps`.
    pub mode: String,
    /// File or name; empty for none.
    pub name: String,
    /// The kernel leaves it out of core dumps (`dd` of `VmFlags`).
    pub undumped: bool,
}

/// The mappings of a process.
pub fn mappings(pid: u32) -> Vec<Mapping> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).expect("smaps");
    let mut found: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            if let Some(last) = found.last_mut() {
                last.undumped = flags.split_whitespace().any(|f| f == "dd");
            }
        } else if let Some(mapping) = mapping(line) {
            found.push(mapping);
        }
    }
    found
}

fn mapping(line: &str) -> Option<Mapping> {
    let mut words = line.split_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some(Mapping {
        from: number(from)?,
        to: number(to)?,
        mode: words.next()?.to_owned(),
        name: words.nth(3).unwrap_or_default().to_owned(),
        undumped: false,
    })
}

/// The mappings of a process that hold one of these words. What cannot be read holds none.
pub fn holding(pid: u32, words: &[&[u8]]) -> Vec<Mapping> {
    let memory = File::open(format!("/proc/{pid}/mem")).expect("the process's memory, as root");
    let longest = words.iter().map(|w| w.len()).max().unwrap_or(0) as u64;
    let mut block = vec![0; 1 << 20];
    let mut holds = |m: &Mapping| {
        let mut at = m.from;
        loop {
            let want = block.len().min((m.to - at) as usize);
            let got = memory.read_at(&mut block[..want], at).unwrap_or(0);
            if words.iter().any(|word| contains(&block[..got], word)) {
                return true;
            }
            if at + want as u64 >= m.to {
                return false;
            }
            // A word that lies across two blocks is whole in the second.
            at += want as u64 - longest;
        }
    };
    mappings(pid).into_iter().filter(|m| holds(m)).collect()
}

fn contains(mut bytes: &[u8], word: &[u8]) -> bool {
    while let Some(at) = bytes.iter().position(|b| *b == word[0]) {
        if bytes[at..].starts_with(word) {
            return true;
        }
        bytes = &bytes[at + 1..];
    }
    false
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::guard::{ChildBuilder, poll};

    #[test]
    fn a_word_on_a_stack_is_found_and_another_is_not() {
        let child = ChildBuilder::new("sleep").arg("60.0009876501").start();
        let found = poll(Duration::from_secs(5), || {
            let found = holding(child.pid(), &[b"60.0009876501"]);
            (!found.is_empty()).then_some(found)
        });
        let found = found.expect("its argument is in its memory");
        assert!(
            found.iter().any(|m| m.name == "[stack]" && !m.undumped),
            "{found:?}"
        );
        assert!(holding(child.pid(), &[b"60.0009876502"]).is_empty());
    }
}
