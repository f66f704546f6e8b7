//! What the kernel programs may do: the lists that README promises, and what the object inside the
//! agent's program asks for, before any kernel rewrites it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const README: &str = include_str!("../../README.md");
/// `EM_BPF`.
const MACHINE: u16 = 247;
/// `SHF_EXECINSTR`.
const EXECUTABLE: u64 = 4;
/// `BPF_JMP | BPF_CALL`.
const CALL: u8 = 0x85;
/// The numbers of the helpers that README may name, from `include/uapi/linux/bpf.h`.
const HELPERS: [(i32, &str); 14] = [
    (1, "bpf_map_lookup_elem"),
    (2, "bpf_map_update_elem"),
    (3, "bpf_map_delete_elem"),
    (5, "bpf_ktime_get_ns"),
    (12, "bpf_tail_call"),
    (175, "bpf_task_pt_regs"),
    (14, "bpf_get_current_pid_tgid"),
    (26, "bpf_skb_load_bytes"),
    (35, "bpf_get_current_task"),
    (113, "bpf_probe_read_kernel"),
    (131, "bpf_ringbuf_reserve"),
    (132, "bpf_ringbuf_submit"),
    (134, "bpf_ringbuf_query"),
    (181, "bpf_loop"),
];

/// The words in backticks after `title` in README, up to the next full stop.
fn promised(title: &str) -> BTreeSet<String> {
    let (_, after) = README
        .split_once(title)
        .unwrap_or_else(|| panic!("README has no {title:?}"));
    let list = after.split('.').next().unwrap_or_default();
    list.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// The program types that README promises, as `bpftool` names them.
pub fn promised_types() -> BTreeSet<String> {
    promised("Program types:")
}

/// The helpers that README promises.
pub fn promised_helpers() -> BTreeSet<String> {
    promised("Helpers:")
}

/// The helpers that the kernel object inside the program at `path` calls.
pub fn called_helpers(path: &Path) -> BTreeSet<String> {
    let bytes = std::fs::read(path).expect("the agent's program");
    let object = (0..bytes.len().saturating_sub(64))
        .map(|at| &bytes[at..])
        .find(|b| b.starts_with(b"\x7fELF") && number::<2>(b, 18) == u64::from(MACHINE))
        .expect("a kernel object inside the agent");
    let names: BTreeMap<i32, &str> = HELPERS.into();
    let called = executable(object).flat_map(calls);
    called
        .map(|id| {
            names
                .get(&id)
                .map_or_else(|| format!("helper {id}"), |n| (*n).to_owned())
        })
        .collect()
}

/// A little-endian number of `N` bytes.
fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word[..N].copy_from_slice(&bytes[at..at + N]);
    u64::from_le_bytes(word)
}

/// The sections of a 64-bit ELF file that hold instructions.
fn executable(elf: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (table, size) = (number::<8>(elf, 40) as usize, number::<2>(elf, 58) as usize);
    (0..number::<2>(elf, 60) as usize).filter_map(move |n| {
        let header = &elf[table + n * size..];
        let (from, len) = (
            number::<8>(header, 24) as usize,
            number::<8>(header, 32) as usize,
        );
        (number::<8>(header, 8) & EXECUTABLE != 0).then(|| &elf[from..from + len])
    })
}

/// The helpers called by number; calls of own functions have a source register.
fn calls(code: &[u8]) -> impl Iterator<Item = i32> {
    code.chunks_exact(8)
        .filter(|insn| insn[0] == CALL && insn[1] >> 4 == 0)
        .map(|insn| number::<4>(insn, 4) as u32 as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helper_calls_are_told_from_calls_of_own_functions() {
        let code = [
            [0x85, 0, 0, 0, 14, 0, 0, 0],
            [0x85, 0x10, 0, 0, 9, 0, 0, 0],
            [0xb7, 0, 0, 0, 1, 0, 0, 0],
        ];
        assert_eq!(calls(code.as_flattened()).collect::<Vec<_>>(), [14]);
    }

    #[test]
    fn readme_names_helpers_that_exist() {
        let known: BTreeSet<String> = HELPERS.iter().map(|(_, n)| (*n).to_owned()).collect();
        let promised = promised_helpers();
        assert!(promised.is_subset(&known), "{promised:?}");
    }
}
