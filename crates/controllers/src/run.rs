//! Starting and stopping the controllers: [`run`] and its [`Handle`].

use std::sync::Arc;

use client::events::write_events;
use client::{BoxFuture, Cache, Client, Key, Update, kind};
use scheduling::ProfileError;
use thiserror::Error;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::{debug, info};

use crate::clock::Clock;
use crate::context::ControllerContext;
use crate::counters::Counters;
use crate::daemon_set::{self, DaemonSets};
use crate::deployment::{self, Deployments};
use crate::disruption::{self, Budgets};
use crate::garbage::Garbage;
use crate::job::{FinishedJobs, Jobs};
use crate::namespace::{self, Namespaces, RootCa, ServiceAccounts};
use crate::node_lifecycle;
use crate::options::{Controller, Options};
use crate::quota::{self, Quotas};
use crate::record::{self, Recorder};
use crate::replica_set::ReplicaSets;
use crate::scheduler;
use crate::supervise::{Start, supervise};
use crate::sweep;
use crate::taint_eviction::{self, TaintEvictions};
use crate::workload::keys_of_owners;
use crate::workqueue::{Inbox, Reconcile, feed, run_keyed};

/// The reason why the controllers were not started.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("invalid scheduler configuration")]
    Scheduler(#[from] ProfileError),
}

/// The running controllers. Dropping the handle aborts them; [`Handle::stop`] lets them finish
/// their current work.
#[derive(Debug)]
pub struct Handle {
    stop: watch::Sender<bool>,
    controllers: JoinSet<()>,
    /// Informers and the event writer, which stop after the controllers.
    rest: JoinSet<()>,
    counters: Arc<Counters>,
}

impl Handle {
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }

    /// Stops the controllers after their current work.
    pub async fn stop(mut self) {
        info!("stopping the controllers");
        self.stop.send_replace(true);
        while self.controllers.join_next().await.is_some() {}
        self.rest.shutdown().await;
        info!("the controllers have stopped");
    }
}

/// Starts the enabled controllers.
pub fn run(client: &Client, options: Options) -> Result<Handle, StartError> {
    // Reject an invalid configuration here; the scheduler would only stop.
    scheduling::Scheduler::new(&options.scheduling)?;
    let clock = Clock::start();
    let counters = Arc::new(Counters::default());
    let (recorder, queue) = Recorder::new(clock, counters.clone());
    let (stop, stopped) = watch::channel(false);
    let mut rest = JoinSet::new();
    let mut controllers: JoinSet<()> = JoinSet::new();
    let writer = client.clone();
    let write_events: Start =
        Box::new(move || Box::pin(write_events(queue.clone(), writer.clone(), record::MAX_WRITES)));
    rest.spawn(supervise("event_writer", write_events, counters.clone(), stopped.clone()));
    let enabled = options.enabled.clone();
    if enabled.has(Controller::Scheduler) {
        let context = scheduler::SchedulerContext {
            client: client.named("kube-scheduler"),
            recorder: recorder.clone(),
            counters: counters.clone(),
            clock,
            settings: options.scheduling.clone(),
            backoff: options.backoff,
        };
        let stop = stopped.clone();
        let start: Start =
            Box::new(move || Box::pin(scheduler::run(context.clone(), stop.clone())));
        debug!(controller = scheduler::NAME, "starting the controller");
        controllers.spawn(supervise(scheduler::NAME, start, counters.clone(), stopped.clone()));
    }
    let client = client.named("kube-controller-manager");
    let context =
        Arc::new(ControllerContext::new(client, clock, recorder, options, counters.clone()));
    if Controller::ALL.iter().any(|name| *name != Controller::Scheduler && enabled.has(*name)) {
        for (name, informer) in context.informers() {
            rest.spawn(supervise(name, informer, counters.clone(), stopped.clone()));
        }
    }
    let mut start = Starter { context, controllers: &mut controllers, rest: &mut rest, stopped };
    start.workloads();
    start.cluster();
    Ok(Handle { stop, controllers, rest, counters })
}

/// Starts controllers that share one context.
struct Starter<'a> {
    context: Arc<ControllerContext>,
    controllers: &'a mut JoinSet<()>,
    rest: &'a mut JoinSet<()>,
    stopped: watch::Receiver<bool>,
}

