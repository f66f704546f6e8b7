//! Offsets of kernel fields from the kernel's own type information.
//!
//! A small reader of the BTF format (Documentation/bpf/btf.rst): structures, unions, and the
//! typedefs and qualifiers on the way to them. aya's own type walk is private.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

const STRUCT: u32 = 4;
const UNION: u32 = 5;

/// The types of the running kernel.
pub struct Types {
    types: Vec<Type>,
    structs: HashMap<String, Vec<u32>>,
}

enum Type {
    Composite(Vec<Member>),
    /// Typedef, const, volatile, restrict or type tag: stands for another type.
    Alias(u32),
    Other,
}

struct Member {
    name: String,
    type_id: u32,
    /// Bits before it.
    bits: u32,
}

fn u32_at(data: &[u8], at: usize) -> Result<u32> {
    let bytes = data.get(at..at + 4).context("BTF is cut short")?;
    Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

impl Types {
    /// Reads `/sys/kernel/btf/vmlinux`.
    pub fn of_running_kernel() -> Result<Types> {
        let path = Path::new("/sys/kernel/btf/vmlinux");
        let data = std::fs::read(path).with_context(|| {
            format!(
                "cannot read {}: the kernel needs CONFIG_DEBUG_INFO_BTF=y",
                path.display()
            )
        })?;
        Types::parse(&data)
    }

    /// Reads a BTF blob.
    pub fn parse(data: &[u8]) -> Result<Types> {
        ensure!(
            u32_at(data, 0)? & 0xffff == 0xeb9f,
            "BTF has an unknown byte order or magic number"
        );
        let header = u32_at(data, 4)? as usize;
        let (type_off, type_len) = (u32_at(data, 8)? as usize, u32_at(data, 12)? as usize);
        let (str_off, str_len) = (u32_at(data, 16)? as usize, u32_at(data, 20)? as usize);
        let section = |off: usize, len: usize| {
            data.get(header + off..header + off + len)
                .context("BTF is cut short")
        };
        let (body, strings) = (section(type_off, type_len)?, section(str_off, str_len)?);
        let name = |off: u32| -> String {
            let rest = strings.get(off as usize..).unwrap_or_default();
            let end = rest.iter().position(|&b| b == 0).unwrap_or(rest.len());
            String::from_utf8_lossy(&rest[..end]).into_owned()
        };
        let mut types = vec![Type::Other];
        let mut structs: HashMap<String, Vec<u32>> = HashMap::new();
        let mut at = 0;
        while at < body.len() {
            let (name_off, info, third) = (
                u32_at(body, at)?,
                u32_at(body, at + 4)?,
                u32_at(body, at + 8)?,
            );
            let (kind, count, flagged) =
                (info >> 24 & 31, (info & 0xffff) as usize, info >> 31 != 0);
            at += 12;
            let extra = match kind {
                STRUCT | UNION | 19 => count * 12,
                1 | 14 | 17 => 4,
                3 => 12,
                6 | 15 => count * if kind == 6 { 8 } else { 12 },
                13 => count * 8,
                2 | 7..=12 | 16 | 18 => 0,
                other => bail!("BTF has an unknown kind {other}"),
            };
            let ty = match kind {
                STRUCT | UNION => {
                    let mut members = Vec::with_capacity(count);
                    for i in 0..count {
                        let m = at + i * 12;
                        let raw = u32_at(body, m + 8)?;
                        let bits = if flagged { raw & 0x00ff_ffff } else { raw };
                        members.push(Member {
                            name: name(u32_at(body, m)?),
                            type_id: u32_at(body, m + 4)?,
                            bits,
                        });
                    }
                    if kind == STRUCT {
                        structs
                            .entry(name(name_off))
                            .or_default()
                            .push(types.len() as u32);
                    }
                    Type::Composite(members)
                }
                8 | 9 | 10 | 11 | 18 => Type::Alias(third),
                _ => Type::Other,
            };
            at += if kind == 19 { count * 12 } else { extra };
            types.push(ty);
        }
        Ok(Types { types, structs })
    }

    /// The byte offset of a dotted path within a structure, or the number of bits before a field
    /// when the path ends in `@bit`; `None` when the kernel lacks it.
    pub fn offset(&self, structure: &str, path: &str) -> Option<u32> {
        let (path, in_bits) = match path.strip_suffix("@bit") {
            Some(path) => (path, true),
            None => (path, false),
        };
        let parts: Vec<&str> = path.split('.').collect();
        let bits = self
            .structs
            .get(structure)?
            .iter()
            .find_map(|&id| self.walk(id, &parts, 0))?;
        if in_bits {
            return Some(bits);
        }
        (bits % 8 == 0).then_some(bits / 8)
    }

    fn walk(&self, id: u32, path: &[&str], depth: u32) -> Option<u32> {
        let Some((first, rest)) = path.split_first() else {
            return Some(0);
        };
        if depth > 16 {
            return None;
        }
        match self.types.get(id as usize)? {
            Type::Alias(to) => self.walk(*to, path, depth + 1),
            Type::Composite(members) => members.iter().find_map(|m| {
                let inner = if m.name == *first {
                    self.walk(m.type_id, rest, depth + 1)?
                } else if m.name.is_empty() {
                    self.walk(m.type_id, path, depth + 1)?
                } else {
                    return None;
                };
                Some(m.bits + inner)
            }),
            Type::Other => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use enginetap_ebpf::abi::offsets::{MISSING, Offsets};

    #[test]
    fn the_running_kernel_has_every_field_that_the_hooks_read() {
        let types = Types::of_running_kernel().unwrap();
        let offsets = Offsets::fill(|s, p| types.offset(s, p));
        for (name, offset) in offsets.named() {
            assert_ne!(offset, MISSING, "{name} is not in this kernel's BTF");
        }
    }

    #[test]
    fn a_field_that_does_not_exist_is_missing_and_not_zero() {
        let types = Types::of_running_kernel().unwrap();
        assert_eq!(types.offset("sock_common", "skc_no_such_field"), None);
        assert_eq!(types.offset("no_such_struct", "x"), None);
    }

    #[test]
    fn hostile_bytes_are_an_error() {
        assert!(Types::parse(&[]).is_err());
        assert!(
            Types::parse(&[
                0x9f, 0xeb, 1, 0, 24, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255
            ])
            .is_err()
        );
    }
}
