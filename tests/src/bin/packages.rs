//! What the Debian package does on machines with a running Slurm: installed, upgraded, removed and purged by dpkg, with jobs
//! after each step and beside it. `cargo xtask dist --check` makes the packages and the machines, and runs this.
#![allow(clippy::unwrap_used, clippy::panic, reason = "it is a test, and may stop at the first surprise")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use aimaster_tests::{CTL, Cluster, Output, product, serial};

/// A package, and the same under a higher version.
const PACKAGE: &str = "AIMASTER_TESTS_PACKAGE";
const NEWER: &str = "AIMASTER_TESTS_NEWER_PACKAGE";

/// The machines of jobs; n3 is one whose Slurm comes later than the package.
const MACHINES: [&str; 3] = [CTL, "n1", "n2"];
const LATE: &str = "n3";

const PLUGIN: &str = "/usr/libexec/aimaster/spank_aimaster.so";
const POLICY: &str = "/etc/aimaster/aimaster.toml";
const PLUGSTACK: &str = "/etc/slurm/plugstack.conf";

/// A busy machine gets more than dpkg takes.
const DPKG: Duration = Duration::from_secs(120);

/// From the start of a slurmd to an idle node.
const IDLE: Duration = Duration::from_secs(30);

/// A short window.
const QUICK: &str = "host.seconds_per_check = 0.3\nhost.ranks_per_node = 1\n";

/// What dpkg and useradd write for themselves.
const NOT_OURS: [&str; 7] = [
    "/var/lib/dpkg",
    "/var/log/dpkg.log",
    "/var/cache/ldconfig",
    "/etc/passwd",
    "/etc/shadow",
    "/etc/group",
    "/etc/gshadow",
];

fn main() {
    let _machine = serial().unwrap();
    a_package_is_installed_upgraded_removed_and_purged_beside_jobs();
    a_slurm_that_comes_later_or_changes_is_noticed();
    println!("the package comes, changes and goes as it should");
}

struct Site {
    cluster: Cluster,
    packages: PathBuf,
}

impl Site {
    /// Machines with an /etc of their own, as real ones have; each has another form of plugstack.conf.
    fn boot() -> Self {
        let cluster = Cluster::builder().nodes(3).boot().unwrap();
        let packages = cluster.base().join("packages");
        std::fs::create_dir(&packages).unwrap();
        let site = Self { cluster, packages };
        for (variable, name) in [(PACKAGE, "old.deb"), (NEWER, "new.deb")] {
            let from = std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} names no package"));
            std::fs::copy(from, site.packages.join(name)).unwrap();
        }
        for machine in [CTL, "n1", "n2", LATE] {
            site.sh(
                machine,
                "cp -a /etc/slurm /etc/own; umount /etc/slurm /etc/aimaster; rm -rf /etc/slurm; mv /etc/own /etc/slurm; \
                 rmdir /etc/aimaster; userdel aimaster; mkdir -p /etc/slurm/plugstack.conf.d",
            );
        }
        // As Debian has it; as a site has it; with nothing.
        site.write("n1", PLUGSTACK, "include /etc/slurm/plugstack.conf.d/*.conf\n");
        site.write("n2", PLUGSTACK, "# the site's own\n\n");
        site.sh(CTL, &format!("rm {PLUGSTACK}"));
        site
    }

    fn sh(&self, machine: &str, script: &str) -> Output {
        let command = self.cluster.command(machine, ["sh", "-ec", script]).timeout(DPKG);
        command.env("DEBIAN_FRONTEND", "noninteractive").ok().unwrap()
    }

    fn write(&self, machine: &str, path: &str, text: &str) {
        self.cluster.write_file(machine, path, text).unwrap();
    }

    fn read(&self, machine: &str, path: &str) -> Option<String> {
        self.cluster.read_file(machine, path).ok()
    }

    /// Runs dpkg; a job without checks runs after it as before.
    fn dpkg(&self, machine: &str, arguments: &str) -> String {
        let start = Instant::now();
        let output = self.sh(machine, &format!("cd {}; dpkg {arguments} 2>&1", self.packages.display()));
        println!("{machine}: dpkg {arguments}: {:.1} s\n{}", start.elapsed().as_secs_f64(), output.stdout);
        self.a_plain_job_runs(&format!("{machine}: dpkg {arguments}"));
        output.stdout
    }

    fn a_plain_job_runs(&self, after: &str) {
        let srun = self.cluster.srun(["-w", "n1,n2", "echo", "ran"]).run().unwrap();
        assert!(srun.success() && srun.stdout == "ran\nran\n", "{after}: {}{}", srun.stdout, srun.stderr);
        let strange = ["plugstack", "spank", "aimaster"].iter().any(|word| srun.stderr.contains(word));
        assert!(!strange, "{after}: {}", srun.stderr);
        for node in ["n1", "n2"] {
            let log = std::fs::read_to_string(self.cluster.log_file(&format!("slurmd.{node}.log"))).unwrap();
            let bad: Vec<&str> = log
                .lines()
                .filter(|line| {
                    line.contains("error") && (line.contains("spank") || line.contains("plugstack"))
                })
                .collect();
            assert!(bad.is_empty(), "{after}: {node}: {bad:#?}");
        }
    }

    fn restart_slurmd(&self) {
        for node in ["n1", "n2"] {
            self.cluster.restart_slurmd(node).unwrap();
        }
        self.cluster.wait_idle(3, IDLE).unwrap();
    }

    fn a_checked_job_passes(&self) {
        let arguments = ["-w", "n1,n2", "--sanity-check=gemm_flops,all_reduce_2", "echo", "ran"];
        let srun = self.cluster.srun(arguments).run().unwrap();
        assert!(srun.success() && srun.stdout == "ran\nran\n", "{}{}", srun.stdout, srun.stderr);
        assert!(srun.stderr.contains("aimaster: PASS after"), "{}", srun.stderr);
        println!("{}", srun.stderr);
    }

    /// Everything that lies on a machine, but what tools note for themselves.
    fn files(&self, machine: &str) -> BTreeSet<String> {
        let all = self.sh(machine, "find /etc /usr /var /opt -xdev").stdout;
        let kept = all.lines().filter(|path| !NOT_OURS.iter().any(|one| path.starts_with(one)));
        kept.map(str::to_owned).collect()
    }
}

