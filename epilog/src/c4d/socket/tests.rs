//! Who is let in and who is not, with real sockets and descriptors.

use std::io::IoSlice;
use std::sync::atomic::{AtomicU32, Ordering};

use nccl_profiler::ring::LAYOUT_VERSION;
use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, connect, sendmsg};
use rustix::process::getuid;

use super::*;

/// Longer than any of these takes.
const SOON: Duration = Duration::from_secs(10);

fn name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("aimaster-c4d/test/{}/{number}", std::process::id())
}

fn hello(status: Status) -> Vec<u8> {
    let hello = Hello {
        layout_version: LAYOUT_VERSION,
        pid: 1,
        file_bytes: FILE_BYTES,
        nccl_version: 22_809,
        api: 5,
        status,
    };
    hello.encode().to_vec()
}

fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
    let file = memfd_create("ring", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, bytes).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

fn ring() -> OwnedFd {
    memfd(FILE_BYTES, SEALS)
}

fn dial(name: &str) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    socket
}

fn say(name: &str, bytes: &[u8], files: &[OwnedFd]) {
    let socket = dial(name);
    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    }
    sendmsg(&socket, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
}

async fn next(arrivals: &mut Arrivals) -> Result<Arrival, Refusal> {
    timeout(SOON, arrivals.next()).await.unwrap()
}

#[tokio::test]
async fn a_rank_with_a_right_ring_is_let_in_and_nobody_else() {
    let name = name();
    let mut arrivals = Arrivals::new(Door::open(&name, getuid().as_raw()).unwrap()).unwrap();
    say(&name, &hello(Status::Ring), &[ring()]);
    let rank = next(&mut arrivals).await.unwrap();
    assert_eq!(rank.pid, std::process::id());
    assert!(rank.ring.is_some());
    // A plugin that keeps quiet says why, without a ring.
    say(&name, &hello(Status::VersionDenied), &[]);
    let rank = next(&mut arrivals).await.unwrap();
    assert!(rank.ring.is_none() && rank.hello.status == Status::VersionDenied);

    let file = || OwnedFd::from(File::open("/proc/self/exe").unwrap());
    let long = [hello(Status::Ring), vec![0]].concat();
    let all = SEALS;
    for (what, bytes, files) in [
        ("40 bytes", b"hello".to_vec(), vec![ring()]),
        ("not a plugin's", vec![0; HELLO_BYTES], vec![ring()]),
        ("40 bytes", long, vec![ring()]),
        ("one descriptor", hello(Status::Ring), vec![]),
        ("one descriptor", hello(Status::Ring), vec![ring(), ring()]),
        ("longer than a hello", hello(Status::Ring), (0..32).map(|_| ring()).collect()),
        ("no memfd", hello(Status::Ring), vec![file()]),
        ("not sealed", hello(Status::Ring), vec![memfd(FILE_BYTES, SealFlags::SHRINK | SealFlags::GROW)]),
        ("not sealed", hello(Status::Ring), vec![memfd(FILE_BYTES, SealFlags::SHRINK | SealFlags::SEAL)]),
        ("bytes, a ring has", hello(Status::Ring), vec![memfd(FILE_BYTES + 4096, all)]),
        ("bytes, a ring has", hello(Status::Ring), vec![memfd(0, all)]),
    ] {
        say(&name, &bytes, &files);
        let refusal = next(&mut arrivals).await.unwrap_err();
        assert!(refusal.because.contains(what), "{what}: {refusal:?}");
    }
    // It still works, and a connection without a word is nobody.
    drop(dial(&name));
    say(&name, &hello(Status::Ring), &[ring()]);
    assert!(next(&mut arrivals).await.is_ok());
}

#[tokio::test]
async fn another_user_s_process_is_refused_whatever_it_says() {
    let name = name();
    let mut arrivals = Arrivals::new(Door::open(&name, getuid().as_raw() + 1).unwrap()).unwrap();
    say(&name, &hello(Status::Ring), &[ring()]);
    let refusal = next(&mut arrivals).await.unwrap_err();
    assert!(
        refusal.because.contains("the job of uid") && refusal.uid == Some(getuid().as_raw()),
        "{refusal:?}"
    );
}

#[tokio::test]
async fn silent_connections_end_and_keep_nobody_out_for_long() {
    let name = name();
    let mut arrivals = Arrivals::new(Door::open(&name, getuid().as_raw()).unwrap()).unwrap();
    let silent: Vec<OwnedFd> = (0..MOST_PENDING).map(|_| dial(&name)).collect();
    say(&name, &hello(Status::Ring), &[ring()]);
    let mut refused = 0;
    while next(&mut arrivals).await.is_err() {
        refused += 1;
    }
    assert!(refused > 0 && refused <= silent.len(), "{refused}");
}

#[test]
fn a_name_has_one_owner() {
    let name = name();
    let _first = Door::open(&name, 0).unwrap();
    let second = Door::open(&name, 0).unwrap_err();
    assert!(format!("{second:#}").contains(&name), "{second:#}");
}
