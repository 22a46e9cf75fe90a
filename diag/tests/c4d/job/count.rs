//! How far one rank of the simulated job is with one kind of operation, and how much of that is recorded.

/// How far one end is, and when each number changed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Count {
    pub enqueued: u64,
    pub started: u64,
    pub finished: u64,
    pub at_us: [u64; 3],
    /// Whether begin and end of the operation that was called last are recorded.
    recorded: bool,
    /// Started and finished as they were recorded, and when each changed.
    pub told: [(u64, u64); 2],
    /// Time and number of those whose end was recorded in this window, and calls since one was.
    pub window: (u64, u64),
    pub since: u64,
}

impl Count {
    pub fn is_called(&self) -> bool {
        self.enqueued > self.started
    }

    pub fn call(&mut self, now_us: u64, recorded: bool) {
        if self.enqueued == self.started {
            self.enqueued += 1;
            self.at_us[0] = now_us;
            self.recorded = recorded;
            self.since += 1;
        }
    }

    pub fn start(&mut self, now_us: u64, recorded: bool) {
        self.call(now_us, recorded);
        self.started += 1;
        self.at_us[1] = now_us;
        if self.recorded {
            let [started, finished] = self.told.map(|(number, _)| number);
            if started == finished && finished + 1 < self.started {
                self.told[1] = (self.started - 1, now_us);
            }
            self.told[0] = (self.started, now_us);
        }
    }

    /// Whether it was recorded.
    pub fn finish(&mut self, now_us: u64) -> bool {
        self.finished += 1;
        self.at_us[2] = now_us;
        if self.recorded {
            self.window = (self.window.0 + now_us - self.at_us[1], self.window.1 + 1);
            self.told[1] = (self.finished, now_us);
        }
        self.recorded
    }

    /// Whether all that began was recorded.
    pub fn is_known(&self) -> bool {
        self.told[0].0 == self.started
    }

    /// Time inside in this window: what was not recorded is taken to be like what was.
    pub fn take_window_us(&mut self, kernels: bool) -> u64 {
        let (us, ended) = std::mem::take(&mut self.window);
        let made = if kernels { ended } else { self.since.max(ended) };
        if ended > 0 || kernels {
            self.since = 0;
        }
        (us * made).checked_div(ended).unwrap_or(0)
    }
}
