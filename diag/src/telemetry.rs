//! How the ranks of a job reach the agent of their node: what the prolog leaves beside the launch gate so that the
//! plugin puts it into the tasks' environment, and the plugin's word where the user's own setting stood in the way.

use serde::{Deserialize, Serialize};

/// Name of the file in the run folder. Root's own and for root's eyes: until the agent listens, nobody else can know
/// the socket's name.
pub const FILE_NAME: &str = "telemetry.json";

/// Name of the file in which the plugin says that a user has a profiler of his own.
pub const TAKEN_FILE_NAME: &str = "profiler.taken";

/// The profiler plugin's file, beside the helpers.
pub const LIBRARY: &str = "libnccl-profiler-aimaster.so";

/// Variable by which NCCL finds its profiler plugin. It has one place, and a user's own value keeps it.
pub const PROFILER_VARIABLE: &str = "NCCL_PROFILER_PLUGIN";

/// Variable by which the profiler plugin finds the agent.
pub const SOCKET_VARIABLE: &str = "AIMASTER_C4D_SOCKET";

/// Variable by which the profiler plugin finds the NCCL versions with which it tells nothing.
pub const DENY_VARIABLE: &str = "AIMASTER_C4D_NCCL_DENY";

/// Longest list of them: the plugin takes a longer one for broken, and tells nothing at all.
pub const MAX_DENY_BYTES: usize = 511;

/// Longest name of an abstract socket in Linux: a path of 108 bytes less the NUL in front.
pub const MAX_SOCKET_BYTES: usize = 107;

/// Bytes of a node's name that stand in a socket's name: with `aimaster-c4d/`, a job id of 10 digits, 32 digits of a
/// random number and the slashes it fits.
const MAX_NODE_BYTES: usize = 48;

/// Largest file: a path of 4 KiB, each byte escaped, and what JSON adds.
pub const MAX_BYTES: usize = 32 * 1024;

/// Most characters of a user's value that are kept.
pub const MAX_TAKEN_CHARS: usize = 200;

/// Content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Telemetry {
    /// 1.
    pub schema: u32,
    /// Name of the agent's abstract socket, without the NUL in front.
    pub socket: String,
    /// Absolute path of the profiler plugin.
    pub profiler: String,
    /// NCCL versions with which nothing is told, `2.28.3-2.28.8,2.30.1`.
    #[serde(default)]
    pub nccl_deny: String,
}

impl Telemetry {
    /// What a task's environment gets.
    #[must_use]
    pub fn new(socket: String, profiler: String, denied: &[String]) -> Self {
        Self { schema: 1, socket, profiler, nccl_deny: denied.join(",") }
    }

    /// Whether it can be put into an environment as it is.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.schema == 1
            && !self.socket.is_empty()
            && self.socket.len() <= MAX_SOCKET_BYTES
            && self.profiler.starts_with('/')
            && self.nccl_deny.len() <= MAX_DENY_BYTES
            && ![&self.socket, &self.profiler, &self.nccl_deny]
                .iter()
                .any(|text| text.contains(char::is_control))
    }
}

/// Name of the agent's socket. Without the random part anybody could be there first.
#[must_use]
pub fn socket_name(node: &str, job_id: u32, random: u128) -> String {
    let end = (0..=node.len().min(MAX_NODE_BYTES)).rev().find(|end| node.is_char_boundary(*end));
    format!("aimaster-c4d/{}/{job_id}/{random:032x}", &node[..end.unwrap_or(0)])
}

/// Whether a value of [`PROFILER_VARIABLE`] is this software's own, such as one that a job inherited.
#[must_use]
pub fn is_ours(profiler: &str) -> bool {
    profiler.rsplit('/').next() == Some(LIBRARY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_s_name_fits_whatever_the_node_is_called() {
        let name = socket_name("gpu-01", 12, 0xab);
        assert_eq!(name, "aimaster-c4d/gpu-01/12/000000000000000000000000000000ab");
        for node in ["x".repeat(255), "\u{fc}".repeat(100), String::new()] {
            let name = socket_name(&node, u32::MAX, u128::MAX);
            assert!(name.len() <= MAX_SOCKET_BYTES, "{name}");
            assert!(Telemetry::new(name, "/x".into(), &[]).is_sound());
        }
    }

    #[test]
    fn what_is_not_fit_for_an_environment_is_not_sound() {
        for (socket, profiler) in
            [("", "/x"), ("s", "x"), ("s", "/x\n"), ("s\0", "/x"), (&*"s".repeat(108), "/x")]
        {
            let telemetry = Telemetry::new(socket.into(), profiler.into(), &[]);
            assert!(!telemetry.is_sound(), "{socket:?} {profiler:?}");
        }
        for denied in ["2.30.1\n".to_owned(), "2.30.1,".repeat(74)] {
            assert!(!Telemetry::new("s".into(), "/x".into(), &[denied]).is_sound());
        }
        let all = vec!["22.28.30-22.28.80".to_owned(); crate::policy::MOST_DENIED];
        assert!(Telemetry::new("s".into(), "/x".into(), &all).is_sound());
    }

    #[test]
    fn our_own_library_is_known_wherever_it_lies() {
        assert!(is_ours("/opt/aimaster/libnccl-profiler-aimaster.so") && is_ours(LIBRARY));
        assert!(!is_ours("inspector") && !is_ours("") && !is_ours("/x/libnccl-profiler-aimaster.so/y"));
    }
}
