//! How a rank's process and the agent on its node find each other: names of environment variables, and the one message.
//!
//! The agent listens on an abstract unix socket (`SOCK_SEQPACKET`). The plugin connects without waiting when NCCL makes its
//! first communicator, sends one [`Hello`], with the ring's memfd as `SCM_RIGHTS` if there is a ring, and closes socket and
//! memfd: no descriptor stays in the user's process. There is no answer. What the agent wants of the plugin it writes into the ring's file
//! ([`crate::ring::Order`]), for which the descriptor that it was given is good.
//!
//! A connection without a message is a thread that found that another one of its process has made the ring meanwhile.
//!
//! The agent takes uid and pid from `SO_PEERCRED`, never from the message, and checks the seals before the first read.

/// What NCCL loads the plugin by.
pub const PLUGIN_VARIABLE: &str = "NCCL_PROFILER_PLUGIN";

/// Name of the abstract socket, without the leading NUL. Without it there is no telemetry.
pub const SOCKET_VARIABLE: &str = "AIMASTER_C4D_SOCKET";

/// NCCL versions in which the plugin keeps quiet, beside those that it knows itself: `2.28.3-2.28.8,2.30.1`.
pub const DENY_VARIABLE: &str = "AIMASTER_C4D_NCCL_DENY";

/// Longest name of a socket: `sun_path` has 108 bytes, the first is NUL.
pub const SOCKET_NAME_BYTES: usize = 107;

/// The file as it is installed.
pub const PLUGIN_FILE: &str = "libnccl-profiler-aimaster.so";

/// Name of the memfd, for whoever looks at `/proc/<pid>/maps`.
pub const MEMFD_NAME: &str = "aimaster-c4d";

/// Bytes of the message. A longer or shorter one is refused.
pub const HELLO_BYTES: usize = 40;

const MAGIC: [u8; 8] = *b"aimaHi\n\0";

/// Why there is, or is not, a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// The message carries the ring's memfd.
    Ring = 0,
    /// This version of NCCL is on the deny-list.
    VersionDenied = 1,
    /// The version of NCCL is not known, and it could be one of the deny-list.
    VersionUnknown = 2,
    /// No memory for the ring, or a kernel without memfd.
    NoMemory = 3,
    /// A kernel that can't keep a fork's child from writing (`MADV_WIPEONFORK`, Linux 4.14).
    NoForkGuard = 4,
}

impl Status {
    /// For the report: why telemetry is unavailable.
    #[must_use]
    pub const fn why(self) -> &'static str {
        match self {
            Self::Ring => "there is telemetry",
            Self::VersionDenied => {
                "this NCCL's profiler support is known to crash jobs; use another version of NCCL"
            }
            Self::VersionUnknown => {
                "NCCL's version is not known (is it linked in statically?), and versions with this interface are known to crash jobs"
            }
            Self::NoMemory => "the process got no memory for its telemetry",
            Self::NoForkGuard => "the kernel is older than 4.14",
        }
    }

    const fn of(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Ring,
            1 => Self::VersionDenied,
            2 => Self::VersionUnknown,
            3 => Self::NoMemory,
            4 => Self::NoForkGuard,
            _ => return None,
        })
    }
}

/// The plugin's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Version of the ring's layout.
    pub layout_version: u32,
    /// The process, as it sees itself: in a container another number than the agent's.
    pub pid: u32,
    /// Bytes of the ring's file.
    pub file_bytes: u64,
    /// NCCL's version as a number, 0 if it is not known.
    pub nccl_version: u32,
    /// Which `ncclProfiler_vN` NCCL took.
    pub api: u32,
    /// Whether the memfd comes with it.
    pub status: Status,
}

impl Hello {
    /// The bytes of the message.
    #[must_use]
    pub const fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [[0; 8]; HELLO_BYTES / 8];
        bytes[0] = MAGIC;
        bytes[1] = crate::ring::joined(self.layout_version, self.pid).to_le_bytes();
        bytes[2] = self.file_bytes.to_le_bytes();
        bytes[3] = crate::ring::joined(self.nccl_version, self.api).to_le_bytes();
        bytes[4] = (self.status as u64).to_le_bytes();
        let mut flat = [0; HELLO_BYTES];
        flat.copy_from_slice(bytes.as_flattened());
        flat
    }

    /// The message of the bytes.
    ///
    /// # Errors
    /// Says what does not fit. The agent refuses the process then.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let bytes: &[u8; HELLO_BYTES] = bytes.try_into().map_err(|_| "a hello has 40 bytes")?;
        let mut words = [0; HELLO_BYTES / 8];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        if words[0] != u64::from_le_bytes(MAGIC) {
            return Err("this is not a plugin's hello");
        }
        let (layout_version, pid) = crate::ring::halves(words[1]);
        if layout_version != crate::ring::LAYOUT_VERSION {
            return Err("the plugin is of another release than the agent");
        }
        if words[2] != crate::ring::FILE_BYTES {
            return Err("the plugin's ring has another size than its version says");
        }
        let (nccl_version, api) = crate::ring::halves(words[3]);
        let (number, rest) = crate::ring::halves(words[4]);
        let status = Status::of(number).filter(|_| rest == 0).ok_or("a status that is not known")?;
        Ok(Self { layout_version, pid, file_bytes: words[2], nccl_version, api, status })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{FILE_BYTES, LAYOUT_VERSION};

    fn hello(status: Status) -> Hello {
        Hello {
            layout_version: LAYOUT_VERSION,
            pid: 0x1234_5678,
            file_bytes: FILE_BYTES,
            nccl_version: 22809,
            api: 5,
            status,
        }
    }

    #[test]
    fn every_status_comes_back_and_says_why() {
        for number in 0..5 {
            let status = Status::of(number).unwrap();
            assert_eq!(status as u32, number);
            assert_eq!(Hello::decode(&hello(status).encode()), Ok(hello(status)));
            assert!(!status.why().is_empty());
        }
        assert_eq!(Status::of(5), None);
    }

    #[test]
    fn anything_else_is_refused() {
        let good = hello(Status::Ring).encode();
        assert!(Hello::decode(&[]).is_err());
        assert!(Hello::decode(&good[..39]).is_err());
        assert!(Hello::decode(&[&good[..], &[0]].concat()).is_err());
        // Every byte of magic, version, size and status counts.
        for place in (0..12).chain(16..24).chain(32..40) {
            let mut bytes = good;
            bytes[place] ^= 0x80;
            assert!(Hello::decode(&bytes).is_err(), "byte {place}");
        }
    }
}
