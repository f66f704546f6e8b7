//! Offloads of a device, set over the kernel's own netlink family (`ethtool -K` without ethtool).

use std::os::fd::AsRawFd;

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, sendto,
    socket,
};

const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const FEATURES_SET: u8 = 12;
const HEADER: u16 = 1;
const HEADER_DEV_NAME: u16 = 2;
const WANTED: u16 = 3;
const BITSET_BITS: u16 = 3;
const BITS_BIT: u16 = 1;
const BIT_NAME: u16 = 2;
const BIT_VALUE: u16 = 3;
const NESTED: u16 = 1 << 15;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST_ACK: u16 = 1 | 4;

/// An attribute: its length, its type, its bytes, padded to four.
fn attribute(kind: u16, bytes: &[u8]) -> Vec<u8> {
    let mut out = ((bytes.len() + 4) as u16).to_ne_bytes().to_vec();
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

fn text(kind: u16, word: &str) -> Vec<u8> {
    attribute(kind, &[word.as_bytes(), &[0]].concat())
}

fn message(family: u16, command: u8, attributes: &[u8]) -> Vec<u8> {
    let mut out = ((20 + attributes.len()) as u32).to_ne_bytes().to_vec();
    out.extend_from_slice(&family.to_ne_bytes());
    out.extend_from_slice(&NLM_F_REQUEST_ACK.to_ne_bytes());
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&[command, 1, 0, 0]);
    out.extend_from_slice(attributes);
    out
}

/// Sends a message and reads until its acknowledgement; the payloads of the answers before it.
fn ask(family: u16, command: u8, attributes: &[u8]) -> Vec<Vec<u8>> {
    let fd = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkGeneric,
    )
    .expect("a generic netlink socket");
    bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0)).expect("bind");
    let request = message(family, command, attributes);
    let kernel = NetlinkAddr::new(0, 0);
    sendto(fd.as_raw_fd(), &request, &kernel, MsgFlags::empty()).expect("send");
    let (mut answers, mut buffer) = (Vec::new(), vec![0; 65_536]);
    loop {
        let n = recv(fd.as_raw_fd(), &mut buffer, MsgFlags::empty()).expect("an answer");
        let mut rest = &buffer[..n];
        while rest.len() >= 16 {
            let length = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
            let kind = u16::from_ne_bytes([rest[4], rest[5]]);
            let body = &rest[16..length];
            if kind == NLMSG_ERROR {
                let code = i32::from_ne_bytes([body[0], body[1], body[2], body[3]]);
                assert_eq!(code, 0, "netlink family {family} command {command}");
                return answers;
            }
            answers.push(body.to_vec());
            rest = &rest[length.next_multiple_of(4).min(rest.len())..];
        }
    }
}

fn ethtool() -> u16 {
    let answers = ask(
        GENL_ID_CTRL,
        CTRL_CMD_GETFAMILY,
        &text(CTRL_ATTR_FAMILY_NAME, "ethtool"),
    );
    let mut rest = &answers.first().expect("the family ethtool")[4..];
    loop {
        let length = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
        let kind = u16::from_ne_bytes([rest[2], rest[3]]);
        if kind == CTRL_ATTR_FAMILY_ID {
            return u16::from_ne_bytes([rest[4], rest[5]]);
        }
        rest = &rest[length.next_multiple_of(4)..];
    }
}

/// Turns features of a device of this thread's namespace on or off; panics when the kernel
/// refuses.
pub(super) fn set(device: &str, wanted: &[(&str, bool)]) {
    let bit = |(name, on): &(&str, bool)| {
        let mut inside = text(BIT_NAME, name);
        if *on {
            inside.extend(attribute(BIT_VALUE, &[]));
        }
        attribute(BITS_BIT | NESTED, &inside)
    };
    let bits: Vec<u8> = wanted.iter().flat_map(bit).collect();
    let mut attributes = attribute(HEADER | NESTED, &text(HEADER_DEV_NAME, device));
    let bits = attribute(BITSET_BITS | NESTED, &bits);
    attributes.extend(attribute(WANTED | NESTED, &bits));
    ask(ethtool(), FEATURES_SET, &attributes);
}
