//! Validation of what planning acts on, in upstream's words. Works on typed values and speaks of
//! field paths, so that it serves objects that never were text. Defaults must have been set.

use std::collections::BTreeSet;

use super::resources::Side;
use super::{Container, ObjectMeta, Pod, PodSpec};
use crate::field::{FieldError, FieldPath};
use crate::quantity::Quantity;
use crate::resources::{self, CPU, ClassRequest, EPHEMERAL_STORAGE, MEMORY, ResourceRequirements};
use crate::suggest::nearest;
use crate::yaml::did_you_mean;

impl Pod {
    /// Everything that is wrong with the pod, paths counted from the object's top.
    #[must_use]
    pub fn validate(&self) -> Vec<FieldError> {
        let mut errors = self.metadata.validate();
        self.spec.validate(&FieldPath::of("spec"), &mut errors);
        errors
    }
}

impl ObjectMeta {
    /// Validates the metadata of an object that must have a name.
    #[must_use]
    pub fn validate(&self) -> Vec<FieldError> {
        let path = FieldPath::of("metadata");
        let mut errors = Vec::new();
        if self.name.is_empty() && self.generate_name.is_empty() {
            let detail = "name or generateName is required";
            errors.push(FieldError::required(path.child("name"), detail));
        } else if !self.name.is_empty() && !is_dns_subdomain(&self.name) {
            errors.push(FieldError::invalid(path.child("name"), &self.name, DNS_SUBDOMAIN));
        }
        if !self.namespace.is_empty() && !is_dns_label(&self.namespace) {
            let at = path.child("namespace");
            errors.push(FieldError::invalid(at, &self.namespace, DNS_LABEL));
        }
        errors
    }
}

const DNS_LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric \
    characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or \
    '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

const DNS_SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case \
    alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character \
    (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

fn is_dns_word(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

fn is_dns_label(text: &str) -> bool {
    text.len() <= 63 && is_dns_word(text)
}

fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_dns_word)
}

impl PodSpec {
    pub(crate) fn validate(&self, path: &FieldPath, errors: &mut Vec<FieldError>) {
        if self.containers.is_empty() {
            errors.push(FieldError::required(path.child("containers"), ""));
        }
        let mut names = BTreeSet::new();
        // Upstream's order: a name that an init container shares is the init container's mistake.
        for (field, containers) in
            [("containers", &self.containers), ("initContainers", &self.init_containers)]
        {
            for (index, container) in containers.iter().enumerate() {
                let path = path.child(field).index(index);
                check_name(container, &path, &mut names, errors);
                let path = path.child("resources");
                self.check_resources(&container.resources, &path, errors);
                check_classes(&container.resources.qos_resources, &path, errors);
            }
        }
        check_classes(&self.qos_resources, path, errors);
        for (name, amount) in &self.overhead {
            check_amount(name, amount, &path.child("overhead").key(name), errors);
        }
        self.check_pod_level(path, errors);
        self.check_host_process(path, errors);
    }

    fn check_resources(
        &self,
        resources: &ResourceRequirements,
        path: &FieldPath,
        errors: &mut Vec<FieldError>,
    ) {
        let mut names = BTreeSet::new();
        for (field, list) in [("limits", &resources.limits), ("requests", &resources.requests)] {
            for (name, amount) in list {
                let path = path.child(field).key(name);
                // A limit's request has the same name: one complaint is enough.
                if names.insert(name) {
                    check_resource_name(name, &path, errors);
                }
                let defaulted =
                    field == "requests" && resources.limits.get(name).is_some_and(|l| l == amount);
                if !defaulted {
                    check_amount(name, amount, &path, errors);
                }
            }
        }
        check_against_limits(resources, path, errors);
        let without = !names.iter().any(|n| *n == CPU || *n == MEMORY);
        let pod_level_has = self
            .resources
            .as_ref()
            .is_some_and(|r| r.requests.contains_key(CPU) || r.requests.contains_key(MEMORY));
        if without && !pod_level_has && names.iter().any(|n| resources::is_huge_pages(n)) {
            errors.push(FieldError::forbidden(path.clone(), "HugePages require cpu or memory"));
        }
    }

    fn check_pod_level(&self, path: &FieldPath, errors: &mut Vec<FieldError>) {
        let Some(pod_level) = &self.resources else { return };
        let at = path.child("resources");
        for (field, list) in [("limits", &pod_level.limits), ("requests", &pod_level.requests)] {
            for (name, amount) in list {
                let path = at.child(field).key(name);
                if !resources::is_pod_level(name) {
                    let detail = "must be a standard resource for pods: cpu, memory or hugepages-*";
                    errors.push(FieldError::invalid(path.clone(), name, detail));
                }
                let defaulted =
                    field == "requests" && pod_level.limits.get(name).is_some_and(|l| l == amount);
                if !defaulted {
                    check_amount(name, amount, &path, errors);
                }
            }
        }
        check_against_limits(pod_level, &at, errors);
        check_classes(&pod_level.qos_resources, &at, errors);
        for (name, total) in self.resources().of_containers(Side::Requests) {
            if let Some(request) = pod_level.requests.get(&name)
                && *request < total
            {
                let path = at.child("requests").key(&name);
                let detail = format!(
                    "must be greater than or equal to aggregate container requests of {total}"
                );
                errors.push(FieldError::invalid(path, request, detail));
            }
        }
        for (field, containers) in
            [("containers", &self.containers), ("initContainers", &self.init_containers)]
        {
            for (index, container) in containers.iter().enumerate() {
                for (name, limit) in &container.resources.limits {
                    if let Some(most) = pod_level.limits.get(name)
                        && limit > most
                    {
                        let path = path.child(field).index(index).child("resources");
                        let path = path.child("limits").key(name);
                        let detail = format!("must be less than or equal to pod limits of {most}");
                        errors.push(FieldError::invalid(path, limit, detail));
                    }
                }
            }
        }
    }

