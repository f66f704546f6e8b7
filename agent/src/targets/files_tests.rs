use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use nix::unistd::mkfifo;

use super::*;
use crate::targets::proc::read_stat;

struct Dir {
    temp: tempfile::TempDir,
    root: TargetRoot,
}

impl Dir {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let root = TargetRoot::of_dir(temp.path()).unwrap();
        Self { temp, root }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn refusal(&self, name: &str) -> String {
        format!("{:#}", self.root.read(name, 1 << 20).unwrap_err())
    }
}

#[test]
fn a_link_out_of_the_root_stays_inside() {
    let dir = Dir::new();
    symlink("/etc/shadow", dir.path("absolute")).unwrap();
    symlink("../../../../../../etc/shadow", dir.path("relative")).unwrap();
    assert!(
        dir.refusal("absolute").contains("ENOENT"),
        "{}",
        dir.refusal("absolute")
    );
    assert!(
        dir.refusal("relative").contains("ENOENT"),
        "{}",
        dir.refusal("relative")
    );
    assert!(dir.refusal("../../../etc/shadow").contains("ENOENT"));
    // The same links lead to the target's own file once it has one.
    fs::create_dir(dir.path("etc")).unwrap();
    fs::write(dir.path("etc/shadow"), "theirs").unwrap();
    for name in ["absolute", "relative", "/etc/shadow", "../etc/shadow"] {
        assert_eq!(dir.root.read(name, 100).unwrap(), b"theirs", "{name}");
    }
}

#[test]
fn a_pipe_is_refused_at_once() {
    let dir = Dir::new();
    mkfifo(&dir.path("pipe"), Mode::S_IRWXU).unwrap();
    assert!(dir.refusal("pipe").contains("not a regular file"));
}

#[test]
fn devices_directories_and_sockets_are_refused() {
    let dir = Dir::new();
    fs::create_dir(dir.path("sub")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.path("socket")).unwrap();
    assert!(dir.refusal("sub").contains("not a regular file"));
    assert!(dir.refusal("socket").contains("not a regular file"));
    let host = TargetRoot::of_dir(Path::new("/")).unwrap();
    let error = format!("{:#}", host.read("/dev/zero", 10).unwrap_err());
    assert!(error.contains("not a regular file"), "{error}");
}

#[test]
fn a_sparse_terabyte_is_refused_by_its_size() {
    let dir = Dir::new();
    fs::File::create(dir.path("huge"))
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    let error = dir.refusal("huge");
    assert!(
        error.contains("1099511627776 bytes") && error.contains("\"huge\""),
        "{error}"
    );
    fs::write(dir.path("exact"), [7; 10]).unwrap();
    assert_eq!(dir.root.read("exact", 10).unwrap(), [7; 10]);
    assert!(dir.root.read("exact", 9).is_err());
}

#[test]
fn questions_to_the_kernel_are_no_files() {
    let host = TargetRoot::of_dir(Path::new("/")).unwrap();
    for path in [
        "/proc/self/environ",
        "/proc/self/status",
        "/sys/kernel/btf/vmlinux",
    ] {
        if Path::new(path).exists() {
            let error = format!("{:#}", host.open_file(path, 1 << 30).unwrap_err());
            assert!(error.contains("pseudo file system"), "{path}: {error}");
        }
    }
    let error = format!(
        "{:#}",
        host.open_file("/proc/self/exe", 1 << 30).unwrap_err()
    );
    assert!(
        error.contains("ELOOP"),
        "a magic link is not followed: {error}"
    );
}

#[test]
fn the_root_of_a_process_is_that_of_the_very_process() {
    let proc = Path::new("/proc");
    let mut key = read_stat(proc, std::process::id()).unwrap().key;
    let root = TargetRoot::open(proc, key).unwrap();
    let exe = std::env::current_exe().unwrap();
    let file = root.open_file(exe.to_str().unwrap(), 1 << 32).unwrap();
    let meta = fs::metadata(&exe).unwrap();
    use std::os::unix::fs::MetadataExt;
    assert_eq!(
        (file.size, file.identity),
        (meta.len(), (meta.dev(), meta.ino()))
    );
    key.start_ticks += 1;
    assert!(
        TargetRoot::open(proc, key)
            .unwrap_err()
            .to_string()
            .contains("another process")
    );
}

#[test]
fn a_job_that_hangs_is_left_behind_and_a_panic_is_an_error() {
    assert_eq!(within(Duration::from_secs(5), || Ok(3)).unwrap(), 3);
    let (release, held) = mpsc::channel::<()>();
    let error = within(Duration::from_millis(20), move || Ok(held.recv().is_ok())).unwrap_err();
    assert!(error.to_string().contains("longer than"), "{error}");
    drop(release);
    let error = within(Duration::from_secs(5), || -> Result<()> {
        panic!("on purpose")
    });
    assert!(error.unwrap_err().to_string().contains("panicked"));
}
