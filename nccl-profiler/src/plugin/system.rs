//! What the plugin needs of the system, all of it when a process makes its first communicator; only the clock is asked later, and
//! that is no system call.

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::AtomicU64;

use crate::handover::{HELLO_BYTES, MEMFD_NAME, SOCKET_NAME_BYTES};
use crate::ring::FILE_BYTES;

/// Linux 6.3: the file can never be made a program.
const MFD_NOEXEC_SEAL: u32 = 8;
/// Linux 4.14.
const MADV_WIPEONFORK: c_int = 18;
const PAGE: usize = 4096;

/// CLOCK_MONOTONIC in ns.
#[inline]
pub(super) fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is ours. The clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// This process's number, as it sees itself.
pub(super) fn pid() -> u32 {
    // SAFETY: always succeeds.
    unsafe { libc::getpid() as u32 }
}

/// A variable of the environment, its first bytes. Empty if it is not set.
pub(super) fn variable<const N: usize>(name: &CStr, into: &mut [u8; N]) -> usize {
    // SAFETY: the name is a C string; nobody changes the environment while NCCL makes a communicator, or getenv is wrong everywhere.
    let text = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: getenv gives null or a C string.
    *into = unsafe { super::text::start(text) };
    into.iter().position(|byte| *byte == 0).unwrap_or(N)
}

/// The memory of a ring.
pub(super) struct Memory {
    pub(super) base: *mut u8,
    pub(super) fd: c_int,
}

impl Memory {
    /// A sealed memfd, mapped, all its pages there.
    pub(super) fn new() -> Option<Self> {
        let mut name = [0_u8; 32];
        for (byte, letter) in name.iter_mut().zip(MEMFD_NAME.bytes()) {
            *byte = letter;
        }
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // By number: glibc has the function from 2.27 on only.
        // SAFETY: the name is a C string.
        let open =
            |flags: u32| unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), flags) as c_int };
        let mut fd = open(flags | MFD_NOEXEC_SEAL);
        if fd < 0 {
            fd = open(flags);
        }
        if fd < 0 {
            return None;
        }
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // All pages now: a page that can't be had later would be a signal in the rank and not an answer here.
        // SAFETY: our own descriptor.
        let made = unsafe {
            libc::ftruncate(fd, FILE_BYTES as libc::off_t) == 0
                && libc::fallocate(fd, 0, 0, FILE_BYTES as libc::off_t) == 0
                && libc::fcntl(fd, libc::F_ADD_SEALS, seals) == 0
        };
        if !made {
            close(fd);
            return None;
        }
        let (access, how) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping of our own file.
        let base = unsafe { libc::mmap(core::ptr::null_mut(), FILE_BYTES as usize, access, how, fd, 0) };
        if base == libc::MAP_FAILED {
            close(fd);
            return None;
        }
        Some(Self { base: base.cast(), fd })
    }

    /// Gives it back, mapping and all.
    pub(super) fn discard(self) {
        // SAFETY: nobody else knows the mapping.
        unsafe { libc::munmap(self.base.cast(), FILE_BYTES as usize) };
        close(self.fd);
    }

    /// Gives its pages back; the mapping stays, because another thread may know it.
    pub(super) fn empty(self) {
        // SAFETY: our own mapping; whoever still uses it reads zeros.
        unsafe { libc::madvise(self.base.cast(), FILE_BYTES as usize, libc::MADV_REMOVE) };
        close(self.fd);
    }
}

/// A page of zeros that is zeros again in the child of a fork. One word of it is set: a child reads 0 there, without a system call and
/// without a handler of ours.
pub(super) fn fork_guard() -> Option<*mut AtomicU64> {
    let (access, how) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping.
    let page = unsafe { libc::mmap(core::ptr::null_mut(), PAGE, access, how, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the page is ours.
    if unsafe { libc::madvise(page, PAGE, MADV_WIPEONFORK) } != 0 {
        discard_guard(page.cast());
        return None;
    }
    Some(page.cast())
}

/// Gives the page back.
pub(super) fn discard_guard(page: *mut AtomicU64) {
    // SAFETY: nobody else knows the page.
    unsafe { libc::munmap(page.cast(), PAGE) };
}

pub(super) fn close(fd: c_int) {
    // SAFETY: our own descriptor, which nobody uses any more.
    unsafe { libc::close(fd) };
}

/// Root as a user namespace shows it that doesn't know root, such as that of a container without rights.
const NOBODY: libc::uid_t = 65_534;

/// Whether root listens there, or this process's own user: once an agent is gone, anybody may take its name, and who is
/// handed the ring can write into it.
fn is_agent(socket: c_int) -> bool {
    // SAFETY: zeros are such a structure.
    let mut who: libc::ucred = unsafe { core::mem::zeroed() };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let into = (&raw mut who).cast::<c_void>();
    // SAFETY: the kernel writes at most `length` bytes, which the structure has.
    let told =
        unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, into, &raw mut length) };
    // SAFETY: always succeeds.
    let own = unsafe { libc::geteuid() };
    told == 0 && (who.uid == 0 || who.uid == own || who.uid == NOBODY)
}

/// Connects to the agent's socket, without waiting. None if no agent listens there.
pub(super) fn connect(name: &[u8]) -> Option<c_int> {
    if name.is_empty() || name.len() > SOCKET_NAME_BYTES {
        return None;
    }
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointer.
    let socket = unsafe { libc::socket(libc::AF_UNIX, kind, 0) };
    if socket < 0 {
        return None;
    }
    // SAFETY: zeros are an address.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // The first byte stays NUL: an abstract name.
    for (byte, letter) in address.sun_path.iter_mut().skip(1).zip(name) {
        *byte = *letter as libc::c_char;
    }
    let length = size_of::<libc::sa_family_t>() + 1 + name.len();
    // SAFETY: the address is `length` bytes long at least.
    if unsafe { libc::connect(socket, (&raw const address).cast(), length as libc::socklen_t) } != 0 {
        close(socket);
        return None;
    }
    if !is_agent(socket) {
        close(socket);
        return None;
    }
    Some(socket)
}

/// Room for one descriptor's control message, aligned as the kernel wants it.
#[repr(C, align(8))]
struct Control {
    header: libc::cmsghdr,
    fd: c_int,
    padding: c_int,
}

/// Sends the message, with the descriptor if there is one. False if the agent's queue is full or its end is closed.
pub(super) fn send(socket: c_int, hello: &[u8; HELLO_BYTES], fd: Option<c_int>) -> bool {
    let mut data = libc::iovec { iov_base: hello.as_ptr().cast_mut().cast(), iov_len: HELLO_BYTES };
    // SAFETY: zeros are a message and a control message.
    let (mut message, mut control) = unsafe { core::mem::zeroed::<(libc::msghdr, Control)>() };
    message.msg_iov = &raw mut data;
    message.msg_iovlen = 1;
    if let Some(fd) = fd {
        control.header.cmsg_level = libc::SOL_SOCKET;
        control.header.cmsg_type = libc::SCM_RIGHTS;
        control.header.cmsg_len = (size_of::<libc::cmsghdr>() + size_of::<c_int>()) as _;
        control.fd = fd;
        message.msg_control = (&raw mut control).cast::<c_void>();
        message.msg_controllen = size_of::<Control>() as _;
    }
    // SAFETY: the message points at data and control, which live until the call returns.
    let sent = unsafe { libc::sendmsg(socket, &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    sent == HELLO_BYTES as isize
}
