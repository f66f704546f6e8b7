use std::collections::BTreeMap;
use std::io;

use super::cgroup::{Reading, Text, figures};
use super::hierarchy::{Controller, Hierarchies, own_paths};
use super::meters::{Cover, Meters};
use super::node::Node;
use super::parse::{self, Disk, Limit};
use crate::metrics::context::{CgroupCounter, DiskDirection, MemoryEvent, PressureKind, Resource};

const ID: &str = "4f5c6f0c9f3b1f6f0d8a1d1e2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e";

const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
const V2: &str = "\
25 29 0:23 / /proc rw,nosuid,nodev,noexec,relatime shared:14 - proc proc rw
90 29 0:26 /kubepods /var/lib/in\\040part rw - cgroup2 cgroup2 rw
30 24 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate
";
const PRESSURE: &str = "\
some avg10=6.82 avg60=26.03 avg300=35.28 total=7248784413
full avg10=0.00 avg60=0.00 avg300=0.00 total=42
";

fn mounted(text: &str, controller: Controller) -> Option<String> {
    let mount = Hierarchies::parse(text).mount(controller)?.clone();
    Some(mount.point.display().to_string())
}

#[test]
fn hierarchies_are_found_by_what_is_mounted_and_not_by_their_directory() {
    let joined = HYBRID
        .replace(
            "cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n",
            "x rw - cgroup c rw,cpu,cpuacct\n",
        )
        .replace("shared:9 - cgroup cgroup rw,cpuacct", "- cgroup c rw,pids");
    for (text, controller, point) in [
        (HYBRID, Controller::Cpu, Some("/sys/fs/cgroup/cpu")),
        (HYBRID, Controller::Cpuacct, Some("/sys/fs/cgroup/cpuacct")),
        (HYBRID, Controller::Memory, Some("/sys/fs/cgroup/memory")),
        (HYBRID, Controller::Unified, Some("/sys/fs/cgroup/unified")),
        (joined.as_str(), Controller::Cpu, Some("/sys/fs/x")),
        (joined.as_str(), Controller::Cpuacct, Some("/sys/fs/x")),
        (V2, Controller::Unified, Some("/sys/fs/cgroup")),
        (V2, Controller::Memory, None),
        ("no mountinfo at all\n", Controller::Unified, None),
    ] {
        assert_eq!(
            mounted(text, controller).as_deref(),
            point,
            "{controller:?}"
        );
    }
}

#[test]
fn a_path_is_resolved_below_what_is_mounted_and_nowhere_else() {
    let part = "90 29 0:26 /kubepods /mnt/in\\040part rw - cgroup2 cgroup2 rw\n";
    assert_eq!(mounted(part, Controller::Unified).unwrap(), "/mnt/in part");
    let below = |text: &str, path: &str| {
        let found = Hierarchies::parse(text);
        let mount = found.mount(Controller::Unified).unwrap();
        mount.below(path).map(str::to_owned)
    };
    assert_eq!(below(V2, "/a/b").as_deref(), Some("a/b"));
    assert_eq!(below(part, "/kubepods/a").as_deref(), Some("a"));
    for (text, path) in [
        (part, "/system.slice/a"),
        (part, "/kubepods-too/a"),
        (part, "/kubepods"),
        (V2, "/"),
        (V2, "/../../other"),
        (V2, "/a/../b"),
        (V2, ""),
    ] {
        assert_eq!(below(text, path), None, "{path}");
    }
}

#[test]
fn the_cgroup_that_names_the_container_is_its_own_in_each_hierarchy() {
    let lines = |text: &str| -> Vec<String> { text.lines().map(str::to_owned).collect() };
    let pod = format!("/kubepods/pod6ea1b5e4c1f0a9d8b7c6d5e4f3a2b1c0/{ID}");
    let text = format!(
        "5:cpu,cpuacct:{pod}/nested\n4:memory:{pod}\n3:cpuset:{pod}\n1:name=systemd:/\n0::/init.scope\n"
    );
    let found = own_paths(&lines(&text), "6ea1b5e4c1f0a9d8b7c6d5e4f3a2b1c0", &ID[..12]);
    let wanted = [Controller::Cpu, Controller::Cpuacct, Controller::Memory];
    assert_eq!(found, wanted.map(|c| (c, pod.clone())).into());
    let unit = lines("0::/system.slice/vllm.service/worker-1\n");
    let own = (Controller::Unified, "/system.slice/vllm.service".to_owned());
    assert_eq!(own_paths(&unit, "", "vllm"), [].into());
    assert_eq!(own_paths(&unit, "", "vllm.service"), [own].into());
    let shared = lines("4:memory:/\n0::/user.slice/user-0.slice/session-1.scope\n");
    assert_eq!(own_paths(&shared, "", "llama-server"), [].into());
}

