//! Network namespaces, veth pairs and bridges.
//!
//! Names carry the test's pid, so what a killed run left behind is recognised
//! and removed by the next one.

use std::fs::File;
use std::process::{Command, Output};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sched::{CloneFlags, setns};

static NEXT: AtomicU32 = AtomicU32::new(0);
static SWEEP: Once = Once::new();

fn serial() -> u32 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Runs `ip` with the words of `line`; panics with its message on failure.
fn ip(line: &str) {
    let output = Command::new("ip")
        .args(line.split_whitespace())
        .output()
        .expect("ip (iproute2)");
    assert!(
        output.status.success(),
        "ip {line}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn ip_quiet(line: &str) {
    let _ = Command::new("ip").args(line.split_whitespace()).output();
}

/// Removes namespaces and devices of test processes that no longer live.
fn sweep() {
    let stale = |name: &str| {
        name.strip_prefix("et")
            .and_then(|rest| rest.split(['-', 'v', 'b']).next())
            .and_then(|pid| pid.parse::<u32>().ok())
            .is_some_and(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists())
    };
    let names = |dir: &str| -> Vec<String> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries
            .filter_map(|e| e.file_name().into_string().ok())
            .collect()
    };
    for name in names("/run/netns").iter().filter(|name| stale(name)) {
        ip_quiet(&format!("netns del {name}"));
    }
    for name in names("/sys/class/net").iter().filter(|name| stale(name)) {
        ip_quiet(&format!("link del {name}"));
    }
}

/// A network namespace with `lo` up, deleted on drop.
#[derive(Debug)]
pub struct NetNs {
    name: String,
}

impl NetNs {
    /// Creates one with a unique name.
    pub fn new() -> Self {
        SWEEP.call_once(sweep);
        let name = format!("et{}-{}", std::process::id(), serial());
        ip(&format!("netns add {name}"));
        let ns = Self { name };
        ns.ip("link set lo up");
        ns
    }

    /// Its name, as `ip netns exec` takes it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its inode number, the kernel's identity of it.
    pub fn inum(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(self.path())
            .expect("namespace file")
            .ino()
    }

    fn path(&self) -> String {
        format!("/run/netns/{}", self.name)
    }

    /// Runs `ip` inside, for example `ns.ip("addr add 10.0.0.1/24 dev eth0")`.
    pub fn ip(&self, line: &str) {
        ip(&format!("-n {} {line}", self.name));
    }

    /// Runs `work` on a thread of its own inside the namespace.
    pub fn run_in<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let file = File::open(self.path()).expect("namespace file");
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                setns(&file, CloneFlags::CLONE_NEWNET).expect("setns (root?)");
                work()
            });
            match thread.join() {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Runs a command inside and panics unless it succeeds:
    /// `ns.sh("iptables -t nat -A PREROUTING ...")`.
    pub fn sh(&self, line: &str) -> Output {
        let output = self.run_in(|| Command::new("sh").args(["-c", line]).output().expect("sh"));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{} in {}: {error}",
            line,
            self.name
        );
        output
    }
}

impl Default for NetNs {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for NetNs {
    fn drop(&mut self) {
        ip_quiet(&format!("netns del {}", self.name));
    }
}

/// One end of a veth pair: the namespace (`None` = the test's own) and the
/// addresses with prefix length it carries; IPv6 ones are added `nodad`.
#[derive(Clone, Copy, Debug)]
pub struct VethEnd<'a> {
    /// Where the end lives.
    pub ns: Option<&'a NetNs>,
    /// For example `&["10.77.0.1/24", "fd77::1/64"]`.
    pub addresses: &'a [&'a str],
}

/// A veth pair, deleted on drop (or with its namespace).
#[derive(Debug)]
pub struct Veth {
    names: [String; 2],
    first_ns: Option<String>,
}

impl Veth {
    /// Creates the pair, adds the addresses, sets both ends up.
    pub fn new(a: VethEnd<'_>, b: VethEnd<'_>, mtu: u32) -> Self {
        let id = serial();
        let pid = std::process::id();
        let names = [format!("et{pid}v{id}a"), format!("et{pid}v{id}b")];
        ip(&format!(
            "link add {} mtu {mtu} type veth peer name {} mtu {mtu}",
            names[0], names[1]
        ));
        for (end, name) in [a, b].iter().zip(&names) {
            end.set_up(name);
        }
        Self {
            names,
            first_ns: a.ns.map(|ns| ns.name.clone()),
        }
    }

    /// The device names of the two ends.
    pub fn devices(&self) -> (&str, &str) {
        (&self.names[0], &self.names[1])
    }
}

impl VethEnd<'_> {
    fn set_up(&self, device: &str) {
        let target = match self.ns {
            Some(ns) => {
                ip(&format!("link set {device} netns {}", ns.name));
                format!("-n {} ", ns.name)
            }
            None => String::new(),
        };
        for address in self.addresses {
            let nodad = if address.contains(':') { " nodad" } else { "" };
            ip(&format!("{target}addr add {address} dev {device}{nodad}"));
        }
        ip(&format!("{target}link set {device} up"));
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        let target = self
            .first_ns
            .as_ref()
            .map(|ns| format!("-n {ns} "))
            .unwrap_or_default();
        ip_quiet(&format!("{target}link del {}", self.names[0]));
    }
}

/// A bridge in the test's own namespace, deleted on drop.
#[derive(Debug)]
pub struct Bridge {
    name: String,
}

impl Bridge {
    /// Creates it with these addresses (as for [`VethEnd`]) and sets it up.
    pub fn new(addresses: &[&str]) -> Self {
        let name = format!("et{}b{}", std::process::id(), serial());
        ip(&format!("link add {name} type bridge"));
        VethEnd {
            ns: None,
            addresses,
        }
        .set_up(&name);
        Self { name }
    }

    /// The device name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Plugs the first end of `veth`, which lives in the same namespace.
    pub fn plug(&self, veth: &Veth) {
        ip(&format!("link set {} master {}", veth.names[0], self.name));
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        ip_quiet(&format!("link del {}", self.name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_veth_pair_carries_ipv6_at_once_and_leaves_nothing() {
        let (server, client) = (NetNs::new(), NetNs::new());
        let a = VethEnd {
            ns: Some(&server),
            addresses: &["10.98.0.1/24", "fd98::1/64"],
        };
        let b = VethEnd {
            ns: Some(&client),
            addresses: &["10.98.0.2/24", "fd98::2/64"],
        };
        let veth = Veth::new(a, b, 1400);
        assert_ne!(server.inum(), client.inum());
        let listener = server.run_in(|| std::net::TcpListener::bind("[fd98::1]:0").unwrap());
        let address = listener.local_addr().unwrap();
        client.run_in(|| std::net::TcpStream::connect(address).unwrap());
        let mtu = client.sh(&format!(
            "cat /proc/sys/net/ipv6/conf/{}/mtu",
            veth.devices().1
        ));
        assert_eq!(mtu.stdout, b"1400\n");
        let names = [server.name().to_owned(), client.name().to_owned()];
        drop((veth, server, client));
        for name in names {
            assert!(!std::path::Path::new("/run/netns").join(name).exists());
        }
    }
}
