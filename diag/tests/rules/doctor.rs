//! `aimaster doctor` over planted mistakes: each is found, and nothing else with it.

use diag::doctor::facts::{
    Entry, Facts, Is, Machine, Node, PlugLine, Plugin, Release, Site, SiteProlog, Slurm, Unit,
};
use diag::doctor::{Level, examine, has_mistakes, page, text};
use diag::policy::{Policy, ReportOwner};
use diag::request::FailAction;

const POLICY: &str = "/etc/aimaster/aimaster.toml";
const HELPERS: &str = "/usr/libexec/aimaster";

fn entry(path: &str, is: Is, mode: u32) -> Entry {
    Entry { path: path.into(), is, owner: 0, mode, open: None }
}

/// What slurmctld says on a site that follows the manual, in the words of `scontrol show config`.
const CONFIG: &[(&str, &str)] = &[
    ("AuthInfo", "cred_expire=10"),
    ("AuthType", "auth/munge"),
    ("BatchStartTimeout", "10 sec"),
    ("GresTypes", "gpu"),
    ("HASH_VAL", "Match"),
    ("JobRequeue", "1"),
    ("MessageTimeout", "10 sec"),
    ("ProctrackType", "proctrack/cgroup"),
    ("Prolog", "(null)"),
    ("PrologEpilogTimeout", "315"),
    ("PrologFlags", "Alloc,DeferBatch,Contain"),
    ("RequeueExit", "(null)"),
    ("ResumeProgram", "(null)"),
    ("ReturnToService", "1"),
    ("SchedulerParameters", "(null)"),
    ("SlurmctldPort", "6817"),
    ("SlurmdPort", "6818"),
    ("SlurmdTimeout", "300 sec"),
    ("SlurmdUser", "root(0)"),
    ("SrunPortRange", "0-0"),
    ("SuspendTime", "INFINITE"),
];

/// A GPU node on which all is well.
fn good() -> Facts {
    let release = Release::parse("slurm-wlm 22.05.8").unwrap();
    let settings = CONFIG.iter().map(|(key, value)| (key.to_lowercase(), (*value).to_owned())).collect();
    let programs = ["scontrol", "scancel", "squeue", "sinfo"];
    let helpers =
        ["aimaster-prolog", "aimaster-worker", "aimaster-epilog", "aimaster-c4d", "aimaster-watcher"];
    let program = |folder: &str, name: &str| entry(&format!("{folder}/{name}"), Is::File, 0o755);
    let line = |text: &str| PlugLine { file: "/etc/slurm/plugstack.conf".into(), line: 1, text: text.into() };
    Facts {
        machine: Machine::Compute { node: "n1".into() },
        cluster: Some("aim".into()),
        slurm: Slurm {
            silent: None,
            settings,
            release: Some(release),
            clock_ahead_s: Some(0.4),
            programs: programs.iter().map(|name| program("/usr/bin", name)).collect(),
            gpus: Some(8),
            prologs: Vec::new(),
        },
        plugin: Plugin {
            conf: "/etc/slurm/plugstack.conf".into(),
            unreadable: None,
            lines: vec![line("optional spank_aimaster.so")],
            empty_includes: Vec::new(),
            file: Some(entry("/usr/lib/slurm/spank_aimaster.so", Is::File, 0o755)),
            stamp: Some(Ok(release)),
            packaged: false,
        },
        site: Site {
            policy_file: entry(POLICY, Is::File, 0o644),
            policy: Policy::default(),
            policy_mistakes: Vec::new(),
            baseline_mistakes: Vec::new(),
            metrics_dir: None,
            has_limits: true,
            helpers: helpers.iter().map(|name| program(HELPERS, name)).collect(),
            worker_user: None,
            worker_is_nobody: false,
            report_dir: Some(entry("/var/log/aimaster/reports", Is::Folder, 0o755)),
            report_cluster_dir: Some(entry("/var/log/aimaster/reports/aim", Is::Folder, 0o755)),
            run_dir: Some(entry("/run/aimaster", Is::Folder, 0o755)),
            state_dir: Some(entry("/var/lib/aimaster", Is::Folder, 0o755)),
            history: None,
            syslog: Some(entry("/dev/log", Is::Other, 0o666)),
            named: vec![program("/usr/bin", "python3")],
            profiler: Some(entry("/usr/libexec/aimaster/libnccl-profiler-aimaster.so", Is::File, 0o755)),
        },
        node: Node {
            munge: None,
            address: Some(Ok("10.0.0.11".parse().unwrap())),
            busy_ports: vec![27_003],
            local_ports: Some((32_768, 60_999)),
            reached: vec!["n2".into()],
            blocked: Vec::new(),
            memlock: Some(u64::MAX),
            unit: Some(Unit { kill_mode: "process".into(), delegate: true }),
            slurmd: Some(true),
            gpu_devices: 8,
            missing_libraries: Vec::new(),
        },
        unseen: Vec::new(),
    }
}

