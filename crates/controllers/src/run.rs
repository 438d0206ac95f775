//! Starting and stopping the loops: [`run`] and its [`Handle`].

use std::sync::Arc;

use client::{BoxFuture, Cache, Client, Key, Update, kind};
use scheduling::ProfileError;
use thiserror::Error;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::counters::Counters;
use crate::daemon_set::{self, DaemonSets};
use crate::deployment::{self, Deployments};
use crate::disruption::{self, Budgets};
use crate::garbage::Garbage;
use crate::job::{FinishedJobs, Jobs};
use crate::namespace::{self, Namespaces, RootCa, ServiceAccounts};
use crate::node_lifecycle;
use crate::options::{Loop, Options};
use crate::quota::{self, Quotas};
use crate::record::{self, Recorder};
use crate::replica_set::ReplicaSets;
use crate::scheduler;
use crate::supervise::{Start, supervise};
use crate::sweep;
use crate::taint_eviction::{self, TaintEvictions};
use crate::work::{Inbox, Reconcile, feed, run_keyed};
use crate::workload::owners_of;
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
    let mut loops: JoinSet<()> = JoinSet::new();
    let occurrences = Arc::new(Mutex::new(occurrences));
    let writer = client.clone();
    let deliver: Start =
        Box::new(move || Box::pin(record::deliver(writer.clone(), clock, occurrences.clone())));
    rest.spawn(supervise("event_writer", deliver, counters.clone(), stopped.clone()));
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
        let stop = stopped.clone();
        let start: Start =
            Box::new(move || Box::pin(scheduler::run(setting.clone(), stop.clone())));
        loops.spawn(supervise(scheduler::NAME, start, counters.clone(), stopped.clone()));
    }
    let client = client.named("kube-controller-manager");
    let world = Arc::new(World::new(client, clock, recorder, options, counters.clone()));
    if Loop::ALL.iter().any(|name| *name != Loop::Scheduler && chosen.has(*name)) {
        for (name, informer) in world.informers() {
            rest.spawn(supervise(name, informer, counters.clone(), stopped.clone()));
        }
    }
    let mut start = Starter { world, loops: &mut loops, rest: &mut rest, stopped };
    start.workloads();
    start.cluster();
    Ok(Handle { stop, loops, rest, counters })
}

/// Starts loops over one world.
struct Starter<'a> {
    world: Arc<World>,
    loops: &'a mut JoinSet<()>,
    rest: &'a mut JoinSet<()>,
    stopped: watch::Receiver<bool>,
}

/// How many objects of a kind are worked on at a time. Upstream's figure.
const WORKERS: usize = 5;
/// The same for garbage, of which there is more. Upstream's figure.
const GARBAGE_WORKERS: usize = 20;