/// A reading from files held here, of a host with or without v1 hierarchies.
fn read(controller: Controller, v1: bool, files: &[(&str, &str)]) -> Reading {
    let files: BTreeMap<_, _> = files.iter().copied().collect();
    let text = |name: &str| {
        Ok(files
            .get(name)
            .map_or(Text::Absent, |text| Text::Is((*text).to_owned())))
    };
    figures(controller, |c| v1 && c != Controller::Unified, text)
        .unwrap()
        .unwrap()
}

fn counter(reading: &Reading, counter: CgroupCounter) -> Option<u64> {
    let mut found = reading.counters.iter();
    found.find(|(c, _)| *c == counter).map(|(_, n)| *n)
}

const V2_FILES: [(&str, &str); 7] = [
    (
        "cpu.stat",
        "usage_usec 4000000\nuser_usec 3000000\nsystem_usec 1000000\nnice_usec 0\n\
         core_sched.force_idle_usec 0\nnr_periods 70\nnr_throttled 31\nthrottled_usec 2500001\n\
         nr_bursts 0\nburst_usec 0\n",
    ),
    ("cpu.max", "20000 100000\n"),
    ("memory.current", "123456789\n"),
    ("memory.max", "max\n"),
    (
        "memory.events",
        "low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\noom_group_kill 6\n",
    ),
    ("cpu.pressure", PRESSURE),
    (
        "irq.pressure",
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=9\n",
    ),
];

#[test]
fn version_2_tells_everything() {
    let reading = read(Controller::Unified, false, &V2_FILES);
    let pressure = CgroupCounter::Pressure;
    for (which, n) in [
        (CgroupCounter::CpuUsage, Some(4_000_000_000)),
        (CgroupCounter::Throttled, Some(2_500_001_000)),
        (CgroupCounter::Periods, Some(70)),
        (CgroupCounter::ThrottledPeriods, Some(31)),
        (CgroupCounter::Memory(MemoryEvent::High), Some(2)),
        (CgroupCounter::Memory(MemoryEvent::Max), Some(3)),
        (CgroupCounter::Memory(MemoryEvent::Oom), Some(4)),
        (CgroupCounter::Memory(MemoryEvent::OomKill), Some(5)),
        (
            pressure(Resource::Cpu, PressureKind::Some),
            Some(7_248_784_413_000),
        ),
        (pressure(Resource::Cpu, PressureKind::Full), Some(42_000)),
        (pressure(Resource::Irq, PressureKind::Full), Some(9_000)),
        (pressure(Resource::Irq, PressureKind::Some), None),
        (pressure(Resource::Io, PressureKind::Some), None),
    ] {
        assert_eq!(counter(&reading, which), n, "{which:?}");
    }
    assert_eq!(reading.quota, Some(Limit::At(0.2)));
    assert_eq!(reading.memory, Some(123_456_789));
    assert_eq!(reading.memory_limit, Some(Limit::Unlimited));
}

#[test]
fn beside_version_1_the_unified_hierarchy_adds_pressure_and_nothing_twice() {
    let reading = read(Controller::Unified, true, &V2_FILES);
    let pressure = |c: &CgroupCounter| matches!(c, CgroupCounter::Pressure(..));
    assert!(reading.counters.iter().all(|(c, _)| pressure(c)));
    assert_eq!(reading.counters.len(), 3);
    assert_eq!((reading.quota, reading.memory), (None, None));
}