fn set(facts: &mut Facts, key: &str, value: &str) {
    facts.slurm.settings.insert(key.to_lowercase(), value.to_owned());
}

fn wrapper(calls_us: bool) -> SiteProlog {
    let files = vec![entry("/etc/slurm/prolog.d/00-aimaster", Is::File, 0o755)];
    SiteProlog { pattern: "/etc/slurm/prolog.d/*".into(), files, calls_us }
}

fn line(facts: &mut Facts, text: &str) {
    facts.plugin.lines[0].text = text.into();
}

fn no_line(facts: &mut Facts) {
    facts.plugin.lines.clear();
    facts.plugin.file = None;
}

/// The plugin is a package's.
fn package(facts: &mut Facts) {
    facts.plugin.packaged = true;
    line(facts, "optional /usr/libexec/aimaster/spank_aimaster.so");
    facts.plugin.file.as_mut().unwrap().path = "/usr/libexec/aimaster/spank_aimaster.so".into();
}

fn open(entry: &mut Entry) {
    entry.open = Some(format!("{} can be changed by others than root", entry.path.display()));
}

/// What is planted, the rule that finds it, a word of what it says to change.
type Row = (fn(&mut Facts), &'static str, &'static str);

const SLURM: &[Row] = &[
    (|f| f.slurm.silent = Some("Unable to contact slurm controller".into()), "controller", "start slurmctld"),
    (|f| f.slurm.programs[0].is = Is::Nothing, "slurm_commands", "paths.scontrol"),
    (
        |f| {
            f.slurm.release = Release::parse("slurm 21.08.8");
            f.plugin.stamp = Some(Ok(f.slurm.release.unwrap()));
        },
        "slurm_release",
        "22.05",
    ),
    (|f| set(f, "HASH_VAL", "Different Ours=0x1 Slurmctld=0x2"), "slurm_conf_differs", "copy slurm.conf"),
    (|f| f.slurm.clock_ahead_s = Some(-42.0), "clock", "chrony"),
    (|f| set(f, "PrologFlags", "DeferBatch,Contain,Serial"), "prolog_flags_serial", "take Serial out"),
    (|f| set(f, "PrologFlags", "Alloc,DeferBatch,Contain,NoHold"), "prolog_flags_no_hold", "take NoHold out"),
    (|f| set(f, "PrologFlags", "Alloc,Contain"), "prolog_flags_defer_batch", "Alloc,DeferBatch,Contain"),
    (|f| set(f, "PrologFlags", "Alloc,DeferBatch"), "prolog_flags_contain", "Alloc,DeferBatch,Contain"),
    (|f| set(f, "PrologFlags", "DeferBatch,RunInJob"), "prolog_flags_run_in_job", "prolog=off"),
    (
        |f| set(f, "PrologEpilogTimeout", "300"),
        "prolog_timeout",
        "PrologEpilogTimeout=315 in slurm.conf, or time.max_deadline_s=285",
    ),
    (|f| set(f, "PrologTimeout", "60"), "prolog_timeout", "PrologTimeout=315"),
    (|f| set(f, "SlurmdTimeout", "0 sec"), "slurmd_timeout", "SlurmdTimeout=300"),
    (|f| set(f, "AuthInfo", "cred_expire=600"), "requeue_wait", "cred_expire=10"),
    (|f| set(f, "JobRequeue", "0"), "job_requeue", "JobRequeue=1"),
    (
        |f| set(f, "SchedulerParameters", "bf_interval=1,max_batch_requeue=3"),
        "max_batch_requeue",
        "max_batch_requeue=5",
    ),
    (|f| set(f, "RequeueExit", "0-3,99"), "requeue_exit", "take 1 out of RequeueExit"),
    (|f| set(f, "RequeueExitHold", "1"), "requeue_exit", "take 1 out of RequeueExitHold"),
    (|f| set(f, "SlurmdUser", "slurm(64030)"), "slurmd_user", "SlurmdUser=root"),
    (
        |f| {
            set(f, "ResumeProgram", "/usr/sbin/wake");
            set(f, "SuspendTime", "600 sec");
            set(f, "SchedulerParameters", "sbatch_wait_nodes");
        },
        "wait_nodes",
        "add salloc_wait_nodes",
    ),
    (|f| set(f, "SrunPortRange", "27100-27500"), "ports_of_slurm", "network.port_first"),
    (
        |f| {
            f.slurm.prologs.push(SiteProlog {
                pattern: "/etc/slurm/prolog.d/*".into(),
                files: Vec::new(),
                calls_us: false,
            })
        },
        "prolog_pattern",
        "take the line out",
    ),
    (
        |f| {
            let mut prolog = wrapper(true);
            prolog.files[0].mode = 0o644;
            f.slurm.prologs.push(prolog);
            line(f, "optional spank_aimaster.so prolog=off");
        },
        "prolog_program",
        "chmod 755",
    ),
];

