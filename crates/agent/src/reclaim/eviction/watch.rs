//! Looks at the machine again and again: [`watch()`] tells the pressure the node is under and hands on what
//! is to be reclaimed.
//!
//! Reclaims nothing. While whoever does is busy with the last order there is no other one: what it frees
//! is to be seen first.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::{Amounts, Eviction, Millis, Reclaim, measure};
use crate::node::Pressure;

/// Between two looks: upstream's figure.
const PERIOD: Duration = Duration::from_secs(10);

/// Where to look.
#[derive(Debug, Clone)]
pub struct Places {
    /// Where pods are kept.
    pub root: PathBuf,
    /// Where the runtime keeps images.
    pub images: PathBuf,
}

/// Looks until nobody listens any more. `more` is what is known beside the machine's own amounts, such as
/// what pods have left of their share. `orders` should have room for one.
pub async fn watch(
    mut eviction: Eviction,
    places: Places,
    more: impl Fn() -> Amounts + Send,
    pressure: watch::Sender<Pressure>,
    orders: mpsc::Sender<Reclaim>,
) {
    let started = Instant::now();
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = orders.closed() => return,
        }
        let mut amounts = measure(&places.root, &places.images);
        amounts.extend(more());
        let now = Millis::try_from(started.elapsed().as_millis()).unwrap_or(Millis::MAX);
        let assessment = eviction.assess(&amounts, now);
        pressure.send_if_modified(|told| {
            std::mem::replace(told, assessment.pressure) != assessment.pressure
        });
        if let Some(reclaim) = assessment.reclaim {
            let _ = orders.try_send(reclaim);
        }
    }
}

#[cfg(test)]
mod tests {
    use objects::Quantity;
    use objects::kubelet_config::{EvictionSignal, Threshold};

    use super::super::{Amount, Limit};
    use super::*;

    /// Long enough for a busy machine; nothing waits for it when all is well.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_machine_without_enough_is_told_of_and_reclaimed_for() {
        let limit = Limit {
            signal: EvictionSignal::AllocatableMemoryAvailable,
            value: Threshold::Quantity(Quantity::from_bytes(100)),
            grace: Duration::ZERO,
            minimum_reclaim: None,
        };
        let eviction = Eviction::new(vec![limit], Duration::ZERO, false);
        let here = std::env::temp_dir();
        let places = Places { root: here.clone(), images: here };
        let (tell, mut told) = watch::channel(Pressure::default());
        let (orders, mut ordered) = mpsc::channel(1);
        let more = || {
            let amount = Amount { available: 99, capacity: 1000 };
            Amounts::from([(EvictionSignal::AllocatableMemoryAvailable, amount)])
        };
        let task = tokio::spawn(super::watch(eviction, places, more, tell, orders));
        let order = tokio::time::timeout(PATIENCE, ordered.recv()).await.unwrap().unwrap();
        assert_eq!(order.resource, "memory");
        let pressed = tokio::time::timeout(PATIENCE, told.wait_for(|told| told.memory)).await;
        assert!(pressed.unwrap().is_ok());
        drop(ordered);
        tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap();
    }
}