/// The number of objects of a kind that are processed concurrently. Upstream's figure.
const WORKERS: usize = 5;
/// The same for garbage collection, which has more objects. Upstream's figure.
const GARBAGE_WORKERS: usize = 20;

impl Starter<'_> {
    fn has(&self, name: Controller) -> bool {
        self.context.options.enabled.has(name)
    }

    /// Starts a controller with a work queue once the caches are synced.
    fn keyed<R: Reconcile>(&mut self, work: R, workers: usize) -> Keys {
        let (sender, keys) = mpsc::unbounded_channel();
        self.start(Arc::new(work), keys, workers);
        Keys { name: R::NAME, sender }
    }

    /// Runs a controller under supervision.
    fn spawn(&mut self, name: &'static str, start: Start) {
        debug!(controller = name, "starting the controller");
        let counters = self.context.counters.clone();
        self.controllers.spawn(supervise(name, start, counters, self.stopped.clone()));
    }

    fn start<R: Reconcile>(
        &mut self,
        work: Arc<R>,
        keys: mpsc::UnboundedReceiver<Key>,
        workers: usize,
    ) {
        let (context, stop) = (self.context.clone(), self.stopped.clone());
        let inbox = Inbox::new(keys);
        let start: Start = Box::new(move || {
            let (context, mut stop) = (context.clone(), stop.clone());
            let (work, inbox) = (work.clone(), inbox.clone());
            Box::pin(async move {
                tokio::select! {
                    () = context.synced() => {}
                    _ = stop.wait_for(|stop| *stop) => return,
                }
                let (clock, counters) = (context.clock, context.counters.clone());
                run_keyed(work, inbox, workers, clock, counters, stop).await;
            })
        });
        self.spawn(R::NAME, start);
    }

    /// Queues the keys that changes of a cache concern.
    fn feed<T: Send + Sync + 'static>(
        &mut self,
        keys: &Keys,
        cache: fn(&ControllerContext) -> &Cache<T>,
        of: impl Fn(&ControllerContext, &Update<T>) -> Vec<Key> + Clone + Send + 'static,
    ) {
        let (context, Keys { name, sender }) = (self.context.clone(), keys.clone());
        let start: Start = Box::new(move || {
            let (within, of) = (context.clone(), of.clone());
            let of = move |update: &Update<T>| of(&within, update);
            Box::pin(feed(name, cache(&context), sender.clone(), context.counters.clone(), of))
        });
        let counters = self.context.counters.clone();
        self.rest.spawn(supervise(name, start, counters, self.stopped.clone()));
    }

    fn workloads(&mut self) {
        if self.has(Controller::Deployment) {
            let keys = self.keyed(Deployments(self.context.clone()), WORKERS);
            self.feed(&keys, |c| &c.deployments, itself);
            self.feed(&keys, |c| &c.replica_sets, deployment::keys_for_set);
            // A `Recreate` deployment waits until the last pod of the old replica set is gone.
            self.feed(&keys, |c| &c.pods, deployment::keys_for_pod);
        }
        if self.has(Controller::ReplicaSet) {
            let keys = self.keyed(ReplicaSets(self.context.clone()), WORKERS);
            self.feed(&keys, |c| &c.replica_sets, itself);
            self.feed(
                &keys,
                |c| &c.pods,
                |c, update| keys_of_owners(update, kind::REPLICA_SETS, &c.replica_sets),
            );
        }
        if self.has(Controller::DaemonSet) {
            let keys = self.keyed(DaemonSets(self.context.clone()), 2);
            self.feed(&keys, |c| &c.daemon_sets, itself);
            self.feed(
                &keys,
                |c| &c.pods,
                |c, update| keys_of_owners(update, kind::DAEMON_SETS, &c.daemon_sets),
            );
            self.feed(&keys, |c| &c.nodes, daemon_set::keys_for_node);
        }
        if self.has(Controller::Job) {
            let keys = self.keyed(Jobs(self.context.clone()), WORKERS);
            self.feed(&keys, |c| &c.jobs, itself);
            self.feed(&keys, |c| &c.pods, |c, update| keys_of_owners(update, kind::JOBS, &c.jobs));
        }
        if self.has(Controller::FinishedJobs) {
            let keys = self.keyed(FinishedJobs(self.context.clone()), WORKERS);
            self.feed(&keys, |c| &c.jobs, itself);
        }
        if self.has(Controller::Disruption) {
            let keys = self.keyed(Budgets(self.context.clone()), WORKERS);
            self.feed(&keys, |c| &c.budgets, itself);
            self.feed(&keys, |c| &c.pods, disruption::keys_for_pod);
            self.feed(&keys, |c| &c.deployments, disruption::keys_for_owner);
            self.feed(&keys, |c| &c.replica_sets, disruption::keys_for_owner);
        }
    }

    fn cluster(&mut self) {
        if self.has(Controller::Namespace) {
            let keys = self.keyed(Namespaces(self.context.clone()), 10);
            self.feed(&keys, |c| &c.namespaces, itself);
        }
        if self.has(Controller::ServiceAccount) {
            let keys = self.keyed(ServiceAccounts(self.context.clone()), 1);
            self.feed(&keys, |c| &c.namespaces, itself);
            self.feed(
                &keys,
                |c| &c.accounts,
                |_, update| {
                    let gone = update.new.is_none() && update.key.name() == "default";
                    gone.then(|| Key::new("", update.key.namespace())).into_iter().collect()
                },
            );
        }
        if let Some(certificate) = self.context.options.root_ca.clone()
            && self.has(Controller::RootCa)
        {
            let context = self.context.clone();
            let work = RootCa { context: context.clone(), certificate: certificate.clone() };
            let keys = self.keyed(work, 1);
            let (sender, counters) = (keys.sender.clone(), context.counters.clone());
            let requeue: Start = Box::new(move || {
                let (context, certificate) = (context.clone(), certificate.clone());
                Box::pin(namespace::requeue_on_new_ca(context, certificate, sender.clone()))
            });
            self.rest.spawn(supervise(RootCa::NAME, requeue, counters, self.stopped.clone()));
            self.feed(&keys, |c| &c.namespaces, itself);
            self.feed(
                &keys,
                |c| &c.root_cas,
                |_, update| vec![Key::new("", update.key.namespace())],
            );
        }
        if self.has(Controller::Garbage) {
            let garbage = Arc::new(Garbage::new(self.context.clone()));
            let (sender, keys) = mpsc::unbounded_channel();
            for informer in garbage.informers(&sender) {
                let counters = self.context.counters.clone();
                self.rest.spawn(supervise(Garbage::NAME, informer, counters, self.stopped.clone()));
            }
            self.start(garbage, keys, GARBAGE_WORKERS);
        }
        if self.has(Controller::Quota) {
            let keys = self.keyed(Quotas(self.context.clone()), WORKERS);
            self.feed(&keys, |c| &c.quotas, itself);
            self.feed(&keys, |c| &c.pods, quota::keys_for_pod);
            self.feed(
                &keys,
                |c| &c.accounts,
                |c, update| quota::keys_in_namespace(c, update.key.namespace()),
            );
        }
        if self.has(Controller::TaintEviction) {
            let keys = self.keyed(TaintEvictions(self.context.clone()), 8);
            self.feed(&keys, |c| &c.pods, taint_eviction::keys_for_pod);
            self.feed(&keys, |c| &c.nodes, taint_eviction::keys_for_node);
        }
        if self.has(Controller::NodeLifecycle) {
            self.periodic(node_lifecycle::NAME, |context, stop| {
                Box::pin(node_lifecycle::run(context, stop))
            });
        }
        if self.has(Controller::EventExpiry) {
            self.periodic(sweep::EVENT_EXPIRY, |context, stop| {
                Box::pin(sweep::events(context, stop))
            });
        }
        if self.has(Controller::PodGarbage) {
            self.periodic(sweep::POD_GC, |context, stop| Box::pin(sweep::pods(context, stop)));
        }
    }

    /// Starts a controller that checks all objects periodically.
    fn periodic(
        &mut self,
        name: &'static str,
        run: fn(Arc<ControllerContext>, watch::Receiver<bool>) -> BoxFuture<'static, ()>,
    ) {
        let (context, stop) = (self.context.clone(), self.stopped.clone());
        self.spawn(name, Box::new(move || run(context.clone(), stop.clone())));
    }
}

/// The sender of keys to a controller with a work queue.
#[derive(Clone)]
struct Keys {
    name: &'static str,
    sender: mpsc::UnboundedSender<Key>,
}

/// Returns the key of the changed object.
fn itself<T>(_: &ControllerContext, update: &Update<T>) -> Vec<Key> {
    vec![update.key.clone()]
}
