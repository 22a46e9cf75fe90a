//! The network between the nodes: a namespace of its own with one bridge, and a cable to each
//! node. Link names exist only in there, so clusters never meet. Faults are `fault`'s business.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::process::Running;

/// Making the namespace takes milliseconds; a busy machine gets more.
const START: Duration = Duration::from_secs(20);
/// A command of `ip` or `tc`.
const COMMAND: Duration = Duration::from_secs(20);

/// The holder of the switch's namespace.
pub(crate) struct Switch {
    holder: Running,
}

impl Switch {
    /// Makes the namespace and its bridge. It ends with its standard input, thus with the test.
    /// The cluster's name in its environment says whose it is.
    pub(crate) fn start(id: &str) -> Result<Self> {
        let script = "set -e; ip -batch - <<<'link set lo up\nlink add br0 type bridge\nlink set br0 up'; \
                      echo ready; while read -r _; do :; done";
        let mut command = Command::new("unshare");
        command.args(["--net", "bash", "-c", &script.replace("\\n", "\n")]).env("CLUSTER", id);
        let holder = Running::start(command, "the switch", None, true)?;
        holder.wait_line(|line| line == "ready", START).context("cannot make the switch")?;
        Ok(Self { holder })
    }

    /// Runs a command in the switch's network namespace.
    pub(crate) fn run(&self, argv: &[&str], stdin: Option<String>) -> Result<String> {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.holder.id().to_string(), "-n", "--"]).args(argv);
        let what = format!("switch: {}", argv.join(" "));
        Ok(Running::start(command, what, stdin.map(String::into_bytes), false)?.wait(COMMAND)?.ok()?.stdout)
    }

    /// Connects nodes (name and the id of a process in the node); stale cables of the same names,
    /// of nodes that were killed, are taken away.
    pub(crate) fn connect(&self, nodes: &[(&str, u32)]) -> Result<()> {
        let stale = self.run(&["ip", "-o", "link", "show"], None)?;
        let mut batch = String::new();
        for (name, pid) in nodes {
            let link = link(name);
            if stale.contains(&format!(" {link}@")) {
                // The kernel takes a dead node's cable away by itself, a little later: both may win.
                let _ = self.run(&["ip", "link", "del", &link], None);
            }
            batch += &format!("link add {link} type veth peer name eth0 netns {pid}\n");
            batch += &format!("link set {link} master br0 up\n");
        }
        self.run(&["ip", "-batch", "-"], Some(batch)).context("cannot connect the nodes")?;
        Ok(())
    }

    /// Plugs a node's cable in or out.
    pub(crate) fn set_link(&self, node: &str, up: bool) -> Result<()> {
        self.run(&["ip", "link", "set", &link(node), if up { "up" } else { "down" }], None)?;
        Ok(())
    }
}

/// The switch's end of a node's cable.
pub(crate) fn link(node: &str) -> String {
    format!("v-{node}")
}
