use super::*;
use crate::targets::netns::in_netns;
use crate::targets::testing::{NetNs, until};

fn devices_of(ns: &NetNs) -> Vec<Device> {
    in_netns(&ns.handle(), list).unwrap().unwrap()
}

#[test]
fn devices_are_listed_with_the_addresses_they_carry() {
    let Some(ns) = NetNs::create() else { return };
    assert!(ns.ip(&["link", "add", "va", "type", "veth", "peer", "name", "vb"]));
    assert!(ns.ip(&["addr", "add", "10.9.9.1/24", "dev", "va", "label", "va:one"]));
    assert!(ns.ip(&["addr", "add", "10.9.8.1", "peer", "10.9.8.2", "dev", "va"]));
    let found = devices_of(&ns);
    let named = |name: &str| found.iter().find(|device| device.name == name).unwrap();
    let (lo, va, vb) = (named("lo"), named("va"), named("vb"));
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(lo.is_loopback() && lo.is_up() && lo.has_local_address());
    assert!(
        lo.addresses.contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)),
        "{lo:?}"
    );
    assert!(!va.is_loopback() && !va.is_up());
    let mut addresses = va.addresses.clone();
    addresses.sort_unstable();
    let expected: Vec<IpAddr> = ["10.9.8.1", "10.9.9.1"].map(|a| a.parse().unwrap()).into();
    assert_eq!(
        addresses, expected,
        "the local end of the peer address, and the labelled one"
    );
    assert!(!vb.has_local_address());
    assert_ne!(va.index, vb.index);
}

#[test]
fn a_link_local_address_counts() {
    let Some(ns) = NetNs::create() else { return };
    assert!(ns.ip(&["link", "add", "va", "type", "veth", "peer", "name", "vb"]));
    assert!(ns.ip(&["link", "set", "va", "up"]));
    assert!(ns.ip(&["link", "set", "vb", "up"]));
    until("a link-local address", || {
        devices_of(&ns)
            .iter()
            .any(|d| d.name == "va" && d.has_local_address())
            .then_some(())
    });
}

#[test]
fn two_hundred_addresses_are_all_found() {
    let Some(ns) = NetNs::create() else { return };
    let mut batch = std::process::Command::new("ip")
        .args([
            "-n",
            ns.path().file_name().unwrap().to_str().unwrap(),
            "-batch",
            "-",
        ])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines: String = (1..=200)
        .map(|i| format!("addr add 10.7.0.{i}/32 dev lo\n"))
        .collect();
    std::io::Write::write_all(&mut batch.stdin.take().unwrap(), lines.as_bytes()).unwrap();
    assert!(batch.wait().unwrap().success());
    let found = devices_of(&ns);
    let mut ours: Vec<String> = found[0].addresses.iter().map(IpAddr::to_string).collect();
    ours.retain(|address| address.starts_with("10.7."));
    assert_eq!(ours.len(), 200);
}

#[test]
fn a_watch_tells_of_addresses_and_links_of_its_own_namespace() {
    let (Some(ns), Some(other)) = (NetNs::create(), NetNs::create()) else {
        return;
    };
    let watch = in_netns(&ns.handle(), DeviceWatch::open).unwrap().unwrap();
    assert!(!watch.drain().unwrap());
    assert!(other.ip(&["addr", "add", "10.9.9.1/24", "dev", "lo"]));
    assert!(!watch.drain().unwrap(), "another namespace is not watched");
    for change in [
        &["addr", "add", "10.9.9.1/24", "dev", "lo"][..],
        &["addr", "add", "fd00::1/64", "dev", "lo"],
        &["link", "add", "va", "type", "veth", "peer", "name", "vb"],
        &["addr", "del", "10.9.9.1/24", "dev", "lo"],
        &["link", "del", "va"],
    ] {
        assert!(ns.ip(change));
        until("news", || watch.drain().unwrap().then_some(()));
        // An IPv6 address is announced again when it is found unique.
        until("silence", || (!watch.drain().unwrap()).then_some(()));
    }
}
