//! What others measure with: nccl-tests, whose programs run once a turn, and the plain launch of `launch.cu`, which
//! stays for all turns. PyTorch, which stays too, is in `torch.rs`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use kernels::{Libraries, Purpose};
use prolog::protocol::Collective;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::ours::SIZES;
use super::turns::{Reading, busbw};

/// A path of NCCL, or of a folder that holds it.
pub const NCCL: &str = "AIMASTER_NCCL";

/// NCCL's settings as the worker has them, and multicast off wherever else it could be on.
const SETTINGS: [(&str, &str); 5] = [
    ("NCCL_NVLS_ENABLE", "0"),
    ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"),
    ("NVSHMEM_DISABLE_NVLS", "1"),
    ("NCCL_SOCKET_IFNAME", "lo"),
    ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
];

/// How long a program may take: contexts, a communicator and some hundred collectives; a compiler on a slow disk.
const LIMIT: Duration = Duration::from_secs(60);

/// As many launches as the worker's window holds.
const LAUNCHES: &str = "20000";

/// A program on these GPUs, whatever the user's own settings are.
pub fn command(program: impl AsRef<OsStr>, uuids: &[String]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"NCCL_")) {
        command.env_remove(name);
    }
    command.envs(SETTINGS).env("CUDA_VISIBLE_DEVICES", uuids.join(","));
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// Where the PATH has a program.
fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// What it prints, once it ended well.
async fn output(command: &mut Command) -> Result<String, String> {
    let name = Path::new(command.as_std().get_program()).display().to_string();
    let output = match timeout(LIMIT, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(format!("{name}: {error}")),
        Err(_) => return Err(format!("{name} took longer than {} s", LIMIT.as_secs())),
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    if output.status.success() {
        return Ok(stdout);
    }
    let last = stderr.lines().chain(stdout.lines()).rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(format!("{name}: {}: {}", output.status, last.trim()))
}

/// Which call launches.
#[derive(Debug, Clone, Copy)]
pub enum Call {
    /// `cuLaunchKernel`, which is the worker's call too.
    Driver,
    /// `cudaLaunchKernel`.
    Runtime,
}

/// The plain launch loop, compiled and running.
pub struct Launch {
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
    /// Killed when it is dropped.
    child: Child,
    /// What compiled it.
    pub version: String,
    _folder: tempfile::TempDir,
}

impl Launch {
    /// Compiles it with the nvcc that is on the PATH, and starts it.
    pub async fn start(uuids: &[String]) -> Result<Self, String> {
        let nvcc = on_path("nvcc").ok_or("no nvcc on the PATH to compile the plain launch loop with")?;
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let (source, program) = (folder.path().join("launch.cu"), folder.path().join("launch"));
        std::fs::write(&source, include_str!("launch.cu")).map_err(|error| error.to_string())?;
        let mut compile = command(&nvcc, uuids);
        compile.args(["-O2", "-std=c++17", "-arch=native", "-o"]).arg(&program).arg(&source).arg("-lcuda");
        output(&mut compile).await?;
        let said = output(command(&nvcc, uuids).arg("--version")).await?;
        let version = said.lines().find(|line| line.contains("release")).unwrap_or("nvcc").to_owned();
        let mut run = command(&program, uuids);
        let mut child =
            run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (to, from) = pipes.ok_or("a process without pipes")?;
        Ok(Self { to, from: BufReader::new(from).lines(), child, version, _folder: folder })
    }

    /// Its process.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Of each GPU: the launch call's median and 99th percentile, and the median of launch and end, µs.
    pub async fn launches(&mut self, call: Call) -> Reading {
        let how = match call {
            Call::Driver => "driver",
            Call::Runtime => "runtime",
        };
        let gone = |error: std::io::Error| format!("the plain launch loop is gone: {error}");
        self.to.write_all(format!("{how} {LAUNCHES}\n").as_bytes()).await.map_err(gone)?;
        let late = |_| format!("the plain launch loop took longer than {} s", LIMIT.as_secs());
        let line = timeout(LIMIT, self.from.next_line()).await.map_err(late)?.map_err(gone)?;
        let said = line.ok_or("the plain launch loop ended; what it said is above")?;
        let numbers: Result<Vec<f64>, _> = said.split_whitespace().map(str::parse).collect();
        let numbers = numbers.map_err(|error| format!("{error} in {said:?}"))?;
        Ok(numbers.into_iter().map(Some).collect())
    }
}

/// The three programs of nccl-tests.
pub struct NcclTests {
    programs: [PathBuf; 3],
    uuids: Vec<String>,
    /// Its own words.
    pub version: String,
}

impl NcclTests {
    /// Those on the PATH.
    pub fn find(uuids: &[String]) -> Result<Self, String> {
        let find = |name: &str| on_path(name).ok_or(format!("no {name} on the PATH"));
        let programs = [find("all_reduce_perf")?, find("all_gather_perf")?, find("alltoall_perf")?];
        Ok(Self { programs, uuids: uuids.to_vec(), version: String::new() })
    }

    /// Busbw of each of [`SIZES`], GB/s, out of place as ours; one thread a GPU, as ours too.
    pub async fn collective(&mut self, collective: Collective) -> Reading {
        let [reduce, gather, exchange] = &self.programs;
        let program = match collective {
            Collective::AllReduce => reduce,
            Collective::AllGather => gather,
            Collective::AllToAll => exchange,
        };
        let threads = self.uuids.len().to_string();
        let mut command = command(program, &self.uuids);
        command.args(["-b", "4M", "-e", "1G", "-f", "16", "-w", "5", "-n", "100", "-g", "1", "-t", &threads]);
        if let Some(path) = library_path() {
            command.env("LD_LIBRARY_PATH", path);
        }
        let said = output(&mut command).await?;
        if let Some(line) = said.lines().find_map(|line| line.strip_prefix("# nccl-tests version ")) {
            self.version = format!("nccl-tests {line}");
        }
        Ok(SIZES.map(|size| busbw(&said, size)).to_vec())
    }
}

/// The loader's path with the folder of the NCCL that the worker opens at its front, so that both sides have the same.
fn library_path() -> Option<OsString> {
    let libraries = Libraries { nccl: Some(std::env::var_os(NCCL)?.into()), ..Libraries::default() };
    let ours = libraries.candidates(Purpose::Nccl).first()?.parent()?.to_owned();
    let others = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    std::env::join_paths(std::iter::once(ours).chain(std::env::split_paths(&others))).ok()
}
