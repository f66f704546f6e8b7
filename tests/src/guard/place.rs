//! Where the built programs lie.

use std::path::{Path, PathBuf};

/// The built program `name`: `$ENGINETAP_BIN` for the agent, else beside the
/// running test's target directory, else `target/{debug,release}` of the
/// workspace. Panics with the places looked at.
pub fn locate(name: &str) -> PathBuf {
    if name == "enginetap"
        && let Some(path) = std::env::var_os("ENGINETAP_BIN")
    {
        return PathBuf::from(path);
    }
    let mut tried = Vec::new();
    if let Ok(exe) = std::env::current_exe() {
        tried.extend(exe.ancestors().skip(1).take(2).map(|dir| dir.join(name)));
    }
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    tried.push(target.join("release").join(name));
    tried.push(target.join("debug").join(name));
    match tried.iter().find(|path| path.is_file()) {
        Some(path) => path.clone(),
        None => panic!("{name} is not built; looked at {tried:?}; run `cargo build --workspace`"),
    }
}
