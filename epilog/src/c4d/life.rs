//! The loop of an agent: once a second it looks whether the job is still here and what has changed; between that it
//! lets ranks in. It ends when the epilog says so, or when the job is gone.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use cluster::events::Events;
use cluster::order::Telemetry as Reach;
use diag::c4d::digest::MAX_RANKS;
use diag::c4d::finding::{Finding, State};
use diag::health::HealthEvent;
use diag::report::printable;
use diag::telemetry::{MAX_TAKEN_CHARS, TAKEN_FILE_NAME};
use jiff::Timestamp;
use rustix::fs::{Mode, OFlags, openat};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use crate::c4d::acts::{self, Acts};
use crate::c4d::bench::{Bench, News};
use crate::c4d::birth::Agent;
use crate::c4d::budget::Budget;
use crate::c4d::health::Health;
use crate::c4d::held::Held;
use crate::c4d::link::Link;
use crate::c4d::lock::Lock;
use crate::c4d::ranks::Ranks;
use crate::c4d::report::{self, Finished, MOST_ENTRIES, RuntimeReport, Status, Telemetry};
use crate::c4d::socket::{Arrival, Arrivals, Refusal};
use crate::c4d::steps::Watchdog;
use crate::c4d::voice::{Role, finding_id};

/// This program, in syslog.
const PROCESS: &str = "aimaster-c4d";

/// Between two looks.
const TICK: Duration = Duration::from_secs(1);

/// How long nobody may judge before it is said: agents start within seconds of each other, and one that starts anew on a
/// busy machine is found again in as many.
const UNJUDGED: Duration = Duration::from_secs(30);

/// Refusals that are logged one by one; a flood is counted only.
const LOGGED_REFUSALS: u64 = 20;

/// An agent at work.
pub struct Life {
    runtime: Runtime,
    terminated: Signal,
    arrivals: Option<Arrivals>,
    watch: Watch,
    _lock: Lock,
}

/// What it knows.
struct Watch {
    folder: std::os::fd::OwnedFd,
    events: Events,
    watchdog: Watchdog,
    ranks: Ranks,
    health: Health,
    held: Held,
    link: Link,
    /// There where this node judges the job.
    bench: Option<Bench>,
    acts: Acts,
    nodes: Vec<String>,
    /// When somebody judged the job last, and whether it was said that nobody does.
    judged: Instant,
    unjudged_said: bool,
    budget: Budget,
    /// Whether it was said that the job seems to end and does not.
    lingering_said: bool,
    report: RuntimeReport,
    /// What stands in the file.
    written: Option<RuntimeReport>,
    /// Whether it was said that the file can't be written.
    unwritten_said: bool,
}

impl Life {
    /// Takes an agent that was born; from here on it hears signals.
    ///
    /// # Errors
    /// The system refuses.
    pub fn new(agent: Agent) -> Result<Self> {
        let Agent { order, policy, folder, door, hired, lock, notes } = agent;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (terminated, arrivals) = {
            let _inside = runtime.enter();
            let terminated = signal(SignalKind::terminate()).context("SIGTERM can't be heard")?;
            (terminated, door.map(Arrivals::new).transpose()?)
        };
        let events = Events::open(&policy.paths.syslog, PROCESS, order.node(), order.job.job_id);
        let telemetry = match &order.telemetry {
            Reach::Socket(_) => telemetry(Status::None, Vec::new()),
            Reach::Unavailable { because } => telemetry(Status::Unavailable, vec![because.clone()]),
        };
        let (settings, now) = (policy.c4d, Instant::now());
        let link = {
            let _inside = runtime.enter();
            Link::new(&order, &policy, &settings, &events)
        };
        let bench = link.role().map(|role| Bench::new(&order.nodes, role, link.joined(), settings, now));
        let check_number = order.job.restart.saturating_add(1);
        let report = RuntimeReport {
            telemetry,
            judged: bench.as_ref().is_some_and(Bench::is_judged),
            ..RuntimeReport::new(
                &order.job.cluster,
                order.job.job_id,
                check_number,
                order.node(),
                Timestamp::now(),
            )
        };
        let watchdog = Watchdog::new(&order.steps, order.node(), order.job.job_id, now);
        let ranks = Ranks::new(order.me, &order.gpus);
        let health = Health::start(&order, &policy, hired);
        let acts = Acts::new(&order, &policy, &events);
        let mut watch = Watch {
            folder,
            events,
            watchdog,
            ranks,
            health,
            held: Held::default(),
            link,
            bench,
            acts,
            nodes: order.nodes.clone(),
            judged: now,
            unjudged_said: false,
            budget: Budget::new(now),
            lingering_said: false,
            report,
            written: None,
            unwritten_said: false,
        };
        notes.iter().for_each(|note| watch.note(note));
        // The file is there as long as the agent is.
        watch.write().context("runtime.json can't be written")?;
        Ok(Self { runtime, terminated, arrivals, watch, _lock: lock })
    }

