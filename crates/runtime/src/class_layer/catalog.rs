//! The QoS-class resources that the layer offers, and the rules of assigning them: [`ClassCatalog`].
//!
//! Pure. It decides which class a pod or a container has and whether it may change. It does not count capacity: the agent
//! does, because only the agent knows the pods that are admitted and not created yet.

use std::collections::BTreeMap;

pub use cri::Level;
use cri::v1;

/// The informational resource with the pod's QoS class (KEP-3008). It is accepted from every client, never advertised, and
/// never a reason for a call to fail.
pub(crate) const POD_QOS: &str = "pod-qos";

/// A resource with its classes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassResource {
    /// The full name, for example `k8s.io/rdt`.
    pub name: String,
    pub level: Level,
    /// True if the class of a running pod or container can be changed.
    pub mutable: bool,
    /// The class of pods and containers that request none. `None` leaves them to the system.
    pub default: Option<String>,
    /// Classes with their capacity; zero is unlimited.
    pub classes: BTreeMap<String, u64>,
}

/// The reason why a class is not assigned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClassRefusal {
    #[error("unknown QoS resource type {name:?}; offered for a {level}: {}", listed(.offered))]
    UnknownResource { level: Level, name: String, offered: Vec<String> },
    #[error("unknown {name:?} class {class:?}; offered: {}", listed(.offered))]
    UnknownClass { name: String, class: String, offered: Vec<String> },
    #[error("QoS resource {name:?} is requested twice, with classes {first:?} and {second:?}")]
    Conflicting { name: String, first: String, second: String },
    #[error(
        "the class of QoS resource {name:?} cannot be changed from {from:?} to {to:?}: the resource is immutable"
    )]
    Immutable { name: String, from: String, to: String },
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}

/// Classes by the full name of their resource. An absent resource has the system's default.
pub type Assignments = BTreeMap<String, String>;

/// All resources that the layer offers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClassCatalog {
    resources: Vec<ClassResource>,
}

impl ClassCatalog {
    #[must_use]
    pub fn new(resources: Vec<ClassResource>) -> ClassCatalog {
        ClassCatalog { resources }
    }

    /// Returns the resources as `RuntimeStatus.resources` lists them.
    #[must_use]
    pub fn advertised(&self) -> v1::ResourcesInfo {
        let listed = |level| {
            let resources = self.resources.iter().filter(|resource| resource.level == level);
            let resources = resources.map(|resource| v1::QosResourceInfo {
                name: resource.name.clone(),
                mutable: resource.mutable,
                classes: resource
                    .classes
                    .iter()
                    .map(|(name, &capacity)| v1::QosResourceClassInfo {
                        name: name.clone(),
                        capacity,
                    })
                    .collect(),
            });
            resources.collect()
        };
        v1::ResourcesInfo {
            pod_qos_resources: listed(Level::Pod),
            container_qos_resources: listed(Level::Container),
        }
    }

    /// Returns the assignments of a new pod or container from the classes that it requests. An empty class is the
    /// default.
    pub fn assign<'a>(
        &self,
        level: Level,
        requested: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Assignments, ClassRefusal> {
        let mut assignments = Assignments::new();
        for (name, class) in requested {
            let Some(resource) = self.resolve(level, name)? else { continue };
            resource.check(class)?;
            let first = assignments.insert(resource.name.clone(), class.to_owned());
            if let Some(first) = first.filter(|first| first != class) {
                let (name, second) = (resource.name.clone(), class.to_owned());
                return Err(ClassRefusal::Conflicting { name, first, second });
            }
        }
        assignments.retain(|_, class| !class.is_empty());
        Ok(assignments)
    }

