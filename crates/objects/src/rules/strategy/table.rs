//! [`STRATEGIES`]: the strategy of every kind that is served. A new kind is added here and in
//! [`crate::catalog`].

use serde_json::Value;

use super::super::pod;
use super::{
    Generation, Steps, Strategy, Subresource, UpdateOrder, budget, checks, class, config, event,
    job, job_status, lease, limit_range, meta, namespace, node, quota, service, service_warnings,
    workload,
};
use crate::cursor::Cursor;
use crate::rules::names::NameRule;

/// The strategy of a kind without rules of its own.
pub(super) const PLAIN: Strategy = Strategy {
    group: "",
    kind: "",
    name: Some(NameRule::DnsSubdomain),
    standard_finalizers: true,
    generation: Generation::None,
    clears_status: true,
    set_defaults: |_| {},
    prepare_create: |_, _| {},
    prepare_update: |_, _, _, _| {},
    without_generated: None,
    validate: |_, _, _, _| {},
    validate_change: |_, _, _, _| {},
    validate_part: |_, _, _, _, _| {},
    update_order: UpdateOrder::ObjectMetadataChange,
    warnings: |_, _, _| Vec::new(),
    steps: None,
};

const fn plain(group: &'static str, kind: &'static str) -> Strategy {
    Strategy { group, kind, ..PLAIN }
}

/// Returns the old spec, or null for a new object.
fn spec<'v>(old: Option<&Cursor<'v>>) -> &'v Value {
    old.map_or(&Value::Null, |old| old.value().get("spec").unwrap_or(&Value::Null))
}

