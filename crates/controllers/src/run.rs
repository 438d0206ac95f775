//! Starting and stopping the loops: [`run`] and its [`Handle`].

use std::sync::Arc;

use scheduling::ProfileError;
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::client::Client;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::informer::{Cache, Update};
use crate::key::Key;
use crate::options::{Loop, Options};
use crate::record::{self, Recorder};
use crate::scheduler;
use crate::work::{Reconcile, feed, run_keyed};
use crate::world::World;

/// Why the loops were not started.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("the scheduler's configuration cannot be used")]
    Scheduler(#[from] ProfileError),
}

/// The loops under way. Dropped, they end at once; stopped, they finish what they are at.
#[derive(Debug)]
pub struct Handle {
    stop: watch::Sender<bool>,
    loops: JoinSet<()>,
    /// Informers and the writer of events, which end after the loops.
    rest: JoinSet<()>,
    counters: Arc<Counters>,
}

impl Handle {
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Lets every loop finish what it is at.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        while self.loops.join_next().await.is_some() {}
        self.rest.shutdown().await;
    }
}

/// Starts the loops that are chosen.
pub fn run(client: &Client, options: Options) -> Result<Handle, StartError> {
    // Said now rather than by a loop that does nothing.
    scheduling::Scheduler::new(&options.scheduling)?;
    let clock = Clock::start();
    let counters = Arc::new(Counters::default());
    let (recorder, occurrences) = Recorder::new(counters.clone());
    let (stop, stopped) = watch::channel(false);
    let mut rest = JoinSet::new();
    rest.spawn(record::deliver(client.clone(), clock, occurrences));
    let mut loops = JoinSet::new();
    let chosen = options.loops.clone();
    if chosen.has(Loop::Scheduler) {
        let setting = scheduler::Setting {
            client: client.named("kube-scheduler"),
            recorder: recorder.clone(),
            counters: counters.clone(),
            clock,
            settings: options.scheduling.clone(),
            patience: options.patience,
        };
        loops.spawn(scheduler::run(setting, stopped.clone()));
    }
    let client = client.named("kube-controller-manager");
    let world = Arc::new(World::new(client, clock, recorder, options, counters.clone()));
    if Loop::ALL.iter().any(|name| *name != Loop::Scheduler && chosen.has(*name)) {
        for informer in world.informers() {
            rest.spawn(informer);
        }
    }
    let _ = (&world, stopped);
    Ok(Handle { stop, loops, rest, counters })
}
