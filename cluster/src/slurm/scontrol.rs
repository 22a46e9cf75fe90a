//! `scontrol`, `squeue`, `sinfo` and `scancel` as child processes: by absolute path, with nothing of our environment, bounded in
//! time and output. What to do and whether is decided elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use diag::action::drains::Picture;
use diag::job::{JobView, NodeView};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::time::{Instant, timeout_at};

use crate::log::shown;
use crate::slurm::environment::is_plain_name;
use crate::slurm::show::{self, NodePlace, ShowError};
use crate::slurm::{picture, queue};

/// Most that a call may print: a record of each node of a large job.
const MAX_OUTPUT: u64 = 4 * 1024 * 1024;
/// How much of it an error repeats.
const MAX_SAID: usize = 300;
/// Longest text of a reason or message.
const MAX_TEXT: usize = 8192;
/// Longest value of a job's field: a list of some thousand nodes, less than the kernel takes as one argument.
const MAX_VALUE: usize = 96 * 1024;

/// The zone in which Slurm's commands print times, so that those can be read without the machine's own.
const UTC: &str = "UTC0";

/// What Slurm's commands say when the controller was not reached.
const UNREACHABLE: [&str; 6] = [
    "Unable to contact slurm controller",
    "Socket timed out",
    "Connection refused",
    "Zero Bytes were transmitted",
    "standby mode",
    "Connection timed out",
];

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ScontrolError {
    /// It did not start.
    #[error("can't run `{command}` (see paths.scontrol and paths.scancel in the policy)")]
    Spawn {
        /// The command line, shortened.
        command: String,
        /// The system's words.
        #[source]
        source: std::io::Error,
    },
    /// It was killed at its deadline.
    #[error("`{command}` did not end within {after:?} and was killed: is the controller reachable?")]
    Timeout {
        /// The command line, shortened.
        command: String,
        /// Its bound.
        after: Duration,
    },
    /// It failed.
    #[error("`{command}` ended with {status}: {said}")]
    Failed {
        /// The command line, shortened.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// What it printed, shortened.
        said: String,
    },
    /// It printed without end.
    #[error("`{command}` printed more than 4 MiB")]
    TooMuch {
        /// The command line, shortened.
        command: String,
    },
    /// Its output can't be believed.
    #[error("the output of `{command}` is of no use")]
    Output {
        /// The command line, shortened.
        command: String,
        /// Why.
        #[source]
        source: ShowError,
    },
    /// The job's record can't be believed, and squeue did not help.
    #[error("{record}; and squeue, which was asked instead: {squeue}")]
    Unread {
        /// What was wrong with the record.
        record: String,
        /// What was wrong with squeue's answer.
        squeue: String,
    },
    /// Something that must not be handed to Slurm.
    #[error("{what} {value:?} can't be handed to Slurm: {because}")]
    Argument {
        /// What it is.
        what: &'static str,
        /// It, shortened.
        value: String,
        /// Why not.
        because: &'static str,
    },
}

impl ScontrolError {
    /// Whether the controller was not reached, so that trying again makes sense. After a timeout the call may
    /// have had its effect all the same.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Timeout { .. } => true,
            // No room for another process: users of the node may have taken it, and give it back.
            Self::Spawn { source, .. } => {
                matches!(source.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::OutOfMemory)
            }
            Self::Failed { said, .. } => UNREACHABLE.iter().any(|text| said.contains(text)),
            _ => false,
        }
    }

    /// Whether Slurm answered, but with something that its user may have made unreadable: not that the job is gone.
    fn is_unbelieved(&self) -> bool {
        match self {
            Self::Output { source, .. } => !matches!(source, ShowError::Absent(_)),
            Self::TooMuch { .. } => true,
            _ => false,
        }
    }

    /// Whether Slurm answered, and the answer is of no use.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        matches!(self, Self::Output { .. } | Self::TooMuch { .. } | Self::Unread { .. })
    }
}

/// Slurm's commands on this node.
#[derive(Debug)]
pub struct Scontrol {
    scontrol: PathBuf,
    squeue: PathBuf,
    sinfo: PathBuf,
    scancel: PathBuf,
    slurm_conf: Option<PathBuf>,
    per_call: Duration,
    calls: AtomicU32,
    /// The job whose record was not believed last, so that it is not asked for again each time; 0: none.
    unbelieved: AtomicU32,
}

