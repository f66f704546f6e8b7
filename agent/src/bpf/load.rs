//! Loads the object and attaches the hooks that are not per namespace, each with its verdict: one
//! that fails never takes down another.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result};
use aya::maps::{MapData, ProgramArray};
use aya::programs::{BtfTracePoint, FExit, ProgramError, SocketFilter};
use aya::{Btf, Ebpf, EbpfLoader};
use enginetap_ebpf::abi::offsets::{MISSING, Offsets};

use super::btf::Types;
use crate::config::Switch;
use crate::probes::{Kind, PROBES, Probe, State, Verdict};

/// The kernel object, built beside the agent.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/enginetap.bpf.o"));

/// The loaded object.
pub struct Loaded {
    /// Programs and maps.
    pub ebpf: Ebpf,
    /// What became of each hook.
    pub verdicts: BTreeMap<&'static str, Verdict>,
    /// Offsets of the running kernel.
    pub offsets: Offsets,
    /// The tap's entry.
    pub tap: OwnedFd,
    /// The tap itself.
    pub wire: OwnedFd,
    /// What the entry jumps to; emptied by the kernel when this is dropped.
    pub behind: ProgramArray<MapData>,
    /// The control program.
    pub control: OwnedFd,
}

/// Offsets of the running kernel.
pub fn offsets() -> Result<Offsets> {
    let types = Types::of_running_kernel()?;
    Ok(Offsets::fill(|structure, path| {
        types.offset(structure, path)
    }))
}

/// Makes the maps.
fn open() -> Result<(Ebpf, Btf, Offsets)> {
    anyhow::ensure!(
        !OBJECT.is_empty(),
        "this binary was built without its kernel object (ENGINETAP_SKIP_BPF was set): build it with `cargo xtask build`"
    );
    let offsets = offsets()?;
    let btf =
        Btf::from_sys_fs().context("cannot read the kernel's BTF from /sys/kernel/btf/vmlinux")?;
    let ebpf = EbpfLoader::new()
        .btf(Some(&btf))
        .override_global("OFFSETS", &offsets, true)
        .load(OBJECT)
        .context("cannot create the kernel maps: CAP_BPF and, for cgroup-charged memory, room in this cgroup are needed")?;
    Ok((ebpf, btf, offsets))
}

/// Attaches these hooks and no others, to measure what they cost; they go with what is returned.
pub fn only(names: &[&str]) -> Result<Ebpf> {
    let (mut ebpf, btf, _) = open()?;
    for probe in PROBES.iter().filter(|p| names.contains(&p.name)) {
        try_attach(&mut ebpf, &btf, probe)?;
    }
    Ok(ebpf)
}

/// Loads the object. The tap and the control program are needed; every other hook may fail. Those on
/// the scheduler are left out when `stalls` is off.
pub fn load(stalls: Switch) -> Result<Loaded> {
    let (mut ebpf, btf, offsets) = open()?;
    let wire = load_filter(&mut ebpf, "wire_tap")?;
    let entry = behind(&mut ebpf)?;
    let tap = load_filter(&mut ebpf, "wire_entry")?;
    let control = load_filter(&mut ebpf, "control_order")?;
    let mut verdicts = BTreeMap::new();
    for probe in PROBES {
        let verdict = match probe.kind {
            Kind::SocketFilter => Verdict::ok(),
            _ if probe.is_for_stalls() && stalls == Switch::Off => {
                Verdict::turned_off("--stalls off")
            }
            _ => attach(&mut ebpf, &btf, probe, &offsets, &verdicts),
        };
        if verdict.state == State::Broken {
            tracing::warn!(probe = probe.name, detail = %verdict.detail, "hook is broken");
        }
        verdicts.insert(probe.name, verdict);
    }
    Ok(Loaded {
        ebpf,
        verdicts,
        offsets,
        tap,
        wire,
        behind: entry,
        control,
    })
}

