//! Threads and notify requests that wait for completions of one queue, and are served in the order of arrival (spec §8).

use std::collections::VecDeque;

/// One of them.
pub(crate) enum Waiter<H> {
    /// A thread, by its ticket. One that pauses keeps its place and is given nothing, and neither is anybody behind it.
    Thread { ticket: u64, pauses: bool },
    /// A notify request.
    Notify { handler: H, context: usize },
}

/// The waiters of one queue: `H` is what a notify request calls, `T` what a thread gets. Most queues never have any, and
/// take no memory for them.
pub(crate) struct Waiters<H, T>(Option<Box<Line<H, T>>>);

struct Line<H, T> {
    waiting: VecDeque<Waiter<H>>,
    /// What threads have been given and have not fetched yet.
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

    /// Open notify requests.
    pub(crate) fn requests(&self) -> usize {
        self.waiting()
            .into_iter()
            .flatten()
            .filter(|waiter| matches!(waiter, Waiter::Notify { .. }))
            .count()
    }

    /// A thread waits from now on; gives its ticket.
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

    /// A thread that has been given nothing may end now, and so gets nothing before it is back.
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

    /// A thread waits no longer; gives what it has been given at the last moment.
    pub(crate) fn leave(&mut self, ticket: u64) -> Option<T> {
        let given = self.claim(ticket);
        if given.is_none() {
            let own = |waiter: &Waiter<H>| matches!(waiter, Waiter::Thread { ticket: it, .. } if *it == ticket);
            self.line().waiting.retain(|waiter| !own(waiter));
        }
        given
    }

    /// A notify request.
    pub(crate) fn request(&mut self, handler: H, context: usize) {
        let request = Waiter::Notify { handler, context };
        self.line().waiting.push_back(request);
    }

    /// Takes off the one that has waited longest, unless it pauses.
    pub(crate) fn next(&mut self) -> Option<Waiter<H>> {
        let waiting = &mut self.0.as_mut()?.waiting;
        match waiting.front()? {
            Waiter::Thread { pauses: true, .. } => None,
            _ => waiting.pop_front(),
        }
    }

    /// Leaves this for the thread with this ticket, which has been taken off.
    pub(crate) fn give(&mut self, ticket: u64, what: T) {
        self.line().given.push((ticket, what));
    }

    /// What the thread with this ticket has been given.
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
        waiters.give(first, 'a');
        assert_eq!(waiters.claim(last), None);
        assert_eq!(waiters.leave(last), None);
        assert!(waiters.is_empty());
        assert_eq!(
            (waiters.claim(first), waiters.claim(first)),
            (Some('a'), None)
        );
        let late = waiters.join();
        assert!(waiters.next().is_some());
        waiters.give(late, 'b');
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
