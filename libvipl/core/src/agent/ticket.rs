//! Tickets, on which a thread waits for the reply to its call.

use std::sync::Arc;
use vipl_sys::clock::Instant;

use crate::error::Error;
use crate::sync::{Condvar, Mutex};

/// A result for which one thread waits and which another one provides, once.
pub(crate) struct Ticket<T> {
    result: Mutex<Outcome<T>>,
    ready: Condvar,
}

enum Outcome<T> {
    Open,
    Ready(T),
    Taken,
}

impl<T> Ticket<T> {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Ticket {
            result: Mutex::new(Outcome::Open),
            ready: Condvar::new(),
        })
    }

    pub(crate) fn complete(&self, result: T) {
        let mut outcome = self.result.lock();
        if matches!(*outcome, Outcome::Open) {
            *outcome = Outcome::Ready(result);
        }
        self.ready.notify_all();
    }

    /// The result, if available. Fails if another thread has taken it.
    pub(crate) fn try_take(&self) -> Result<Option<T>, Error> {
        let mut outcome = self.result.lock();
        if matches!(*outcome, Outcome::Open) {
            return Ok(None);
        }
        match std::mem::replace(&mut *outcome, Outcome::Taken) {
            Outcome::Ready(result) => {
                self.ready.notify_all();
                Ok(Some(result))
            }
            _ => Err(Error::State),
        }
    }

    /// Waits for the result. Fails if another thread has taken it.
    pub(crate) fn wait(&self) -> Result<T, Error> {
        loop {
            if let Some(result) = self.try_take()? {
                return Ok(result);
            }
            let mut outcome = self.result.lock();
            if matches!(*outcome, Outcome::Open) {
                self.ready.wait(&mut outcome);
            }
        }
    }

    /// Waits for the result, until a deadline, if any. `None` if there is no result yet.
    pub(crate) fn wait_at_most(&self, end: Option<Instant>) -> Result<Option<T>, Error> {
        match end {
            Some(end) => self.wait_until(end),
            None => self.wait().map(Some),
        }
    }

    /// Waits for the result until a deadline. `None` if there is none yet.
    pub(crate) fn wait_until(&self, end: Instant) -> Result<Option<T>, Error> {
        loop {
            let result = self.try_take()?;
            if result.is_some() || Instant::now() >= end {
                return Ok(result);
            }
            let mut outcome = self.result.lock();
            if matches!(*outcome, Outcome::Open) {
                self.ready.wait_until(&mut outcome, end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_first_result_counts_and_is_taken_once() {
        let ticket = Ticket::new();
        assert_eq!(ticket.try_take(), Ok(None));
        ticket.complete(1);
        ticket.complete(2);
        assert_eq!(ticket.wait(), Ok(1));
        ticket.complete(3);
        assert_eq!(ticket.try_take(), Err(Error::State));
        assert_eq!(ticket.wait(), Err(Error::State));
    }

    #[test]
    fn of_two_waiting_threads_one_gets_the_result() {
        let ticket = Ticket::new();
        let results = std::thread::scope(|scope| {
            let waiters = [(); 2].map(|()| scope.spawn(|| ticket.wait()));
            ticket.complete(7);
            waiters.map(|waiter| waiter.join().unwrap())
        });
        assert!(results.contains(&Ok(7)) && results.contains(&Err(Error::State)));
    }

    #[test]
    fn a_deadline_ends_the_wait() {
        let ticket = Ticket::<u32>::new();
        let end = Instant::now() + Duration::from_millis(1);
        assert_eq!(ticket.wait_until(end), Ok(None));
        assert!(Instant::now() >= end);
    }
}
