use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Instant;

use super::*;
use crate::targets::netns::in_netns;
use crate::targets::testing::{NetNs, Python, until};

fn ours(port: u16) -> Vec<TcpSocket> {
    listeners()
        .unwrap()
        .into_iter()
        .filter(|socket| socket.local.port == port)
        .collect()
}

#[test]
fn an_ipv4_listener_has_a_mapped_address() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let found = ours(port);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        found[0].local,
        Endpoint::from(listener.local_addr().unwrap())
    );
    assert_eq!(
        found[0].local.ip,
        Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets()
    );
    assert_eq!((found[0].v6only, found[0].state), (None, TcpState::Listen));
    assert_eq!(
        found[0].remote,
        Endpoint {
            ip: found[0].remote.ip,
            port: 0
        }
    );
    assert!(found[0].inode > 0);
    drop(listener);
    // A child of another test holds it between its fork and its exec.
    until("the close", || ours(port).is_empty().then_some(()));
}

#[test]
fn wildcards_keep_their_family() {
    let v4 = TcpListener::bind("0.0.0.0:0").unwrap();
    let local = ours(v4.local_addr().unwrap().port())[0].local;
    assert_eq!(
        local.ip,
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0]
    );
    assert!(local.is_wildcard() && local.is_v4());
    // std leaves a wildcard IPv6 listener dual-stack.
    let v6 = TcpListener::bind("[::]:0").unwrap();
    let found = ours(v6.local_addr().unwrap().port())[0];
    assert_eq!((found.local.ip, found.v6only), ([0; 16], Some(false)));
    assert!(found.local.is_wildcard() && !found.local.is_v4());
}

#[test]
fn an_ipv6_only_listener_says_so() {
    let script = "import sys,socket\ns=socket.create_server(('::1',0),family=socket.AF_INET6)\n\
                  print(s.getsockname()[1],flush=True); sys.stdin.read()";
    let child = Python::run(None, script);
    let found = ours(child.word(0))[0];
    // create_server sets IPV6_V6ONLY.
    assert_eq!(found.v6only, Some(true));
    assert_eq!(found.local.to_string(), format!("[::1]:{}", child.words[0]));
}

#[test]
fn both_ends_of_a_connection_are_found_and_v4_over_v6_is_normalised() {
    let listener = TcpListener::bind("[::]:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let (server, _) = listener.accept().unwrap();
    let near = |socket: &TcpSocket| socket.local.port == port || socket.remote.port == port;
    let found = connections(near).unwrap();
    let client_end = Endpoint::from(client.local_addr().unwrap());
    let server_end = Endpoint::from(client.peer_addr().unwrap());
    assert_eq!(found.len(), 2, "{found:?}");
    let of_server = found.iter().find(|s| s.local == server_end).unwrap();
    assert_eq!(
        of_server.remote, client_end,
        "the server's socket is IPv6, its peer IPv4"
    );
    assert_eq!(of_server.state, TcpState::Established);
    assert!(
        found
            .iter()
            .any(|s| s.local == client_end && s.remote == server_end)
    );
    drop(client);
    until("CLOSE_WAIT", || {
        let found = connections(near).unwrap();
        found
            .iter()
            .any(|s| s.local == server_end && s.state == TcpState::CloseWait)
            .then_some(())
    });
    drop(server);
}

#[test]
fn a_connection_nobody_accepted_has_no_inode() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let _client = TcpStream::connect(addr).unwrap();
    let found = connections(|socket| socket.local == addr.into()).unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].inode, 0);
}

/// 5,000 connections are 10,000 sockets: some hundred messages of a dump.
#[test]
fn ten_thousand_sockets_are_dumped_exactly() {
    let Some(ns) = NetNs::create() else { return };
    let script = "import sys,socket,resource\n\
                  h=resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n\
                  n=min(5000,(h-100)//2)\n\
                  resource.setrlimit(resource.RLIMIT_NOFILE,(h,h))\n\
                  s=socket.create_server(('127.0.0.1',0),backlog=64)\nk=[]\n\
                  for i in range(n):\n  \
                    k.append(socket.create_connection(s.getsockname())); k.append(s.accept()[0])\n\
                  print(s.getsockname()[1],n,flush=True); sys.stdin.read()";
    let child = Python::run(Some(&ns), script);
    let (port, n): (u16, usize) = (child.word(0), child.word(1));
    assert!(
        n >= 2_000,
        "the limit of open files allows {n} connections only"
    );
    let begin = Instant::now();
    let (all, accepted) = in_netns(&ns.handle(), || {
        (
            connections(|_| true).unwrap(),
            connections(|socket| socket.local.port == port).unwrap(),
        )
    })
    .unwrap();
    eprintln!("two dumps of {} sockets: {:?}", all.len(), begin.elapsed());
    assert_eq!((all.len(), accepted.len()), (2 * n, n));
    assert!(
        accepted
            .iter()
            .all(|s| s.inode != 0 && s.state == TcpState::Established)
    );
    let mut peers: Vec<u16> = accepted.iter().map(|socket| socket.remote.port).collect();
    peers.sort_unstable();
    peers.dedup();
    assert_eq!(peers.len(), n, "every connection once");
}

#[test]
fn a_namespace_shows_its_own_sockets_only() {
    let Some(ns) = NetNs::create() else { return };
    let outside = TcpListener::bind("127.0.0.1:0").unwrap();
    let (inside, found) = in_netns(&ns.handle(), || {
        let inside = TcpListener::bind("127.0.0.1:0").unwrap();
        (inside, listeners().unwrap())
    })
    .unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].local, inside.local_addr().unwrap().into());
    assert_eq!(ours(outside.local_addr().unwrap().port()).len(), 1);
}

#[test]
fn a_short_message_is_nothing() {
    for length in 0..MESSAGE {
        let mut body = vec![0; length];
        if length > 1 {
            (body[0], body[1]) = (AF_INET as u8, 1);
        }
        assert_eq!(parse(&body), None, "{length}");
    }
}
