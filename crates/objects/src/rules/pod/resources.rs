//! `resources` of containers and pods: names and amounts of resources, claims, overhead.

use std::collections::BTreeSet;

use serde_json::Value;

use super::super::names::{self, label_key_problems};
use super::super::resource_names::{is_standard, is_whole};
use super::amounts::{self, quantity};
use super::containers::PodContext;
use super::{NO_FIELD, Scope, class_resources, containers_of};
use crate::cursor::{Causes, Cursor};
use crate::pod::resources::{PodResources, Side};
use crate::quantity::Quantity;
use crate::resources::{
    CPU, EPHEMERAL_STORAGE, MEMORY, is_extended, is_huge_pages, is_native, is_pod_level,
    may_be_overcommitted,
};

const NEGATIVE: &str = "must be greater than or equal to 0";

/// The level of a list of resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Container,
    Pod,
}

pub(super) fn validate_of_container(
    resources: &Cursor<'_>,
    pod: &PodContext<'_>,
    causes: &mut Causes,
) {
    if resources.is_empty() {
        return;
    }
    validate_amounts(resources, Level::Container, pod.scope, causes);
    validate_claims(&resources.field("claims"), &pod.claims, causes);
    let rules = pod.scope.class_resources;
    class_resources::validate(&resources.field("qosResources"), rules, causes);
}

pub(super) fn validate_overhead(overhead: &Cursor<'_>, scope: Scope, causes: &mut Causes) {
    if !overhead.is_set() {
        return;
    }
    // Upstream validates overhead like limits of a container.
    let limits = overhead.field("limits").at_value(overhead.value());
    for (name, amount) in limits.entries() {
        validate_name(&amount, name, Level::Container, causes);
        validate_amount(&amount, name, scope, causes);
    }
    let names = || overhead.entries().map(|(name, _)| name);
    if names().any(is_huge_pages) && !names().any(|name| name == CPU || name == MEMORY) {
        causes.forbidden(overhead, "HugePages require cpu or memory");
    }
}

pub(super) fn validate_pod_level(spec: &Cursor<'_>, scope: Scope, causes: &mut Causes) {
    let resources = spec.field("resources");
    if !resources.is_set() {
        return;
    }
    if spec.field("os").field("name").text() == "windows" {
        return causes.forbidden(&resources, "may not be set for a windows pod");
    }
    let claims = resources.field("claims");
    if claims.is_set() {
        causes.forbidden(&claims, "claims may not be set for Resources at pod-level");
    }
    validate_amounts(&resources, Level::Pod, scope, causes);
    let known = spec.field("resourceClaims");
    let known = known.items().map(|claim| claim.field("name").text());
    validate_claims(&claims, &known.filter(|name| !name.is_empty()).collect(), causes);
    let classes = resources.field("qosResources");
    if !classes.is_empty() {
        let detail = "class resources of a pod are set in spec.qosResources";
        causes.forbidden(&classes, detail);
    }
    validate_consistency(spec, &resources, causes);
}

/// Checks that the pod requests at least the sum of its containers, and that the limit of a
/// container is at most that of the pod.
fn validate_consistency(spec: &Cursor<'_>, resources: &Cursor<'_>, causes: &mut Causes) {
    let requests = resources.field("requests");
    let pod = PodResources::of_spec(spec.value());
    for (name, total) in pod.of_containers(Side::Requests) {
        let at = requests.key(&name);
        let given = quantity(at.value());
        if at.is_set() && total > given {
            let detail =
                format!("must be greater than or equal to aggregate container requests of {total}");
            causes.invalid_as(&at, given.to_string().as_str(), &detail);
        }
    }
    let limits = resources.field("limits");
    for (name, total) in pod.of_containers(Side::Limits) {
        let at = limits.key(&name);
        if is_huge_pages(&name) && at.is_set() && total > quantity(at.value()) {
            let detail =
                format!("must be greater than or equal to aggregate container limits of {total}");
            causes.invalid(&at, &detail);
        }
    }
    let containers = spec.field("containers");
    // Upstream reports these below the pod's resources.
    let places = resources.field("containers");
    for (index, container) in containers.items().enumerate() {
        let own = container.field("resources");
        let own = own.field("limits");
        for (name, limit) in own.entries() {
            let most = limits.key(name);
            if most.is_set() && quantity(limit.value()) > quantity(most.value()) {
                let place = places.index(index);
                let place = place.key(name);
                let detail = format!("must be less than or equal to pod limits of {}", most.text());
                causes.invalid_as(&place.field("limits"), limit.text(), &detail);
            }
        }
    }
}

