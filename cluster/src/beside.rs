//! Work that may hang, such as a disk or a resolver that does not answer: on a thread of its own, for which nobody waits longer
//! than he says. A thread that hangs is left behind: its process can't end before it does.

use std::io;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// Why nothing came of it.
#[derive(Debug, thiserror::Error)]
pub enum BesideError {
    /// No thread is to be had.
    #[error("no thread can be started")]
    NoThread(#[source] io::Error),
    /// It panicked.
    #[error("its thread ended early")]
    Ended,
    /// It is still at it.
    #[error("there is no answer in time")]
    Late,
}

/// Work on its way.
#[derive(Debug)]
pub struct Beside<T>(oneshot::Receiver<T>);

impl<T: Send + 'static> Beside<T> {
    /// Starts it; `name` is the thread's, of at most 15 bytes.
    ///
    /// # Errors
    /// There is no thread.
    pub fn start(name: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<Self, BesideError> {
        let (done, result) = oneshot::channel();
        // Nobody listens any more where the sending fails: it came too late.
        let work = move || _ = done.send(work());
        std::thread::Builder::new().name(name.to_owned()).spawn(work).map_err(BesideError::NoThread)?;
        Ok(Self(result))
    }

    /// What came of it, within a time from now.
    ///
    /// # Errors
    /// Nothing came.
    pub async fn within(self, limit: Duration) -> Result<T, BesideError> {
        self.until(Instant::now() + limit).await
    }

    /// The same until a moment.
    ///
    /// # Errors
    /// Nothing came.
    pub async fn until(self, deadline: Instant) -> Result<T, BesideError> {
        match timeout_at(deadline, self.0).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(_)) => Err(BesideError::Ended),
            Err(_) => Err(BesideError::Late),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn what_comes_is_had_and_what_hangs_is_left() {
        let limit = Duration::from_secs(60);
        assert_eq!(Beside::start("seven", || 7).unwrap().within(limit).await.unwrap(), 7);
        let ended = Beside::start("lost", || -> u32 { panic!("on purpose") }).unwrap();
        assert!(matches!(ended.within(limit).await, Err(BesideError::Ended)));
        let (let_go, held) = mpsc::channel::<()>();
        let late = Beside::start("held", move || held.recv().is_err()).unwrap();
        assert!(matches!(late.within(Duration::from_millis(20)).await, Err(BesideError::Late)));
        drop(let_go);
    }
}