    /// Returns the assignments after a change of the named resources. It is refused as a whole if one resource is
    /// immutable and its class would differ.
    pub fn change<'a>(
        &self,
        level: Level,
        current: &Assignments,
        requested: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Assignments, ClassRefusal> {
        let mut changed = current.clone();
        let mut seen = Assignments::new();
        for (name, class) in requested {
            let Some(resource) = self.resolve(level, name)? else { continue };
            resource.check(class)?;
            let first = seen.insert(resource.name.clone(), class.to_owned());
            if let Some(first) = first.filter(|first| first != class) {
                let (name, second) = (resource.name.clone(), class.to_owned());
                return Err(ClassRefusal::Conflicting { name, first, second });
            }
            let from = resource.effective(current);
            let to = if class.is_empty() { resource.default.as_deref() } else { Some(class) };
            if from != to && !resource.mutable {
                return Err(ClassRefusal::Immutable {
                    name: resource.name.clone(),
                    from: from.unwrap_or_default().to_owned(),
                    to: to.unwrap_or_default().to_owned(),
                });
            }
            if class.is_empty() {
                changed.remove(&resource.name);
            } else {
                changed.insert(resource.name.clone(), class.to_owned());
            }
        }
        Ok(changed)
    }

    /// Returns the class of every resource of the level, with the defaults of today. Status reports this.
    #[must_use]
    pub fn effective(&self, level: Level, assignments: &Assignments) -> Vec<(String, String)> {
        let resources = self.resources.iter().filter(|resource| resource.level == level);
        let classes = resources.map(|resource| {
            let class = resource.effective(assignments).unwrap_or_default();
            (resource.name.clone(), class.to_owned())
        });
        classes.collect()
    }

    /// Reports whether the layer offers the resource. It accepts the informational one, too.
    pub(crate) fn offers(&self, level: Level, name: &str) -> bool {
        self.resolve(level, name).is_ok()
    }

    /// Returns the resource, or `None` for the informational one.
    fn resolve(&self, level: Level, name: &str) -> Result<Option<&ClassResource>, ClassRefusal> {
        if name == POD_QOS {
            return Ok(None);
        }
        let full = cri::full_resource_name(name);
        let mut offered = self.resources.iter().filter(|resource| resource.level == level);
        match offered.clone().find(|resource| resource.name == full) {
            Some(resource) => Ok(Some(resource)),
            None => Err(ClassRefusal::UnknownResource {
                level,
                name: name.to_owned(),
                offered: offered.by_ref().map(|resource| resource.name.clone()).collect(),
            }),
        }
    }
}

impl ClassResource {
    fn check(&self, class: &str) -> Result<(), ClassRefusal> {
        if class.is_empty() || self.classes.contains_key(class) {
            return Ok(());
        }
        Err(ClassRefusal::UnknownClass {
            name: self.name.clone(),
            class: class.to_owned(),
            offered: self.classes.keys().cloned().collect(),
        })
    }

