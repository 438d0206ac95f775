//! What the controllers are told at their start: [`Options`], and which of them run: [`Controller`].

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use scheduling::Settings;
use scheduling::queue::BackoffConfig;
use thiserror::Error;
use tokio::sync::watch;

macro_rules! controllers {
    ($($(#[$doc:meta])* $name:ident, $word:literal;)*) => {
        /// A loop, under the name by which `--controllers` knows it.
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
    /// Jobs that are over and have outlived their time.
    FinishedJobs, "ttl-after-finished-controller";
    Namespace, "namespace-controller";
    Garbage, "garbage-collector-controller";
    NodeLifecycle, "node-lifecycle-controller";
    TaintEviction, "taint-eviction-controller";
    Quota, "resourcequota-controller";
    Disruption, "disruption-controller";
    ServiceAccount, "serviceaccount-controller";
    /// Runs only where the authority of the API is known.
    RootCa, "root-ca-certificate-publisher-controller";
    /// Events that are old.
    EventExpiry, "event-expiry-controller";
    PodGarbage, "pod-garbage-collector-controller";
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which controllers run.
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
    /// Reads upstream's form: `*` is all that are on by default, `name` is on, `-name` is off. Where
    /// only some are switched off the others are on; upstream then runs none, which nobody means.
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

/// What the controllers are told. Times are upstream's by default.
#[derive(Debug, Clone)]
pub struct Options {
    pub enabled: Selection,
    /// How the scheduler decides.
    pub scheduling: Settings,
    /// How long unschedulable pods wait.
    pub backoff: BackoffConfig,
    /// How long a node may be silent.
    pub node_monitor_grace: Duration,
    /// How often nodes are looked at.
    pub node_monitor_period: Duration,
    /// How long events are kept.
    pub event_ttl: Duration,
    /// How many pods that have ended are kept; none are removed below.
    pub terminated_pods: usize,
    /// How long pods of a node that is gone are kept.
    pub orphaned_pods: Duration,
    /// The certificates of the API's authorities, which every namespace is to have. They may change.
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
    fn loops_are_chosen_as_upstream_chooses_them() {
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
