//! What a process holds in the kernel: BPF maps, the programs that use them, their links, packet
//! sockets; and whether any of it is still there when the process is gone.
//!
//! It goes by numbers and not by names, so another agent on the same machine does not disturb. The
//! kernel gives a number again only after all others of its kind.

use std::collections::BTreeSet;
use std::process::Command;

/// Maps, programs, links and packet sockets by the kernel's numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Map ids.
    pub maps: BTreeSet<u64>,
    /// Ids of programs that use one of the maps, or that the process has open.
    pub programs: BTreeSet<u64>,
    /// Ids of links: open ones, and those of the programs.
    pub links: BTreeSet<u64>,
    /// Inodes of packet sockets in the process's own network namespace.
    pub sockets: BTreeSet<u64>,
    /// Pinned objects of any process.
    pub pins: BTreeSet<String>,
}

/// `bpftool -j WHAT list`.
fn list(what: &str) -> Vec<serde_json::Value> {
    let out = Command::new("bpftool")
        .args(["-j", what, "list"])
        .output()
        .expect("bpftool");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    match serde_json::from_str(&text) {
        Ok(serde_json::Value::Array(rows)) => rows,
        other => panic!("bpftool {what} list: {other:?}: {text}"),
    }
}

fn id(row: &serde_json::Value) -> u64 {
    row["id"].as_u64().unwrap_or(0)
}

fn ids(what: &str) -> BTreeSet<u64> {
    list(what).iter().map(id).collect()
}

/// The values of `name` in the process's descriptors.
fn described(pid: u32, name: &str) -> BTreeSet<u64> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fdinfo"));
    let texts = files
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|file| std::fs::read_to_string(file.path()).ok());
    let value = |text: &str| {
        let line = text
            .lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|v| v.trim().parse().ok())
    };
    texts.filter_map(|text| value(&text)).collect()
}

/// Inodes of the packet sockets of the namespace of `who` (a pid, or `self`).
fn packet_sockets(who: &str) -> BTreeSet<u64> {
    let table = std::fs::read_to_string(format!("/proc/{who}/net/packet")).unwrap_or_default();
    let inode = |line: &str| line.split_whitespace().last()?.parse().ok();
    table.lines().skip(1).filter_map(inode).collect()
}

fn own_sockets(pid: u32) -> BTreeSet<u64> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd"));
    let links = files
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|file| std::fs::read_link(file.path()).ok());
    let inode = |link: std::path::PathBuf| {
        let text = link.to_string_lossy().into_owned();
        text.strip_prefix("socket:[")?
            .strip_suffix(']')?
            .parse()
            .ok()
    };
    let mine: BTreeSet<u64> = links.filter_map(inode).collect();
    packet_sockets(&pid.to_string())
        .intersection(&mine)
        .copied()
        .collect()
}

fn pins() -> BTreeSet<String> {
    let out = Command::new("find")
        .args(["/sys/fs/bpf", "-type", "f"])
        .output()
        .expect("find");
    String::from_utf8_lossy(&out.stdout)
        .lines()
        .map(str::to_owned)
        .collect()
}

impl Held {
    /// What a live process holds now.
    pub fn by(pid: u32) -> Self {
        let maps = described(pid, "map_id");
        let mut programs = described(pid, "prog_id");
        for row in list("prog") {
            let used = row["map_ids"].as_array().cloned().unwrap_or_default();
            if used
                .iter()
                .filter_map(serde_json::Value::as_u64)
                .any(|m| maps.contains(&m))
            {
                programs.insert(id(&row));
            }
        }
        let mut links = described(pid, "link_id");
        let of_ours = |row: &&serde_json::Value| {
            row["prog_id"]
                .as_u64()
                .is_some_and(|p| programs.contains(&p))
        };
        links.extend(list("link").iter().filter(of_ours).map(id));
        Self {
            maps,
            programs,
            links,
            sockets: own_sockets(pid),
            pins: pins(),
        }
    }

    /// What of it is in the kernel now, seen from this process's namespace. `pins` are those that
    /// were not there before.
    ///
    /// Maps are not looked at, and count as left, while a program is: to list a map is to open it,
    /// and a program array that is opened while the kernel still empties it is never freed (its
    /// last close takes a reference for work that is queued already). The array's own program goes
    /// when that work is done. Since anybody may list maps at the wrong moment, an array without
    /// its program is not counted.
    pub fn left(&self) -> Self {
        let both = |a: &BTreeSet<u64>, b: BTreeSet<u64>| a.intersection(&b).copied().collect();
        let programs: BTreeSet<u64> = both(&self.programs, ids("prog"));
        let maps = if programs.is_empty() {
            let counted = |row: &&serde_json::Value| row["type"] != "prog_array";
            both(
                &self.maps,
                list("map").iter().filter(counted).map(id).collect(),
            )
        } else {
            self.maps.clone()
        };
        Self {
            maps,
            programs,
            links: both(&self.links, ids("link")),
            sockets: both(&self.sockets, packet_sockets("self")),
            pins: pins().difference(&self.pins).cloned().collect(),
        }
    }

    /// Whether it is nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
