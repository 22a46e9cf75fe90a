//! A whole watch: a stand-in for NVML in a real watcher process, a file as the kernel's log, a folder as sysfs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at the first surprise")]

mod health_stage;

use std::time::{Duration, Instant};

use diag::health::{Action, Class, HealthEvent, Part, Turn};
use diag::policy::Policy;
use epilog::health::{Begin, Hired, Settings, Watch, Watcher};
use health_stage::{LATER, Stage, find_process, give_up_rights, hired, lost_watchers, process_of, watchers};
use serde_json::json;

fn gpu(index: u32) -> Part {
    Part::Gpu { index, pci: Some(health_stage::pci(index)) }
}

fn told(events: &[HealthEvent]) -> Vec<(Part, &str, Action)> {
    events.iter().map(|event| (event.part.clone(), event.what.as_str(), event.action)).collect()
}

// L10, L02: what is the job's is told, by the number that Slurm knows; what is another job's is not.
#[test]
fn an_xid_of_the_job_s_gpu_is_told_at_once() {
    let stage = Stage::new(2);
    let mut watch = stage.watch(&[1]);
    assert_eq!(stage.quiet(&mut watch), []);
    stage.log(10, "NVRM: Xid (PCI:0000:81:00): 79, pid=7, name=python, GPU has fallen off the bus.");
    stage.log(11, "NVRM: Xid (PCI:0000:82:00): 31, pid=8, name=python, Ch 00000008, MMU Fault");
    stage.log(12, "NVRM: Xid (PCI:0000:82:00): 119, pid=8, name=python, Timeout after 6s of waiting for RPC");
    let events = watch.poll(Instant::now());
    assert_eq!(told(&events), [(gpu(1), "Xid 119", Action::Drain), (gpu(1), "Xid 31", Action::Report)]);
    assert_eq!((events[0].class, events[1].class), (Class::Driver, Class::Application));
    assert!(events[0].words.contains("GPU 1 (0000:82:00.0): Xid 119 once: pid=8"), "{}", events[0].words);
    assert_eq!((watch.poll(Instant::now()), watch.place()), (vec![], Some(12)));
    assert_eq!(watch.blind(Instant::now()), Vec::<String>::new());
}

// I05: what the log holds from before the job is not this job's; and an agent that is started anew goes on where it was.
#[test]
fn the_log_is_read_from_the_job_s_start() {
    let stage = Stage::new(1);
    stage.log(1, "NVRM: Xid (PCI:0000:81:00): 79, GPU has fallen off the bus.");
    let mut watch = stage.watch(&[0]);
    assert_eq!(stage.quiet(&mut watch), []);
    stage.log(2, "NVRM: Xid (PCI:0000:81:00): 48, DBE");
    assert_eq!(told(&watch.poll(Instant::now())), [(gpu(0), "Xid 48", Action::Drain)]);
    let place = watch.place().unwrap();
    drop(watch);
    stage.log(3, "NVRM: Xid (PCI:0000:81:00): 95, Uncontained");
    let mut again = Watch::start(Settings { begin: Begin::After(place), ..stage.settings(&[0]) }, hired());
    assert_eq!(told(&stage.events(&mut again)), [(gpu(0), "Xid 95", Action::Drain)]);
}

// I02, I06, I09: severity by the driver, a row of the site's, a number that nobody knows; an NVSwitch is the node's.
#[test]
fn the_table_decides_and_a_site_changes_it() {
    let stage = Stage::new(1);
    let policy = Policy::parse(
        "[runtime]\nxid = [{ xid = 31, class = \"application\", action = \"ignore\" }, { xid = 43, class = \"gpu\", count = 2, window_s = 60, action = \"drain\" }]",
    );
    let table = policy.unwrap().runtime.xid;
    let mut watch = Watch::start(Settings { table, ..stage.settings(&[0]) }, hired());
    stage.quiet(&mut watch);
    let xid = |code: u32, rest: &str| format!("NVRM: Xid (PCI:0000:81:00): {code}, {rest}");
    for (seq, line) in (20..).zip([
        xid(31, "MMU Fault"),
        xid(43, "Ch 8"),
        xid(999, "what is this"),
        xid(149, "NETIR_LINK_EVT  Nonfatal  XC0 i0 Link 08 (0x0)"),
        xid(145, "RLW_SRC_TRACK Fatal XC0 i0 Link 08 (0x0)"),
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 32 sourcetrack timeout".to_owned(),
    ]) {
        stage.log(seq, &line);
    }
    let switch = Part::Switch { pci: "0000:c1:00.0".to_owned() };
    let first = watch.poll(Instant::now());
    assert_eq!(
        told(&first),
        [
            (gpu(0), "Xid 145 fatal", Action::Drain),
            (gpu(0), "Xid 149 nonfatal", Action::Report),
            (gpu(0), "Xid 43", Action::Report),
            (gpu(0), "Xid 999", Action::Report),
            (switch, "SXid 24007 fatal", Action::Drain),
        ]
    );
    stage.log(30, &xid(43, "Ch 9"));
    let worse = watch.poll(Instant::now());
    assert_eq!(told(&worse), [(gpu(0), "Xid 43", Action::Drain)]);
    assert_eq!(worse[0].turn, Turn::Worse);
}