impl Starter<'_> {
    fn has(&self, name: Loop) -> bool {
        self.world.options.loops.has(name)
    }

    /// Starts a loop that works by key, once the caches are filled.
    fn keyed<R: Reconcile>(&mut self, work: R, workers: usize) -> Keys {
        let (sender, keys) = mpsc::unbounded_channel();
        self.start(Arc::new(work), keys, workers);
        Keys { name: R::NAME, sender }
    }

    /// Runs a loop under supervision.
    fn spawn(&mut self, name: &'static str, start: Start) {
        let counters = self.world.counters.clone();
        self.loops.spawn(supervise(name, start, counters, self.stopped.clone()));
    }

    fn start<R: Reconcile>(
        &mut self,
        work: Arc<R>,
        keys: mpsc::UnboundedReceiver<Key>,
        workers: usize,
    ) {
        let (world, stop) = (self.world.clone(), self.stopped.clone());
        let inbox = Inbox::new(keys);
        let start: Start = Box::new(move || {
            let (world, mut stop) = (world.clone(), stop.clone());
            let (work, inbox) = (work.clone(), inbox.clone());
            Box::pin(async move {
                tokio::select! {
                    () = world.synced() => {}
                    _ = stop.wait_for(|stop| *stop) => return,
                }
                let (clock, counters) = (world.clock, world.counters.clone());
                run_keyed(work, inbox, workers, clock, counters, stop).await;
            })
        });
        self.spawn(R::NAME, start);
    }

    /// Feeds a loop with the keys that changes of a cache concern.
    fn feed<T: Send + Sync + 'static>(
        &mut self,
        keys: &Keys,
        cache: fn(&World) -> &Cache<T>,
        of: impl Fn(&World, &Update<T>) -> Vec<Key> + Clone + Send + 'static,
    ) {
        let (world, Keys { name, sender }) = (self.world.clone(), keys.clone());
        let start: Start = Box::new(move || {
            let (within, of) = (world.clone(), of.clone());
            let of = move |update: &Update<T>| of(&within, update);
            Box::pin(feed(name, cache(&world), sender.clone(), world.counters.clone(), of))
        });
        let counters = self.world.counters.clone();
        self.rest.spawn(supervise(name, start, counters, self.stopped.clone()));
    }

    fn workloads(&mut self) {
        if self.has(Loop::Deployment) {
            let keys = self.keyed(Deployments(self.world.clone()), WORKERS);
            self.feed(&keys, |w| &w.deployments, itself);
            self.feed(&keys, |w| &w.replica_sets, deployment::of_set);
            // One that recreates waits for the last pod of the old set to go.
            self.feed(&keys, |w| &w.pods, deployment::of_pod);
        }
        if self.has(Loop::ReplicaSet) {
            let keys = self.keyed(ReplicaSets(self.world.clone()), WORKERS);
            self.feed(&keys, |w| &w.replica_sets, itself);
            self.feed(
                &keys,
                |w| &w.pods,
                |w, update| owners_of(update, kind::REPLICA_SETS, &w.replica_sets),
            );
        }
        if self.has(Loop::DaemonSet) {
            let keys = self.keyed(DaemonSets(self.world.clone()), 2);
            self.feed(&keys, |w| &w.daemon_sets, itself);
            self.feed(
                &keys,
                |w| &w.pods,
                |w, update| owners_of(update, kind::DAEMON_SETS, &w.daemon_sets),
            );
            self.feed(&keys, |w| &w.nodes, daemon_set::of_node);
        }
        if self.has(Loop::Job) {
            let keys = self.keyed(Jobs(self.world.clone()), WORKERS);
            self.feed(&keys, |w| &w.jobs, itself);
            self.feed(&keys, |w| &w.pods, |w, update| owners_of(update, kind::JOBS, &w.jobs));
        }
        if self.has(Loop::FinishedJobs) {
            let keys = self.keyed(FinishedJobs(self.world.clone()), WORKERS);
            self.feed(&keys, |w| &w.jobs, itself);
        }
        if self.has(Loop::Disruption) {
            let keys = self.keyed(Budgets(self.world.clone()), WORKERS);
            self.feed(&keys, |w| &w.budgets, itself);
            self.feed(&keys, |w| &w.pods, disruption::of_pod);
            self.feed(&keys, |w| &w.deployments, disruption::of_owner);
            self.feed(&keys, |w| &w.replica_sets, disruption::of_owner);
        }
    }

    fn cluster(&mut self) {
        if self.has(Loop::Namespace) {
            let keys = self.keyed(Namespaces(self.world.clone()), 10);
            self.feed(&keys, |w| &w.namespaces, itself);
        }
        if self.has(Loop::ServiceAccount) {
            let keys = self.keyed(ServiceAccounts(self.world.clone()), 1);
            self.feed(&keys, |w| &w.namespaces, itself);
            self.feed(
                &keys,
                |w| &w.accounts,
                |_, update| {
                    let gone = update.new.is_none() && update.key.name() == "default";
                    gone.then(|| Key::new("", update.key.namespace())).into_iter().collect()
                },
            );
        }
        if let Some(certificate) = self.world.options.root_ca.clone()
            && self.has(Loop::RootCa)
        {
            let world = self.world.clone();
            let work = RootCa { world: world.clone(), certificate: certificate.clone() };
            let keys = self.keyed(work, 1);
            self.rest.spawn(namespace::on_new_authority(world, certificate, keys.sender.clone()));
            self.feed(&keys, |w| &w.namespaces, itself);
            self.feed(
                &keys,
                |w| &w.root_cas,
                |_, update| vec![Key::new("", update.key.namespace())],
            );
        }
        if self.has(Loop::Garbage) {
            let garbage = Arc::new(Garbage::new(self.world.clone()));
            let (sender, keys) = mpsc::unbounded_channel();
            for informer in garbage.informers(&sender) {
                let counters = self.world.counters.clone();
                self.rest.spawn(supervise(Garbage::NAME, informer, counters, self.stopped.clone()));
            }
            self.start(garbage, keys, GARBAGE_WORKERS);
        }
        if self.has(Loop::Quota) {
            let keys = self.keyed(Quotas(self.world.clone()), WORKERS);
            self.feed(&keys, |w| &w.quotas, itself);
            self.feed(&keys, |w| &w.pods, quota::of_pod);
            self.feed(
                &keys,
                |w| &w.accounts,
                |w, update| quota::of_namespace(w, update.key.namespace()),
            );
        }
        if self.has(Loop::TaintEviction) {
            let keys = self.keyed(TaintEvictions(self.world.clone()), 8);
            self.feed(&keys, |w| &w.pods, taint_eviction::of_pod);
            self.feed(&keys, |w| &w.nodes, taint_eviction::of_node);
        }
        if self.has(Loop::NodeLifecycle) {
            self.periodic(node_lifecycle::NAME, |world, stop| {
                Box::pin(node_lifecycle::run(world, stop))
            });
        }
        if self.has(Loop::EventExpiry) {
            self.periodic(sweep::EVENT_EXPIRY, |world, stop| Box::pin(sweep::events(world, stop)));
        }
        if self.has(Loop::PodGarbage) {
            self.periodic(sweep::POD_GC, |world, stop| Box::pin(sweep::pods(world, stop)));
        }
    }

    /// Starts a loop that looks at all objects from time to time.
    fn periodic(
        &mut self,
        name: &'static str,
        run: fn(Arc<World>, watch::Receiver<bool>) -> BoxFuture<'static, ()>,
    ) {
        let (world, stop) = (self.world.clone(), self.stopped.clone());
        self.spawn(name, Box::new(move || run(world.clone(), stop.clone())));
    }
}

/// The way to a loop that works by key.
#[derive(Clone)]
struct Keys {
    name: &'static str,
    sender: mpsc::UnboundedSender<Key>,
}

/// A change concerns the object itself.
fn itself<T>(_: &World, update: &Update<T>) -> Vec<Key> {
    vec![update.key.clone()]
}
