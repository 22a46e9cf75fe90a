//! The names that a hostlist stands for, compared with what Slurm's own `scontrol show hostnames` makes of it.
//!
//! Slurm and `diag::hostlist` differ on purpose beyond two brackets a name, behind the last bracket, and on broken
//! lists, where Slurm guesses: those are left out here and tested in `diag`.
#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::fs;
use std::process::Command;

use diag::hostlist;

/// Lists made by chance; each costs one run of scontrol, a few milliseconds.
const LISTS: usize = 300;

/// The same lists at every run, so that a failure can be seen again.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// Longest range of one bracket: two of them stay far below what Slurm shows at once.
const LONGEST_RANGE: u64 = 30;

/// xorshift: small, and good enough to mix forms.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn pick<'t>(&mut self, from: &[&'t str]) -> &'t str {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }

    fn number(&mut self, value: u64, width: usize) -> String {
        format!("{value:0width$}")
    }

    /// `[01-03,7]`
    fn brackets(&mut self) -> String {
        let ranges: Vec<String> = (0..=self.below(3))
            .map(|_| {
                let first = self.below(1200);
                let width = usize::try_from(self.below(6)).unwrap();
                if self.below(3) == 0 {
                    return self.number(first, width);
                }
                let last = first + self.below(LONGEST_RANGE);
                format!("{}-{}", self.number(first, width), self.number(last, width))
            })
            .collect();
        format!("[{}]", ranges.join(","))
    }

    fn name(&mut self) -> String {
        let mut name = self.pick(&["n", "gpu-", "rack", "a1b", "node7-", "x_y", "r2.s"]).to_owned();
        match self.below(4) {
            0 => {}
            1 => {
                name += &self.brackets();
                name += self.pick(&["n", "-", "s-u"]);
                name += &self.brackets();
            }
            _ => name += &self.brackets(),
        }
        name
    }

    fn list(&mut self) -> String {
        (0..=self.below(4)).map(|_| self.name()).collect::<Vec<_>>().join(",")
    }
}

struct Slurm {
    conf: tempfile::TempDir,
}

impl Slurm {
    fn new() -> Self {
        let conf = tempfile::tempdir().unwrap();
        // Showing names asks no daemon, but scontrol wants a configuration.
        fs::write(conf.path().join("slurm.conf"), "ClusterName=oracle\nSlurmctldHost=localhost\n").unwrap();
        Self { conf }
    }

    fn names(&self, list: &str) -> Vec<String> {
        let output = Command::new("scontrol")
            .args(["show", "hostnames", list])
            .env("SLURM_CONF", self.conf.path().join("slurm.conf"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{list}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }
}

// P03.
#[test]
fn lists_of_the_field_are_read_as_slurm_reads_them() {
    let slurm = Slurm::new();
    for list in [
        "login",
        "n[1-4]",
        "n[08-11]",
        "n[9-11,3,007]",
        "n[99-101],m",
        "rack[1-2]n[01-03],a,b[1,3-4]",
        "a[1-2][3-4]",
        "n[1-2],n[2-3]",
        "n1,n2,n1",
        "gpu-a100-[001-004,010],login-1",
        "n[0-0]",
        "n[000-002]",
        "n[1-2000]",
    ] {
        assert_eq!(hostlist::expand(list).unwrap(), slurm.names(list), "{list}");
    }
}

#[test]
fn lists_made_by_chance_are_read_as_slurm_reads_them() {
    let slurm = Slurm::new();
    let mut chance = Chance(SEED);
    for _ in 0..LISTS {
        let list = chance.list();
        assert_eq!(hostlist::expand(&list).unwrap(), slurm.names(&list), "{list}");
    }
}
