//! Options of the controllers: [`Options`], and the list of controllers: [`Controller`].

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use scheduling::Settings;
use scheduling::queue::BackoffConfig;
use thiserror::Error;
use tokio::sync::watch;

macro_rules! controllers {
    ($($(#[$doc:meta])* $name:ident, $word:literal;)*) => {
        /// A controller, with its name in `--controllers`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Controller { $($(#[$doc])* $name,)* }

        impl Controller {
            pub const ALL: &'static [Controller] = &[$(Controller::$name,)*];

            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Controller::$name => $word,)* }
            }
        }
    };
}

controllers! {
    Scheduler, "scheduler";
    Deployment, "deployment-controller";
    ReplicaSet, "replicaset-controller";
    DaemonSet, "daemonset-controller";
    Job, "job-controller";
    /// Deletes finished jobs after their TTL.
    FinishedJobs, "ttl-after-finished-controller";
    Namespace, "namespace-controller";
    Garbage, "garbage-collector-controller";
    NodeLifecycle, "node-lifecycle-controller";
    TaintEviction, "taint-eviction-controller";
    Quota, "resourcequota-controller";
    Disruption, "disruption-controller";
    ServiceAccount, "serviceaccount-controller";
    /// Runs only if the API server's CA certificates are known.
    RootCa, "root-ca-certificate-publisher-controller";
    /// Deletes old events.
    EventExpiry, "event-expiry-controller";
    PodGarbage, "pod-garbage-collector-controller";
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The enabled controllers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection(BTreeSet<Controller>);

impl Default for Selection {
    fn default() -> Selection {
        Selection(Controller::ALL.iter().copied().collect())
    }
}

#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "{0:?} is not in the list of known controllers: {known}",
    known = Controller::ALL.iter().map(|known| known.name()).collect::<Vec<_>>().join(", ")
)]
pub struct UnknownController(pub String);

impl Selection {
    /// Parses upstream's form: `*` enables all, `name` enables one, `-name` disables one. If only
    /// disabled names are given, the others stay enabled; upstream would run none, which is never
    /// intended.
    pub fn parse<'a>(
        words: impl IntoIterator<Item = &'a str>,
    ) -> Result<Selection, UnknownController> {
        let find = |word: &str| {
            let known = Controller::ALL.iter().copied().find(|known| known.name() == word);
            known.ok_or_else(|| UnknownController(word.to_owned()))
        };
        let (mut all, mut on, mut off) = (false, BTreeSet::new(), BTreeSet::new());
        for word in words {
            match word.strip_prefix('-') {
                _ if word == "*" => all = true,
                Some(word) => {
                    off.insert(find(word)?);
                }
                None => {
                    on.insert(find(word)?);
                }
            }
        }
        all |= on.is_empty() && !off.is_empty();
        let chosen = Controller::ALL.iter().copied();
        Ok(Selection(chosen.filter(|l| on.contains(l) || (all && !off.contains(l))).collect()))
    }

    #[must_use]
    pub fn has(&self, name: Controller) -> bool {
        self.0.contains(&name)
    }
}

/// Options of the controllers. Times default to upstream's.
#[derive(Debug, Clone)]
pub struct Options {
    pub enabled: Selection,
    /// The scheduler's profile and feature gates.
    pub scheduling: Settings,
    /// The retry delays of unschedulable pods.
    pub backoff: BackoffConfig,
    /// The time without a heartbeat after which a node is unresponsive.
    pub node_monitor_grace: Duration,
    /// The interval at which all nodes are checked.
    pub node_monitor_period: Duration,
    /// The lifetime of events.
    pub event_ttl: Duration,
    /// The number of finished pods that are kept; zero keeps all.
    pub terminated_pods: usize,
    /// The time for which pods of a deleted node are kept.
    pub orphaned_pods: Duration,
    /// The API server's CA certificates, which are published in every namespace. They may change.
    pub root_ca: Option<watch::Receiver<String>>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            enabled: Selection::default(),
            scheduling: Settings { qos_resources: true, ..Settings::default() },
            backoff: BackoffConfig::default(),
            node_monitor_grace: Duration::from_secs(40),
            node_monitor_period: Duration::from_secs(5),
            event_ttl: Duration::from_secs(3600),
            terminated_pods: 12_500,
            orphaned_pods: Duration::from_secs(40),
            root_ca: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_are_selected_as_upstream_does() {
        let check = |words: &[&str], expected: Result<usize, &str>| {
            let found = Selection::parse(words.iter().copied());
            let found = found.map(|selection| selection.0.len()).map_err(|error| error.0);
            assert_eq!(found, expected.map_err(str::to_owned), "{words:?}");
        };
        check(&["*"], Ok(Controller::ALL.len()));
        check(&["*", "-scheduler"], Ok(Controller::ALL.len() - 1));
        check(&["job-controller"], Ok(1));
        check(&["-job-controller"], Ok(Controller::ALL.len() - 1));
        check(&["job-controller", "-scheduler"], Ok(1));
        check(&[], Ok(0));
        check(&["*", "-nonsense"], Err("nonsense"));
        assert!(Selection::default().has(Controller::Garbage));
    }
}