fn a_package_is_installed_upgraded_removed_and_purged_beside_jobs() {
    let site = Site::boot();
    site.a_plain_job_runs("boot");
    let before = MACHINES.map(|machine| (site.files(machine), site.read(machine, PLUGSTACK)));

    // From the package to the first verdict; the policy is the only file that a site writes.
    let start = Instant::now();
    for machine in MACHINES {
        site.dpkg(machine, "--install old.deb");
    }
    let policy = product::policy_text(&site.cluster, QUICK).unwrap();
    MACHINES.iter().for_each(|machine| site.write(machine, POLICY, &policy));
    // slurmd looks for plugins with a prolog when it starts.
    site.restart_slurmd();
    site.a_checked_job_passes();
    println!("from the package to the first verdict of two nodes: {:.1} s", start.elapsed().as_secs_f64());
    for machine in MACHINES {
        assert_eq!(site.sh(machine, &format!("stat -c '%a %U %G' {PLUGIN}")).stdout, "644 root root\n");
        site.sh(machine, "getent passwd aimaster");
    }
    let included = site.read("n1", "/etc/slurm/plugstack.conf.d/aimaster.conf").unwrap();
    assert!(included.contains(&format!("\noptional {PLUGIN}\n")), "{included}");
    assert_eq!(site.read("n1", PLUGSTACK), before[1].1, "the site includes a folder");
    assert!(site.read("n2", PLUGSTACK).unwrap().starts_with(before[2].1.as_ref().unwrap()));

    // An upgrade keeps the line, the policy, and what the site changed at either.
    let lines = MACHINES.map(|machine| site.read(machine, PLUGSTACK));
    for machine in MACHINES {
        site.dpkg(machine, "--install new.deb");
        site.a_checked_job_passes();
        assert_eq!(site.read(machine, POLICY).as_deref(), Some(policy.as_str()));
    }
    assert_eq!(MACHINES.map(|machine| site.read(machine, PLUGSTACK)), lines);

    // What a site has switched off stays so.
    site.sh("n2", "aimaster plugin off");
    let off = site.read("n2", PLUGSTACK);
    assert_eq!(off, before[2].1);
    site.dpkg("n2", "--force-downgrade --install old.deb");
    assert_eq!(site.read("n2", PLUGSTACK), off);
    site.sh("n2", "aimaster plugin on");
    site.a_checked_job_passes();

    // Removed while jobs start one after the other: none fails, none says a word, and what was measured stays.
    let jobs = "for i in $(seq 40); do srun -Q -w n1,n2 true || echo failed; done; echo end";
    let beside = site.cluster.command(CTL, ["sh", "-c", jobs]).user("alice").timeout(DPKG).spawn().unwrap();
    for machine in MACHINES {
        site.dpkg(machine, "--remove aimaster");
        assert!(site.read(machine, PLUGIN).is_none() && site.read(machine, POLICY).is_some());
    }
    let beside = beside.wait(DPKG).unwrap();
    assert_eq!((beside.stdout.as_str(), beside.stderr.as_str()), ("end\n", ""));
    assert_eq!(MACHINES.map(|machine| site.read(machine, PLUGSTACK)), before.clone().map(|(_, text)| text));

    // It comes back as it was, and a purge leaves nothing.
    site.dpkg("n1", "--install new.deb");
    assert!(site.read("n1", "/etc/slurm/plugstack.conf.d/aimaster.conf").unwrap().contains(PLUGIN));
    assert_eq!(site.read("n1", POLICY).as_deref(), Some(policy.as_str()));
    for (machine, (files, text)) in MACHINES.iter().zip(&before) {
        site.dpkg(machine, "--purge aimaster");
        let left: Vec<String> = site.files(machine).difference(files).cloned().collect();
        assert!(left.is_empty(), "{machine}: {left:#?}");
        assert!(files.is_subset(&site.files(machine)), "{machine}: something of the site's is gone");
        assert_eq!(&site.read(machine, PLUGSTACK), text);
        let user = site.cluster.exec(machine, ["getent", "passwd", "aimaster"]).unwrap();
        assert!(!user.success(), "{}", user.stdout);
    }
}