    /// Until the job is over.
    pub fn live(self) -> ExitCode {
        let Self { runtime, mut terminated, mut arrivals, mut watch, _lock } = self;
        runtime.block_on(async {
            let mut tick = interval(TICK);
            tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let because = loop {
                tokio::select! {
                    _ = terminated.recv() => break "the job's epilog ended it".to_owned(),
                    _ = tick.tick() => if let Some(because) = watch.look() { break because },
                    came = next(&mut arrivals) => watch.meet(came),
                }
            };
            watch.end(because).await;
        });
        ExitCode::SUCCESS
    }
}

async fn next(arrivals: &mut Option<Arrivals>) -> Result<Arrival, Refusal> {
    match arrivals {
        Some(arrivals) => arrivals.next().await,
        None => std::future::pending().await,
    }
}

fn telemetry(status: Status, because: Vec<String>) -> Telemetry {
    Telemetry { status, because, ranks: 0, refused: 0 }
}

impl Watch {
    /// One look; why the agent ends, if it does.
    fn look(&mut self) -> Option<String> {
        if rustix::fs::fstat(&self.folder).is_ok_and(|stat| stat.st_nlink == 0) {
            return Some("its run folder was removed".to_owned());
        }
        if let Some(because) = self.watchdog.look(Instant::now()) {
            return Some(because);
        }
        if self.watchdog.has_seen() && self.report.first_step_at.is_none() {
            self.report.first_step_at = Some(Timestamp::now());
        }
        if self.report.telemetry.status == Status::None {
            self.look_for_another_profiler();
        }
        if self.watchdog.lingers(Instant::now()) && !self.lingering_said {
            self.lingering_said = true;
            self.note(
                "the step that lasts as long as the job has ended and others go on: what stops on this node is no fault any more",
            );
        }
        self.look_at_ranks(Instant::now());
        match self.write() {
            Ok(()) => self.unwritten_said = false,
            // It is tried again with each look.
            Err(_) if self.unwritten_said => {}
            Err(error) => {
                self.unwritten_said = true;
                self.events.log(&format!("runtime.json can't be written: {error}"));
            }
        }
        None
    }

    /// Tells what this node knows, and judges what all of them told, where that is done.
    fn look_at_ranks(&mut self, now: Instant) {
        let news = self.health.look(&mut self.ranks, &mut self.report, now);
        self.ranks.expects_end(self.watchdog.ends());
        let digest = self.ranks.look(now);
        let health = self.held.tell(news.clone(), now);
        let speaks = self.bench.as_ref().is_some_and(Bench::speaks);
        let tellings = self.link.exchange(digest, health, speaks, now);
        let Some(bench) = &mut self.bench else { return self.follow(&news, now) };
        let news = bench.sit(&tellings, self.link.heard(now), self.link.other_told(now), now);
        let saying = bench.saying();
        self.ranks.wants_steps(&saying.wants_steps);
        self.ranks.expects_trouble(saying.trouble);
        self.link.say(saying);
        // What only got older is no reason to write the file again.
        let shown = self.report.findings.iter().map(finding_id);
        if !bench.findings().take(MOST_ENTRIES).map(finding_id).eq(shown) {
            self.report.findings = bench.findings().take(MOST_ENTRIES).cloned().collect();
        }
        let (was, speaks, judged) = (speaks, bench.speaks(), bench.is_judged());
        // That the head begins to speak is how every job starts.
        if was != speaks && (self.link.role() == Some(Role::Deputy) || !speaks) {
            let what =
                if speaks { "speaks for the job, for the first one is not heard" } else { "is silent" };
            let line = format!("event=RuntimeCheckSpeaker summary=\"this node {what}\"");
            self.tell_line(&line, speaks, now);
        }
        self.know(judged || self.link.is_judged(now), now);
        self.tell(&news, now);
        let judge = self.bench.as_ref().filter(|bench| bench.speaks()).map(Bench::judge);
        self.acts.follow(&mut self.report, judge, now);
    }

    /// What a node does that does not judge.
    fn follow(&mut self, own: &[HealthEvent], now: Instant) {
        let guidance = self.link.guidance(now);
        self.ranks.wants_steps(guidance.map_or(&BTreeSet::new(), |saying| &saying.wants_steps));
        self.ranks.expects_trouble(guidance.is_some_and(|saying| saying.trouble));
        let judged = guidance.is_some();
        self.know(judged, now);
        // Where nobody speaks for the job its own hardware is not passed over in silence.
        for event in own.iter().filter(|_| !judged) {
            let (line, warning) = acts::hardware_event(&self.report.node, event);
            self.events.event(&line, warning);
        }
    }

    /// Keeps whether the job is judged, and says so once where nobody does for a while.
    fn know(&mut self, judged: bool, now: Instant) {
        self.report.judged = judged;
        if judged {
            (self.judged, self.unjudged_said) = (now, false);
        } else if !self.unjudged_said && now.saturating_duration_since(self.judged) >= UNJUDGED {
            self.unjudged_said = true;
            self.note(&format!("nobody judges what ranks tell: {}", self.link.why(&self.nodes)));
        }
    }

