use std::collections::BTreeMap;

use super::*;
use crate::observed::RuntimeSandbox;

/// Probe results by container ID. No definition has changed.
#[derive(Default)]
struct FakeResults {
    liveness: BTreeMap<String, Health>,
    startup: BTreeMap<String, Health>,
    changed: bool,
    resized: bool,
}

impl ProbeResults for FakeResults {
    fn liveness(&self, container: &RuntimeId) -> Health {
        self.liveness.get(container).copied().unwrap_or(Health::Unknown)
    }

    fn startup(&self, container: &RuntimeId) -> Health {
        self.startup.get(container).copied().unwrap_or(Health::Unknown)
    }

    fn is_current(&self, _: &Container, _: &str) -> bool {
        !self.changed
    }

    fn must_restart(&self, _: &Container) -> bool {
        self.resized
    }
}

/// Parses a pod in short form: `init i, sidecar s, app a`.
fn pod(containers: &str, policy: RestartPolicy) -> Pod {
    let mut pod = Pod::default();
    pod.spec.restart_policy = policy;
    pod.spec.host_network = true;
    for word in containers.split(", ").filter(|word| !word.is_empty()) {
        let (role, name) = word.split_once(' ').unwrap();
        let mut container = Container { name: name.to_owned(), ..Container::default() };
        match role {
            "init" => pod.spec.init_containers.push(container),
            "sidecar" => {
                container.restart_policy = Some(RestartPolicy::Always);
                pod.spec.init_containers.push(container);
            }
            "app" => pod.spec.containers.push(container),
            "ephemeral" => pod.spec.ephemeral_containers.push(container),
            _ => panic!("{role}"),
        }
    }
    pod
}

/// Parses the runtime's state in short form: `i=0, s=run, a=1, b=unknown`; a number is an exit code.
fn observed(containers: &str) -> RuntimePod {
    let sandbox = RuntimeSandbox {
        id: "sandbox".to_owned(),
        attempt: 0,
        ready: true,
        created_at: 1,
        ips: Vec::new(),
        host_network: true,
    };
    let each = containers.split(", ").filter(|word| !word.is_empty()).map(|word| {
        let (name, state) = word.split_once('=').unwrap();
        let (state, exit_code) = match state {
            "run" => (ContainerState::Running, 0),
            "made" => (ContainerState::Created, 0),
            "unknown" => (ContainerState::Unknown, 0),
            code => (ContainerState::Exited, code.parse().unwrap()),
        };
        RuntimeContainer {
            id: name.to_owned(),
            sandbox: "sandbox".to_owned(),
            name: name.to_owned(),
            attempt: 0,
            state,
            created_at: 1,
            started_at: 1,
            finished_at: 1,
            exit_code,
            reason: String::new(),
            message: String::new(),
            image: String::new(),
            image_id: String::new(),
            hash: String::new(),
        }
    });
    RuntimePod::new(vec![sandbox], each.collect())
}

/// Renders a plan in short form: kills with a dash, starts with a plus.
fn short(plan: &Plan) -> String {
    let mut parts = Vec::new();
    if plan.kill_pod {
        parts.push("kill pod".to_owned());
    }
    parts.extend(plan.kill.iter().map(|kill| format!("-{}", kill.container)));
    parts.extend(plan.create_sandbox.map(|attempt| format!("sandbox {attempt}")));
    parts.extend(plan.start.iter().map(|(_, name)| format!("+{name}")));
    parts.extend(plan.remove.iter().map(|id| format!("x{id}")));
    parts.join(" ")
}

