use super::*;
use crate::targets::testing::process;

const ID: &str = "4f5c6f0c9f3b1f6f0d8a1d1e2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e";
const OTHER: &str = "aaaabbbbccccddddeeeeffff00001111222233334444555566667777888899990";
const UID: &str = "8dbc1b70-5e4d-4e4f-9d1a-0b6f6d0c1a2b";

fn of(lines: &[&str]) -> Option<WorkloadName> {
    let lines: Vec<String> = lines
        .iter()
        .map(|line| {
            line.replace("U_I_D", &UID.replace('-', "_"))
                .replace("UID", UID)
                .replace("OTHER", &OTHER[..64])
                .replace("ID", ID)
        })
        .collect();
    from_cgroups(&lines)
}

#[test]
fn a_kubernetes_container_is_found_under_every_driver_and_hierarchy() {
    for path in [
        // cgroupfs: burstable, besteffort, guaranteed
        "0::/kubepods/burstable/podUID/ID",
        "0::/kubepods/besteffort/podUID/ID",
        "0::/kubepods/podUID/ID",
        "12:memory:/kubepods/burstable/podUID/ID",
        "1:name=systemd:/kubepods/podUID/ID",
        "0::/kubepods/burstable/podUID/crio-ID",
        // systemd: containerd, docker, CRI-O, guaranteed
        "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_I_D.slice/cri-containerd-ID.scope",
        "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podU_I_D.slice/docker-ID.scope",
        "0::/kubepods.slice/kubepods-podU_I_D.slice/crio-ID.scope",
        "0::/kubepods.slice/kubepods-podU_I_D.slice/crio-ID.scope/container",
        "9:cpu,cpuacct:/kubepods.slice/kubepods-podU_I_D.slice/docker-ID.scope",
        // containerd told a systemd path while it drives cgroupfs
        "9:pids:/system.slice/containerd.service/kubepods-besteffort-podU_I_D.slice:cri-containerd:ID",
        "0::/kubepods-burstable-podU_I_D.slice:cri-containerd:ID",
        // kind: a node that is itself a container
        "0::/docker/OTHER/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-podU_I_D.slice/cri-containerd-ID.scope",
        "0::/system.slice/docker-OTHER.scope/kubelet/kubepods/podUID/ID",
        // nested in the container: its own systemd, docker in docker
        "0::/kubepods/podUID/ID/system.slice/foo.service",
        "0::/kubepods/podUID/ID/docker/OTHER",
        // seen from a sibling's cgroup namespace
        "0::/../../podUID/ID",
        "0::/../../../kubepods-podU_I_D.slice/cri-containerd-ID.scope",
        "0::/kubepods/podUID/ID (deleted)",
    ] {
        let name = of(&[path]).unwrap_or_else(|| panic!("{path}"));
        assert_eq!(
            name,
            WorkloadName {
                namespace: String::new(),
                pod: UID.into(),
                container: ID[..12].into(),
                kind: WorkloadKind::Kubernetes,
                container_id: ID.into(),
            },
            "{path}"
        );
    }
}

#[test]
fn a_static_pod_has_a_uid_without_dashes() {
    let uid = "6ea1b5e4c1f0a9d8b7c6d5e4f3a2b1c0";
    for path in [
        format!("0::/kubepods/burstable/pod{uid}/ID"),
        format!("0::/kubepods.slice/kubepods-pod{uid}.slice/crio-ID.scope"),
    ] {
        assert_eq!(of(&[&path]).unwrap().pod, uid, "{path}");
    }
}

#[test]
fn on_a_hybrid_host_the_hierarchy_that_knows_decides() {
    let v1 = "5:cpuset:/kubepods/podUID/ID";
    let v2 = "0::/system.slice/containerd.service";
    for lines in [[v1, v2], [v2, v1]] {
        assert_eq!(of(&lines).unwrap().kind, WorkloadKind::Kubernetes);
    }
    let name = of(&["3:cpu:/", "2:pids:/docker/ID", "0::/"]).unwrap();
    assert_eq!(
        (name.kind, name.container.as_str()),
        (WorkloadKind::Container, &ID[..12])
    );
}

#[test]
fn a_plain_container_is_named_by_its_id() {
    for path in [
        "0::/docker/ID",
        "0::/system.slice/docker-ID.scope",
        "0::/machine.slice/libpod-ID.scope",
        "0::/machine.slice/libpod-ID.scope/container",
        "0::/machine.slice/machine-libpod_pod_OTHER.slice/libpod-ID.scope",
        "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope/container",
        "0::/user.slice/user-1000.slice/user@1000.service/app.slice/docker-ID.scope",
        "4:memory:/libpod_parent/libpod-ID",
        "0::/default/ID",
        "0::/system.slice/nerdctl-ID.scope",
        "0::/ecs/0123456789abcdef0123456789abcdef/ID",
    ] {
        let name = of(&[path]).unwrap_or_else(|| panic!("{path}"));
        assert_eq!(
            (name.kind, name.pod.as_str()),
            (WorkloadKind::Container, ""),
            "{path}"
        );
        assert_eq!(
            (name.container.as_str(), name.container_id.as_str()),
            (&ID[..12], ID),
            "{path}"
        );
    }
}

