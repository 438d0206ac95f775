//! A limited amount that clients share: [`Shares`].
//!
//! There is a total, and a part of it that one client may have. A client that asks for more than there
//! is waits in a short queue or is refused. Does not know what is shared.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The number of clients from which on those without a share are forgotten.
const MANY_CLIENTS: usize = 1024;

/// An amount of which each client may have a part.
#[derive(Debug)]
pub(crate) struct Shares {
    total: Arc<Semaphore>,
    size: usize,
    each: usize,
    clients: Mutex<HashMap<String, Weak<Semaphore>>>,
    waiting: Arc<AtomicUsize>,
}

/// A client's access to what is shared.
#[derive(Debug, Clone)]
pub(crate) struct Account {
    own: Arc<Semaphore>,
    total: Arc<Semaphore>,
    each: usize,
    size: usize,
    waiting: Arc<AtomicUsize>,
}

/// The part of an amount that a client has until this is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    own: OwnedSemaphorePermit,
    total: OwnedSemaphorePermit,
}

/// The reason why a client gets nothing. The names are upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unavailable {
    QueueFull,
    TimeOut,
}

impl Shares {
    pub(crate) fn new(size: usize, each: usize) -> Shares {
        let (total, waiting) = (Arc::new(Semaphore::new(size)), Arc::default());
        Shares { total, size, each: each.min(size), clients: Mutex::default(), waiting }
    }

    pub(crate) fn account(&self, client: &str) -> Account {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let own = clients.get(client).and_then(Weak::upgrade).unwrap_or_else(|| {
            if clients.len() >= MANY_CLIENTS {
                clients.retain(|_, own| own.strong_count() > 0);
            }
            let own = Arc::new(Semaphore::new(self.each));
            clients.insert(client.to_owned(), Arc::downgrade(&own));
            own
        });
        let (total, waiting) = (Arc::clone(&self.total), Arc::clone(&self.waiting));
        Account { own, total, each: self.each, size: self.size, waiting }
    }

    /// Returns how much of it clients have.
    pub(crate) fn taken(&self) -> usize {
        self.size.saturating_sub(self.total.available_permits())
    }

    /// Returns the number of requests in the queue.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// Counts a request in the queue until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Account {
    /// Returns what a request for an amount gets: no more than one client may have.
    fn amount(&self, amount: usize) -> u32 {
        u32::try_from(amount.min(self.each)).unwrap_or(u32::MAX)
    }

    /// Takes an amount, if it is there.
    pub(crate) fn take(&self, amount: usize) -> Option<Share> {
        let amount = self.amount(amount);
        let own = Arc::clone(&self.own).try_acquire_many_owned(amount).ok()?;
        let total = Arc::clone(&self.total).try_acquire_many_owned(amount).ok()?;
        Some(Share { own, total })
    }

    /// Takes an amount, or waits for it in the queue.
    pub(crate) async fn wait(
        &self,
        amount: usize,
        max_wait: Duration,
    ) -> Result<Share, Unavailable> {
        if let Some(share) = self.take(amount) {
            return Ok(share);
        }
        // As many may wait as could be served at once.
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.size {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(Unavailable::QueueFull);
        }
        let _waiting = Waiting(&self.waiting);
        let amount = self.amount(amount);
        let taking = async {
            // First its own part, so that a client that has much does not stand in the way of others.
            let own = Arc::clone(&self.own).acquire_many_owned(amount).await.ok()?;
            let total = Arc::clone(&self.total).acquire_many_owned(amount).await.ok()?;
            Some(Share { own, total })
        };
        timeout(max_wait, taking).await.ok().flatten().ok_or(Unavailable::TimeOut)
    }
}

impl Share {
    /// Adds a share of the same client.
    pub(crate) fn add(&mut self, other: Share) {
        self.own.merge(other.own);
        self.total.merge(other.total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_client_has_its_part_and_all_have_the_total() {
        let shares = Shares::new(10, 6);
        let (a, b) = (shares.account("a"), shares.account("b"));
        let mut first = a.take(4).unwrap();
        assert!(a.take(4).is_none());
        first.add(a.take(2).unwrap());
        assert!(shares.account("a").take(1).is_none(), "another account of the same client");
        assert!(b.take(6).is_none(), "only four are left");
        let second = b.take(4).unwrap();
        assert_eq!(shares.taken(), 10);
        drop((first, second));
        assert_eq!(shares.taken(), 0);
        // More than one client may have is as much as it may have.
        assert!(a.take(100).is_some());
    }

    #[tokio::test]
    async fn a_request_waits_for_its_turn_and_not_for_ever() {
        let shares = Arc::new(Shares::new(1, 1));
        let held = shares.account("a").take(1).unwrap();
        let refused = shares.account("b").wait(1, SHORT).await;
        assert_eq!(refused.unwrap_err(), Unavailable::TimeOut);
        assert_eq!(shares.waiting(), 0);
        let account = shares.account("b");
        let waiting = tokio::spawn(async move { account.wait(1, LONG).await });
        while shares.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        let refused = shares.account("c").wait(1, LONG).await;
        assert_eq!(refused.unwrap_err(), Unavailable::QueueFull);
        drop(held);
        assert!(waiting.await.unwrap().is_ok());
        assert_eq!((shares.taken(), shares.waiting()), (0, 0));
    }

    #[test]
    fn clients_that_have_nothing_are_forgotten() {
        let shares = Shares::new(10, 6);
        let kept = shares.account("kept");
        for number in 0..10 * MANY_CLIENTS {
            let _ = shares.account(&number.to_string());
        }
        assert!(shares.clients.lock().unwrap().len() <= MANY_CLIENTS);
        let _share = kept.take(6).unwrap();
        assert!(shares.account("kept").take(1).is_none());
    }
}
