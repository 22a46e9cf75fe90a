//! Chromium without a screen, driven by its own protocol: messages of JSON, each ended by a zero byte, over two pipes. Only as
//! much of it as the pictures of reports need.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// How long an answer may take: a page of a thousand nodes is laid out in well under a second.
const WITHIN: Duration = Duration::from_secs(30);

/// Most messages that are read while one is waited for.
const MOST_MESSAGES: usize = 10_000;

/// A browser with one page.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Vec<u8>>,
    next: u64,
    session: String,
    /// What the browser told by itself since the last page was opened.
    pub told: Vec<Value>,
}

impl Browser {
    /// Starts it, with a profile of its own.
    ///
    /// # Errors
    /// It is not installed, or does not answer.
    pub fn start(profile: &Path) -> Result<Self> {
        // The protocol's pipes are descriptors 3 and 4 there.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null", "sh", "chromium", "--headless"])
            .args(["--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run"])
            .args(["--disable-background-networking", "--hide-scrollbars", "--force-color-profile=srgb"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("can't run sh")?;
        let to = child.stdin.take().context("it has no input")?;
        let mut out = BufReader::new(child.stdout.take().context("it has no output")?);
        let (sender, from) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while out.read_until(0, &mut message).is_ok_and(|bytes| bytes > 0) {
                message.pop();
                if sender.send(std::mem::take(&mut message)).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self { child, to, from, next: 0, session: String::new(), told: Vec::new() };
        let target = browser.call("Target.createTarget", &json!({ "url": "about:blank" }))?;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", &attach)?;
        browser.session = session["sessionId"].as_str().context("no session")?.to_owned();
        for domain in ["Page", "Runtime", "Log", "Network", "Accessibility"] {
            browser.call(&format!("{domain}.enable"), &json!({}))?;
        }
        Ok(browser)
    }

    /// Asks for something and waits for the answer.
    ///
    /// # Errors
    /// It refuses, ends, or does not answer in time.
    pub fn call(&mut self, method: &str, parameters: &Value) -> Result<Value> {
        self.next += 1;
        let mut message = json!({ "id": self.next, "method": method, "params": parameters });
        if !self.session.is_empty() {
            message["sessionId"] = self.session.as_str().into();
        }
        self.to
            .write_all(format!("{message}\0").as_bytes())
            .context("chromium has ended; is it installed?")?;
        for _ in 0..MOST_MESSAGES {
            let one = self.message()?;
            if one["id"] != self.next {
                self.told.push(one);
                continue;
            }
            if let Some(error) = one.get("error") {
                bail!("{method}: {error}");
            }
            return Ok(one["result"].clone());
        }
        bail!("{method}: {MOST_MESSAGES} messages and no answer")
    }

    fn message(&mut self) -> Result<Value> {
        let bytes = self.from.recv_timeout(WITHIN).context("chromium does not answer; is it installed?")?;
        serde_json::from_slice(&bytes).context("what chromium says is no JSON")
    }

    /// Opens a file and waits until it is there.
    ///
    /// # Errors
    /// It can't be opened.
    pub fn open(&mut self, file: &Path) -> Result<()> {
        self.told.clear();
        self.call("Page.navigate", &json!({ "url": format!("file://{}", file.display()) }))?;
        for _ in 0..MOST_MESSAGES {
            if self.told.iter().any(|one| one["method"] == "Page.loadEventFired") {
                return Ok(());
            }
            let one = self.message()?;
            self.told.push(one);
        }
        bail!("{} is never there", file.display())
    }

    /// What a script in the page says, as JSON.
    ///
    /// # Errors
    /// It fails.
    pub fn asks(&mut self, script: &str) -> Result<Value> {
        let answer =
            self.call("Runtime.evaluate", &json!({ "expression": script, "returnByValue": true }))?;
        if let Some(error) = answer.get("exceptionDetails") {
            bail!("the script failed: {error}");
        }
        Ok(answer["result"]["value"].clone())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
