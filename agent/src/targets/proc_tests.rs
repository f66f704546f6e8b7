use std::process::{Command, Stdio};

use super::*;
use crate::targets::testing::{Python, until};

fn root() -> &'static Path {
    Path::new("/proc")
}

#[test]
fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
    let text = "42 (a) b (c)) S 7 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2\n";
    let stat = parse_stat(42, text).unwrap();
    assert_eq!(stat.comm, "a) b (c)");
    assert_eq!((stat.ppid, stat.state, stat.kernel_thread), (7, 'S', false));
    assert_eq!(
        stat.key,
        ProcessKey {
            tgid: 42,
            start_ticks: 987_654
        }
    );
    let thread = text.replace("4194560", "2129984");
    assert!(parse_stat(42, &thread).unwrap().kernel_thread);
    for cut in ["", "42", "42 (a", "42 (a)", "42 (a) S 7 42"] {
        assert_eq!(parse_stat(42, cut), None, "{cut:?}");
    }
}

#[test]
fn a_process_knows_itself() {
    let own = read_process(root(), std::process::id()).unwrap();
    let exe = std::env::current_exe().unwrap();
    assert_eq!(Path::new(&own.exe), exe);
    assert!(!own.exe_deleted);
    assert_eq!(own.key.tgid, std::process::id());
    assert!(own.key.start_ticks > 0);
    assert_eq!(own.cmdline, std::env::args().collect::<Vec<_>>());
    assert_eq!(own.netns, crate::targets::netns::current().unwrap());
    assert!(
        own.mapped.iter().any(|file| Path::new(&file.path) == exe),
        "{:?}",
        own.mapped
    );
    assert!(
        own.cgroup_paths().iter().all(|path| path.starts_with('/')),
        "{:?}",
        own.cgroups
    );
    assert!(list_pids(root()).unwrap().contains(&std::process::id()));
}

#[test]
fn a_process_that_exited_is_gone_at_every_step() {
    let mut child = Command::new("true").stdin(Stdio::null()).spawn().unwrap();
    let pid = child.id();
    let key = read_stat(root(), pid).unwrap().key;
    child.wait().unwrap();
    assert!(read_stat(root(), pid).unwrap_err().is_gone());
    assert!(read_identity(root(), pid).unwrap_err().is_gone());
    assert!(read_netns(root(), pid).unwrap_err().is_gone());
    assert!(read_mapped(root(), key).unwrap_err().is_gone());
    assert!(children(root(), pid).unwrap_err().is_gone());
}

#[test]
fn the_files_of_another_process_with_the_same_pid_are_not_given() {
    let mut key = read_stat(root(), std::process::id()).unwrap().key;
    key.start_ticks += 1;
    assert!(read_mapped(root(), key).unwrap_err().is_gone());
}

#[test]
fn a_zombie_has_a_stat_line_and_is_gone_otherwise() {
    let mut child = Command::new("true").stdin(Stdio::null()).spawn().unwrap();
    let pid = child.id();
    until("a zombie", || {
        (read_stat(root(), pid).unwrap().state == 'Z').then_some(())
    });
    assert!(read_identity(root(), pid).unwrap_err().is_gone());
    child.wait().unwrap();
}

#[test]
fn children_of_every_thread_are_found() {
    let script = "import os,sys\nr=os.fork()\nif r==0: sys.stdin.read(); os._exit(0)\n\
                  print(r,flush=True); sys.stdin.read(); os.waitpid(r,0)";
    let parent = Python::run(None, script);
    assert_eq!(
        children(root(), parent.pid()).unwrap(),
        [parent.word::<u32>(0)]
    );
    assert!(
        children(root(), std::process::id())
            .unwrap()
            .contains(&parent.pid())
    );
}

#[test]
fn arguments_and_titles_are_told_apart() {
    for (bytes, expected) in [
        (&b""[..], &[][..]),
        (b"\0\0\0", &[]),
        (b"vllm\0serve\0", &["vllm", "serve"]),
        (b"a\0\0b\0", &["a", "", "b"]),
        (
            b"nginx: master process nginx -g daemon off;",
            &["nginx: master process nginx -g daemon off;"],
        ),
        (b"VLLM::EngineCore\0\0\0\0\0\0", &["VLLM::EngineCore"]),
        (b"sglang::scheduler_TP0     \0", &["sglang::scheduler_TP0"]),
        (b"\xff\0x\0", &["\u{fffd}", "x"]),
    ] {
        assert_eq!(parse_cmdline(bytes), expected, "{bytes:?}");
    }
}

#[test]
fn a_huge_command_line_is_cut() {
    let mut child = Command::new("sleep")
        .args(["60".to_owned(), "0".repeat(100_000)])
        .spawn()
        .unwrap();
    let read = until("exec", || {
        let found = read_identity(root(), child.id()).unwrap();
        (found.cmdline.first()? == "sleep").then_some(found)
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(read.command_line().len() as u64, CMDLINE_CAP);
}

const MAPS: &str = "\
55d0a0000000-55d0a0001000 r--p 00000000 fe:00 1234                       /usr/bin/a b
55d0a0001000-55d0a0002000 r-xp 00001000 fe:00 1234                       /usr/bin/a b
55d0a1000000-55d0a1021000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000001000 r-xp 00000000 fe:00 77                         /usr/lib/libssl.so.3 (deleted)
7f0000001000-7f0000002000 r-xp 00000000 fe:00 78                         /usr/lib/libssl.so.3
7f0000002000-7f0000003000 rw-s 00000000 00:01 9                          /memfd:x (deleted)
7f0000003000-7f0000004000 rw-s 00000000 00:01 32768                      /SYSV00000000 (deleted)
7f0000004000-7f0000005000 rw-s 00000000 00:06 512                        /dev/nvidia0
7f0000005000-7f0000006000 rw-p 00000000 00:00 0
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
7f0000007000-7f0000008000 r-xp 00000000 fe:00 79                         /usr/lib/cut";

#[test]
fn mapped_files_are_given_once_and_only_whole() {
    let files = parse_maps(MAPS.as_bytes()).unwrap();
    let short: Vec<_> = files
        .iter()
        .map(|f| (f.path.as_str(), f.deleted, f.inode))
        .collect();
    assert_eq!(
        short,
        [
            ("/usr/bin/a b", false, 1234),
            ("/usr/lib/libssl.so.3", true, 77),
            ("/usr/lib/libssl.so.3", false, 78),
            ("/dev/nvidia0", false, 512),
        ]
    );
    assert_eq!(files[0].device, "fe:00");
}

#[test]
fn mapped_files_are_capped() {
    let many: String = (1..10_000)
        .map(|i| format!("1000-2000 r--p 00000000 fe:00 {i}                /f/{i}\n"))
        .collect();
    assert_eq!(parse_maps(many.as_bytes()).unwrap().len(), MAPPED_FILES_CAP);
}

#[test]
fn a_cgroup_path_may_hold_colons_and_loses_its_mark() {
    assert_eq!(cgroup_path("0::/a:b:c"), Some("/a:b:c"));
    assert_eq!(cgroup_path("4:cpu,cpuacct:/x (deleted)"), Some("/x"));
    assert_eq!(cgroup_path("nonsense"), None);
}
