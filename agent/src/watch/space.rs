//! A network namespace that is tapped: one packet socket per device that owns an address, following
//! the devices as they come and go. Everything closes when it is dropped, so that a namespace is
//! never kept alive longer than it is watched.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{BorrowedFd, OwnedFd};

use anyhow::Result;

use crate::bpf::tap;
use crate::targets::devices::{self, Device, DeviceWatch};
use crate::targets::netns::in_netns;

/// See the module.
pub struct Space {
    handle: OwnedFd,
    news: DeviceWatch,
    taps: BTreeMap<u32, (String, OwnedFd)>,
    /// Devices that could not be tapped, with the reason.
    pub errors: BTreeMap<u32, String>,
}

impl Space {
    /// Enters a namespace and taps its devices.
    pub fn open(handle: OwnedFd, program: BorrowedFd<'_>) -> Result<Space> {
        // The watch comes before the first list, so that no device is missed.
        let news = in_netns(&handle, DeviceWatch::open)??;
        let mut space = Space {
            handle,
            news,
            taps: BTreeMap::new(),
            errors: BTreeMap::new(),
        };
        space.refresh(program)?;
        Ok(space)
    }

    /// Opens taps on new devices and closes those on devices that are gone or lost their address.
    pub fn refresh(&mut self, program: BorrowedFd<'_>) -> Result<()> {
        let have: BTreeSet<u32> = self.taps.keys().copied().collect();
        let (wanted, opened) = in_netns(&self.handle, || -> Result<_> {
            let wanted: Vec<Device> = devices::list()?
                .into_iter()
                .filter(|d| d.is_loopback() || d.has_local_address())
                .collect();
            let opened: Vec<_> = wanted
                .iter()
                .filter(|d| !have.contains(&d.index))
                .map(|d| (d.index, d.name.clone(), tap::open(program, d.index)))
                .collect();
            Ok((wanted, opened))
        })??;
        let keep: BTreeSet<u32> = wanted.iter().map(|d| d.index).collect();
        self.taps.retain(|index, _| keep.contains(index));
        self.errors.clear();
        for (index, name, result) in opened {
            match result {
                Ok(fd) => {
                    self.taps.insert(index, (name, fd));
                }
                Err(error) => {
                    self.errors.insert(index, format!("{name}: {error:#}"));
                }
            }
        }
        Ok(())
    }

    /// Whether devices or addresses changed since the last call.
    pub fn changed(&self) -> bool {
        self.news.drain().unwrap_or(true)
    }

    /// Runs something inside the namespace.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        in_netns(&self.handle, work)
    }

    /// Names of the tapped devices.
    pub fn devices(&self) -> Vec<String> {
        self.taps.values().map(|(name, _)| name.clone()).collect()
    }
}