#[test]
fn a_service_is_named_by_its_unit() {
    for (path, unit) in [
        ("0::/system.slice/vllm.service", "vllm.service"),
        (
            "1:name=systemd:/system.slice/vllm@0.service",
            "vllm@0.service",
        ),
        (
            "0::/system.slice/system-vllm.slice/vllm@0.service",
            "vllm@0.service",
        ),
        ("0::/system.slice/vllm.service/workers", "vllm.service"),
        ("0::/system.slice/containerd.service", "containerd.service"),
        ("0::/system.slice/a:b.service", "a:b.service"),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/vllm.service",
            "vllm.service",
        ),
        (
            "0::/machine.slice/libpod-conmon-ID.scope/x.service",
            "x.service",
        ),
    ] {
        let name = of(&[path]).unwrap_or_else(|| panic!("{path}"));
        assert_eq!(
            (name.kind, name.container.as_str()),
            (WorkloadKind::Unit, unit),
            "{path}"
        );
    }
}

#[test]
fn sessions_monitors_and_odd_paths_name_nothing() {
    for path in [
        "0::/",
        "0::/init.scope",
        "0::/user.slice/user-1000.slice/session-3.scope",
        "0::/user.slice/user-1000.slice/user@1000.service/init.scope",
        "0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome-x.scope",
        "0::/machine.slice/libpod-conmon-ID.scope",
        "0::/kubepods.slice/kubepods-podU_I_D.slice",
        "0::/kubepods/podnonsense/x",
        "0::/docker/buildkit/abcdef",
        "0::/podcast-0123",
        "nonsense",
    ] {
        assert_eq!(of(&[path]), None, "{path}");
    }
}

fn tree(chain: &[Process], at: usize) -> WorkloadName {
    name_in_tree(&chain[at], |pid| {
        chain
            .iter()
            .find(|process| process.key.tgid == pid)
            .cloned()
    })
}

fn chain(steps: &[(&str, &[&str])]) -> Vec<Process> {
    let mut ppid = 1;
    steps
        .iter()
        .zip(100..)
        .map(|((exe, cmdline), pid)| {
            let mut process = process(exe, cmdline);
            process.key.tgid = pid;
            process.ppid = ppid;
            ppid = pid;
            process
        })
        .collect()
}

const PYTHON: &str = "/usr/bin/python3.11";

#[test]
fn an_executable_outside_everything_is_named_by_its_file() {
    let name = name(&process(
        "/opt/bin/llama-server",
        &["llama-server", "-m", "x.gguf"],
    ));
    assert_eq!(
        (name.kind, name.container.as_str()),
        (WorkloadKind::Executable, "llama-server")
    );
    assert_eq!((name.namespace.as_str(), name.pod.as_str()), ("", ""));
}

#[test]
fn workers_take_the_name_of_the_ancestor_that_tells_it() {
    let chain = chain(&[
        ("/usr/bin/bash", &["bash", "/start.sh"]),
        (PYTHON, &["python3", "/usr/bin/vllm", "serve"]),
        (PYTHON, &["VLLM::EngineCore"]),
        (
            PYTHON,
            &[
                "python3",
                "-c",
                "from multiprocessing.spawn import spawn_main",
            ],
        ),
    ]);
    for at in 1..4 {
        assert_eq!(tree(&chain, at).container, "vllm", "{at}");
    }
    assert_eq!(tree(&chain, 0).container, "start.sh");
}

#[test]
fn another_executable_or_cgroup_ends_the_family() {
    let mut chain = chain(&[
        (PYTHON, &["python3", "supervisor.py"]),
        (PYTHON, &["python3", "-c", "x"]),
    ]);
    assert_eq!(tree(&chain, 1).container, "supervisor.py");
    chain[1].cgroups = vec!["0::/user.slice/user-1.slice/session-1.scope".into()];
    assert_eq!(tree(&chain, 1).container, "python3.11");
    chain[1].cgroups = chain[0].cgroups.clone();
    chain[0].exe = "/opt/venv/bin/python3.12".into();
    assert_eq!(tree(&chain, 1).container, "python3.11");
}

#[test]
fn a_circle_of_parents_ends() {
    let mut process = process(PYTHON, &["python3", "-c", "x"]);
    process.ppid = process.key.tgid;
    assert_eq!(
        name_in_tree(&process, |_| Some(process.clone())).container,
        "python3.11"
    );
}

#[test]
fn a_path_is_cut_where_it_names_the_container_or_unit() {
    let pod = format!("/kubepods/burstable/pod{UID}/{ID}");
    let quirk = format!(
        "/system.slice/kubepods-pod{}.slice:cri-containerd:{ID}",
        UID.replace('-', "_")
    );
    let docker = format!("/docker/{ID}");
    let unit = "/system.slice/vllm.service".to_owned();
    for (own, uid, container) in [
        (&pod, UID, &ID[..12]),
        (&quirk, UID, &ID[..12]),
        (&docker, "", &ID[..12]),
        (&unit, "", "vllm.service"),
    ] {
        for inside in ["", "/a", "/a/b.scope"] {
            let path = format!("{own}{inside}");
            assert_eq!(own_cgroup(&path, uid, container), Some(own.as_str()));
            assert_eq!(own_cgroup(&path, uid, "another"), None);
        }
    }
    // A container that runs in another one is not its host.
    let nested = format!("{docker}/docker/{}", &OTHER[..64]);
    assert_eq!(own_cgroup(&nested, "", &OTHER[..12]), None);
    for path in ["", "/", "/user.slice", "/system.slice/vllm.service2"] {
        assert_eq!(own_cgroup(path, "", "vllm.service"), None, "{path}");
    }
}
