//! Measures the machine periodically: [`watch()`] reports the pressure of the node and sends requests to reclaim.
//!
//! Reclaims nothing. While the receiver handles a request there is no other one, so that its effect is measured first.

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tracing::info;

use super::measure;
use lifecycle::eviction::{Eviction, Millis, Pressure, Reclaim, SignalObservations};

/// Interval between two measurements. Upstream's value.
const PERIOD: Duration = Duration::from_secs(10);

/// The directories to measure.
#[derive(Debug, Clone)]
pub struct Places {
    /// The directory of pods.
    pub root: PathBuf,
    /// The image directory of the runtime.
    pub images: PathBuf,
}

/// Measures until the receivers are gone. `more` returns amounts that are not of the machine, such as
/// what is left of the pods' share. `orders` should have a capacity of one.
pub async fn watch(
    mut eviction: Eviction,
    places: Places,
    more: impl Fn() -> SignalObservations + Send,
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
        pressure.send_if_modified(|published| {
            let changed = std::mem::replace(published, assessment.pressure) != assessment.pressure;
            if changed {
                let Pressure { memory, disk, pids } = assessment.pressure;
                info!(memory, disk, pids, "the pressure of the node changed");
            }
            changed
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

    use super::*;
    use lifecycle::eviction::{EvictionThreshold, SignalObservation};

    /// Long enough for a busy machine. A successful test does not wait for it.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_low_machine_reports_pressure_and_a_reclaim() {
        let limit = EvictionThreshold {
            signal: EvictionSignal::AllocatableMemoryAvailable,
            value: Threshold::Quantity(Quantity::from_bytes(100)),
            grace: Duration::ZERO,
            minimum_reclaim: None,
        };
        let eviction = Eviction::new(vec![limit], Duration::ZERO, false);
        let here = std::env::temp_dir();
        let places = Places { root: here.clone(), images: here };
        let (sender, mut published) = watch::channel(Pressure::default());
        let (orders, mut ordered) = mpsc::channel(1);
        let more = || {
            let amount = SignalObservation { available: 99, capacity: 1000 };
            SignalObservations::from([(EvictionSignal::AllocatableMemoryAvailable, amount)])
        };
        let task = tokio::spawn(super::watch(eviction, places, more, sender, orders));
        let order = tokio::time::timeout(PATIENCE, ordered.recv()).await.unwrap().unwrap();
        assert_eq!(order.resource, "memory");
        let pressed =
            tokio::time::timeout(PATIENCE, published.wait_for(|published| published.memory)).await;
        assert!(pressed.unwrap().is_ok());
        drop(ordered);
        tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap();
    }
}
