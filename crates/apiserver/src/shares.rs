//! A limited amount shared by clients: [`Shares`].
//!
//! There is a total, and a maximum per client. A client that asks for more than is available waits
//! in a short queue or is rejected. Does not know what is shared.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The number of clients above which those without a share are removed.
const MANY_CLIENTS: usize = 1024;

/// An amount with a maximum per client.
#[derive(Debug)]
pub(crate) struct Shares {
    total: Arc<Semaphore>,
    size: usize,
    each: usize,
    clients: Mutex<HashMap<String, Weak<Semaphore>>>,
    waiting: Arc<AtomicUsize>,
}

/// A client's access to a shared amount.
#[derive(Debug, Clone)]
pub(crate) struct Account {
    own: Arc<Semaphore>,
    total: Arc<Semaphore>,
    each: usize,
    size: usize,
    waiting: Arc<AtomicUsize>,
}

/// The amount that a client holds until this is dropped.
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
        let mut clients = self.clients.lock();
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

    /// Returns the amount that clients hold.
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
    /// Limits a requested amount to the maximum per client.
    fn amount(&self, amount: usize) -> u32 {
        u32::try_from(amount.min(self.each)).unwrap_or(u32::MAX)
    }

    /// Takes an amount, if it is available.
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
        // As many requests may wait as could be served at once.
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.size {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(Unavailable::QueueFull);
        }
        let _waiting = Waiting(&self.waiting);
        let amount = self.amount(amount);
        let taking = async {
            // The client's own part first, so that a client at its maximum does not block others.
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
    fn clients_are_limited_alone_and_together() {
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
        // A request for more than the maximum per client gets the maximum.
        assert!(a.take(100).is_some());
    }

    #[tokio::test]
    async fn waiting_request_is_served_or_times_out() {
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
    fn clients_without_a_share_are_removed() {
        let shares = Shares::new(10, 6);
        let kept = shares.account("kept");
        for number in 0..10 * MANY_CLIENTS {
            let _ = shares.account(&number.to_string());
        }
        assert!(shares.clients.lock().len() <= MANY_CLIENTS);
        let _share = kept.take(6).unwrap();
        assert!(shares.account("kept").take(1).is_none());
    }
}
