//! Reads what `squeue` prints of a job whose record in `scontrol show job` can't be believed. Nothing is run here.
//!
//! Only fields that hold nothing a user wrote are asked for, so no name, comment or path can add to the output.
//! What needs such fields, or AdminComment, stays unknown: see [`JobView::unreadable`].

use diag::hostlist::expand;
use diag::job::JobView;

use crate::slurm::show::ShowError;

/// The fields, each ended by a bar: with an ending of its own and no width, squeue neither pads nor cuts a field.
const FORMAT: &str =
    "JobID:|,ArrayJobID:|,ArrayTaskID:|,HetJobID:|,State:|,RestartCnt:|,BatchFlag:|,Requeue:|,NodeList:|";
/// How many fields [`FORMAT`] has.
const FIELDS: usize = 9;

/// What to ask squeue for: this cluster's record of the job, in whatever partition and state it is.
#[must_use]
pub fn arguments(id: &str) -> [&str; 9] {
    ["--noheader", "--local", "--all", "--states", "all", "--jobs", id, "--Format", FORMAT]
}

/// What to ask squeue for: the jobs that do something on these nodes.
#[must_use]
pub fn neighbours_arguments(nodes: &str) -> [&str; 9] {
    let states = "running,configuring,completing";
    [
        "--noheader",
        "--local",
        "--all",
        "--states",
        states,
        "--nodelist",
        nodes,
        "--Format",
        "JobID:|,NodeList:|",
    ]
}

/// Which jobs those are, with all of their nodes.
///
/// # Errors
/// If a line is none of squeue's.
pub fn neighbours(said: &str) -> Result<Vec<(u32, Vec<String>)>, ShowError> {
    let read = |line: &str| {
        let odd = || ShowError::Unreadable {
            of: "the jobs of some nodes".to_owned(),
            field: "line of squeue",
            value: crate::log::shown(line, 80),
        };
        let (job, nodes) = line.strip_suffix('|').and_then(|body| body.split_once('|')).ok_or_else(odd)?;
        let job = job.trim().parse().map_err(|_| odd())?;
        Ok((job, expand(nodes.trim()).map_err(|_| odd())?))
    };
    said.lines().filter(|line| !line.trim().is_empty()).map(read).collect()
}

struct Line<'a> {
    of: &'a str,
    fields: [&'a str; FIELDS],
}

impl<'a> Line<'a> {
    fn read(line: &'a str, of: &'a str) -> Result<Self, ShowError> {
        let odd = || ShowError::Unreadable {
            of: of.to_owned(),
            field: "line of squeue",
            value: crate::log::shown(line, 80),
        };
        let body = line.strip_suffix('|').ok_or_else(odd)?;
        let fields: Vec<&str> = body.split('|').map(str::trim).collect();
        Ok(Self { of, fields: fields.try_into().map_err(|_| odd())? })
    }

    fn unreadable(&self, field: &'static str, value: &str) -> ShowError {
        ShowError::Unreadable { of: self.of.to_owned(), field, value: crate::log::shown(value, 80) }
    }

    fn number(&self, field: &'static str, value: &str) -> Result<u32, ShowError> {
        let digits = value.bytes().all(|byte| byte.is_ascii_digit());
        value.parse().ok().filter(|_| digits).ok_or_else(|| self.unreadable(field, value))
    }

    fn optional(&self, field: &'static str, value: &str) -> Result<Option<u32>, ShowError> {
        if value == "N/A" { Ok(None) } else { self.number(field, value).map(Some) }
    }

    fn flag(&self, field: &'static str, value: &str) -> Result<bool, ShowError> {
        match value {
            "0" => Ok(false),
            "1" => Ok(true),
            _ => Err(self.unreadable(field, value)),
        }
    }

    fn view(&self, id: u32) -> Result<JobView, ShowError> {
        let [_, array, task, het, state, restarts, batch, requeue, nodes] = self.fields;
        if state.is_empty() || !state.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_') {
            return Err(self.unreadable("State", state));
        }
        let nodes = match nodes {
            "" | "(null)" => Vec::new(),
            list => expand(list).map_err(|_| self.unreadable("NodeList", list))?,
        };
        // A job that is no task has `N/A` for a task, and its own id for that of an array.
        let array = if task == "N/A" { None } else { Some(self.number("ArrayJobID", array)?) };
        Ok(JobView {
            job_id: id,
            array_job_id: array,
            // A pending rest of an array reads `3,8%2`: it has no task id of its own.
            array_task_id: task.parse().ok(),
            het_job_id: self.optional("HetJobID", het)?,
            state: state.to_owned(),
            restarts: self.number("RestartCnt", restarts)?,
            nodes,
            batch: self.flag("BatchFlag", batch)?,
            requeue: self.flag("Requeue", requeue)?,
            unreadable: true,
            ..JobView::default()
        })
    }
}

/// The job `id` in the output of squeue, which may show other tasks of its array and other components as well.
///
/// # Errors
/// It is not there, or a line is not what was asked for.
pub fn job(text: &str, id: u32) -> Result<JobView, ShowError> {
    let of = format!("job {id}");
    let mut own = None;
    for line in text.lines() {
        let line = Line::read(line, &of)?;
        if line.number("JobID", line.fields[0])? == id && own.replace(line).is_some() {
            return Err(ShowError::Ambiguous { of, field: "JobID" });
        }
    }
    match own {
        Some(line) => line.view(id),
        None => Err(ShowError::Absent(of)),
    }
}