fn validate_amounts(resources: &Cursor<'_>, level: Level, scope: Scope, causes: &mut Causes) {
    let (mut pages, mut compute) = (false, false);
    let mut note = |name: &str| {
        pages |= is_huge_pages(name);
        compute |= name == CPU || name == MEMORY;
    };
    let limits = resources.field("limits");
    for (name, limit) in limits.entries() {
        note(name);
        validate_name(&limit, name, level, causes);
        validate_amount(&limit, name, scope, causes);
    }
    let requests = resources.field("requests");
    for (name, request) in requests.entries() {
        note(name);
        validate_name(&request, name, level, causes);
        let amount = quantity(request.value());
        validate_quantity(&request, name, &amount, causes);
        let limit = limits.key(name);
        if limit.is_set() {
            let most = quantity(limit.value());
            if !may_be_overcommitted(name) && amount != most {
                let detail = format!("must be equal to {name} limit of {}", limit.text());
                causes.invalid_as(&requests, request.text(), &detail);
            } else if amount > most {
                let detail =
                    format!("must be less than or equal to {name} limit of {}", limit.text());
                causes.invalid_as(&requests, request.text(), &detail);
            }
        } else if !may_be_overcommitted(name) {
            causes.required(&limits, "Limit must be set for non overcommitable resources");
        }
        validate_pages(&request, name, &amount, scope, causes);
    }
    if pages && !compute {
        causes.forbidden(resources, "HugePages require cpu or memory");
    }
}

fn validate_amount(at: &Cursor<'_>, name: &str, scope: Scope, causes: &mut Causes) {
    let amount = quantity(at.value());
    validate_quantity(at, name, &amount, causes);
    validate_pages(at, name, &amount, scope, causes);
}

fn validate_quantity(at: &Cursor<'_>, name: &str, amount: &Quantity, causes: &mut Causes) {
    if amount.is_negative() {
        causes.invalid(at, NEGATIVE);
    }
    if is_whole(name) && amount.milli_value() % 1000 != 0 {
        causes.invalid(at, "must be an integer");
    }
}

fn validate_pages(
    at: &Cursor<'_>,
    name: &str,
    amount: &Quantity,
    scope: Scope,
    causes: &mut Causes,
) {
    if !scope.indivisible_huge_pages && is_huge_pages(name) && !is_divisible(name, amount) {
        let detail = format!("{} is not positive integer multiple of {name}", at.text());
        causes.invalid(at, &detail);
    }
}

fn is_divisible(name: &str, amount: &Quantity) -> bool {
    let size = crate::resources::huge_page_size(name);
    size.is_some_and(|size| amount.value() % size == 0)
}

pub(super) fn has_indivisible_huge_pages(spec: &Value) -> bool {
    let odd = |list: &serde_json::Map<String, Value>| {
        list.iter()
            .any(|(name, value)| is_huge_pages(name) && !is_divisible(name, &quantity(value)))
    };
    containers_of(spec).any(|container| {
        [Side::Requests, Side::Limits]
            .into_iter()
            .filter_map(|side| amounts::list(&container["resources"], side))
            .any(odd)
    }) || spec.get("overhead").and_then(Value::as_object).is_some_and(odd)
}

