//! `cargo xtask object`: builds the kernel object and lists its programs with their instruction
//! counts, beside those of the last commit. Counts are of the object, before the kernel inlines.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result};
use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};
use rustc_demangle::demangle;

use crate::{
    object::{Toolchain, build, toolchain},
    shell::{self, command, run_quietly, target},
};

/// Section and name of a program, with its number of instructions.
type Programs = BTreeMap<(String, String), u64>;

pub fn run(compare: bool) -> Result<()> {
    let tools = toolchain().map_err(|missing| anyhow::anyhow!("{missing}"))?;
    let bpf = target().join("bpf");
    let earlier = if compare { last_commit(&tools) } else { None };
    let path = build(&tools, shell::root(), &bpf).map_err(anyhow::Error::msg)?;
    let programs = read(&path)?;

    println!(
        "{:<28} {:<44} {:>8} {:>8}",
        "section", "program", "insns", "change"
    );
    for ((section, name), count) in &programs {
        let change = match earlier
            .as_ref()
            .map(|e| e.get(&(section.clone(), name.clone())))
        {
            None => String::new(),
            Some(None) => "new".to_owned(),
            Some(Some(before)) if before == count => "=".to_owned(),
            Some(Some(before)) => format!("{:+}", count.cast_signed() - before.cast_signed()),
        };
        println!("{section:<28} {name:<44} {count:>8} {change:>8}");
    }
    for (section, name) in earlier.iter().flat_map(BTreeMap::keys) {
        if !programs.contains_key(&(section.clone(), name.clone())) {
            println!("{section:<28} {name:<44} {:>8} {:>8}", "", "gone");
        }
    }
    let total: u64 = programs.values().sum();
    let size = fs::metadata(&path)?.len() / 1024;
    println!(
        "{total} instructions in {} functions, {size} KiB, {}",
        programs.len(),
        tools.label
    );
    Ok(())
}

fn read(path: &Path) -> Result<Programs> {
    let data = fs::read(path).with_context(|| path.display().to_string())?;
    let file = object::File::parse(data.as_slice()).context("the object is no ELF file")?;
    let mut programs = Programs::new();
    for symbol in file
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text)
    {
        let Some(index) = symbol.section_index() else {
            continue;
        };
        let section = file.section_by_index(index)?;
        // Without the hash, which depends on where the workspace lies.
        let name = format!("{:#}", demangle(symbol.name()?));
        let key = (section.name()?.to_owned(), name);
        programs.insert(key, symbol.size() / 8);
    }
    Ok(programs)
}

/// The counts of the last commit's object, if there is one and it builds. It has a build cache of its
/// own: cargo takes packages of the same relative path for the same, whatever workspace they are of.
fn last_commit(tools: &Toolchain) -> Option<Programs> {
    let dir = target().join("last-commit");
    let tree = dir.join("tree");
    let result = (|| -> Result<Programs> {
        if tree.exists() {
            fs::remove_dir_all(&tree)?;
        }
        fs::create_dir_all(&tree)?;
        let tar = dir.join("tree.tar");
        let dirty = run_quietly(git().args(["diff", "--quiet", "HEAD"])).is_err();
        let commit = if dirty { "HEAD" } else { "HEAD~1" };
        run_quietly(git().args(["archive", "-o"]).arg(&tar).arg(commit))?;
        // Times of now (-m): with the commit's, cargo would see nothing new.
        run_quietly(command("tar").arg("-xmf").arg(&tar).arg("-C").arg(&tree))?;
        read(&build(tools, &tree, &dir.join("bpf")).map_err(anyhow::Error::msg)?)
    })();
    if let Err(why) = &result {
        let why = why.to_string();
        println!(
            "nothing to compare with: {}",
            why.lines().next().unwrap_or_default()
        );
    }
    result.ok()
}

fn git() -> std::process::Command {
    let mut git = command("git");
    git.current_dir(shell::root());
    git
}
