//! Whether this srun starts a step inside a job that is already there. Slurm has no call for it before the
//! step exists, so it is read from where srun itself reads it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// srun inside an allocation finds the job in its environment.
pub fn is_step() -> bool {
    ["SLURM_JOB_ID", "SLURM_JOBID"].iter().any(|name| std::env::var_os(name).is_some_and(|id| !id.is_empty()))
}

/// srun with `--jobid` joins a job from outside. `command_line` is NUL-separated, as in `/proc/self/cmdline`;
/// `program` is what the step runs, whose own arguments must not be taken for srun's.
pub fn joins_by_option(command_line: &[u8], program: &[&OsStr]) -> bool {
    let words: Vec<&[u8]> = command_line.split(|byte| *byte == 0).filter(|word| !word.is_empty()).collect();
    let program = program.iter().filter(|word| !word.is_empty()).count();
    let options = words.get(1..words.len().saturating_sub(program)).unwrap_or_default();
    options.iter().any(|word| OsStr::from_bytes(word).as_bytes().starts_with(b"--jobid"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_srun_s_own_options_count() {
        let train: Vec<&OsStr> = ["python", "train.py", "--jobid=7"].map(OsStr::new).to_vec();
        assert!(!joins_by_option(b"srun\0-N2\0python\0train.py\0--jobid=7\0", &train));
        assert!(joins_by_option(b"srun\0--jobid=7\0-N2\0python\0train.py\0--jobid=7\0", &train));
        assert!(joins_by_option(b"srun\0--jobid\x007\0true\0", &[OsStr::new("true")]));
        assert!(!joins_by_option(b"", &train));
    }
}