    fn check_host_process(&self, path: &FieldPath, errors: &mut Vec<FieldError>) {
        let (mut host, mut all) = (0, 0);
        for (field, containers) in
            [("initContainers", &self.init_containers), ("containers", &self.containers)]
        {
            for (index, container) in containers.iter().enumerate() {
                all += 1;
                host += usize::from(self.is_host_process(container));
                if let (Some(own), Some(of_pod)) = (container.host_process, self.host_process)
                    && own != of_pod
                {
                    let path = path.child(field).index(index).child("securityContext");
                    let path = path.child("windowsOptions").child("hostProcess");
                    let detail = format!(
                        "pod hostProcess value must be identical if both are specified, was {of_pod}"
                    );
                    errors.push(FieldError::invalid(path, own, detail));
                }
            }
        }
        if host == 0 {
            return;
        }
        if host != all {
            let detail = "If pod contains any hostProcess containers then all containers must be \
                          HostProcess containers";
            errors.push(FieldError::invalid(path.clone(), "", detail));
        }
        if !self.host_network {
            let detail = "hostNetwork must be true if pod contains any hostProcess containers";
            errors.push(FieldError::invalid(path.child("hostNetwork"), false, detail));
        }
    }
}

fn check_name<'a>(
    container: &'a Container,
    path: &FieldPath,
    names: &mut BTreeSet<&'a str>,
    errors: &mut Vec<FieldError>,
) {
    let path = path.child("name");
    if container.name.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else if container.name.len() > 63 {
        let detail = "must be no more than 63 characters";
        errors.push(FieldError::invalid(path, &container.name, detail));
    } else if !is_dns_label(&container.name) {
        errors.push(FieldError::invalid(path, &container.name, DNS_LABEL));
    } else if !names.insert(&container.name) {
        errors.push(FieldError::duplicate(path, &container.name));
    }
}

fn check_resource_name(name: &str, path: &FieldPath, errors: &mut Vec<FieldError>) {
    const STANDARD: [&str; 3] = [CPU, MEMORY, EPHEMERAL_STORAGE];
    if name.contains('/') || STANDARD.contains(&name) {
        return;
    }
    let detail = if resources::is_huge_pages(name) {
        if resources::huge_page_size(name).is_some() {
            return;
        }
        "must name a page size, such as hugepages-2Mi or hugepages-1Gi".to_owned()
    } else {
        let meant = did_you_mean(nearest(name, STANDARD));
        format!("must be a standard resource type or fully qualified{meant}")
    };
    errors.push(FieldError::invalid(path.clone(), name, detail));
}

fn check_amount(name: &str, amount: &Quantity, path: &FieldPath, errors: &mut Vec<FieldError>) {
    let mut invalid =
        |detail: String| errors.push(FieldError::invalid(path.clone(), amount, detail));
    if amount.is_negative() {
        invalid("must be greater than or equal to 0".to_owned());
        return;
    }
    let (countable, most) = if name == CPU {
        (amount.checked_milli_value(), Quantity::from_milli(i64::MAX))
    } else {
        (amount.checked_value(), Quantity::from_i64(i64::MAX, amount.format()))
    };
    if countable.is_none() {
        invalid(format!("must be less than or equal to {most}"));
    } else if resources::is_extended(name) && amount.milli_value() % 1000 != 0 {
        invalid("must be an integer".to_owned());
    } else if let Some(page) = resources::huge_page_size(name)
        && (amount.milli_value() % 1000 != 0 || amount.value() % page != 0)
    {
        invalid(format!("{amount} is not positive integer multiple of {name}"));
    }
}

fn check_against_limits(
    resources: &ResourceRequirements,
    path: &FieldPath,
    errors: &mut Vec<FieldError>,
) {
    let ResourceRequirements { requests, limits, .. } = resources;
    for (name, request) in requests {
        let may_differ = resources::may_be_overcommitted(name);
        let at = path.child("requests");
        match limits.get(name) {
            Some(limit) if !may_differ && request != limit => {
                let detail = format!("must be equal to {name} limit of {limit}");
                errors.push(FieldError::invalid(at, request, detail));
            }
            Some(limit) if request > limit => {
                let detail = format!("must be less than or equal to {name} limit of {limit}");
                errors.push(FieldError::invalid(at, request, detail));
            }
            None if !may_differ => {
                let detail = "Limit must be set for non overcommitable resources";
                errors.push(FieldError::required(path.child("limits").key(name), detail));
            }
            _ => {}
        }
    }
}

fn check_classes(classes: &[ClassRequest], path: &FieldPath, errors: &mut Vec<FieldError>) {
    let mut names = BTreeSet::new();
    for (index, ClassRequest { resource, class }) in classes.iter().enumerate() {
        let path = path.child("qosResources").index(index);
        if resource.0.is_empty() {
            errors.push(FieldError::required(path.child("name"), ""));
        } else if !names.insert(resource) {
            errors.push(FieldError::duplicate(path.child("name"), &resource.0));
        }
        if class.0.is_empty() {
            errors.push(FieldError::required(path.child("class"), ""));
        }
    }
}
