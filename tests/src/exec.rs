//! A command inside a node: who runs it, where, with what input and for how long at most. It runs
//! with an empty environment but for what a login would set, and in all namespaces of the node.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::cluster::Cluster;
use crate::node::PATH;
use crate::process::{Output, Running};
use crate::users;

/// Long enough for every command but a job that is meant to last.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A command to run in a node; see [`Cluster::command`].
#[must_use = "a command does nothing until `run`, `ok` or `spawn`"]
pub struct Exec<'c> {
    cluster: &'c Cluster,
    node: String,
    argv: Vec<String>,
    user: Option<String>,
    env: Vec<(String, String)>,
    cwd: Option<String>,
    stdin: Option<Vec<u8>>,
    keep_stdin: bool,
    timeout: Duration,
}

impl<'c> Exec<'c> {
    pub(crate) fn new<S: Into<String>>(
        cluster: &'c Cluster,
        node: &str,
        argv: impl IntoIterator<Item = S>,
    ) -> Self {
        Self {
            cluster,
            node: node.to_owned(),
            argv: argv.into_iter().map(Into::into).collect(),
            user: None,
            env: Vec::new(),
            cwd: None,
            stdin: None,
            keep_stdin: false,
            timeout: TIMEOUT,
        }
    }

    /// Runs it as this user (root otherwise), from the user's home folder.
    pub fn user(mut self, name: &str) -> Self {
        self.user = (name != "root").then(|| name.to_owned());
        self
    }

    /// Adds arguments at the end.
    pub fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.argv.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Starts in this folder of the node.
    pub fn cwd(mut self, dir: &str) -> Self {
        self.cwd = Some(dir.to_owned());
        self
    }

    /// Gives it this input.
    pub fn stdin(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(input.into());
        self
    }

    /// Keeps standard input open for [`Running::write_stdin`].
    pub fn keep_stdin(mut self) -> Self {
        self.keep_stdin = true;
        self
    }

    /// How long [`Exec::run`] waits (60 s otherwise) before it kills the command.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Runs it to its end. An exit code other than 0 is not an error; running into the timeout is.
    pub fn run(self) -> Result<Output> {
        let timeout = self.timeout;
        self.spawn()?.wait(timeout)
    }

    /// Runs it to its end; an exit code other than 0 is an error that shows the output.
    pub fn ok(self) -> Result<Output> {
        self.run()?.ok()
    }

    /// Starts it.
    pub fn spawn(self) -> Result<Running> {
        let what = format!("{}: {}", self.node, self.argv.join(" "));
        let mut command = self.cluster.find(&self.node)?.enter()?;
        let user = self.user.as_deref().unwrap_or("root");
        let account = users::get(user)?;
        let home = if user == "root" { "/root" } else { account.home.as_str() };
        if user != "root" {
            let (uid, gid) = (account.uid.to_string(), account.gid.to_string());
            command.args(["setpriv", "--reuid", &uid, "--regid", &gid, "--init-groups", "--"]);
        }
        let cwd = self.cwd.as_deref().unwrap_or(home);
        // A system user's home may not exist in the node; nobody means to stand there.
        let cwd = if self.cwd.is_none() && account.uid < 1000 && user != "root" { "/" } else { cwd };
        command.args(["env", "-C", cwd, "--"]).args(&self.argv);
        command.env_clear().envs([
            ("PATH", PATH),
            ("LANG", "C.UTF-8"),
            ("HOME", home),
            ("USER", user),
            ("LOGNAME", user),
            ("SHELL", "/bin/bash"),
        ]);
        command.envs(self.env.iter().map(|(key, value)| (key, value)));
        Running::start(command, what.clone(), self.stdin, self.keep_stdin)
            .with_context(|| format!("cannot start `{what}`"))
    }
}