const PLUGIN: &[Row] = &[
    (
        |f| {
            f.plugin.unreadable = Some("No such file or directory".into());
            no_line(f);
        },
        "plugstack",
        "optional spank_aimaster.so",
    ),
    (no_line, "plugstack_line", "optional spank_aimaster.so"),
    (
        |f| {
            no_line(f);
            f.plugin.packaged = true;
        },
        "plugstack_line",
        "`aimaster plugin on`",
    ),
    (
        |f| {
            f.plugin.unreadable = Some("No such file or directory".into());
            no_line(f);
            f.plugin.packaged = true;
        },
        "plugstack",
        "`aimaster plugin on`",
    ),
    (
        |f| {
            package(f);
            f.plugin.file.as_mut().unwrap().is = Is::Nothing;
        },
        "plugin_missing",
        "`aimaster plugin stamp`",
    ),
    (
        |f| {
            set(f, "SlurmctldParameters", "enable_configless");
            no_line(f);
            f.plugin.packaged = true;
        },
        "plugstack_line",
        "add `optional /usr/libexec/aimaster/spank_aimaster.so`",
    ),
    (
        |f| {
            package(f);
            f.plugin.stamp = Some(Ok(Release::parse("24.11.5").unwrap()));
        },
        "plugin_stamp",
        "`aimaster plugin stamp`, then",
    ),
    (|f| f.plugin.lines.push(f.plugin.lines[0].clone()), "plugstack_twice", "keep one"),
    (|f| line(f, "optional spank_aimaster.so helper=/x"), "plugstack_arguments", "plugstack.conf:1"),
    (|f| f.plugin.file.as_mut().unwrap().is = Is::Nothing, "plugin_missing", "install the plugin"),
    (
        |f| f.plugin.stamp = Some(Ok(Release::parse("24.11.5").unwrap())),
        "plugin_stamp",
        "aimaster plugin stamp",
    ),
    (|f| f.plugin.stamp = Some(Err("it is no ELF file".into())), "plugin_stamp", "install it again"),
    (|f| open(f.plugin.file.as_mut().unwrap()), "plugin_open", "chown root"),
    (|f| line(f, "optional spank_aimaster.so prolog=off"), "prolog_off", "take prolog=off out"),
    (|f| f.slurm.prologs.push(wrapper(true)), "prolog_twice", "say prolog=off"),
];