#[test]
fn containers_start_in_order_and_are_restarted() {
    use RestartPolicy::{Always, Never, OnFailure};
    let cases: &[(&str, RestartPolicy, &str, &str)] = &[
        ("app a, app b", Always, "", "+a +b"),
        ("app a, app b", Always, "a=run, b=run", ""),
        ("app a, app b", Always, "a=run, b=0", "+b"),
        ("app a, app b", OnFailure, "a=run, b=0", ""),
        ("app a, app b", OnFailure, "a=run, b=3", "+b"),
        ("app a, app b", Never, "a=run, b=3", ""),
        ("app a, app b", Never, "a=0, b=3", "kill pod"),
        ("app a", OnFailure, "a=0", "kill pod"),
        ("app a", Always, "a=made", "+a"),
        ("app a", Always, "a=unknown", "-a +a"),
        ("init i, init j, app a", Always, "", "+i"),
        ("init i, init j, app a", Always, "i=run", ""),
        ("init i, init j, app a", Always, "i=made", "+i"),
        ("init i, init j, app a", Always, "i=0", "+j"),
        ("init i, init j, app a", Always, "i=0, j=0", "+a"),
        ("init i, init j, app a", Always, "i=0, j=7", "+j"),
        ("init i, init j, app a", OnFailure, "i=2", "+i"),
        ("init i, init j, app a", Never, "i=2", "kill pod"),
        // The records of init containers may be removed before a container runs.
        ("init i, app a", Always, "a=run", ""),
        ("init i, app a", Always, "i=0, a=1", "+a"),
        ("sidecar s, init i, app a", Always, "", "+s"),
        ("sidecar s, init i, app a", Always, "s=run", "+i"),
        ("sidecar s, init i, app a", Always, "s=run, i=run", ""),
        ("sidecar s, init i, app a", Always, "s=run, i=0", "+a"),
        ("init i, sidecar s, app a", Always, "i=0, s=run", "+a"),
        ("sidecar s, app a", Always, "s=1, a=run", "+s"),
        ("sidecar s, app a", Never, "s=1, a=run", "+s"),
        ("sidecar s, app a", Never, "s=run, a=0", "kill pod"),
        ("sidecar s, app a", Never, "s=1, a=0", "kill pod"),
        ("sidecar s, app a", Always, "s=unknown, a=run", "-s +s"),
        // A sidecar whose record was removed starts again.
        ("sidecar s, app a", Always, "a=run", "+s"),
        ("app a, ephemeral e", Always, "a=run", "+e"),
        ("app a, ephemeral e", Always, "a=run, e=0", ""),
    ];
    for (containers, policy, has, expected) in cases {
        let found = plan(&pod(containers, *policy), &observed(has), &FakeResults::default());
        assert_eq!(short(&found), *expected, "{containers} {policy:?}, has {has}");
    }
}

#[test]
fn pod_without_a_usable_sandbox_restarts_if_its_policy_allows() {
    use RestartPolicy::{Always, Never, OnFailure};
    let gone = |containers: &str| {
        let mut observed = observed(containers);
        observed.sandboxes[0].ready = false;
        observed
    };
    let cases: &[(&str, RestartPolicy, &str, &str)] = &[
        ("app a", Always, "a=run", "kill pod sandbox 1 +a"),
        ("app a", Never, "a=run", "kill pod"),
        ("app a", Never, "", "kill pod sandbox 1 +a"),
        ("app a, app b", OnFailure, "a=0, b=1", "kill pod sandbox 1 +b"),
        ("app a", OnFailure, "a=0", "kill pod"),
        ("init i, app a", Always, "i=0, a=run", "kill pod sandbox 1 +i"),
    ];
    for (containers, policy, has, expected) in cases {
        let found = plan(&pod(containers, *policy), &gone(has), &FakeResults::default());
        assert_eq!(short(&found), *expected, "{containers} {policy:?}, has {has}");
    }
    let first =
        plan(&pod("init i, app a", Always), &RuntimePod::default(), &FakeResults::default());
    assert_eq!(short(&first), "sandbox 0 +i");
    // A sandbox without an IP is unusable for a pod with its own network namespace.
    let mut networked = pod("app a", Always);
    networked.spec.host_network = false;
    let mut bare = observed("a=run");
    bare.sandboxes[0].host_network = false;
    assert_eq!(short(&plan(&networked, &bare, &FakeResults::default())), "kill pod sandbox 1 +a");
    bare.sandboxes[0].ips = vec!["10.1.2.3".to_owned()];
    assert_eq!(short(&plan(&networked, &bare, &FakeResults::default())), "");
}

