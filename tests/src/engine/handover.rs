//! Listening sockets from the parent to a worker, over a Unix stream.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

const LISTENERS: usize = 16;

/// Takes the sockets that [`send`] sent.
pub(super) fn receive(parent: &UnixStream) -> anyhow::Result<Vec<TcpListener>> {
    let mut byte = [0u8; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(LISTENERS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(
        parent,
        &mut [IoSliceMut::new(&mut byte)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut listeners = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            listeners.extend(fds.map(TcpListener::from));
        }
    }
    anyhow::ensure!(!listeners.is_empty(), "no listener came from the parent");
    Ok(listeners)
}

/// Sends the sockets in one message.
pub(super) fn send(worker: &UnixStream, listeners: &[TcpListener]) -> anyhow::Result<()> {
    let fds: Vec<_> = listeners.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(LISTENERS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    anyhow::ensure!(
        ancillary.push(SendAncillaryMessage::ScmRights(&fds)),
        "too many listeners"
    );
    sendmsg(
        worker,
        &[IoSlice::new(b"l")],
        &mut ancillary,
        SendFlags::empty(),
    )?;
    Ok(())
}