impl Scontrol {
    /// `per_call` bounds each call. squeue and sinfo are the ones beside scontrol.
    #[must_use]
    pub fn new(scontrol: PathBuf, scancel: PathBuf, slurm_conf: Option<PathBuf>, per_call: Duration) -> Self {
        let squeue = scontrol.with_file_name("squeue");
        let sinfo = scontrol.with_file_name("sinfo");
        let (calls, unbelieved) = (AtomicU32::new(0), AtomicU32::new(0));
        Self { scontrol, squeue, sinfo, scancel, slurm_conf, per_call, calls, unbelieved }
    }

    /// Calls so far.
    #[must_use]
    pub fn calls(&self) -> u32 {
        self.calls.load(Ordering::Relaxed)
    }

    /// The job, as `scontrol show job` has it; where that can't be believed, as far as squeue tells. A user can make
    /// the record unreadable by the job's name, and must not escape every action by that.
    ///
    /// # Errors
    /// See [`ScontrolError`].
    pub async fn show_job(&self, id: u32, deadline: Instant) -> Result<JobView, ScontrolError> {
        if self.unbelieved.load(Ordering::Relaxed) == id {
            return self.queued_job(id, deadline).await;
        }
        let record = match self.job_record(id, deadline).await {
            Err(error) if error.is_unbelieved() => error,
            other => return other,
        };
        match self.queued_job(id, deadline).await {
            Ok(view) => {
                self.unbelieved.store(id, Ordering::Relaxed);
                Ok(view)
            }
            Err(error) if error.is_unreachable() => Err(error),
            Err(error) => {
                let (record, squeue) = (crate::chain(&record), crate::chain(&error));
                Err(ScontrolError::Unread { record, squeue })
            }
        }
    }

    /// The kinds of GRES that the job holds.
    ///
    /// # Errors
    /// See [`ScontrolError`].
    pub async fn job_gres(&self, id: u32, deadline: Instant) -> Result<BTreeSet<String>, ScontrolError> {
        let ask = |target: String| async move {
            self.scontrol(&["--details", "show", "job", &target], deadline).await
        };
        let (mut command, mut said) = ask(id.to_string()).await?;
        if let Some(alone) = show::selector(&said, id) {
            (command, said) = ask(alone).await?;
        }
        show::gres(&said, id).map_err(|source| ScontrolError::Output { command, source })
    }

    /// Of each of these nodes one other job that does something there, if there is one: one call.
    ///
    /// # Errors
    /// See [`ScontrolError`].
    pub async fn neighbours(
        &self,
        id: u32,
        nodes: &[String],
        deadline: Instant,
    ) -> Result<BTreeMap<String, u32>, ScontrolError> {
        let list = node_list(nodes)?;
        let (command, said) = self.run(&self.squeue, &queue::neighbours_arguments(&list), deadline).await?;
        let jobs = queue::neighbours(&said).map_err(|source| ScontrolError::Output { command, source })?;
        let others = jobs.into_iter().filter(|(job, _)| *job != id);
        let placed = others.flat_map(|(job, on)| on.into_iter().map(move |node| (node, job)));
        Ok(placed.filter(|(node, _)| nodes.contains(node)).collect())
    }

    async fn queued_job(&self, id: u32, deadline: Instant) -> Result<JobView, ScontrolError> {
        let (command, said) = self.run(&self.squeue, &queue::arguments(&id.to_string()), deadline).await?;
        queue::job(&said, id).map_err(|source| ScontrolError::Output { command, source })
    }

    /// `scontrol show job`: the record of this id, asked for alone where Slurm shows others with it.
    async fn job_record(&self, id: u32, deadline: Instant) -> Result<JobView, ScontrolError> {
        let (mut command, mut said) = self.scontrol(&["show", "job", &id.to_string()], deadline).await?;
        if let Some(alone) = show::selector(&said, id) {
            (command, said) = self.scontrol(&["show", "job", &alone], deadline).await?;
        }
        show::job(&said, id).map_err(|source| ScontrolError::Output { command, source })
    }

    /// Whether another component of the heterogeneous job with this leader is in its prologs: one call.
    ///
    /// # Errors
    /// See [`ScontrolError`].
    pub async fn other_components_start(
        &self,
        leader: u32,
        deadline: Instant,
    ) -> Result<bool, ScontrolError> {
        let (_, said) = self.scontrol(&["show", "job", &leader.to_string()], deadline).await?;
        Ok(show::other_components_start(&said, leader))
    }