    fn effective<'a>(&'a self, assignments: &'a Assignments) -> Option<&'a str> {
        assignments.get(&self.name).or(self.default.as_ref()).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catalog() -> ClassCatalog {
        let classes = |names: &[(&str, u64)]| {
            names.iter().map(|&(name, capacity)| (name.to_owned(), capacity)).collect()
        };
        ClassCatalog::new(vec![
            ClassResource {
                name: "k8s.io/rdt".to_owned(),
                level: Level::Container,
                mutable: true,
                default: None,
                classes: classes(&[("gold", 2), ("bronze", 0)]),
            },
            ClassResource {
                name: "berth.dev/ulimit".to_owned(),
                level: Level::Container,
                mutable: false,
                default: Some("normal".to_owned()),
                classes: classes(&[("normal", 0), ("files", 0)]),
            },
            ClassResource {
                name: "vendor.example/net".to_owned(),
                level: Level::Pod,
                mutable: true,
                default: None,
                classes: classes(&[("fast", 1)]),
            },
        ])
    }

    fn assigned(pairs: &[(&str, &str)]) -> Assignments {
        pairs.iter().map(|&(name, class)| (name.to_owned(), class.to_owned())).collect()
    }

    #[test]
    fn every_resource_is_advertised_at_its_level() {
        let advertised = catalog().advertised();
        let names = |list: &[v1::QosResourceInfo]| -> Vec<_> {
            list.iter().map(|resource| (resource.name.clone(), resource.mutable)).collect()
        };
        assert_eq!(names(&advertised.pod_qos_resources), [("vendor.example/net".to_owned(), true)]);
        assert_eq!(
            names(&advertised.container_qos_resources),
            [("k8s.io/rdt".to_owned(), true), ("berth.dev/ulimit".to_owned(), false)]
        );
        let gold = v1::QosResourceClassInfo { name: "gold".to_owned(), capacity: 2 };
        assert!(advertised.container_qos_resources[0].classes.contains(&gold));
    }

    #[test]
    fn requests_are_checked_against_the_catalog() {
        let check = |level, requested: &[(&str, &str)], expected: Result<&[(&str, &str)], &str>| {
            let assignments = catalog()
                .assign(level, requested.iter().copied())
                .map_err(|refusal| refusal.to_string());
            let expected = expected.map(assigned).map_err(str::to_owned);
            assert_eq!(assignments, expected, "{requested:?}");
        };
        check(Level::Container, &[], Ok(&[]));
        check(Level::Container, &[("rdt", "gold")], Ok(&[("k8s.io/rdt", "gold")]));
        check(
            Level::Container,
            &[("rdt", "gold"), ("k8s.io/rdt", "gold")],
            Ok(&[("k8s.io/rdt", "gold")]),
        );
        check(Level::Container, &[("k8s.io/rdt", "")], Ok(&[]));
        check(Level::Pod, &[(POD_QOS, "Burstable")], Ok(&[]));
        check(Level::Pod, &[("vendor.example/net", "fast")], Ok(&[("vendor.example/net", "fast")]));
        check(
            Level::Container,
            &[("rdt", "gold"), ("k8s.io/rdt", "bronze")],
            Err(
                "QoS resource \"k8s.io/rdt\" is requested twice, with classes \"gold\" and \"bronze\"",
            ),
        );
        check(
            Level::Container,
            &[("rdt", "silver")],
            Err("unknown \"k8s.io/rdt\" class \"silver\"; offered: bronze, gold"),
        );
        check(
            Level::Container,
            &[("vendor.example/net", "fast")],
            Err(
                "unknown QoS resource type \"vendor.example/net\"; offered for a container: k8s.io/rdt, berth.dev/ulimit",
            ),
        );
    }

    #[test]
    fn one_immutable_resource_refuses_the_whole_change() {
        let current = assigned(&[("k8s.io/rdt", "gold")]);
        let change = |requested: &[(&str, &str)]| {
            catalog().change(Level::Container, &current, requested.iter().copied())
        };
        assert_eq!(change(&[("rdt", "bronze")]), Ok(assigned(&[("k8s.io/rdt", "bronze")])));
        assert_eq!(change(&[("rdt", "")]), Ok(Assignments::new()));
        // A request for the class that the container has changes nothing.
        let same = assigned(&[("k8s.io/rdt", "gold"), ("berth.dev/ulimit", "normal")]);
        assert_eq!(change(&[("berth.dev/ulimit", "normal")]), Ok(same));
        let refusal = change(&[("rdt", "bronze"), ("berth.dev/ulimit", "files")]).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "the class of QoS resource \"berth.dev/ulimit\" cannot be changed from \"normal\" to \"files\": \
             the resource is immutable"
        );
    }

    #[test]
    fn status_reports_every_resource_with_defaults() {
        let effective =
            catalog().effective(Level::Container, &assigned(&[("k8s.io/rdt", "bronze")]));
        let expected = [("k8s.io/rdt", "bronze"), ("berth.dev/ulimit", "normal")];
        assert_eq!(effective, expected.map(|(name, class)| (name.to_owned(), class.to_owned())));
        assert_eq!(
            catalog().effective(Level::Pod, &Assignments::new()),
            [("vendor.example/net".to_owned(), String::new())]
        );
    }
}