const FILES: &[Row] = &[
    (|f| f.site.policy_mistakes.push("policy line 3: engin: unknown".into()), "policy", "mend it"),
    (|f| f.site.policy_file.mode = 0o600, "policy_hidden", "chmod 644"),
    (|f| f.site.policy_file.is = Is::Folder, "policy", "plain file"),
    (|f| open(&mut f.site.policy_file), "policy_open", "chmod go-w"),
    (
        |f| f.site.baseline_mistakes.push("h200.toml: no part can reach it".into()),
        "baselines",
        "baseline lint",
    ),
    (
        |f| f.site.metrics_dir = Some(entry("/m", Is::Nothing, 0)),
        "metrics_dir",
        "mkdir -p /m && chown root /m && chmod 755 /m",
    ),
    (|f| f.site.metrics_dir = Some(entry("/m", Is::Folder, 0o775)), "metrics_dir", "chmod 755 /m"),
    (|f| f.site.helpers[0].is = Is::Nothing, "helper", "install the helpers"),
    (|f| f.site.helpers[1].mode = 0o700, "helper", "chmod 755 /usr/libexec/aimaster/aimaster-worker"),
    (|f| open(&mut f.site.helpers[2]), "helpers_open", "chmod go-w"),
    (|f| f.site.profiler.as_mut().unwrap().is = Is::Nothing, "profiler", "beside the helpers"),
    (|f| f.site.worker_user = Some("there is no user checker".into()), "worker_user", "useradd"),
    (|f| f.site.report_dir = None, "report_dir_silent", "paths.report_dir"),
    (|f| f.site.report_dir.as_mut().unwrap().is = Is::File, "report_dir", "remove it"),
    (|f| f.site.report_dir.as_mut().unwrap().mode = 0o1777, "report_dir_open", "chmod 755"),
    (|f| f.site.policy.paths.report_owner = ReportOwner::User, "report_dir_shared", "chmod 1777"),
    (|f| f.site.run_dir.as_mut().unwrap().owner = 1000, "run_dir", "remove /run/aimaster"),
    (|f| open(f.site.state_dir.as_mut().unwrap()), "history", "history.enabled=false"),
    (|f| f.site.history = Some("history.redb was no history".into()), "history", "root alone"),
    (|f| open(&mut f.site.named[0]), "paths_open", "chmod go-w"),
];

const MACHINE: &[Row] = &[
    (|f| f.node.munge = Some("no socket".into()), "munge", "systemctl enable --now munge"),
    (
        |f| {
            f.node.munge = Some("no socket".into());
            set(f, "AuthType", "auth/slurm");
        },
        "munge",
        "Slurm itself need not use it",
    ),
    (|f| f.node.address = Some(Ok("127.0.1.1".parse().unwrap())), "address_loopback", "/etc/hosts"),
    (|f| f.node.address = Some(Err("no address of n1".into())), "address_unknown", "NodeAddr"),
    (|f| f.node.local_ports = Some((1024, 65_535)), "ports_dealt_out", "ip_local_port_range"),
    (|f| f.node.busy_ports = (27_000..27_100).collect(), "ports_busy", "ss -tlnp"),
    (|f| f.node.blocked.push("n2:27000 does not answer".into()), "ports_blocked", "27000 to 27199"),
    (|f| f.node.slurmd = Some(false), "slurmd", "start it"),
    (|f| f.node.memlock = Some(8 << 20), "memlock", "LimitMEMLOCK=infinity"),
    (|f| f.node.unit.as_mut().unwrap().kill_mode = "control-group".into(), "kill_mode", "KillMode=process"),
    (|f| f.node.unit.as_mut().unwrap().delegate = false, "delegate", "Delegate=yes"),
    (
        |f| {
            f.node.gpu_devices = 0;
            f.slurm.gpus = Some(0);
            set(f, "GresTypes", "(null)");
        },
        "engine_cuda",
        "engine=\"host\"",
    ),
    (|f| f.node.gpu_devices = 7, "gpus_differ", "gres.conf"),
    (|f| f.node.missing_libraries.push("NCCL: can't load libnccl.so.2".into()), "gpu_library", "[cuda]"),
];

