//! A process that comes to an agent's socket as NCCL's profiler plugin does, with a ring in which nothing ever happens, or
//! with something that is none. `rank SOCKET ring|short|open|file|words [SECONDS]`: the descriptor that it hands over is a
//! right one, too short, not sealed, no memfd, or there are only words. It stays for so long, and prints its process id.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nccl_profiler::handover::{Hello, Status};
use nccl_profiler::ring::{FILE_BYTES, Header, LAYOUT_VERSION};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, connect, sendmsg, socket_with,
};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (name, kind, rest) = match arguments.as_slice() {
        [name, kind, rest @ ..] => (name, kind.as_str(), rest),
        _ => bail!("usage: rank SOCKET ring|short|open|file|words [SECONDS]"),
    };
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let file = match kind {
        "ring" => Some(memfd(FILE_BYTES, seals)?),
        "short" => Some(memfd(4096, seals)?),
        "open" => Some(memfd(FILE_BYTES, SealFlags::SHRINK)?),
        "file" => Some(File::open("/proc/self/exe")?.into()),
        "words" => None,
        _ => bail!("{kind} is unknown"),
    };
    let hello = Hello {
        layout_version: LAYOUT_VERSION,
        pid: std::process::id(),
        file_bytes: FILE_BYTES,
        nccl_version: 22_809,
        api: 5,
        status: Status::Ring,
    };
    let bytes = if kind == "words" { b"words".to_vec() } else { hello.encode().to_vec() };
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?).context("nobody listens there")?;
    let files: Vec<_> = file.iter().map(|file| file.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&files)) {
        bail!("no room for the descriptor");
    }
    // Who is refused for what he is, is refused before he speaks.
    match sendmsg(&socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::empty()) {
        Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => {}
        Err(errno) => return Err(errno.into()),
    }
    println!("{}", std::process::id());
    std::io::stdout().flush()?;
    if let [seconds, ..] = rest {
        std::thread::sleep(Duration::from_secs(seconds.parse().context("SECONDS")?));
    }
    Ok(())
}

/// A memfd with the header of a ring, as far as it is long enough for one.
fn memfd(bytes: u64, seals: SealFlags) -> Result<OwnedFd> {
    let file = File::from(memfd_create("ring", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    ftruncate(&file, bytes)?;
    let header = Header {
        pid: std::process::id(),
        nccl_version: 22_809,
        api: 5,
        created_ns: 1,
        mask: 0,
        written: 0,
        counters: [0; nccl_profiler::ring::COUNTERS],
    };
    let words: Vec<u8> = header.encode().iter().flat_map(|word| word.to_le_bytes()).collect();
    file.write_all_at(&words, 0)?;
    fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}
