//! This machine: MUNGE, its address and ports, the way to other nodes, slurmd's limits and unit, GPUs and their libraries.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cluster::slurm::address::{address_of, own_address};
use cluster::slurm::config::SlurmConf;
use diag::doctor::facts::{Node, Unit};
use diag::policy::{CudaEngine, Policy};
use kernels::{Libraries, Purpose};
use prolog::meeting;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::command;

/// How long the resolver may take.
const RESOLVE: Duration = Duration::from_secs(5);

/// How long MUNGE may take: libmunge itself gives up after some seconds.
const MUNGE: Duration = Duration::from_secs(10);

/// How long a node may take to answer or refuse a knock.
const KNOCK: Duration = Duration::from_secs(2);

/// The word with which limits are none.
const UNLIMITED: &str = "unlimited";

/// State of a TCP socket that holds its port no more (TIME_WAIT), in the kernel's table.
const LEFT: &str = "06";

/// Where the dynamic loader's list of libraries is printed from, and systemd's own words come from.
const LDCONFIG: &str = "/sbin/ldconfig";
const SYSTEMCTL: &str = "/usr/bin/systemctl";

/// There where systemd runs the machine.
const SYSTEMD: &str = "/run/systemd/system";

/// MUNGE on this machine: made and read a credential, or why not.
pub async fn munge(policy: &Policy, conf: Option<&SlurmConf>) -> Option<String> {
    let empty = SlurmConf::default();
    let munge = match meeting::munge(policy, conf.unwrap_or(&empty)) {
        Ok(munge) => munge,
        Err(error) => return Some(cluster::chain(&error)),
    };
    let own = rustix::process::geteuid().as_raw();
    let work = move || -> Result<(), String> {
        let credential = munge.encode(b"aimaster doctor", own).map_err(|error| cluster::chain(&error))?;
        munge.decode(&credential).map(drop).map_err(|error| cluster::chain(&error))
    };
    match timeout(MUNGE, tokio::task::spawn_blocking(work)).await {
        Ok(Ok(done)) => done.err(),
        Ok(Err(_)) => Some("libmunge ended in a panic".to_owned()),
        Err(_) => Some("munged does not answer".to_owned()),
    }
}

/// The rest, of a compute node.
pub async fn look(node: &str, others: &[String], policy: &Policy, conf: Option<&SlurmConf>) -> Node {
    let network = &policy.network;
    let proc = Path::new("/proc");
    let own = own_address(node, network, conf, proc, Instant::now() + RESOLVE).await;
    let range = network.port_first..=network.port_last;
    let slurmd = slurmd(proc);
    let mut found = Node {
        address: Some(own.map_err(|error| cluster::chain(&error))),
        busy_ports: busy(proc).into_iter().filter(|port| range.contains(port)).collect(),
        local_ports: local_ports(proc),
        slurmd: Some(slurmd.is_some()),
        memlock: slurmd.and_then(|pid| memlock(&proc.join(pid.to_string()))),
        unit: unit().await,
        gpu_devices: gpu_devices(Path::new("/dev")),
        missing_libraries: missing_libraries(&policy.cuda).await,
        ..Node::default()
    };
    for other in others {
        knock(other, policy, conf, &mut found).await;
    }
    found
}

/// Both ends of the range, at another node: something refuses or answers there, unless a firewall keeps it away.
async fn knock(other: &str, policy: &Policy, conf: Option<&SlurmConf>, found: &mut Node) {
    let network = &policy.network;
    let address = match address_of(other, network, conf, Instant::now() + RESOLVE).await {
        Ok(address) => address,
        Err(error) => return found.blocked.push(cluster::chain(&error)),
    };
    let (first, last) = tokio::join!(at(address, network.port_first), at(address, network.port_last));
    let troubles: Vec<String> = [(network.port_first, first), (network.port_last, last)]
        .into_iter()
        .filter_map(|(port, trouble)| Some(format!("{other} ({address}) port {port}: {}", trouble?)))
        .collect();
    if troubles.is_empty() {
        found.reached.push(other.to_owned());
    } else {
        found.blocked.push(troubles.join("; "));
    }
}

async fn at(address: IpAddr, port: u16) -> Option<String> {
    match timeout(KNOCK, TcpStream::connect(SocketAddr::new(address, port))).await {
        Ok(Ok(_)) => None,
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("no answer within {} s", KNOCK.as_secs())),
    }
}

/// Local ports that are in use, by the kernel's tables.
fn busy(proc: &Path) -> Vec<u16> {
    let tables = ["tcp", "tcp6"]
        .map(|name| std::fs::read_to_string(proc.join("self/net").join(name)).unwrap_or_default());
    let port = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, state) = (fields.next()?, fields.nth(1)?);
        if state == LEFT {
            return None;
        }
        u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()
    };
    let mut ports: Vec<u16> = tables.iter().flat_map(|text| text.lines().skip(1)).filter_map(port).collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

fn local_ports(proc: &Path) -> Option<(u16, u16)> {
    let text = std::fs::read_to_string(proc.join("sys/net/ipv4/ip_local_port_range")).ok()?;
    let mut ends = text.split_whitespace().map(str::parse);
    Some((ends.next()?.ok()?, ends.next()?.ok()?))
}

/// Whether slurmd runs here.
pub fn has_slurmd() -> bool {
    slurmd(Path::new("/proc")).is_some()
}

/// slurmd's process.
fn slurmd(proc: &Path) -> Option<u32> {
    let names = crate::files::names(proc).ok()?;
    let mut pids = names.iter().filter_map(|name| name.parse::<u32>().ok());
    pids.find(|pid| {
        std::fs::read_to_string(proc.join(pid.to_string()).join("comm"))
            .is_ok_and(|name| name.trim() == "slurmd")
    })
}