#[test]
fn all_is_well_where_nothing_is_planted() {
    let facts = good();
    assert_eq!(examine(&facts), []);
    let page = page(&facts);
    assert!(page.len() < 24, "one page");
    for (name, words) in [
        ("time", "PrologEpilogTimeout 315 s"),
        ("requeue", "11 s"),
        ("plugin", "Slurm 22.05"),
        ("ports", "199 of them free"),
    ] {
        assert!(
            page.iter().any(|(own, line)| *own == name && line.contains(words)),
            "{name} {words}: {page:?}"
        );
    }
}

// A23.
#[test]
fn every_planted_mistake_is_found_and_only_it() {
    let rows = [SLURM, PLUGIN, FILES, MACHINE].concat();
    assert!(rows.len() >= 25, "{}", rows.len());
    for (plant, rule, change) in rows {
        let mut facts = good();
        plant(&mut facts);
        let findings = examine(&facts);
        let rules: Vec<&str> = findings.iter().map(|one| one.rule).collect();
        assert_eq!(rules, [rule], "{findings:#?}");
        assert!(has_mistakes(&findings), "{rule} is no mistake");
        let one = &findings[0];
        assert!(one.change.contains(change), "{rule}: {:?} lacks {change:?}", one.change);
        let whole = text(&findings);
        for part in [&one.found, &one.change, &one.why] {
            assert!(
                !part.is_empty() && !part.contains('\n') && whole.contains(part.as_str()),
                "{rule}: {part:?}"
            );
        }
    }
}

#[test]
fn without_alloc_and_what_implies_it_both_are_told() {
    let mut facts = good();
    set(&mut facts, "PrologFlags", "(null)");
    let rules: Vec<&str> = examine(&facts).iter().map(|one| one.rule).collect();
    assert_eq!(rules, ["prolog_flags_alloc", "prolog_flags_defer_batch", "prolog_flags_contain"]);
}

/// What works, and an admin should know.
const NOTES: &[Row] = &[
    (|f| set(f, "AuthInfo", "(null)"), "requeue_wait", "cred_expire=10"),
    (|f| set(f, "BatchStartTimeout", "5 sec"), "batch_start_timeout", "BatchStartTimeout=10"),
    (|f| set(f, "MessageTimeout", "5 sec"), "message_timeout", "MessageTimeout=10"),
    (
        |f| {
            f.slurm.release = Release::parse("24.11.5");
            f.plugin.stamp = Some(Ok(f.slurm.release.unwrap()));
        },
        "prolog_hung_message",
        "tell your users",
    ),
    (|f| set(f, "ReturnToService", "2"), "return_to_service", "ReturnToService=1"),
    (|f| set(f, "ProctrackType", "proctrack/linuxproc"), "proctrack", "proctrack/cgroup"),
    (|f| f.slurm.prologs.push(wrapper(false)), "prolog_order", "00-aimaster"),
    (
        |f| f.plugin.empty_includes.push("/etc/slurm/plugstack.conf.d/*.conf".into()),
        "plugstack_include",
        "plugstack.conf itself",
    ),
    (|f| line(f, "required spank_aimaster.so"), "plugstack_required", "write `optional spank_aimaster.so`"),
    (
        |f| line(f, "required /x/spank_aimaster.so prolog=on"),
        "plugstack_required",
        "write `optional /x/spank_aimaster.so prolog=on`",
    ),
    (|f| f.site.policy_file.is = Is::Nothing, "policy_missing", "install conf/aimaster.toml"),
    (|f| f.site.has_limits = false, "baselines_built_in", "conf/baselines"),
    (|f| f.site.worker_is_nobody = true, "worker_is_nobody", "useradd"),
    (|f| f.site.syslog.as_mut().unwrap().is = Is::Nothing, "syslog", "paths.syslog"),
    (|f| line(f, "optional spank_aimaster.so policy=/other.toml"), "policy_other", "without --policy"),
    (|f| f.site.policy.engine = diag::facts::Engine::Host, "engine_host", "engine=cuda"),
];