/// Puts the tap behind its entry.
fn behind(ebpf: &mut Ebpf) -> Result<ProgramArray<MapData>> {
    let map = ebpf
        .take_map("WIRE_PROGS")
        .context("the object has no map WIRE_PROGS")?;
    let mut progs = ProgramArray::try_from(map)?;
    let tap: &SocketFilter = ebpf
        .program("wire_tap")
        .context("the object has no program wire_tap")?
        .try_into()?;
    progs
        .set(0, tap.fd()?, 0)
        .context("the tap cannot be put behind its entry")?;
    Ok(progs)
}

fn load_filter(ebpf: &mut Ebpf, name: &str) -> Result<OwnedFd> {
    let program: &mut SocketFilter = ebpf
        .program_mut(name)
        .with_context(|| format!("the object has no program {name}"))?
        .try_into()?;
    program
        .load()
        .map_err(explain)
        .with_context(|| format!("the kernel refused the socket filter {name}"))?;
    program
        .fd()?
        .as_fd()
        .try_clone_to_owned()
        .context("cannot duplicate a program's descriptor")
}

/// Keeps the end of a verifier log, where the reason is.
fn explain(error: ProgramError) -> anyhow::Error {
    if let ProgramError::LoadError {
        io_error,
        verifier_log,
    } = &error
    {
        let log = verifier_log.to_string();
        if std::env::var_os("ENGINETAP_VERIFIER_LOG").is_some() {
            eprintln!("{log}");
        }
        let lines: Vec<&str> = log.lines().rev().take(12).collect();
        let tail: Vec<&str> = lines.into_iter().rev().collect();
        return anyhow::anyhow!("{io_error}; the verifier says: {}", tail.join(" | "));
    }
    error.into()
}

fn attach(
    ebpf: &mut Ebpf,
    btf: &Btf,
    probe: &Probe,
    offsets: &Offsets,
    before: &BTreeMap<&'static str, Verdict>,
) -> Verdict {
    let missing: Vec<&str> = offsets
        .named()
        .into_iter()
        .filter(|(name, offset)| *offset == MISSING && probe.fields.contains(name))
        .map(|(name, _)| name)
        .collect();
    if !missing.is_empty() {
        return Verdict::unsupported(
            "field_missing",
            format!("this kernel lacks {}", missing.join(", ")),
        );
    }
    if let Some(other) = probe.instead_of
        && before.get(other).is_some_and(|v| v.state == State::Ok)
    {
        return Verdict::not_applicable(format!("{other} serves"));
    }
    match try_attach(ebpf, btf, probe) {
        Ok(()) => Verdict::ok(),
        Err(error) => {
            let text = format!("{error:#}");
            let absent = ["not found", "No such", "ENOENT", "unknown BTF"]
                .iter()
                .any(|s| text.contains(s));
            if absent {
                Verdict::unsupported("hook_missing", text)
            } else if text.contains("Operation not permitted") || text.contains("EPERM") {
                Verdict::unsupported("refused", text)
            } else {
                Verdict::broken("load_failed", text)
            }
        }
    }
}

fn try_attach(ebpf: &mut Ebpf, btf: &Btf, probe: &Probe) -> Result<()> {
    let program = ebpf
        .program_mut(probe.name)
        .with_context(|| format!("the object has no program {}", probe.name))?;
    match probe.kind {
        Kind::BtfTracepoint => {
            let program: &mut BtfTracePoint = program.try_into()?;
            program.load(probe.hook, btf).map_err(explain)?;
            program.attach()?;
        }
        Kind::FExit => {
            let program: &mut FExit = program.try_into()?;
            program.load(probe.hook, btf).map_err(explain)?;
            program.attach()?;
        }
        Kind::SocketFilter => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_loads_and_every_hook_has_a_verdict() {
        let loaded = match load(Switch::On) {
            Ok(loaded) => loaded,
            Err(error) => panic!("{error:#}"),
        };
        for probe in PROBES {
            let verdict = &loaded.verdicts[probe.name];
            println!("{} {:?} {}", probe.name, verdict.state, verdict.detail);
            assert_ne!(
                verdict.state,
                State::Broken,
                "{}: {}",
                probe.name,
                verdict.detail
            );
        }
    }
}
