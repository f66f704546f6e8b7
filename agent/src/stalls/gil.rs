//! Where CPython keeps its interpreter lock: inside `_PyRuntime`, a symbol that also stripped builds
//! have, since extension modules link against it.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSegment, ObjectSymbol, ReadCache};

/// Where `_PyRuntime` lies in a file: its address and its size.
type Place = Option<(u64, u64)>;

/// What is known of interpreters, by device and inode.
#[derive(Debug, Default)]
pub struct Interpreters {
    known: HashMap<(String, u64), Place>,
}

/// One executable or library of a process.
struct Mapped {
    file: (String, u64),
    start: u64,
    offset: u64,
    range: String,
}

impl Interpreters {
    /// First byte of a process's `_PyRuntime` and the one behind its last; `None` when it is no
    /// CPython process, or its files cannot be read.
    pub fn lock_of(&mut self, proc_root: &Path, pid: u32) -> Option<[u64; 2]> {
        let dir = proc_root.join(pid.to_string());
        let maps = std::fs::read_to_string(dir.join("maps")).ok()?;
        let exe = std::fs::read_link(dir.join("exe")).ok()?;
        let exe = exe.to_string_lossy();
        let named = |path: &str| {
            let name = path.rsplit('/').next().unwrap_or(path);
            name.starts_with("libpython3") || (path == exe && name.contains("python"))
        };
        let found: Vec<Mapped> = maps.lines().filter_map(|l| parse(l, named)).collect();
        for first in &found {
            let file = &first.file;
            if found
                .iter()
                .any(|m| m.file == *file && m.offset < first.offset)
            {
                continue;
            }
            if !self.known.contains_key(file) {
                let path = dir.join("map_files").join(&first.range);
                self.known.insert(file.clone(), place(&path));
            }
            if let Some(Some((base, size))) = self.known.get(file) {
                let at = first.start.wrapping_add(*base).wrapping_sub(first.offset);
                return Some([at, at.wrapping_add(*size)]);
            }
        }
        None
    }
}

/// A line of `maps` whose file is wanted.
fn parse(line: &str, wanted: impl Fn(&str) -> bool) -> Option<Mapped> {
    let mut fields = line.split_whitespace();
    let (range, _, offset) = (fields.next()?, fields.next()?, fields.next()?);
    let (device, inode) = (fields.next()?, fields.next()?);
    let path = fields.next()?;
    if !wanted(path) {
        return None;
    }
    Some(Mapped {
        file: (device.to_owned(), inode.parse().ok()?),
        start: u64::from_str_radix(range.split('-').next()?, 16).ok()?,
        offset: u64::from_str_radix(offset, 16).ok()?,
        range: range.to_owned(),
    })
}

/// Where the symbol lies, from the address the file's first page is loaded at on. Only the parts of
/// the file that are looked into are read.
fn place(path: &PathBuf) -> Place {
    let file = ReadCache::new(File::open(path).ok()?);
    let elf = object::File::parse(&file).ok()?;
    let symbol = elf
        .dynamic_symbols()
        .find(|s| s.is_definition() && s.name() == Ok("_PyRuntime"))?;
    let first = elf.segments().map(|s| s.address()).min()?;
    let first = first & !0xfff;
    Some((symbol.address().checked_sub(first)?, symbol.size()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_maps_is_read() {
        let line =
            "7f0000001000-7f0000002000 r--p 00001000 08:01 42   /usr/lib/libpython3.11.so.1.0";
        let found = parse(line, |p| p.ends_with(".so.1.0")).unwrap();
        assert_eq!(found.file, ("08:01".to_owned(), 42));
        assert_eq!((found.start, found.offset), (0x7f00_0000_1000, 0x1000));
        assert!(parse(line, |_| false).is_none());
        assert!(parse("7f00-7f01 rw-p 0 00:00 0", |_| true).is_none());
    }

    #[test]
    fn a_process_without_an_interpreter_has_no_lock() {
        let own = std::process::id();
        assert_eq!(
            Interpreters::default().lock_of(Path::new("/proc"), own),
            None
        );
    }
}
