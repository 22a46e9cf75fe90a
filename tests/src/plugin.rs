//! A cluster with the product's plugin and a stand-in for `aimaster-prolog`, for tests of the plugin alone. The
//! stand-in measures nothing: it writes down its environment and then does what `/tmp/mode` says.

use anyhow::Result;

use crate::builder::ClusterBuilder;
use crate::{BUILT_PLUGIN, Cluster, Install, NODE_DIR, NODE_PLUGIN, target_dir};

/// The checks that these tests ask for are built for the host engine.
pub const POLICY: &str = "engine = \"host\"\n";

const STAND_IN: &str = r#"#!/bin/sh
folder=/run/aimaster/$SLURM_CLUSTER_NAME/$SLURMD_NODENAME/$SLURM_JOB_ID.$SLURM_JOB_RESTART_COUNT
gate() {
    umask 022
    mkdir -p "$folder"
    echo "{\"schema\":1,\"start\":$1,\"lines\":[\"$2\"]}" >"$folder/gate.json"
}
/usr/bin/env >"/tmp/seen.$SLURM_JOB_ID"
case $(cat /tmp/mode) in
open) echo deadline_ms 2000; gate true "PASS 1 node in 1 s" ;;
closed) echo deadline_ms 2000; gate false "FAIL gemm_flops n1 gpu3 412<620TFLOP/s" ;;
slow) echo deadline_ms 14000; sleep 11; gate true slow ;;
crash) ulimit -c 0; kill -SEGV $$ ;;
mute) exec sleep 600 ;;
hang) trap '' TERM; echo deadline_ms 1000; while :; do sleep 1; done ;;
link) gate false linked; mv "$folder/gate.json" /tmp/linked; ln -s /tmp/linked "$folder/gate.json" ;;
esac
"#;

/// A cluster whose plugstack line starts with `how`: `optional` or `required`.
pub fn cluster(how: &str, nodes: usize) -> Result<Cluster> {
    cluster_with(how, nodes, &format!("helpers={NODE_DIR}"))
}

/// The same, with other arguments of the plugin.
pub fn cluster_with(how: &str, nodes: usize, arguments: &str) -> Result<Cluster> {
    cluster_of(Cluster::builder().nodes(nodes), how, arguments)
}

/// The same, on a cluster of one's own.
pub fn cluster_of(builder: ClusterBuilder, how: &str, arguments: &str) -> Result<Cluster> {
    let target = target_dir()?;
    let folder = tempfile::tempdir()?;
    let stand_in = folder.path().join("aimaster-prolog");
    std::fs::write(&stand_in, STAND_IN)?;
    let install = Install::new()
        .plugin(target.join(BUILT_PLUGIN))
        .program(target.join("aimaster-epilog"))
        .program(&stand_in)
        .built()?;
    let cluster = builder
        .policy(POLICY)
        .plugstack(&format!("{how} {NODE_PLUGIN} {arguments}"))
        .install(install)
        .boot()?;
    for node in cluster.nodes() {
        set_mode(&cluster, node, "open")?;
    }
    Ok(cluster)
}

/// Tells a node's stand-in what to do.
pub fn set_mode(cluster: &Cluster, node: &str, mode: &str) -> Result<()> {
    cluster.write_file(node, "/tmp/mode", mode)
}
