//! Processor limits: one control group per node, of version 1 or 2, whichever this machine has.
//! It only makes, limits and removes groups; `exec` and `node` start their processes inside.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// The kernel's default; 1 % of it is the smallest quota the kernel takes (1 ms).
const PERIOD_US: u32 = 100_000;

/// Weight of a cluster against everything else on this machine, in shares (1,024 is what one other process has):
/// with less, a compiler beside the test would take most of the processor from the nodes, and what they measure
/// would be the compiler.
const SHARES: u32 = 64 * 1024;
/// The same in version 2, where 100 is what others have.
const WEIGHT: u32 = 6400;

/// The mounted hierarchy that has the processor controller.
#[derive(Clone, Debug)]
pub(crate) struct Cgroups {
    root: PathBuf,
    version: u8,
}

impl Cgroups {
    /// Finds a writable hierarchy with the `cpu` controller.
    pub(crate) fn find() -> Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("cannot read /proc/self/mounts")?;
        let mut second = None;
        for line in mounts.lines() {
            let mut fields = line.split(' ').skip(1);
            let (Some(root), Some(kind), Some(options)) = (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let root = PathBuf::from(root);
            if kind == "cgroup" && options.split(',').any(|o| o == "cpu") {
                return Ok(Self { root, version: 1 });
            }
            let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
            if kind == "cgroup2" && controllers.split_whitespace().any(|c| c == "cpu") {
                second = Some(Self { root, version: 2 });
            }
        }
        second.context(
            "no control group hierarchy with the cpu controller is mounted \
             (neither version 1 nor version 2), so the processor of a node cannot be limited",
        )
    }

    fn dir(&self, id: &str, node: &str) -> PathBuf {
        self.root.join(id).join(node)
    }

    /// Makes the group of a node.
    pub(crate) fn create(&self, id: &str, node: &str) -> Result<()> {
        let dir = self.dir(id, node);
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        if self.version == 2 {
            for level in [self.root.clone(), self.root.join(id)] {
                let file = level.join("cgroup.subtree_control");
                fs::write(&file, "+cpu").with_context(|| {
                    format!("{} refuses the cpu controller (a container's own group?)", file.display())
                })?;
            }
        }
        self.put_first(id)
    }

    /// Lets a cluster go before what else runs on this machine.
    fn put_first(&self, id: &str) -> Result<()> {
        let (file, weight) = if self.version == 1 { ("cpu.shares", SHARES) } else { ("cpu.weight", WEIGHT) };
        let path = self.root.join(id).join(file);
        fs::write(&path, weight.to_string()).with_context(|| format!("cannot write to {}", path.display()))
    }

    /// The file that takes the id of a process that joins.
    pub(crate) fn procs_file(&self, id: &str, node: &str) -> PathBuf {
        self.dir(id, node).join("cgroup.procs")
    }

    /// Limits a node to `percent` of one core, or lifts the limit.
    pub(crate) fn limit(&self, id: &str, node: &str, percent: Option<u32>) -> Result<()> {
        if percent == Some(0) {
            bail!("a processor limit of 0 % is not possible; stop the processes instead");
        }
        let quota = percent.map(|p| u64::from(p) * u64::from(PERIOD_US) / 100);
        let dir = self.dir(id, node);
        let write = |file: &str, text: String| {
            let path = dir.join(file);
            fs::write(&path, &text).with_context(|| format!("cannot write {text:?} to {}", path.display()))
        };
        if self.version == 1 {
            write("cpu.cfs_period_us", PERIOD_US.to_string())?;
            return write("cpu.cfs_quota_us", quota.map_or("-1".into(), |q| q.to_string()));
        }
        let quota = quota.map_or("max".into(), |q| q.to_string());
        write("cpu.max", format!("{quota} {PERIOD_US}"))
    }

    /// The names of all groups at the top.
    pub(crate) fn names(&self) -> Vec<String> {
        let dirs = subdirectories(&self.root).into_iter();
        dirs.filter_map(|dir| Some(dir.file_name()?.to_string_lossy().into_owned())).collect()
    }

    /// Every process in the groups of one cluster.
    pub(crate) fn processes(&self, id: &str) -> Vec<u32> {
        let mut all = Vec::new();
        for dir in subdirectories(&self.root.join(id)) {
            let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
            all.extend(text.lines().filter_map(|l| l.parse::<u32>().ok()));
        }
        all
    }

    /// The groups below those of a cluster's machines: nothing here makes any.
    pub(crate) fn below(&self, id: &str) -> Vec<PathBuf> {
        subdirectories(&self.root.join(id)).iter().flat_map(|machine| subdirectories(machine)).collect()
    }

    /// Removes the groups of one cluster, as far as they are empty.
    pub(crate) fn remove(&self, id: &str) {
        let top = self.root.join(id);
        for dir in subdirectories(&top) {
            let _ = fs::remove_dir(dir);
        }
        let _ = fs::remove_dir(top);
    }

    /// Whether any group of this cluster is left.
    pub(crate) fn exists(&self, id: &str) -> bool {
        self.root.join(id).exists()
    }
}

fn subdirectories(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.flatten().map(|e| e.path()).filter(|p| p.is_dir()).collect()
}