#[test]
fn containers_of_an_old_sandbox_do_not_count() {
    let check = |containers: &str, before: &str, now: &str, expected: &str| {
        let mut both = observed(before);
        let mut old = both.sandboxes[0].clone();
        both.containers.iter_mut().for_each(|found| found.sandbox = "old".to_owned());
        (old.id, old.ready, old.created_at) = ("old".to_owned(), false, 0);
        both.sandboxes.push(old);
        let mut newer = observed(now).containers;
        newer.iter_mut().for_each(|found| (found.attempt, found.created_at) = (1, 2));
        both.containers.splice(0..0, newer);
        let found = plan(&pod(containers, RestartPolicy::Always), &both, &FakeResults::default());
        assert_eq!(short(&found), expected, "{containers}, had {before}, has {now}");
    };
    check("init i, init j, app a", "i=0, j=0, a=137", "", "+i");
    check("init i, init j, app a", "i=0, j=0, a=137", "i=run", "");
    check("init i, init j, app a", "i=0, j=0, a=137", "i=0", "+j");
    check("init i, init j, app a", "i=0, j=0, a=137", "i=0, j=0", "+a");
    check("init i, sidecar s, app a", "i=0, s=137, a=137", "i=0", "+s");
}

#[test]
fn init_containers_restart_by_their_own_policy_and_rules() {
    use RestartPolicy::{Always, Never, OnFailure};
    let rules: Vec<crate::spec::RestartRule> = serde_json::from_value(serde_json::json!([
        {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}},
    ]))
    .unwrap();
    let cases = [
        (Always, Some(Never), false, "i=1", "kill pod"),
        (Never, Some(OnFailure), false, "i=1", "+i"),
        (Never, Some(OnFailure), false, "i=0", "+a"),
        (Never, Some(Never), true, "i=42", "+i"),
        (Never, Some(Never), true, "i=1", "kill pod"),
        (Always, Some(Never), true, "i=unknown", "kill pod"),
        (Never, Some(OnFailure), false, "i=unknown", "-i +i"),
    ];
    for (of_pod, own, with_rules, has, expected) in cases {
        let mut pod = pod("init i, app a", of_pod);
        pod.spec.init_containers[0].restart_policy = own;
        if with_rules {
            pod.spec.init_containers[0].restart_policy_rules.clone_from(&rules);
        }
        let found = plan(&pod, &observed(has), &FakeResults::default());
        assert_eq!(short(&found), expected, "{of_pod:?} {own:?} {with_rules}, has {has}");
    }
}

#[test]
fn sidecar_with_a_changed_definition_restarts() {
    let results = FakeResults { changed: true, ..FakeResults::default() };
    let found = plan(
        &pod("sidecar s, init i, app a", RestartPolicy::Never),
        &observed("s=run, i=run"),
        &results,
    );
    assert_eq!(short(&found), "-s +s");
    assert_eq!(found.kill[0].message, "Init container s definition changed");
}