// I10: an Xid that only NVML tells counts once the log has had its time; one that both tell counts once.
#[test]
fn nvml_s_events_fill_a_silent_log() {
    let stage = Stage::new(1);
    let mut watch = stage.watch(&[0]);
    stage.quiet(&mut watch);
    stage.change(0, json!({"events": [{"type": 8, "data": 79}, {"type": 2, "data": 0}]}));
    assert_eq!(told(&stage.events(&mut watch)), [(gpu(0), "uncorrected", Action::Drain)]);
    assert_eq!(told(&watch.poll(Instant::now() + LATER)), [(gpu(0), "Xid 79", Action::Drain)]);

    let stage = Stage::new(1);
    let mut watch = stage.watch(&[0]);
    stage.quiet(&mut watch);
    stage.log(5, "NVRM: Xid (PCI:0000:81:00): 62, x");
    stage.change(0, json!({"events": [{"type": 8, "data": 45}]}));
    assert_eq!(told(&stage.events(&mut watch)), [(gpu(0), "Xid 62", Action::Drain)]);
    assert_eq!(stage.quiet(&mut watch), []);
    assert_eq!(watch.poll(Instant::now() + LATER), []);
}

#[test]
fn what_nvml_counts_is_held_against_the_job_s_start() {
    let stage = Stage::new(2);
    let mut watch = stage.watch(&[0, 1]);
    stage.quiet(&mut watch);
    stage.change(0, json!({"nvmlDeviceGetRemappedRows": {"corrected": 1, "uncorrected": 3, "pending": 1}}));
    stage.change(1, json!({"nvmlDeviceGetTotalEccErrors:1:0": 2}));
    let mut events = stage.events(&mut watch);
    while events.len() < 2 {
        events.extend(stage.events(&mut watch));
    }
    events.sort_by_key(|event| event.part.clone());
    assert_eq!(told(&events), [(gpu(0), "row waits", Action::Drain), (gpu(1), "uncorrected", Action::Drain)]);
    assert!(
        events[1].words.contains("2 uncorrected memory errors since the job started"),
        "{}",
        events[1].words
    );
}

// E18, K02 and a link that goes down: states are told once they have held.
#[test]
fn a_lost_gpu_and_a_link_that_is_down_are_confirmed_first() {
    let stage = Stage::new(2);
    let mut watch = stage.watch(&[0, 1]);
    stage.quiet(&mut watch);
    stage.change(0, json!({"nvmlDeviceGetNvLinkState:3": 0}));
    stage.change(1, json!({"*": {"error": 15}, "nvmlDeviceGetClockInfo:1": {"error": 15}}));
    let mut events = stage.events(&mut watch);
    while events.len() < 2 {
        events.extend(stage.events(&mut watch));
    }
    events.sort_by_key(|event| event.part.clone());
    assert_eq!(told(&events), [(gpu(0), "nvlink down", Action::Drain), (gpu(1), "lost", Action::Drain)]);
    assert!(events.iter().all(|event| event.age_ms >= 6000), "{events:?}");
}

