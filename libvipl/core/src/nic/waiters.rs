//! Threads and notify requests that wait for completions of one queue, served in order of arrival (spec §8).

use std::collections::VecDeque;

/// One waiter.
pub(crate) enum Waiter<H> {
    /// A thread, by its ticket. A paused thread keeps its place; neither it nor a waiter behind it is served.
    Thread { ticket: u64, pauses: bool },
    /// Adds a notify request.
    Notify { handler: H, context: usize },
}

/// The waiters of one queue. `H` is the handler of a notify request, `T` the result for a thread. Most queues
/// never have waiters, and allocate no memory for them.
pub(crate) struct Waiters<H, T>(Option<Box<Line<H, T>>>);

struct Line<H, T> {
    waiting: VecDeque<Waiter<H>>,
    /// Results for threads that have not fetched them yet.
    given: Vec<(u64, T)>,
    last_ticket: u64,
}

impl<H, T> Waiters<H, T> {
    pub(crate) const fn new() -> Self {
        Waiters(None)
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting().is_none_or(VecDeque::is_empty)
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.waiting().map_or(0, VecDeque::len)
    }

    /// Number of open notify requests.
    pub(crate) fn requests(&self) -> usize {
        self.waiting()
            .into_iter()
            .flatten()
            .filter(|waiter| matches!(waiter, Waiter::Notify { .. }))
            .count()
    }

    /// Adds a thread; returns its ticket.
    pub(crate) fn join(&mut self) -> u64 {
        let line = self.line();
        line.last_ticket += 1;
        let ticket = line.last_ticket;
        line.waiting.push_back(Waiter::Thread {
            ticket,
            pauses: false,
        });
        ticket
    }

    /// Pauses or resumes a thread that has no result: it may end while paused, so it is not served.
    pub(crate) fn pause(&mut self, ticket: u64, pauses: bool) {
        for waiter in &mut self.line().waiting {
            match waiter {
                Waiter::Thread {
                    ticket: it,
                    pauses: pause,
                } if *it == ticket => *pause = pauses,
                _ => {}
            }
        }
    }

    /// Removes a thread; returns a result delivered at the last moment.
    pub(crate) fn leave(&mut self, ticket: u64) -> Option<T> {
        let given = self.claim(ticket);
        if given.is_none() {
            let own = |waiter: &Waiter<H>| matches!(waiter, Waiter::Thread { ticket: it, .. } if *it == ticket);
            self.line().waiting.retain(|waiter| !own(waiter));
        }
        given
    }

    /// Adds a notify request.
    pub(crate) fn request(&mut self, handler: H, context: usize) {
        let request = Waiter::Notify { handler, context };
        self.line().waiting.push_back(request);
    }

    /// Removes the waiter that has waited longest, unless it is paused.
    pub(crate) fn next(&mut self) -> Option<Waiter<H>> {
        let waiting = &mut self.0.as_mut()?.waiting;
        match waiting.front()? {
            Waiter::Thread { pauses: true, .. } => None,
            _ => waiting.pop_front(),
        }
    }

    /// Stores a result for the thread with this ticket, which was removed.
    pub(crate) fn deliver(&mut self, ticket: u64, what: T) {
        self.line().given.push((ticket, what));
    }

    /// Takes the result for the thread with this ticket.
    pub(crate) fn claim(&mut self, ticket: u64) -> Option<T> {
        let given = &mut self.0.as_mut()?.given;
        let place = given.iter().position(|(owner, _)| *owner == ticket)?;
        Some(given.swap_remove(place).1)
    }

    #[inline(always)]
    fn waiting(&self) -> Option<&VecDeque<Waiter<H>>> {
        self.0.as_ref().map(|line| &line.waiting)
    }

    fn line(&mut self) -> &mut Line<H, T> {
        self.0.get_or_insert_with(|| {
            Box::new(Line {
                waiting: VecDeque::new(),
                given: Vec::new(),
                last_ticket: 0,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_the_order_of_arrival() {
        let mut waiters = Waiters::new();
        assert!(waiters.is_empty() && waiters.next().is_none());
        let first = waiters.join();
        waiters.request("handler", 7);
        let (impatient, last) = (waiters.join(), waiters.join());
        assert_eq!(waiters.leave(impatient), None);
        assert_eq!((waiters.count(), waiters.requests()), (3, 1));
        assert!(matches!(waiters.next(), Some(Waiter::Thread { ticket, .. }) if ticket == first));
        let request = waiters.next();
        assert!(matches!(
            request,
            Some(Waiter::Notify {
                handler: "handler",
                context: 7
            })
        ));
        waiters.deliver(first, 'a');
        assert_eq!(waiters.claim(last), None);
        assert_eq!(waiters.leave(last), None);
        assert!(waiters.is_empty());
        assert_eq!(
            (waiters.claim(first), waiters.claim(first)),
            (Some('a'), None)
        );
        let late = waiters.join();
        assert!(waiters.next().is_some());
        waiters.deliver(late, 'b');
        assert_eq!(waiters.leave(late), Some('b'), "at the last moment");
        assert!(waiters.join() > last, "tickets are not given twice");
    }

    #[test]
    fn one_that_pauses_keeps_its_place() {
        let mut waiters = Waiters::<&str, char>::new();
        let (first, second) = (waiters.join(), waiters.join());
        waiters.pause(first, true);
        assert!(waiters.next().is_none() && !waiters.is_empty());
        waiters.pause(first, false);
        assert!(matches!(waiters.next(), Some(Waiter::Thread { ticket, .. }) if ticket == first));
        waiters.pause(second, true);
        assert_eq!(waiters.leave(second), None);
        assert!(waiters.is_empty());
    }
}