fn validate_name(at: &Cursor<'_>, name: &str, level: Level, causes: &mut Causes) {
    // The common case, without checking every rule.
    if matches!(name, CPU | MEMORY) || (level == Level::Container && name == EPHEMERAL_STORAGE) {
        return;
    }
    let problems = label_key_problems(name);
    names::report_as(causes, at, name, &problems);
    let plain = !name.contains('/');
    let known = is_standard(name);
    if problems.is_empty() && plain && !known {
        causes.invalid_as(at, name, "must be a standard resource type or fully qualified");
    }
    match level {
        Level::Container if plain => {
            if !is_huge_pages(name) {
                causes.invalid_as(at, name, "must be a standard resource for containers");
            }
        }
        Level::Container => {
            if !is_native(name) && !is_extended_name(name) {
                causes.invalid_as(at, name, "doesn't follow extended resource name standard");
            }
        }
        Level::Pod => {
            let refused = !problems.is_empty() || (plain && !known);
            if !refused && !is_pod_level(name) {
                causes.not_supported_as(at, name, &[CPU, "hugepages-", MEMORY]);
            }
        }
    }
}

/// Reports whether a vendor's name is still valid with the prefix `requests.`, as quotas write it.
fn is_extended_name(name: &str) -> bool {
    is_extended(name) && label_key_problems(&format!("requests.{name}")).is_empty()
}

/// Checks the claims of a container: each names a claim of the pod, and none occurs twice.
fn validate_claims(claims: &Cursor<'_>, known: &BTreeSet<&str>, causes: &mut Causes) {
    let mut seen: BTreeSet<(&str, &str)> = BTreeSet::new();
    for claim in claims.items() {
        let name = claim.field("name").text();
        if name.is_empty() {
            causes.required(&claim, "");
            continue;
        }
        let request = claim.field("request");
        if seen.contains(&(name, "")) {
            causes.duplicate_as(&claim, name);
        } else {
            if !request.text().is_empty() {
                names::report(causes, &request, &names::dns_label(request.text()));
            }
            if seen.contains(&(name, request.text())) {
                let shown = format!("{name}/{}", request.text());
                causes.duplicate_as(&claim, shown.as_str());
            } else if request.text().is_empty() {
                // Upstream reports the claim once for each of its requests.
                for _ in seen.range((name, "")..).take_while(|(claimed, _)| *claimed == name) {
                    causes.duplicate_as(&claim, name);
                }
            }
            seen.insert((name, request.text()));
        }
        if !known.contains(name) && !causes.is_full() {
            let mut detail = "must be one of the names in pod.spec.resourceClaims".to_owned();
            if known.is_empty() {
                detail.push_str(" which is empty");
            } else {
                let known: Vec<&str> = known.iter().copied().collect();
                detail.push_str(": ");
                detail.push_str(&known.join(", "));
            }
            causes.not_found_as(&claim, name, &detail);
        }
    }
}

/// Checks the claims of the pod.
pub(super) fn validate_pod_claims(claims: &Cursor<'_>, is_mirror: bool, causes: &mut Causes) {
    let mut seen = BTreeSet::new();
    for claim in claims.items() {
        if is_mirror {
            let message = "Forbidden: static pods do not support resource claims";
            causes.add("FieldValueForbidden", NO_FIELD, message.to_owned());
            continue;
        }
        let name = claim.field("name");
        match name.text() {
            "" => causes.required(&name, ""),
            text if !seen.insert(text) => causes.duplicate(&name),
            text => names::report(causes, &name, &names::dns_label(text)),
        }
        let (direct, template) =
            (claim.field("resourceClaimName"), claim.field("resourceClaimTemplateName"));
        let detail = match (direct.is_set(), template.is_set()) {
            (true, true) => Some(
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be \
                 specified",
            ),
            (false, false) => {
                Some("must specify one of: `resourceClaimName`, `resourceClaimTemplateName`")
            }
            _ => None,
        };
        if let Some(detail) = detail {
            let shown = crate::cursor::BadValue::literal(format!(
                "{{\"Name\":{},\"ResourceClaimName\":{},\"ResourceClaimTemplateName\":{}}}",
                name.value(),
                direct.value(),
                template.value()
            ));
            causes.invalid_as(&claim, shown, detail);
        }
        for at in [direct, template] {
            if at.is_set() {
                names::report(causes, &at, &names::dns_subdomain(at.text()));
            }
        }
    }
}
