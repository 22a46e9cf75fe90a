//! What slurmd tells a prolog of its job, and the names of GPUs in it.
//!
//! A file is a list of `NAME=value`.

use std::collections::BTreeMap;

use cluster::slurm::address::interface_address;
use cluster::slurm::environment::{JobEnv, is_plain_name};
use diag::gpu_facts::ids::{GpuId, MAX_GPUS, parse, pci_address};

use crate::holds;

/// A job that is believed has plain names, each once, and is on one of its nodes.
pub fn run(data: &[u8]) {
    let texts: Vec<_> = holds::parts(data).map(holds::text).collect();
    let variables: BTreeMap<&str, &str> = texts.iter().filter_map(|text| text.split_once('=')).collect();
    let get = |name: &str| variables.get(name).map(|value| (*value).to_owned());
    let read = JobEnv::from_vars(get);
    assert_eq!(read, JobEnv::from_vars(get));
    match &read {
        Ok(job) => {
            assert!(is_plain_name(&job.cluster) && job.nodes.iter().all(|node| is_plain_name(node)));
            assert_eq!(job.nodes.get(job.me as usize), Some(&job.node));
            let mut names = job.nodes.clone();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), job.nodes.len());
            assert!(job.slurm_conf.as_ref().is_none_or(|path| path.is_absolute()));
            for text in [&job.user, &job.partition, &job.constraints, &job.gpus].into_iter().flatten() {
                holds::line(text, 4096);
            }
        }
        Err(errors) => {
            assert!(!errors.is_empty() && errors.len() <= 32);
            errors.iter().for_each(|error| holds::line(&error.to_string(), 2048));
        }
    }
    if let Some(list) = get("SLURM_JOB_GPUS") {
        gpus(&list);
    }
    let table = |name| get(name).unwrap_or_default();
    let address = interface_address("eth0", &table("route"), &table("fib_trie"));
    assert!(address.is_none() || table("fib_trie").contains(&address.unwrap().to_string()));
}

fn gpus(list: &str) {
    match parse(list) {
        Ok(ids) => {
            assert!(ids.len() <= MAX_GPUS);
            for id in &ids {
                assert_eq!(parse(&id.to_string()).unwrap(), std::slice::from_ref(id));
                if let GpuId::Pci(address) = id {
                    assert_eq!(pci_address(address).as_ref(), Some(address));
                }
            }
        }
        Err(error) => holds::line(&error.to_string(), 1024),
    }
}
