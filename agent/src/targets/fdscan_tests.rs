use std::net::TcpListener;

use super::*;
use crate::targets::proc::{ProcessKey, read_stat};
use crate::targets::sockdiag;
use crate::targets::testing::{Python, until};

fn stat(tgid: u32, ppid: u32, start_ticks: u64, comm: &str) -> Stat {
    Stat {
        key: ProcessKey { tgid, start_ticks },
        ppid,
        comm: comm.into(),
        state: 'S',
        kernel_thread: false,
    }
}

fn owner(holders: &[Stat]) -> Option<u32> {
    pick_owner(holders).map(|stat| stat.key.tgid)
}

#[test]
fn the_owner_is_the_holder_whose_parent_holds_nothing() {
    let master = stat(10, 1, 100, "gunicorn");
    let workers = [stat(11, 10, 110, "gunicorn"), stat(12, 11, 120, "gunicorn")];
    assert_eq!(
        owner(&[workers[1].clone(), workers[0].clone(), master]),
        Some(10)
    );
    // The master has exited: the oldest line goes on.
    assert_eq!(
        owner(&[stat(12, 1, 120, "g"), stat(11, 1, 110, "g")]),
        Some(11)
    );
    assert_eq!(owner(&[]), None);
}

#[test]
fn a_service_manager_owns_only_what_nobody_else_holds() {
    let systemd = stat(1, 0, 1, "systemd");
    assert_eq!(
        owner(&[systemd.clone(), stat(20, 1, 200, "litellm")]),
        Some(20)
    );
    assert_eq!(
        owner(&[
            systemd.clone(),
            stat(21, 20, 210, "w"),
            stat(20, 1, 200, "litellm")
        ]),
        Some(20)
    );
    assert_eq!(owner(&[systemd]), Some(1));
}

#[test]
fn only_socket_links_have_a_socket_inode() {
    assert_eq!(socket_inode(b"socket:[123]"), Some(123));
    for link in [
        &b"pipe:[123]"[..],
        b"socket:[]",
        b"socket:[1",
        b"/tmp/socket:[1]",
        b"socket:[-1]",
    ] {
        assert_eq!(socket_inode(link), None, "{link:?}");
    }
}

fn inode_of(port: u16) -> u64 {
    let found = sockdiag::listeners().unwrap();
    found
        .iter()
        .find(|socket| socket.local.port == port)
        .unwrap()
        .inode
}

#[test]
fn a_listener_of_this_process_is_found() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let inode = inode_of(listener.local_addr().unwrap().port());
    let wanted = HashSet::from([inode]);
    let pids = proc::list_pids(Path::new("/proc")).unwrap();
    // A child of another test holds it as well between its fork and its exec.
    until("being the only holder", || {
        let owners = socket_owners(Path::new("/proc"), pids.iter().copied(), &wanted);
        (owners.by_inode.get(&inode)? == &[std::process::id()]).then_some(())
    });
    drop(listener);
    let owners = socket_owners(Path::new("/proc"), [std::process::id()], &wanted);
    assert!(owners.by_inode.is_empty());
}

#[test]
fn a_pre_forked_pair_shares_a_listener_and_the_parent_owns_it() {
    let script = "import os,sys,socket\ns=socket.create_server(('127.0.0.1',0))\nr=os.fork()\n\
                  if r==0: sys.stdin.read(); os._exit(0)\n\
                  print(s.getsockname()[1],r,flush=True); sys.stdin.read(); os.waitpid(r,0)";
    let parent = Python::run(None, script);
    let (port, child): (u16, u32) = (parent.word(0), parent.word(1));
    let inode = inode_of(port);
    let root = Path::new("/proc");
    let pids = proc::list_pids(root).unwrap();
    let owners = socket_owners(root, pids, &HashSet::from([inode]));
    let ours = [std::process::id(), parent.pid(), child];
    assert!(
        owners.errors.iter().all(|e| !ours.contains(&e.pid)),
        "{:?}",
        owners.errors
    );
    let mut holders = owners.by_inode[&inode].clone();
    holders.sort_unstable();
    let mut expected = vec![parent.pid(), child];
    expected.sort_unstable();
    assert_eq!(holders, expected);
    let stats: Vec<Stat> = holders
        .iter()
        .map(|&pid| read_stat(root, pid).unwrap())
        .collect();
    assert_eq!(owner(&stats), Some(parent.pid()));
}

#[test]
fn a_process_that_is_gone_is_no_error() {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let owners = socket_owners(Path::new("/proc"), [child.id()], &HashSet::from([1]));
    assert!(owners.errors.is_empty() && owners.by_inode.is_empty());
}
