//! Services, controllers, budgets and namespaces, whose selectors group pods.
//!
//! Main type: [`Workloads`]. Default spread constraints need the groups of pods, and preemption
//! needs the budgets that protect them.

use std::collections::{BTreeMap, HashMap, HashSet};

use objects::types;
use serde::Deserialize as _;

use crate::interner::{Interner, Symbol};
use crate::labels::{Labels, Selector};
use crate::object::Controller;
use crate::shape::{PodShape, pairs};

/// A disruption budget.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) namespace: Symbol,
    pub(crate) selector: Selector,
    pub(crate) allowed: i64,
    /// Names of pods that already count as disrupted.
    pub(crate) disrupted: HashSet<String>,
}

/// The selectors of pods, by namespace and name.
#[derive(Debug, Default)]
pub(crate) struct Workloads {
    pub(crate) namespaces: HashMap<Symbol, Labels>,
    /// Absent selectors select nothing and are not kept.
    services: BTreeMap<(Symbol, Symbol), Vec<(Symbol, Symbol)>>,
    /// Replication controllers, replica sets and stateful sets, by namespace, kind and name.
    controllers: HashMap<(Symbol, Symbol, Symbol), Selector>,
    budgets: BTreeMap<(Symbol, Symbol), Budget>,
}

impl Workloads {
    fn key(metadata: &types::ObjectMeta, symbols: &mut Interner) -> (Symbol, Symbol) {
        (symbols.intern(&metadata.namespace), symbols.intern(&metadata.name))
    }

    pub(crate) fn apply_namespace(&mut self, object: &types::Namespace, symbols: &mut Interner) {
        let mut labels = object.metadata.labels.clone();
        let name = &object.metadata.name;
        labels.insert("kubernetes.io/metadata.name".to_owned(), name.clone());
        let labels = Labels::new(&labels, symbols);
        self.namespaces.insert(symbols.intern(name), labels);
    }

    pub(crate) fn apply_service(&mut self, object: &types::Service, symbols: &mut Interner) {
        let key = Workloads::key(&object.metadata, symbols);
        if object.spec.selector.is_empty() {
            self.services.remove(&key);
        } else {
            self.services.insert(key, pairs(&object.spec.selector, symbols));
        }
    }

    pub(crate) fn apply_controller(
        &mut self,
        kind: &str,
        object: &Controller,
        symbols: &mut Interner,
    ) {
        let (namespace, name) = Workloads::key(&object.metadata, symbols);
        let key = (namespace, symbols.intern(kind), name);
        let selector = object.spec.selector.as_ref();
        let selector = if kind == "ReplicationController" {
            let labels = selector.and_then(|s| BTreeMap::deserialize(s).ok());
            labels.map(|labels| Selector::everything().and_labels(&pairs(&labels, symbols)))
        } else {
            let selector = selector.and_then(|s| types::LabelSelector::deserialize(s).ok());
            Some(Selector::new(selector.as_ref(), symbols))
        };
        match selector {
            Some(selector) => {
                self.controllers.insert(key, selector);
            }
            None => {
                self.controllers.remove(&key);
            }
        }
    }

    pub(crate) fn apply_budget(
        &mut self,
        object: &types::PodDisruptionBudget,
        symbols: &mut Interner,
    ) {
        let key = Workloads::key(&object.metadata, symbols);
        let budget = Budget {
            namespace: key.0,
            selector: Selector::new(object.spec.selector.as_deref(), symbols),
            allowed: object.status.disruptions_allowed.into(),
            disrupted: object.status.disrupted_pods.keys().cloned().collect(),
        };
        self.budgets.insert(key, budget);
    }

    pub(crate) fn remove_namespace(&mut self, name: Symbol) {
        self.namespaces.remove(&name);
    }

    pub(crate) fn remove_service(&mut self, namespace: Symbol, name: Symbol) {
        self.services.remove(&(namespace, name));
    }

    pub(crate) fn remove_controller(&mut self, namespace: Symbol, kind: Symbol, name: Symbol) {
        self.controllers.remove(&(namespace, kind, name));
    }

    pub(crate) fn remove_budget(&mut self, namespace: Symbol, name: Symbol) {
        self.budgets.remove(&(namespace, name));
    }

    pub(crate) fn budgets(&self) -> impl Iterator<Item = &Budget> {
        self.budgets.values()
    }

    /// Returns the selector of the pod's group: the pods that its services and its controller
    /// select. `None` if nothing selects it.
    pub(crate) fn companions(&self, pod: &PodShape, everything: &Selector) -> Option<Selector> {
        let mut pairs: Vec<(Symbol, Symbol)> = Vec::new();
        for ((namespace, _), selector) in &self.services {
            let selects = |(k, v): &(Symbol, Symbol)| pod.labels.get(*k) == Some(*v);
            if *namespace == pod.namespace && selector.iter().all(selects) {
                pairs.extend(selector);
            }
        }
        pairs.sort_unstable();
        pairs.dedup();
        let mut selector = everything.clone().and_labels(&pairs);
        let controller =
            pod.owner.and_then(|(kind, name)| self.controllers.get(&(pod.namespace, kind, name)));
        if let Some(controller) = controller {
            selector = selector.and_selector(controller);
        }
        (!selector.is_everything()).then_some(selector)
    }
}