#[test]
fn version_1_tells_what_its_hierarchies_have() {
    let stat =
        "nr_periods 7\nnr_throttled 3\nthrottled_time 250000001\nnr_bursts 0\nburst_time 0\n";
    let mut files = [
        ("cpu.stat", stat),
        ("cpu.cfs_quota_us", "-1\n"),
        ("cpu.cfs_period_us", "100000\n"),
    ];
    let reading = read(Controller::Cpu, true, &files);
    assert_eq!(
        counter(&reading, CgroupCounter::Throttled),
        Some(250_000_001)
    );
    assert_eq!(counter(&reading, CgroupCounter::Periods), Some(7));
    assert_eq!(counter(&reading, CgroupCounter::ThrottledPeriods), Some(3));
    assert_eq!(reading.quota, Some(Limit::Unlimited));
    files[1].1 = "250000\n";
    let reading = read(Controller::Cpu, true, &files);
    assert_eq!(reading.quota, Some(Limit::At(2.5)));
    let reading = read(Controller::Cpuacct, true, &[("cpuacct.usage", "123456\n")]);
    assert_eq!(counter(&reading, CgroupCounter::CpuUsage), Some(123_456));
    let reading = read(
        Controller::Memory,
        true,
        &[
            ("memory.usage_in_bytes", "4096\n"),
            ("memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory.failcnt", "11\n"),
            (
                "memory.oom_control",
                "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
            ),
        ],
    );
    assert_eq!(reading.memory_limit, Some(Limit::Unlimited));
    assert_eq!(reading.memory, Some(4_096));
    let event = |e| counter(&reading, CgroupCounter::Memory(e));
    assert_eq!(event(MemoryEvent::Max), Some(11));
    assert_eq!(event(MemoryEvent::OomKill), Some(2));
    assert_eq!(
        (event(MemoryEvent::High), event(MemoryEvent::Oom)),
        (None, None)
    );
}

#[test]
fn a_cgroup_that_goes_while_it_is_read_gives_no_half_reading() {
    let text = |name: &str| {
        Ok(match name {
            "cpu.stat" => Text::Is("nr_periods 7\n".to_owned()),
            _ => Text::Gone,
        })
    };
    assert_eq!(figures(Controller::Cpu, |_| true, text).unwrap(), None);
    let denied = |_: &str| Err(io::Error::from(io::ErrorKind::PermissionDenied));
    assert!(figures(Controller::Cpu, |_| true, denied).is_err());
}

#[test]
fn nonsense_is_left_out() {
    for text in [
        "",
        "\n",
        "some",
        "some total=",
        "some total=-1\n",
        "x 1\nsome avg10=1\n",
    ] {
        assert_eq!(parse::pressure(text), (None, None), "{text:?}");
    }
    assert_eq!(
        parse::keyed("nr_periods_more 5\nnr_periods five\n", "nr_periods"),
        None
    );
    for text in ["", "max", "100000", "1 0", "-1 100000", "x 100000"] {
        assert_eq!(parse::cpu_max(text), None, "{text:?}");
    }
    assert_eq!(parse::cfs("50000", ""), None);
    assert_eq!(parse::stat("cpu  1 2 3\nbtime 1\nprocs_running 1\n"), None);
    assert!(parse::diskstats("254 0 vda 1 2 3\n\nx\n").is_empty());
    assert_eq!(
        parse::tcp_segments("Tcp: OutSegs RetransSegs\nTcp: 1\n"),
        None
    );
}