/// One strategy for each kind, in the order of [`crate::catalog::RESOURCES`].
pub(super) static STRATEGIES: &[Strategy] = &[
    plain("", "Binding"),
    Strategy {
        validate: |top, _, _, causes| config::validate_config_map(top, causes),
        validate_change: |top, old, _, causes| {
            config::validate_frozen(top, old, &["data", "binaryData"], causes);
        },
        update_order: UpdateOrder::MetadataChangeObject,
        ..plain("", "ConfigMap")
    },
    Strategy {
        name: None,
        validate: |top, old, _, causes| event::validate(top, "", old, causes),
        update_order: UpdateOrder::ObjectOnly,
        ..plain("", "Event")
    },
    Strategy {
        set_defaults: limit_range::set_defaults,
        prepare_create: |object, ctx| limit_range::prepare(object, None, ctx),
        prepare_update: |object, old, _, ctx| limit_range::prepare(object, Some(old), ctx),
        validate: |top, _, _, causes| limit_range::validate(top, causes),
        ..plain("", "LimitRange")
    },
    Strategy {
        name: Some(NameRule::DnsLabel),
        set_defaults: namespace::set_defaults,
        prepare_create: |object, _| namespace::prepare_create(object),
        prepare_update: |object, old, part, _| namespace::prepare_update(object, old, part),
        validate: |top, _, _, causes| namespace::validate(top, causes),
        validate_part: |top, _, part, _, causes| namespace::validate_subresource(top, part, causes),
        ..plain("", "Namespace")
    },
    Strategy {
        // An agent registers its node together with the status.
        clears_status: false,
        set_defaults: node::set_defaults,
        prepare_create: node::prepare_create,
        prepare_update: node::prepare_update,
        validate: node::validate,
        validate_change: node::validate_change,
        validate_part: |top, old, _, ctx, causes| node::validate_change(top, old, ctx, causes),
        warnings: |_, object, _| node::warnings(object),
        ..plain("", "Node")
    },
    Strategy {
        set_defaults: pod::set_defaults,
        warnings: |_, object, old| pod::warnings(object, old),
        steps: Some(Steps {
            prepare_create: pod::prepare_create,
            prepare_update: pod::prepare_update,
            validate_create: pod::validate_create,
            validate_update: pod::validate_update,
        }),
        ..plain("", "Pod")
    },
    Strategy {
        set_defaults: quota::set_defaults,
        prepare_create: |object, ctx| quota::prepare(object, None, ctx),
        prepare_update: |object, old, part, ctx| {
            if part == Subresource::Main {
                quota::prepare(object, Some(old), ctx);
            }
        },
        validate: |top, old, _, causes| quota::validate(top, old.is_some(), causes),
        validate_change: |top, old, _, causes| quota::validate_change(top, old, causes),
        validate_part: |top, _, _, _, causes| quota::validate_status(top, causes),
        update_order: UpdateOrder::MetadataSpecChange,
        ..plain("", "ResourceQuota")
    },
    Strategy {
        set_defaults: config::set_secret_defaults,
        validate: |top, _, _, causes| config::validate_secret(top, causes),
        validate_change: |top, old, _, causes| {
            checks::unchanged(&top.field("type"), &old.field("type"), causes);
            config::validate_frozen(top, old, &["data"], causes);
        },
        update_order: UpdateOrder::MetadataChangeObject,
        ..plain("", "Secret")
    },
    Strategy {
        prepare_create: |object, _| config::prepare_account(object),
        prepare_update: |object, _, _, _| config::prepare_account(object),
        update_order: UpdateOrder::MetadataChangeObject,
        warnings: |_, object, old| config::service_account_warnings(object, old),
        ..plain("", "ServiceAccount")
    },
    Strategy {
        name: Some(NameRule::DnsLabel),
        set_defaults: service::set_defaults,
        prepare_create: |object, _| service::prepare_create(object),
        prepare_update: |object, old, part, _| {
            if part == Subresource::Main {
                service::prepare_update(object, old);
            }
        },
        validate: |top, _, _, causes| service::validate(top, causes),
        validate_change: |top, old, _, causes| service::validate_change(top, old, causes),
        validate_part: |top, _, _, _, causes| service::validate_status(top, causes),
        update_order: UpdateOrder::MetadataChangeObject,
        warnings: |_, object, _| service_warnings::warnings(object),
        ..plain("", "Service")
    },
    Strategy {
        validate: |top, _, _, causes| workload::validate_revision(top, causes),
        validate_change: |top, old, _, causes| workload::validate_revision_change(top, old, causes),
        update_order: UpdateOrder::MetadataSpecChange,
        ..plain("apps", "ControllerRevision")
    },
    Strategy {
        generation: Generation::Spec,
        set_defaults: workload::set_daemon_set_defaults,
        prepare_create: |object, _| workload::prepare_daemon_set(object),
        prepare_update: |object, old, _, _| workload::prepare_daemon_set_update(object, old),
        validate: |top, old, ctx, causes| {
            workload::validate_daemon_set(top, spec(old), ctx, causes);
        },
        validate_change: |top, old, _, causes| workload::validate_selector_kept(top, old, causes),
        validate_part: |top, old, _, _, causes| {
            workload::validate_daemon_set_status(top, old, causes);
        },
        warnings: workload::warnings,
        ..plain("apps", "DaemonSet")
    },
    Strategy {
        // The deployment controller copies the annotations to the replica sets.
        generation: Generation::SpecAndAnnotations,
        set_defaults: workload::set_deployment_defaults,
        prepare_update: |object, old, part, _| {
            if part == Subresource::Status {
                meta::keep_labels(object, old);
            }
        },
        validate: |top, old, ctx, causes| {
            workload::validate_deployment(top, spec(old), ctx, causes);
        },
        validate_change: |top, old, _, causes| workload::validate_selector_kept(top, old, causes),
        validate_part: |top, old, _, _, causes| {
            workload::validate_deployment_status(top, old, causes);
        },
        update_order: UpdateOrder::MetadataSpecChange,
        warnings: workload::warnings,
        ..plain("apps", "Deployment")
    },
    Strategy {
        generation: Generation::Spec,
        set_defaults: workload::set_replica_set_defaults,
        validate: |top, old, ctx, causes| {
            workload::validate_replica_set(top, spec(old), ctx, causes);
        },
        validate_change: |top, old, _, causes| workload::validate_selector_kept(top, old, causes),
        validate_part: |top, _, _, _, causes| workload::validate_replica_set_status(top, causes),
        warnings: workload::warnings,
        ..plain("apps", "ReplicaSet")
    },
    Strategy {
        name: None,
        validate: |top, old, _, causes| event::validate(top, "events.k8s.io", old, causes),
        validate_change: |top, old, _, causes| event::validate_change(top, old, causes),
        ..plain("events.k8s.io", "Event")
    },
    plain("authentication.k8s.io", "SelfSubjectReview"),
    plain("authentication.k8s.io", "TokenReview"),
    plain("authorization.k8s.io", "LocalSubjectAccessReview"),
    plain("authorization.k8s.io", "SelfSubjectAccessReview"),
    plain("authorization.k8s.io", "SelfSubjectRulesReview"),
    plain("authorization.k8s.io", "SubjectAccessReview"),
    Strategy {
        generation: Generation::Spec,
        set_defaults: job::set_defaults,
        prepare_create: |object, _| job::prepare_create(object),
        without_generated: Some(job::without_made_labels),
        validate: |top, old, ctx, causes| job::validate(top, spec(old), ctx, causes),
        validate_change: |top, old, _, causes| job::validate_change(top, old, causes),
        validate_part: |top, old, _, _, causes| job_status::validate(top, old, causes),
        update_order: UpdateOrder::MetadataSpecChange,
        warnings: workload::warnings,
        ..plain("batch", "Job")
    },
    Strategy {
        name: None,
        generation: Generation::Spec,
        validate: |top, _, _, causes| budget::validate(top, causes),
        validate_part: |top, _, _, _, causes| budget::validate_status(top, causes),
        ..plain("policy", "PodDisruptionBudget")
    },
    Strategy {
        generation: Generation::Constant,
        set_defaults: class::set_priority_defaults,
        validate: |top, old, _, causes| {
            if old.is_none() {
                class::validate_priority(top, causes);
            }
        },
        validate_change: |top, old, _, causes| class::validate_priority_change(top, old, causes),
        update_order: UpdateOrder::MetadataSpecChange,
        ..plain("scheduling.k8s.io", "PriorityClass")
    },
    Strategy {
        standard_finalizers: false,
        prepare_create: |object, _| lease::prepare(object, None),
        prepare_update: |object, old, _, _| lease::prepare(object, Some(old)),
        validate: |top, _, _, causes| lease::validate(top, causes),
        update_order: UpdateOrder::MetadataSpecChange,
        ..plain("coordination.k8s.io", "Lease")
    },
    Strategy {
        validate: |top, _, _, causes| class::validate_runtime(top, causes),
        validate_change: |top, old, _, causes| class::validate_runtime_change(top, old, causes),
        warnings: |_, object, _| class::runtime_warnings(object),
        ..plain("node.k8s.io", "RuntimeClass")
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::RESOURCES;

    #[test]
    fn every_served_kind_has_exactly_one_strategy() {
        let kinds: Vec<_> = STRATEGIES.iter().map(|s| (s.group, s.kind)).collect();
        let served: Vec<_> = RESOURCES.iter().map(|r| (r.group, r.kind)).collect();
        assert_eq!(kinds, served);
    }
}