// E17: one driver thread that hangs holds up neither the other GPU nor who asks.
#[test]
fn a_driver_that_hangs_holds_up_nobody() {
    let stage = Stage::new(2);
    let mut watch = stage.watch(&[0, 1]);
    stage.quiet(&mut watch);
    stage.change(0, json!({"nvmlDeviceGetPowerUsage": {"hang_ms": 60_000}}));
    stage.change(1, json!({"nvmlDeviceGetTotalEccErrors:1:0": 1}));
    let begun = Instant::now();
    let events = watch.poll(Instant::now());
    assert!(events.is_empty() && begun.elapsed() < Duration::from_secs(1), "{events:?}");
    assert_eq!(told(&stage.events(&mut watch)), [(gpu(1), "uncorrected", Action::Drain)]);
    let begun = Instant::now();
    drop(watch);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn loads_are_known_while_it_runs() {
    let stage = Stage::new(1);
    stage.change(0, json!({"nvmlDeviceGetUtilizationRates": {"gpu": 63, "memory": 1}}));
    let mut watch = stage.watch(&[0]);
    stage.quiet(&mut watch);
    let [load] = &watch.loads()[..] else { panic!("one GPU") };
    assert_eq!((load.index, load.busy_percent), (0, Some(63)));
}

#[test]
fn the_watcher_has_no_rights_and_ends_with_the_watch() {
    let stage = Stage::new(1);
    let mut watch = stage.watch(&[0]);
    stage.quiet(&mut watch);
    let pid = process_of(&stage);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim().to_owned();
    assert_eq!(line("NoNewPrivs:"), "1");
    assert!(!line("Uid:").split_whitespace().any(|uid| uid == "0"), "{}", line("Uid:"));
    assert_eq!(line("CapEff:"), "0000000000000000");
    assert!(watchers().contains(&pid));
    drop(watch);
    assert!(!watchers().contains(&pid));
}

// An agent gives up its rights after it has hired: it can then neither start a process of another user nor send it a
// signal, and still replaces a watcher and lets all of them go.
#[test]
fn rights_are_needed_at_the_hiring_only() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root has rights to give up");
        return;
    }
    let stage = Stage::new(1);
    std::thread::scope(|scope| {
        let (ready, wait) = std::sync::mpsc::channel();
        let stage = &stage;
        let agent = scope.spawn(move || {
            let hired = hired();
            give_up_rights();
            let mut watch = Watch::start(stage.settings(&[0]), hired);
            stage.quiet(&mut watch);
            ready.send(()).unwrap();
            stage.until(&mut watch, |watch| !watch.blind(Instant::now()).is_empty());
            stage.change(0, json!({"nvmlDeviceGetTotalEccErrors:1:0": 1}));
            assert_eq!(watch.poll(Instant::now() + LATER), []);
            assert_eq!(told(&stage.events(&mut watch)), [(gpu(0), "uncorrected", Action::Drain)]);
        });
        wait.recv().unwrap();
        lost_watchers(process_of(stage));
        agent.join().unwrap();
    });
    assert_eq!(find_process(&stage), None, "they end with their socket");
}

#[test]
fn what_keeps_a_watcher_from_starting_is_said() {
    let stage = Stage::new(1);
    let missing = Watcher { program: "/none/aimaster-watcher".into(), user: String::new() };
    let mut watch = Watch::start(stage.settings(&[0]), Hired::new(&missing));
    assert_eq!(watch.poll(Instant::now() + LATER), []);
    let words = watch.blind(Instant::now()).concat();
    assert!(words.contains("/none/aimaster-watcher can't be started"), "{words}");
    // Where a worker runs as somebody, it is not root.
    let root = Watcher { user: "root".to_owned(), ..missing };
    let watch = Watch::start(stage.settings(&[0]), Hired::new(&root));
    let words = watch.blind(Instant::now()).concat();
    assert!(words.contains("is root") || words.contains("can't be started"), "{words}");
}

// A watcher that dies is said, and one that is started anew does not forget how the job began.
#[test]
fn a_watcher_that_dies_is_started_anew() {
    let stage = Stage::new(1);
    let mut watch = stage.watch(&[0]);
    stage.quiet(&mut watch);
    let pid = process_of(&stage);
    lost_watchers(pid);
    let until = Instant::now() + Duration::from_secs(10);
    while watch.blind(Instant::now()).is_empty() {
        assert_eq!(watch.poll(Instant::now()), []);
        assert!(Instant::now() < until, "nobody missed it");
        std::thread::sleep(Duration::from_millis(20));
    }
    let words = watch.blind(Instant::now()).concat();
    assert!(words.contains("the watcher of GPUs can't be heard"), "{words}");
    // Meanwhile the GPU had an error: found against the job's start, not against the new one's.
    stage.change(0, json!({"nvmlDeviceGetTotalEccErrors:1:0": 1}));
    assert_eq!(watch.poll(Instant::now() + LATER), []);
    assert_eq!(told(&stage.events(&mut watch)), [(gpu(0), "uncorrected", Action::Drain)]);
    assert_eq!(watch.blind(Instant::now()), Vec::<String>::new());
}

