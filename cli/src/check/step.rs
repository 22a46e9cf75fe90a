//! The job step that `aimaster check` runs in, if any: its nodes, and which of its tasks measures a node.

use anyhow::{Context, Result, bail};
use diag::hostlist::expand;
use zeroize::Zeroizing;

/// What this process is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Part {
    /// Measure this node by itself.
    Alone,
    /// Nothing: another task of the step measures this node.
    Idle,
    /// Measure this node together with the step's others.
    Of(Step),
}

/// A step of several nodes.
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    /// `JOB.STEP`.
    pub id: String,
    /// Its nodes, in order.
    pub nodes: Vec<String>,
    /// What its tasks alone know, as hexadecimal digits; without it MUNGE says who may join.
    pub key: Option<Zeroizing<String>>,
}

impl Step {
    /// Whether a node is the one that shows what was found.
    pub fn is_first(&self, node: &str) -> bool {
        self.nodes.first().is_some_and(|first| first == node)
    }
}

/// What Slurm says of the step.
///
/// # Errors
/// It says something that can't be.
pub fn of_slurm(get: impl Fn(&str) -> Option<String>, node: &str) -> Result<Part> {
    // A batch script has none of its own: there, `aimaster check` measures the script's node.
    let Some(list) = get("SLURM_STEP_NODELIST") else { return Ok(Part::Alone) };
    if get("SLURM_LOCALID").is_some_and(|task| task != "0") {
        return Ok(Part::Idle);
    }
    let nodes = expand(&list).with_context(|| format!("SLURM_STEP_NODELIST={list:?}"))?;
    if nodes.len() < 2 {
        return Ok(Part::Alone);
    }
    if !nodes.iter().any(|name| name == node) {
        bail!("{node} is none of the step's nodes, {list}");
    }
    Ok(Part::Of(Step { id: id(get), nodes, key: None }))
}

/// `JOB.STEP`; where Slurm did not start this, zeros.
fn id(get: impl Fn(&str) -> Option<String>) -> String {
    let number = |name: &str| get(name).and_then(|text| text.parse::<u32>().ok()).unwrap_or(0);
    format!("{}.{}", number("SLURM_JOB_ID"), number("SLURM_STEP_ID"))
}

/// What the tasks of a step told each other.
#[cfg(feature = "mpi")]
pub struct Tasks {
    /// The node of each task, in the order of their ranks.
    pub nodes: Vec<String>,
    /// This task's rank.
    pub rank: usize,
    /// What they alone know, as hexadecimal digits.
    pub key: Zeroizing<String>,
}

/// The same by what the tasks told each other: the first task of each node measures it.
#[cfg(feature = "mpi")]
pub fn of_tasks(get: impl Fn(&str) -> Option<String>, tasks: &Tasks) -> Part {
    let mut nodes: Vec<String> = Vec::new();
    let mut measures = false;
    for (rank, node) in tasks.nodes.iter().enumerate() {
        if !nodes.contains(node) {
            nodes.push(node.clone());
            measures |= rank == tasks.rank;
        }
    }
    match (measures, nodes.len()) {
        (false, _) => Part::Idle,
        (true, ..2) => Part::Alone,
        (true, _) => Part::Of(Step { id: id(get), nodes, key: Some(tasks.key.clone()) }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

    use super::*;

    fn part(variables: &[(&str, &str)], node: &str) -> Result<Part> {
        let get = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, v)| (*v).to_owned());
        of_slurm(get, node)
    }

    #[test]
    fn the_first_task_of_each_node_measures_it() {
        assert_eq!(part(&[], "n1").unwrap(), Part::Alone);
        assert_eq!(part(&[("SLURM_JOB_ID", "7"), ("SLURM_NODELIST", "n[1-2]")], "n1").unwrap(), Part::Alone);
        let step = |local, list| {
            [
                ("SLURM_JOB_ID", "7"),
                ("SLURM_STEP_ID", "3"),
                ("SLURM_LOCALID", local),
                ("SLURM_STEP_NODELIST", list),
            ]
        };
        assert_eq!(part(&step("0", "n1"), "n1").unwrap(), Part::Alone);
        assert_eq!(part(&step("1", "n1"), "n1").unwrap(), Part::Idle);
        assert_eq!(part(&step("1", "n[1-3]"), "n2").unwrap(), Part::Idle);
        let Part::Of(found) = part(&step("0", "n[1-3]"), "n2").unwrap() else { unreachable!() };
        assert_eq!((found.id.as_str(), found.nodes.join(" ").as_str()), ("7.3", "n1 n2 n3"));
        assert!(!found.is_first("n2") && found.is_first("n1"));
        assert!(part(&step("0", "n[1-3]"), "n4").is_err());
        assert!(part(&step("0", "n[1-"), "n1").is_err());
    }

    #[cfg(feature = "mpi")]
    #[test]
    fn ranks_say_who_measures() {
        let of = |nodes: &[&str], rank| {
            let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
            of_tasks(|_| None, &Tasks { nodes, rank, key: Zeroizing::new("00".into()) })
        };
        assert_eq!(of(&["n1"], 0), Part::Alone);
        assert_eq!(of(&["n1", "n1"], 1), Part::Idle);
        let Part::Of(step) = of(&["n2", "n2", "n1"], 2) else { unreachable!() };
        assert_eq!((step.id.as_str(), step.nodes.join(" ").as_str()), ("0.0", "n2 n1"));
        assert!(step.key.is_some());
    }
}