    /// `scontrol show node`, one call for all of them; in the given order.
    ///
    /// # Errors
    /// See [`ScontrolError`].
    pub async fn show_nodes(
        &self,
        names: &[String],
        deadline: Instant,
    ) -> Result<Vec<NodeView>, ScontrolError> {
        let list = node_list(names)?;
        let (command, said) = self.scontrol(&["show", "node", &list], deadline).await?;
        let read = names.iter().map(|name| show::node(&said, name)).collect::<Result<_, _>>();
        read.map_err(|source| ScontrolError::Output { command, source })
    }

    /// Where a node is and what it is made of: one call.
    ///
    /// # Errors
    /// See [`ScontrolError`].
    pub async fn node_place(&self, name: &str, deadline: Instant) -> Result<NodePlace, ScontrolError> {
        let list = node_list(&[name.to_owned()])?;
        let (command, said) = self.scontrol(&["show", "node", &list], deadline).await?;
        show::place(&said, name).map_err(|source| ScontrolError::Output { command, source })
    }

    /// All nodes by partition: one call.
    ///
    /// # Errors
    /// See [`ScontrolError`].
    pub async fn picture(&self, deadline: Instant) -> Result<Picture, ScontrolError> {
        let (command, said) = self.run(&self.sinfo, &picture::arguments(), deadline).await?;
        picture::picture(&said).map_err(|source| ScontrolError::Output { command, source })
    }

    /// slurmctld's own settings, as text: one call.
    ///
    /// # Errors
    /// See [`ScontrolError`].
    pub async fn settings(&self, deadline: Instant) -> Result<String, ScontrolError> {
        self.scontrol(&["show", "config"], deadline).await.map(|(_, said)| said)
    }

    /// Takes nodes out of service, all with the same reason, and with this as their whole comment if there is one.
    ///
    /// # Errors
    /// See [`ScontrolError`].
    pub async fn drain(
        &self,
        nodes: &[String],
        reason: &str,
        comment: Option<&str>,
        deadline: Instant,
    ) -> Result<(), ScontrolError> {
        let reason = format!("Reason={}", text("reason", reason)?);
        self.update_nodes(nodes, "State=DRAIN", Some(&reason), comment, deadline).await
    }

    /// Returns nodes to service, with this as their whole comment if there is one. What is down stays down.
    ///
    /// # Errors
    /// See [`ScontrolError`].
    pub async fn undrain(
        &self,
        nodes: &[String],
        comment: Option<&str>,
        deadline: Instant,
    ) -> Result<(), ScontrolError> {
        self.update_nodes(nodes, "State=UNDRAIN", None, comment, deadline).await
    }

    async fn update_nodes(
        &self,
        nodes: &[String],
        state: &str,
        reason: Option<&str>,
        comment: Option<&str>,
        deadline: Instant,
    ) -> Result<(), ScontrolError> {
        let nodes = format!("NodeName={}", node_list(nodes)?);
        let comment = comment.map(|comment| text("comment", comment)).transpose()?;
        let comment = comment.map(|comment| format!("Comment={comment}"));
        let mut arguments = vec!["update", &nodes, state];
        arguments.extend(reason);
        arguments.extend(comment.as_deref());
        self.scontrol(&arguments, deadline).await.map(drop)
    }

    /// Puts a batch job back into the queue; a job that has ended stays ended.
    ///
    /// # Errors
    /// See [`ScontrolError`].
    pub async fn requeue(&self, target: &str, deadline: Instant) -> Result<(), ScontrolError> {
        self.scontrol(&["requeue", "Incomplete", job_target(target)?], deadline).await.map(drop)
    }

