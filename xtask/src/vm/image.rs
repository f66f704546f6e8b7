//! The initramfs: programs with the libraries they load, modules, busybox, and an init that runs one
//! script and reports its exit code on the console.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::shell::{capture, command, run_quietly, which};

/// A guest's root folder, under construction.
#[derive(Debug)]
pub struct Image {
    root: PathBuf,
}

const FOLDERS: &[&str] = &[
    "bin", "dev", "proc", "sys", "tmp", "run", "etc", "root", "modules", "var",
];

impl Image {
    /// Starts anew at `root`.
    pub fn new(root: &Path) -> Result<Self> {
        if root.exists() {
            fs::remove_dir_all(root)?;
        }
        for folder in FOLDERS {
            fs::create_dir_all(root.join(folder))?;
        }
        let busybox = which("busybox").context("no busybox: run `cargo xtask setup`")?;
        fs::copy(busybox, root.join("bin/busybox"))?;
        fs::write(
            root.join("etc/hosts"),
            "127.0.0.1 localhost\n::1 localhost\n",
        )?;
        fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
        fs::write(
            root.join("etc/protocols"),
            "tcp 6 TCP\nudp 17 UDP\nipv6-icmp 58 IPv6-ICMP\n",
        )?;
        let mut image = Self {
            root: root.to_owned(),
        };
        // Busybox' own shell takes its applets for `ip` and `tc`, whatever PATH says.
        let shell = which("dash")
            .or_else(|| which("bash"))
            .context("no dash and no bash")?;
        image.add(&shell, Path::new("/bin/sh"))?;
        Ok(image)
    }

    /// Adds a file, or a folder with all in it; a program brings its libraries and loses its debug
    /// information.
    pub fn add(&mut self, host: &Path, guest: &Path) -> Result<()> {
        if host.is_dir() {
            for entry in fs::read_dir(host)? {
                let name = entry?.file_name();
                self.add(&host.join(&name), &guest.join(&name))?;
            }
            return Ok(());
        }
        let to = self.place(guest)?;
        fs::copy(host, &to).with_context(|| format!("copy {}", host.display()))?;
        if !fs::read(&to)?.starts_with(b"\x7fELF") {
            return Ok(());
        }
        run_quietly(command("strip").arg("--strip-debug").arg(&to))?;
        // A static program makes ldd fail: it needs nothing.
        let libraries = capture(command("ldd").arg(host)).unwrap_or_default();
        for library in libraries
            .split_whitespace()
            .filter(|word| word.starts_with('/'))
        {
            let library = Path::new(library);
            let to = self.place(library)?;
            if !to.exists() {
                fs::copy(library, to).with_context(|| library.display().to_string())?;
            }
        }
        Ok(())
    }

    /// Adds kernel modules, to be inserted in this order.
    pub fn add_modules(&mut self, modules: &[PathBuf]) -> Result<()> {
        let mut order = String::new();
        for module in modules {
            let name = module
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let plain = name.trim_end_matches(".xz").to_owned();
            let to = self.root.join("modules").join(&plain);
            fs::copy(module, self.root.join("modules").join(&name))
                .with_context(|| module.display().to_string())?;
            if name != plain {
                run_quietly(command("xz").arg("-d").arg(to.with_file_name(&name)))?;
            }
            order.push_str(&format!("{plain}\n"));
        }
        fs::write(self.root.join("modules/order"), order)?;
        Ok(())
    }

    /// Packs the image around `script`. It stays uncompressed: unpacking costs more than copying.
    pub fn pack(self, script: &str, exit: &str) -> Result<PathBuf> {
        fs::write(self.root.join("script"), script)?;
        let init = self.root.join("init");
        fs::write(&init, INIT.replace("@EXIT@", exit))?;
        fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
        let packed = self.root.with_extension("cpio");
        run_quietly(
            command("sh")
                .args(["-c", "find . | cpio --quiet -o -H newc > \"$0\""])
                .arg(&packed)
                .current_dir(&self.root),
        )
        .context("packing the initramfs: run `cargo xtask setup`")?;
        fs::remove_dir_all(&self.root)?;
        Ok(packed)
    }

    fn place(&self, guest: &Path) -> Result<PathBuf> {
        let to = self.root.join(guest.strip_prefix("/").unwrap_or(guest));
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        Ok(to)
    }
}

const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin 2>/dev/null
export PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tracefs trace /sys/kernel/tracing
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup /sys/fs/cgroup
mkdir -p /run/netns
ln -sfn /run /var/run
ulimit -n 65536
for module in $(cat /modules/order); do insmod "/modules/$module" || echo "no module $module"; done
ip link set lo up
cd /
sh /script
code=$?
echo
echo "@EXIT@$code"
sync
poweroff -f
"#;