/// What a process may lock in memory, in bytes.
fn memlock(process: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(process.join("limits")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_whitespace().next()? {
        UNLIMITED => Some(u64::MAX),
        bytes => bytes.parse().ok(),
    }
}

/// slurmd's unit, where systemd has it.
async fn unit() -> Option<Unit> {
    if !Path::new(SYSTEMD).exists() {
        return None;
    }
    let ask = ["show", "slurmd.service", "--property=LoadState,KillMode,Delegate"];
    let text = command::said(Path::new(SYSTEMCTL), &ask, None).await.ok()?;
    unit_of(&text)
}

fn unit_of(text: &str) -> Option<Unit> {
    let get = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    if get("LoadState")? != "loaded" {
        return None;
    }
    Some(Unit { kill_mode: get("KillMode")?.to_owned(), delegate: get("Delegate")? == "yes" })
}

/// Device files of GPUs: `nvidia0`, `nvidia1`, ...
pub fn gpu_devices(dev: &Path) -> u32 {
    let names = crate::files::names(dev).unwrap_or_default();
    let is_gpu = |name: &&String| name.strip_prefix("nvidia").is_some_and(|rest| rest.parse::<u32>().is_ok());
    u32::try_from(names.iter().filter(is_gpu).count()).unwrap_or(u32::MAX)
}

/// Libraries of the CUDA engine that are nowhere. They are looked for and not loaded: they would run as this user.
async fn missing_libraries(cuda: &CudaEngine) -> Vec<String> {
    let known = command::said(Path::new(LDCONFIG), &["-p"], None).await.unwrap_or_default();
    let named = |path: &PathBuf| Some(path.clone()).filter(|path| !path.as_os_str().is_empty());
    let libraries = Libraries {
        cuda: named(&cuda.driver),
        nvml: named(&cuda.nvml),
        cublas_lt: named(&cuda.cublas_lt),
        nccl: named(&cuda.nccl),
    };
    let wanted = [Purpose::Driver, Purpose::Nvml, Purpose::CublasLt, Purpose::Nccl];
    wanted.into_iter().filter_map(|purpose| missing(&libraries, purpose, &known)).collect()
}

fn missing(libraries: &Libraries, purpose: Purpose, known: &str) -> Option<String> {
    let files = purpose.files().join(" or ");
    match libraries.policy(purpose) {
        Some(path) => {
            let there = libraries.candidates(purpose).iter().any(|file| file.is_file());
            (!there).then(|| format!("{purpose}: no {files} at {}, which the policy names", path.display()))
        }
        None => {
            let knows = |file: &&str| known.lines().any(|line| line.trim().starts_with(&format!("{file} ")));
            let found = purpose.files().iter().any(knows);
            (!found).then(|| format!("{purpose}: no {files} is known to the dynamic loader (ldconfig -p)"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_are_read() {
        let proc = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = proc.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put(
            "self/net/tcp",
            "  sl  local_address rem_address   st\n   0: 0100007F:6978 00000000:0000 0A 0\n   1: 0100007F:6979 0100007F:1F90 06 0\n",
        );
        put(
            "self/net/tcp6",
            "  sl\n   0: 00000000000000000000000000000000:6978 0:0 0A\n   1: 00:697A 00:0000 01 0\n",
        );
        assert_eq!(busy(proc.path()), [27_000, 27_002]);
        put("sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
        assert_eq!(local_ports(proc.path()), Some((32_768, 60_999)));
        put("17/comm", "slurmd\n");
        put("18/comm", "slurmstepd\n");
        assert_eq!(slurmd(proc.path()), Some(17));
        put(
            "17/limits",
            "Limit     Soft Limit   Hard Limit   Units\nMax locked memory         8388608      8388608      bytes\n",
        );
        assert_eq!(memlock(&proc.path().join("17")), Some(8 << 20));
        put("18/limits", "Max locked memory         unlimited            unlimited            bytes\n");
        assert_eq!(memlock(&proc.path().join("18")), Some(u64::MAX));
        for name in ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"] {
            put(&format!("dev/{name}"), "");
        }
        assert_eq!(gpu_devices(&proc.path().join("dev")), 2);
    }

    #[test]
    fn a_unit_that_is_not_loaded_is_none() {
        let unit = unit_of("LoadState=loaded\nKillMode=process\nDelegate=no\n").unwrap();
        assert_eq!((unit.kill_mode.as_str(), unit.delegate), ("process", false));
        assert!(unit_of("LoadState=not-found\nKillMode=control-group\nDelegate=no\n").is_none());
    }

    #[test]
    fn libraries_are_looked_for_where_the_prolog_would() {
        let none = Libraries::default();
        let known =
            "\tlibnccl.so.2 (libc6,x86-64) => /usr/lib/libnccl.so.2\n\tlibcublasLt.so.12 (libc6) => /x\n";
        assert_eq!(missing(&none, Purpose::Nccl, known), None);
        assert_eq!(missing(&none, Purpose::CublasLt, known), None);
        assert!(missing(&none, Purpose::Driver, known).unwrap().contains("libcuda.so.1"));
        let folder = tempfile::tempdir().unwrap();
        let named = Libraries { nccl: Some(folder.path().to_owned()), ..Libraries::default() };
        assert!(missing(&named, Purpose::Nccl, known).unwrap().contains("which the policy names"));
        std::fs::write(folder.path().join("libnccl.so.2"), "").unwrap();
        assert_eq!(missing(&named, Purpose::Nccl, ""), None);
    }

    #[tokio::test]
    async fn a_port_that_refuses_can_be_reached() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let address = "127.0.0.1".parse().unwrap();
        assert_eq!(at(address, port).await, None);
        drop(listener);
        assert_eq!(at(address, port).await, None);
    }
}
