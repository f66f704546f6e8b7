//! Debian's cloud kernels: found through the metapackages, downloaded, unpacked, never installed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::{
    setup,
    shell::{capture, command, run_quietly},
};

/// An unpacked kernel.
#[derive(Debug)]
pub struct Kernel {
    pub image: PathBuf,
    tree: PathBuf,
    release: String,
}

/// The newest kernel of `series` that Debian offers here; one that is there already will do.
pub fn fetch(series: &str, dir: &Path) -> Result<Kernel> {
    fs::create_dir_all(dir)?;
    let tree = dir.join("kernel");
    if !tree.is_dir() {
        let package = match newest(series) {
            Ok(package) => package,
            Err(_) => {
                run_quietly(command("apt-get").args(["-qq", "update"]))?;
                newest(series)?
            }
        };
        println!("vm: downloading {package}");
        setup::unpack(&package, &tree)?;
    }
    let modules = tree.join("lib/modules");
    let release = fs::read_dir(&modules)
        .with_context(|| modules.display().to_string())?
        .find_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .context("the kernel package holds no modules")?;
    if !modules.join(&release).join("modules.dep").is_file() {
        run_quietly(command("depmod").arg("-b").arg(&tree).arg(&release))
            .context("depmod: run `cargo xtask setup`")?;
    }
    let image = tree.join(format!("boot/vmlinuz-{release}"));
    Ok(Kernel {
        image,
        tree,
        release,
    })
}

/// What the metapackage of the series depends on.
fn newest(series: &str) -> Result<String> {
    // 6.1 is bookworm's own kernel, so its metapackage carries no number.
    for meta in [
        format!("linux-image-{series}-cloud-amd64"),
        "linux-image-cloud-amd64".to_owned(),
    ] {
        let depends = capture(command("apt-cache").args(["depends", "--important", &meta]));
        let wanted = format!("linux-image-{series}.");
        let found = depends.unwrap_or_default().lines().find_map(|line| {
            let package = line.trim().strip_prefix("Depends: ")?;
            package.starts_with(&wanted).then(|| package.to_owned())
        });
        if let Some(package) = found {
            return Ok(package);
        }
    }
    bail!("Debian's sources here offer no linux-image-{series}*-cloud-amd64")
}

impl Kernel {
    /// Files of the named modules and all they depend on, in the order to insert them. A module that
    /// this kernel lacks or has built in is left out.
    pub fn modules(&self, names: &[&str]) -> Result<Vec<PathBuf>> {
        let mut files: Vec<PathBuf> = Vec::new();
        for name in names {
            let mut modprobe =
                command(crate::shell::which("modprobe").unwrap_or("modprobe".into()));
            modprobe
                .arg("-d")
                .arg(&self.tree)
                .args(["-S", &self.release, "--show-depends", name]);
            let Ok(lines) = capture(&mut modprobe) else {
                continue;
            };
            for line in lines.lines() {
                // `insmod FILE`, and options that this host gives the module.
                let mut words = line.split_whitespace();
                let file = (words.next() == Some("insmod"))
                    .then(|| words.next())
                    .flatten();
                files.extend(file.map(PathBuf::from).filter(|file| !files.contains(file)));
            }
        }
        Ok(files)
    }
}