// Without NVML it is the driver's own list that says whose an Xid is, and nothing is called healthy.
#[test]
fn without_nvml_the_log_still_counts() {
    let stage = Stage::new(2);
    stage.driver_lists(&[0, 1]);
    stage.nvml(json!({"nvmlInit_v2": {"error": 9}}));
    let mut watch = stage.watch(&[1]);
    stage.log(7, "NVRM: Xid (PCI:0000:81:00): 79, x");
    stage.log(8, "NVRM: Xid (PCI:0000:82:00): 79, x");
    assert_eq!(told(&stage.events(&mut watch)), [(gpu(1), "Xid 79", Action::Drain)]);
    stage.until(&mut watch, |watch| !watch.blind(Instant::now()).is_empty());
    assert!(
        watch.blind(Instant::now()).concat().contains("does not start"),
        "{:?}",
        watch.blind(Instant::now())
    );

    let settings = Settings { kernel_log: "/none".into(), ..stage.settings(&[1]) };
    let mut bare = Watch::start(settings, Hired::none());
    assert_eq!(bare.poll(Instant::now()), []);
    assert!(bare.blind(Instant::now()).concat().contains("/none can't be read"));
}

// J01, J03, J07: a port that the job uses goes down and comes again; one that was down all the time is nobody's loss.
#[test]
fn a_port_that_goes_down_is_told_and_taken_back() {
    let stage = Stage::new(0);
    stage.port("mlx5_0", "4: ACTIVE", 0);
    stage.port("mlx5_1", "1: DOWN", 0);
    let mut watch = Watch::start(stage.settings(&[]), hired());
    assert_eq!(stage.quiet(&mut watch), []);
    stage.port("mlx5_0", "1: DOWN", 1 << 30);
    let events = stage.events(&mut watch);
    let port = Part::Nic { device: "mlx5_0".to_owned(), port: 1 };
    assert_eq!(told(&events), [(port.clone(), "down", Action::Drain)]);
    stage.port("mlx5_0", "4: ACTIVE", 1 << 30);
    // The watch's clock runs ahead, two minutes a look, until a look finds the port up for long enough.
    let mut ahead = Duration::ZERO;
    let over = stage.told_within(|| {
        ahead += Duration::from_secs(120);
        watch.poll(Instant::now() + ahead)
    });
    assert_eq!((told(&over), over[0].turn), (vec![(port.clone(), "down", Action::Drain)], Turn::Ended));
    // A device that its own driver gives up, of those in use.
    stage.log(3, "mlx5_core 0000:a1:00.0: poll_health:829:(pid 0): Fatal error 1 detected");
    let failed = watch.poll(Instant::now() + ahead + LATER);
    assert_eq!(told(&failed), [(port, "failed", Action::Drain)]);
    assert!(watch.loads().is_empty());
}

// I03: a program that fails on every processor of a GPU writes hundreds of lines at one moment.
#[test]
fn a_burst_is_counted_to_the_last_line() {
    let stage = Stage::new(1);
    let mut watch = stage.watch(&[0]);
    stage.quiet(&mut watch);
    for seq in 0..2000 {
        stage.log(seq, "NVRM: Xid (PCI:0000:81:00): 13, Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0)");
    }
    stage.log(2000, "NVRM: Xid (PCI:0000:81:00): 48, DBE");
    let events = watch.poll(Instant::now());
    assert_eq!(told(&events), [(gpu(0), "Xid 13", Action::Report), (gpu(0), "Xid 48", Action::Drain)]);
    assert!(events[0].words.contains("Xid 13 2000 times"), "{}", events[0].words);
    assert_eq!(watch.blind(Instant::now()), Vec::<String>::new());
}

#[test]
fn an_event_travels_as_json() {
    let stage = Stage::new(1);
    let mut watch = stage.watch(&[0]);
    stage.quiet(&mut watch);
    let name = "x".repeat(5000);
    stage.log(10, &format!("NVRM: Xid (PCI:0000:81:00): 79, pid=7, name={name}, lost"));
    let [event] = &watch.poll(Instant::now())[..] else { panic!("one event") };
    let text = serde_json::to_string(event).unwrap();
    assert!(text.len() < 700, "{} bytes", text.len());
    assert_eq!(serde_json::from_str::<HealthEvent>(&text).unwrap(), *event);
}