#[test]
fn what_works_is_a_note_and_no_mistake() {
    for (plant, rule, change) in NOTES {
        let mut facts = good();
        plant(&mut facts);
        let findings = examine(&facts);
        let told: Vec<(&str, Level)> = findings.iter().map(|one| (one.rule, one.level)).collect();
        assert_eq!(told, [(*rule, Level::Note)], "{findings:#?}");
        assert!(findings[0].change.contains(change), "{:?}", findings[0].change);
        assert!(!has_mistakes(&findings));
    }
}

#[test]
fn what_does_not_matter_is_not_told() {
    let quiet: [fn(&mut Facts); 8] = [
        |f| set(f, "PrologFlags", "contain,deferbatch"),
        |f| set(f, "PrologEpilogTimeout", "65534"),
        |f| set(f, "RequeueExit", "2-9,11"),
        // A wrapper serves sites whose prologs run in the job.
        |f| {
            set(f, "PrologFlags", "DeferBatch,RunInJob");
            f.slurm.prologs.push(wrapper(true));
            line(f, "optional spank_aimaster.so prolog=off");
        },
        // Where nobody may ask for a requeue its settings are nobody's matter.
        |f| {
            f.site.policy.actions.allowed = vec![FailAction::Fail];
            set(f, "JobRequeue", "0");
            set(f, "AuthInfo", "cred_expire=900");
        },
        |f| {
            f.site.policy.engine = diag::facts::Engine::Host;
            f.node.gpu_devices = 0;
            f.node.memlock = Some(65_536);
            f.node.missing_libraries.push("NCCL".into());
        },
        // A processor node of a site with GPUs.
        |f| {
            f.node.gpu_devices = 0;
            f.slurm.gpus = Some(0);
        },
        // What a node has is told on the node, not on the login machine.
        |f| {
            f.machine = Machine::Login;
            f.site.helpers[0].is = Is::Nothing;
            f.node.address = Some(Ok("127.0.0.1".parse().unwrap()));
            f.slurm.prologs.push(SiteProlog { pattern: "/x".into(), files: Vec::new(), calls_us: false });
            f.node.memlock = Some(0);
        },
    ];
    for (index, plant) in quiet.into_iter().enumerate() {
        let mut facts = good();
        plant(&mut facts);
        assert_eq!(examine(&facts), [], "row {index}");
    }
}

#[test]
fn what_depends_on_a_policy_with_mistakes_is_not_judged_by_the_defaults() {
    let mut facts = good();
    facts.site.policy_mistakes.push("policy line 3: engin: unknown".into());
    set(&mut facts, "PrologEpilogTimeout", "60");
    set(&mut facts, "SrunPortRange", "27000-27100");
    facts.node.memlock = Some(65_536);
    facts.node.missing_libraries.push("NCCL".into());
    let rules: Vec<&str> = examine(&facts).iter().map(|one| one.rule).collect();
    assert_eq!(rules, ["policy"]);
}

#[test]
fn mistakes_come_before_notes() {
    let mut facts = good();
    set(&mut facts, "ReturnToService", "2");
    facts.node.munge = Some("no socket".into());
    let levels: Vec<Level> = examine(&facts).iter().map(|one| one.level).collect();
    assert_eq!(levels, [Level::Mistake, Level::Note]);
}
