//! Which job ended on which node, from the variables that slurmd sets. They become names of folders, so they
//! are checked as strictly as a stranger's.

/// Longest name of a cluster or node: that of one folder.
const MAX_NAME_BYTES: usize = 255;

/// A job on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedJob {
    /// The cluster.
    pub cluster: String,
    /// Slurm's name of this node.
    pub node: String,
    /// The job.
    pub job: u32,
    /// Its restart count; `None` where Slurm does not say: every run of the job is over then.
    pub restart: Option<u32>,
}

/// Why the job can't be told.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum JobError {
    /// A variable is not set.
    #[error("{name} is not set: aimaster-epilog is meant to be started by slurmd")]
    Missing {
        /// The variable.
        name: &'static str,
    },
    /// A variable is not what Slurm would say.
    #[error("{name} is \"{}\", which is not a {expected}", value.escape_debug())]
    Wrong {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
}

impl EndedJob {
    /// From the environment, seen through `get`.
    ///
    /// # Errors
    /// The first variable that is missing or wrong.
    pub fn from_environment(get: impl Fn(&str) -> Option<String>) -> Result<Self, JobError> {
        let required = |name: &'static str| get(name).ok_or(JobError::Missing { name });
        Ok(Self {
            cluster: folder_name("SLURM_CLUSTER_NAME", required("SLURM_CLUSTER_NAME")?)?,
            node: folder_name("SLURMD_NODENAME", required("SLURMD_NODENAME")?)?,
            job: number("SLURM_JOB_ID", required("SLURM_JOB_ID")?)?,
            restart: get("SLURM_JOB_RESTART_COUNT")
                .map(|value| number("SLURM_JOB_RESTART_COUNT", value))
                .transpose()?,
        })
    }
}

fn folder_name(name: &'static str, value: String) -> Result<String, JobError> {
    let plain = value.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    if plain && !value.is_empty() && value.len() <= MAX_NAME_BYTES && !value.starts_with('.') {
        return Ok(value);
    }
    Err(JobError::Wrong { name, value, expected: "name of a cluster or node" })
}

fn number(name: &'static str, value: String) -> Result<u32, JobError> {
    let digits = value.bytes().all(|b| b.is_ascii_digit());
    match value.parse() {
        Ok(number) if digits => Ok(number),
        _ => Err(JobError::Wrong { name, value, expected: "number" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(cluster: &str, node: &str, job: &str, restart: Option<&str>) -> Result<EndedJob, JobError> {
        EndedJob::from_environment(|name| match name {
            "SLURM_CLUSTER_NAME" => Some(cluster.to_owned()),
            "SLURMD_NODENAME" => Some(node.to_owned()),
            "SLURM_JOB_ID" => Some(job.to_owned()),
            "SLURM_JOB_RESTART_COUNT" => restart.map(str::to_owned),
            _ => None,
        })
    }

    #[test]
    fn slurm_s_own_values_are_taken() {
        let job = parse("aim", "gpu-01.site", "12", Some("3")).unwrap();
        assert_eq!((job.job, job.restart), (12, Some(3)));
        assert_eq!(parse("aim", "n1", "12", None).unwrap().restart, None);
    }

    #[test]
    fn nothing_that_leads_elsewhere_is_taken() {
        for name in ["", ".", "..", "../x", "a/b", "/", "a\0b", "a b", "ü", &"x".repeat(256)] {
            assert!(parse(name, "n1", "1", None).is_err(), "{name:?}");
            assert!(parse("c", name, "1", None).is_err(), "{name:?}");
        }
        for number in ["", "-1", "+1", "1.0", "1/..", "4294967296", " 1"] {
            assert!(parse("c", "n1", number, None).is_err(), "{number:?}");
            assert!(parse("c", "n1", "1", Some(number)).is_err(), "{number:?}");
        }
        assert_eq!(
            EndedJob::from_environment(|_| None),
            Err(JobError::Missing { name: "SLURM_CLUSTER_NAME" })
        );
    }
}