#[test]
fn the_node_is_read_from_proc() {
    let stat = parse::stat(
        "cpu  1359234 407306 493205 1055647 13370 10 86486 2336 500 0\n\
         cpu0 1 1 1 1 1 1 1 1 1 1\nctxt 54258920\nbtime 1795991710\nprocs_running 5\n",
    )
    .unwrap();
    assert_eq!(stat.softirq, 864_860_000_000);
    assert_eq!(stat.steal, 23_360_000_000);
    let ticks = 1_359_234 + 407_306 + 493_205 + 1_055_647 + 13_370 + 10 + 86_486 + 2_336;
    assert_eq!(stat.cpu, ticks * 10_000_000, "guest time is user time");
    assert_eq!((stat.runnable, stat.boot_time), (5, 1_795_991_710));
    let tcp = "Ip: Forwarding\nIp: 1\nTcp: RtoAlgorithm MaxConn OutSegs RetransSegs InErrs\n\
               Tcp: 1 -1 32037074 276712 95\n";
    assert_eq!(parse::tcp_segments(tcp), Some((32_037_074, 276_712)));
    let disks = parse::diskstats(
        " 254 0 vda 2787436 56791 99357722 13883222 209852 459948 200491504 970815 0 368604 \
         14912732 223151 61 129576168 58561 3290 131\n",
    );
    let vda = Disk {
        name: "vda".into(),
        ios: [2_787_436, 209_852],
        ms: [13_883_222, 970_815],
    };
    assert_eq!(disks, [vda]);
}

#[test]
fn disks_add_up_and_one_that_is_taken_away_takes_nothing_along() {
    let disk = |name: &str, n| Disk {
        name: name.into(),
        ios: [n, 2 * n],
        ms: [3 * n, 4 * n],
    };
    let mut node = Node::default();
    assert_eq!(node.figures().disks, BTreeMap::new(), "absent, not 0");
    node.take_disk(&disk("nvme0n1", 100));
    node.take_disk(&disk("sda", 10));
    node.take_disk(&disk("nvme0n1", 200));
    node.take_disk(&disk("sda", 1));
    let figures = node.figures();
    assert_eq!(figures.disks[&DiskDirection::Read], (211, 633_000_000));
    assert_eq!(figures.disks[&DiskDirection::Write], (422, 844_000_000));
}

fn reading(of: u64, periods: u64, quota: Limit<f64>) -> Reading {
    Reading {
        of,
        counters: vec![(CgroupCounter::Periods, periods)],
        quota: Some(quota),
        ..Reading::default()
    }
}

#[test]
fn a_workload_counts_on_over_the_cgroups_it_has_had() {
    let at = |path: &str| (Controller::Cpu, path.to_owned());
    let mut meters = Meters::default();
    let periods = |meters: &Meters| meters.figures().counters[&CgroupCounter::Periods];
    meters.take(&at("/a"), reading(1, 100, Limit::At(0.5)));
    meters.take(&at("/b"), reading(2, 10, Limit::At(2.0)));
    assert_eq!(periods(&meters), 110);
    assert_eq!(meters.figures().quota_cores, Some(2.5));
    // Made anew between two readings, and already further than the old one was.
    meters.take(&at("/a"), reading(3, 150, Limit::Unlimited));
    assert_eq!(periods(&meters), 260);
    assert_eq!(meters.figures().quota_cores, None, "one has no limit");
    meters.fold(&at("/a"));
    assert_eq!(periods(&meters), 260);
    assert_eq!(meters.figures().quota_cores, Some(2.0));
    meters.fold(&at("/b"));
    meters.take(&at("/a"), reading(4, 1, Limit::Unlimited));
    assert_eq!(periods(&meters), 261);
    assert_eq!(meters.cover(), Cover::V1);
    // A gauge is not kept beyond its cgroup.
    meters.fold(&at("/a"));
    assert_eq!(
        (periods(&meters), meters.figures().quota_cores),
        (261, None)
    );
}

#[test]
fn coverage_says_what_is_missing_and_why() {
    let none = || Meters::default().read(&Hierarchies::default(), [].into());
    none().unwrap();
    assert_eq!(Meters::default().cover(), Cover::Shared);
    let mut hidden = Meters::default();
    let own = [(Controller::Unified, "/../a.service".to_owned())];
    hidden.read(&Hierarchies::parse(V2), own.into()).unwrap();
    assert_eq!(hidden.cover(), Cover::OutOfReach);
    let unified = (Controller::Unified, "/a.service".to_owned());
    let mut meters = Meters::default();
    meters.take(&unified, reading(1, 1, Limit::Unlimited));
    assert_eq!(meters.cover(), Cover::NoPressure);
    meters.take(&unified, read(Controller::Unified, true, &V2_FILES));
    assert_eq!(meters.cover(), Cover::Whole);
}