    /// Says what is new.
    fn tell(&mut self, news: &News, now: Instant) {
        let News { findings, hardware } = news;
        findings.iter().for_each(|finding| self.tell_finding(finding, now));
        for (node, event) in hardware {
            let name = self.nodes.get(*node as usize).map_or("-", String::as_str);
            let (line, warning) = acts::hardware_event(name, event);
            self.events.event(&line, warning);
        }
    }

    /// Says what is new, or no longer holds.
    fn tell_finding(&mut self, change: &Finding, now: Instant) {
        let Finding { class, confidence, message, state, .. } = change;
        match state {
            State::Confirmed => {
                let line = format!(
                    "event=RuntimeCheckFailed class={class} confidence={confidence:.2} summary={message:?}"
                );
                self.tell_line(&line, true, now);
            }
            State::Withdrawn { because } => {
                let line = format!(
                    "event=RuntimeCheckWithdrawn class={class} because={because:?} summary={message:?}"
                );
                self.tell_line(&line, false, now);
                if self.report.withdrawn.len() < MOST_ENTRIES {
                    self.report.withdrawn.push(change.clone());
                }
            }
        }
    }

    /// Writes a line about what ranks and agents tell, as far as there is room.
    fn tell_line(&mut self, line: &str, warning: bool, now: Instant) {
        let Some(unwritten) = self.budget.take(now) else { return };
        if unwritten > 0 {
            self.events.log(&format!("{unwritten} lines were left out: findings come and go too fast"));
        }
        self.events.event(line, warning);
    }

    /// Whether the plugin found the user's own profiler in a task's environment.
    fn look_for_another_profiler(&mut self) {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let Ok(file) = openat(&self.folder, TAKEN_FILE_NAME, flags, Mode::empty()) else { return };
        let mut value = String::new();
        let most = MAX_TAKEN_CHARS as u64 * 4;
        let read = std::io::Read::read_to_string(
            &mut std::io::Read::take(std::fs::File::from(file), most),
            &mut value,
        );
        let shown = if read.is_ok() { printable(&value) } else { "?".to_owned() };
        let because = format!("the job has a profiler plugin of its own: NCCL_PROFILER_PLUGIN={shown}");
        self.events.log(&format!("telemetry is unavailable: {because}"));
        self.report.telemetry.status = Status::Unavailable;
        self.because(because);
    }

    fn meet(&mut self, came: Result<Arrival, Refusal>) {
        match came {
            Ok(arrival) => self.admit(arrival),
            Err(Refusal { uid, pid, because }) => {
                self.report.telemetry.refused += 1;
                if self.report.telemetry.refused <= LOGGED_REFUSALS {
                    let [uid, pid] =
                        [uid, pid].map(|one| one.map_or_else(|| "?".to_owned(), |one| one.to_string()));
                    self.events.log(&format!(
                        "a process that came to the socket was refused (uid {uid}, pid {pid}): {because}"
                    ));
                }
            }
        }
    }

    fn admit(&mut self, arrival: Arrival) {
        if arrival.ring.is_some() {
            self.report.telemetry.ranks += 1;
            self.report.telemetry.status = Status::Ok;
        } else {
            if self.report.telemetry.status == Status::None {
                self.report.telemetry.status = Status::Unavailable;
            }
            self.because(arrival.hello.status.why().to_owned());
        }
        if !self.ranks.admit(arrival) {
            self.because(format!(
                "more than {MAX_RANKS} processes use NCCL on this node: the others are not followed"
            ));
        }
    }

    fn because(&mut self, line: String) {
        let known = &mut self.report.telemetry.because;
        if known.len() < MOST_ENTRIES && !known.contains(&line) {
            known.push(line);
        }
    }

    fn note(&mut self, line: &str) {
        self.events.log(line);
        if self.report.errors.len() < MOST_ENTRIES {
            self.report.errors.push(printable(line));
        }
    }

    fn write(&mut self) -> std::io::Result<()> {
        if self.written.as_ref() == Some(&self.report) {
            return Ok(());
        }
        report::write(&self.report, &self.folder)?;
        self.written = Some(self.report.clone());
        Ok(())
    }

    /// The last words, to the file and to the others.
    async fn end(mut self, because: String) {
        self.report.finished = Some(Finished { at: Timestamp::now(), because });
        // What broke a job is often seen, here or on another node, at its end only.
        self.ranks.expects_end(true);
        self.look_at_ranks(Instant::now());
        self.acts.end(&mut self.report);
        if let Err(error) = self.write() {
            self.events.log(&format!("the last runtime.json can't be written: {error}"));
        }
        let now = Instant::now();
        self.link.goodbye(self.ranks.look(now), self.held.tell(Vec::new(), now)).await;
    }
}