    /// Changes fields of a job.
    ///
    /// # Errors
    /// See [`ScontrolError`].
    pub async fn update_job(
        &self,
        target: &str,
        fields: &[(&str, &str)],
        deadline: Instant,
    ) -> Result<(), ScontrolError> {
        let mut arguments = vec!["update".to_owned(), format!("JobId={}", job_target(target)?)];
        for (field, value) in fields {
            arguments.push(format!("{field}={}", bounded_text("value", value, MAX_VALUE)?));
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        self.scontrol(&arguments, deadline).await.map(drop)
    }

    /// Shows lines to the user of a waiting srun or salloc.
    ///
    /// # Errors
    /// See [`ScontrolError`].
    pub async fn notify(&self, id: u32, lines: &str, deadline: Instant) -> Result<(), ScontrolError> {
        if lines.starts_with('-') {
            return Err(refused("message", lines, "it begins with a dash, like an option"));
        }
        for line in lines.lines() {
            text("message", line)?;
        }
        self.scontrol(&["notify", &id.to_string(), lines], deadline).await.map(drop)
    }

    /// Ends a job.
    ///
    /// # Errors
    /// See [`ScontrolError`].
    pub async fn cancel(&self, target: &str, deadline: Instant) -> Result<(), ScontrolError> {
        self.run(&self.scancel, &[job_target(target)?], deadline).await.map(drop)
    }

    async fn scontrol(
        &self,
        arguments: &[&str],
        deadline: Instant,
    ) -> Result<(String, String), ScontrolError> {
        self.run(&self.scontrol, arguments, deadline).await
    }

    /// The command line, shortened, and what it printed to stdout.
    async fn run(
        &self,
        program: &Path,
        arguments: &[&str],
        deadline: Instant,
    ) -> Result<(String, String), ScontrolError> {
        let line = format!("{} {}", program.display(), arguments.join(" "));
        let command = shown(&line, MAX_SAID);
        self.calls.fetch_add(1, Ordering::Relaxed);
        let begin = Instant::now();
        let until = deadline.min(begin + self.per_call);
        let mut child = Command::new(program);
        child
            .args(arguments)
            .env_clear()
            .env("LC_ALL", "C")
            .env("TZ", UTC)
            .current_dir("/")
            .kill_on_drop(true);
        child.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(conf) = &self.slurm_conf {
            child.env("SLURM_CONF", conf);
        }
        let spawned = child.spawn();
        let mut child =
            spawned.map_err(|source| ScontrolError::Spawn { command: command.clone(), source })?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let ended = async {
            let (out, err) = tokio::join!(output(out), output(err));
            let (Some(out), Some(err)) = (out, err) else { return Ok(None) };
            child.wait().await.map(|status| Some((status, out, err)))
        };
        let ended = timeout_at(until, ended).await;
        // Dropping the child kills it; this also reaps it, in every case but the good one.
        if !matches!(ended, Ok(Ok(Some(_)))) {
            let _ = child.start_kill(); // it may have ended this moment
            let _ = timeout_at(Instant::now() + Duration::from_millis(100), child.wait()).await;
        }
        match ended {
            Err(_) => Err(ScontrolError::Timeout { command, after: until - begin }),
            Ok(Err(source)) => Err(ScontrolError::Spawn { command, source }),
            Ok(Ok(None)) => Err(ScontrolError::TooMuch { command }),
            Ok(Ok(Some((status, out, _)))) if status.success() => Ok((command, out)),
            Ok(Ok(Some((status, out, err)))) => {
                let said = shown(if err.trim().is_empty() { &out } else { &err }, MAX_SAID);
                Err(ScontrolError::Failed { command, status, said })
            }
        }
    }
}

/// All that a pipe gives; `None` if that is too much.
async fn output(pipe: Option<impl AsyncRead + Unpin>) -> Option<String> {
    let mut bytes = Vec::new();
    // A pipe that breaks ends like one that is closed: the exit status says the rest.
    let _ = pipe?.take(MAX_OUTPUT + 1).read_to_end(&mut bytes).await;
    (bytes.len() as u64 <= MAX_OUTPUT).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

fn refused(what: &'static str, value: &str, because: &'static str) -> ScontrolError {
    ScontrolError::Argument { what, value: shown(value, 80), because }
}

fn node_list(names: &[String]) -> Result<String, ScontrolError> {
    if names.is_empty() {
        return Err(refused("node list", "", "it is empty"));
    }
    match names.iter().find(|name| !is_plain_name(name)) {
        Some(odd) => Err(refused("node name", odd, "it is not a plain name")),
        None => Ok(names.join(",")),
    }
}

/// `123` or `123_4`.
fn job_target(target: &str) -> Result<&str, ScontrolError> {
    let number = |text: &str| text.parse::<u32>().is_ok() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (job, task) = target.split_once('_').unwrap_or((target, "0"));
    if number(job) && number(task) { Ok(target) } else { Err(refused("job", target, "it is not a job id")) }
}

fn text<'a>(what: &'static str, text: &'a str) -> Result<&'a str, ScontrolError> {
    bounded_text(what, text, MAX_TEXT)
}

fn bounded_text<'a>(what: &'static str, text: &'a str, most: usize) -> Result<&'a str, ScontrolError> {
    if text.len() > most {
        return Err(refused(what, text, "it is too long"));
    }
    if text.chars().any(char::is_control) {
        return Err(refused(what, text, "it holds control characters"));
    }
    Ok(text)
}
