use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::time::Instant;

use super::*;
use crate::targets::sockdiag::Endpoint;
use crate::targets::testing::{NetNs, Python};

fn listener_on(result: &ScanResult, id: NetnsId, port: u16) -> &Listener {
    let namespace = result
        .namespaces
        .iter()
        .find(|namespace| namespace.id == id)
        .unwrap();
    let found: Vec<_> = namespace
        .listeners
        .iter()
        .filter(|l| l.socket.local.port == port)
        .collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0]
}

#[test]
fn a_listener_of_this_process_is_found_with_its_facts_and_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let client = TcpStream::connect(addr).unwrap();
    let (_accepted, _) = listener.accept().unwrap();
    let begin = Instant::now();
    let result = scan(&ScanOptions::default()).unwrap();
    eprintln!(
        "scan of {} processes: {:?}",
        result.stats.len(),
        begin.elapsed()
    );
    let own = std::process::id();
    assert!(
        result.errors.iter().all(|error| error.pid != own),
        "{:?}",
        result.errors
    );
    let id = netns::current().unwrap();
    let found = listener_on(&result, id, addr.port());
    let key = found.owner.unwrap();
    // Among the holders can be a child of another test between its fork and its exec.
    assert!(found.holders.contains(&key));
    assert_eq!(key.tgid, std::process::id());
    let process = &result.processes[&key];
    assert_eq!(
        process.exe,
        std::env::current_exe().unwrap().to_str().unwrap()
    );
    assert!(!process.mapped.is_empty());
    assert!(result.ports_of(key).contains(&addr.port()));
    let namespace = result.namespaces.iter().find(|n| n.id == id).unwrap();
    assert!(namespace.pids.contains(&std::process::id()) && namespace.handle.is_some());
    let connection: Vec<_> = namespace
        .connections
        .iter()
        .filter(|c| c.socket.local == addr.into())
        .collect();
    assert_eq!(connection.len(), 1, "{connection:?}");
    assert_eq!(
        connection[0].socket.remote,
        Endpoint::from(client.local_addr().unwrap())
    );
    assert_eq!(connection[0].owner, Some(key));
}

#[test]
fn a_pre_forked_server_in_another_namespace_is_found_with_all_holders() {
    let Some(ns) = NetNs::create() else { return };
    let script = "import os,sys,socket\n\
                  s=socket.create_server(('::',0),family=socket.AF_INET6,dualstack_ipv6=True)\n\
                  a=s.getsockname()[1]; pids=[]\n\
                  for i in range(2):\n  \
                    r=os.fork()\n  \
                    if r==0: sys.stdin.read(); os._exit(0)\n  \
                    pids.append(r)\n\
                  c=socket.create_connection(('127.0.0.1',a)); d=s.accept()[0]\n\
                  print(a,*pids,flush=True); sys.stdin.read(); [os.waitpid(p,0) for p in pids]";
    let child = Python::run(Some(&ns), script);
    let port: u16 = child.word(0);
    let mut pids = vec![child.pid(), child.word(1), child.word(2)];
    let result = scan(&ScanOptions {
        maps: false,
        ..ScanOptions::default()
    })
    .unwrap();
    let found = listener_on(&result, ns.id(), port);
    assert_eq!(
        (found.socket.local.ip, found.socket.v6only),
        ([0; 16], Some(false))
    );
    assert_eq!(found.owner.unwrap().tgid, child.pid());
    pids.sort_unstable();
    let holders: Vec<u32> = found.holders.iter().map(|key| key.tgid).collect();
    assert_eq!(holders, pids);
    for key in &found.holders {
        let process = &result.processes[key];
        assert_eq!(process.netns, ns.id());
        assert!(process.mapped.is_empty(), "maps were not asked for");
        assert_eq!(result.ports_of(*key), [port]);
    }
    pids.retain(|&pid| pid != child.pid());
    assert_eq!(result.descendants(child.pid()), pids);
    let namespace = result.namespaces.iter().find(|n| n.id == ns.id()).unwrap();
    // The client's end is no connection of a listener.
    assert_eq!(
        namespace.connections.len(),
        1,
        "{:?}",
        namespace.connections
    );
    assert_eq!(namespace.connections[0].owner.unwrap().tgid, child.pid());
}

#[test]
fn a_listener_handed_into_another_namespace_keeps_its_own() {
    let Some(ns) = NetNs::create() else { return };
    let listener =
        netns::in_netns(&ns.handle(), || TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    // Somebody must live there for the namespace to be found.
    let _inhabitant = Python::run(
        Some(&ns),
        "import sys; print(1,flush=True); sys.stdin.read()",
    );
    let result = scan(&ScanOptions::default()).unwrap();
    let found = listener_on(&result, ns.id(), listener.local_addr().unwrap().port());
    assert_eq!(found.owner.unwrap().tgid, std::process::id());
    assert_ne!(result.processes[&found.owner.unwrap()].netns, ns.id());
}

#[test]
fn what_cannot_be_read_is_named_and_loses_nothing_else() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let root = tempfile::tempdir().unwrap();
    let own = std::process::id();
    symlink(format!("/proc/{own}"), root.path().join(own.to_string())).unwrap();
    // No stat line; a namespace that is none; a descriptor table that is a file.
    let odd = |pid: u32, stat: &str| {
        let dir = root.path().join(pid.to_string());
        std::fs::create_dir_all(dir.join("ns")).unwrap();
        std::fs::write(dir.join("stat"), stat).unwrap();
        dir
    };
    odd(900_001, "nonsense");
    let line = |pid: u32| format!("{pid} (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0");
    symlink("elsewhere", odd(900_002, &line(900_002)).join("ns/net")).unwrap();
    let file = odd(900_003, &line(900_003));
    symlink("net:[1]", file.join("ns/net")).unwrap();
    std::fs::write(file.join("fd"), "").unwrap();
    let options = ScanOptions {
        proc_root: root.path().into(),
        ..ScanOptions::default()
    };
    let result = scan(&options).unwrap();
    let mut told: Vec<_> = result.errors.iter().map(|e| (e.pid, e.step)).collect();
    told.sort_unstable();
    assert_eq!(
        told,
        [
            (900_001, "stat"),
            (900_002, "ns/net"),
            (900_003, "fd"),
            (900_003, "netns")
        ]
    );
    assert!(
        result
            .errors
            .iter()
            .any(|e| e.to_string().contains("pid 900001: stat: "))
    );
    let port = listener.local_addr().unwrap().port();
    let found = listener_on(&result, netns::current().unwrap(), port);
    assert_eq!(found.owner.unwrap().tgid, own);
}

#[test]
fn a_root_that_is_no_proc_is_an_error() {
    let options = ScanOptions {
        proc_root: "/nonexistent".into(),
        ..ScanOptions::default()
    };
    assert!(
        scan(&options)
            .unwrap_err()
            .to_string()
            .contains("/nonexistent")
    );
}