fn a_slurm_that_comes_later_or_changes_is_noticed() {
    let site = Site::boot();
    site.sh(LATE, "mv /usr/sbin/slurmd-wlm /usr/sbin/away; mv /usr/lib/*/slurm-wlm /usr/lib/away");
    let said = site.dpkg(LATE, "--install old.deb");
    let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("aimaster: ")).collect();
    assert!(lines.len() == 1 && lines[0].contains("Slurm is not installed"), "{said}");
    assert!(site.read(LATE, PLUGIN).is_none());

    // Any package with files in Slurm's folder of plugins is one that may have brought another Slurm.
    let folder = site.sh(LATE, "ls -d /usr/lib/*-linux-gnu").stdout.trim().to_owned();
    site.sh(LATE, &format!("mv /usr/sbin/away /usr/sbin/slurmd-wlm; mv /usr/lib/away {folder}/slurm-wlm"));
    slurm_package(&site.packages, &folder);
    site.dpkg(LATE, "--install slurm.deb");
    let stamp = || {
        let copy = site.packages.join("plugin.so");
        site.sh(LATE, &format!("cp {PLUGIN} {}", copy.display()));
        aimaster_tests::stamped(&copy).unwrap()
    };
    assert_eq!(stamp(), site.cluster.slurm().number());
    let text = site.read(LATE, PLUGSTACK).unwrap();
    assert!(text.contains(PLUGIN), "{text}");

    // Stamped for another release, as an upgrade of Slurm leaves it.
    site.sh(LATE, "aimaster plugin stamp --slurm 24.11.5");
    assert_eq!(stamp(), 0x18_0b_05);
    site.dpkg(LATE, "--install slurm.deb");
    assert_eq!(stamp(), site.cluster.slurm().number());
    assert_eq!(site.read(LATE, PLUGSTACK).unwrap(), text);
}

/// A package with one file in Slurm's folder of plugins.
fn slurm_package(into: &Path, folder: &str) {
    let tree = into.join("tree");
    let plugins = tree.join(format!(".{folder}/slurm-wlm"));
    std::fs::create_dir_all(&plugins).unwrap();
    std::fs::create_dir(tree.join("DEBIAN")).unwrap();
    std::fs::write(plugins.join("another.so"), "").unwrap();
    let control = "Package: another-slurm\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@localhost>\n\
                   Description: a file beside Slurm's\n";
    std::fs::write(tree.join("DEBIAN/control"), control).unwrap();
    let mut build = std::process::Command::new("dpkg-deb");
    build.args(["--root-owner-group", "--build"]).args([&tree, &into.join("slurm.deb")]);
    assert!(build.status().unwrap().success());
}