#[test]
fn failed_probes_kill_and_restart_according_to_the_policy() {
    let failing = |name: &str| BTreeMap::from([(name.to_owned(), Health::Failure)]);
    let check = |policy, results: &FakeResults, expected: &str, message: &str| {
        let mut pod = pod("sidecar s, app a, app b", policy);
        pod.spec.init_containers[0].startup_probe = Some(crate::spec::Probe::default());
        pod.spec.init_containers[0].liveness_probe = Some(crate::spec::Probe::default());
        let found = plan(&pod, &observed("s=run, a=run, b=run"), results);
        assert_eq!(short(&found), expected);
        assert_eq!(found.kill.first().map_or("", |kill| &kill.message), message);
    };
    let results = FakeResults { liveness: failing("a"), ..FakeResults::default() };
    let parts = "Container a failed liveness probe";
    let startup = BTreeMap::from([("s".to_owned(), Health::Success)]);
    let results = FakeResults { startup: startup.clone(), ..results };
    check(RestartPolicy::Never, &results, "-a", parts);
    check(RestartPolicy::Always, &results, "-a +a", &format!("{parts}, will be restarted"));
    let results = FakeResults { liveness: failing("s"), startup, ..FakeResults::default() };
    check(RestartPolicy::Never, &results, "-s +s", "Init container s failed liveness probe");
    let results = FakeResults { startup: failing("s"), ..FakeResults::default() };
    check(RestartPolicy::Always, &results, "-s +s", "Init container s failed startup probe");
    let results = FakeResults { changed: true, ..FakeResults::default() };
    let found = plan(&pod("app a", RestartPolicy::Never), &observed("a=run"), &results);
    assert_eq!(short(&found), "-a +a");
    assert_eq!(found.kill[0].message, "Container a definition changed, will be restarted");
}

#[test]
fn restart_rules_override_the_policy() {
    let rule = |action: &str, operator: &str, values: &[i32]| crate::spec::RestartRule {
        action: action.to_owned(),
        exit_codes: Some(crate::spec::ExitCodes {
            operator: operator.to_owned(),
            values: values.to_vec(),
        }),
    };
    let mut pod = pod("app a", RestartPolicy::Never);
    pod.spec.containers[0].restart_policy_rules =
        vec![rule("Restart", "In", &[42]), rule("RestartAllContainers", "NotIn", &[0, 1, 42])];
    for (code, expected) in [
        (42, Verdict::Restarts),
        (1, Verdict::Stays),
        (0, Verdict::Stays),
        (7, Verdict::RestartsAll),
    ] {
        assert_eq!(after_exit(&pod, &pod.spec.containers[0], code), expected, "{code}");
    }
}

#[test]
fn containers_that_need_a_restart_for_a_resize_restart() {
    use RestartPolicy::{Always, Never};
    let results = FakeResults { resized: true, ..FakeResults::default() };
    let cases: &[(&str, RestartPolicy, &str, &str)] = &[
        ("app a, app b", Always, "a=run, b=run", "-a -b +a +b"),
        ("app a, app b", Never, "a=run, b=0", "-a +a"),
        ("sidecar s, init i, app a", Always, "s=run, i=run", "-s +s"),
        ("init i, app a", Always, "i=run", ""),
    ];
    for (containers, policy, has, expected) in cases {
        let found = plan(&pod(containers, *policy), &observed(has), &results);
        assert_eq!(short(&found), *expected, "{containers} {policy:?}, has {has}");
    }
    let found = plan(&pod("app a", Always), &observed("a=run"), &results);
    assert_eq!(found.kill[0].message, "Container a resize requires restart");
}

#[test]
fn restart_all_removes_the_cause_last() {
    let mut pod = pod("init i, app a, app b", RestartPolicy::Never);
    let rule = serde_json::json!([
        {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}},
    ]);
    pod.spec.containers[0].restart_policy_rules = serde_json::from_value(rule).unwrap();
    let cases = [
        // As recorded: b is killed, and then b, i and a are removed.
        ("i=0, a=42, b=run", "-b xb xi xa"),
        ("i=0, a=42, b=0", "xi xb xa"),
        // An interrupted restart continues.
        ("a=42", "xa"),
        ("", "+i"),
        ("i=0, a=7, b=run", ""),
        ("i=0, a=run, b=42", ""),
        ("i=0, a=7, b=0", "kill pod"),
    ];
    for (has, expected) in cases {
        let found = plan(&pod, &observed(has), &FakeResults::default());
        assert_eq!(short(&found), expected, "{has}");
    }
}
