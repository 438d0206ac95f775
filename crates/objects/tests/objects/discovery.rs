//! Discovery documents equal the recorded ones, for the resources that we serve.

use objects::catalog::{self, RESOURCES};
use objects::discovery;
use serde_json::Value;

use crate::answers::answer;

/// Keeps the served resources of a recorded list.
fn served_resources(recorded: &Value, group: &str) -> Vec<Value> {
    let served = |entry: &&Value| {
        let (plural, subresource) = match entry["name"].as_str().unwrap().split_once('/') {
            Some((plural, subresource)) => (plural, Some(subresource)),
            None => (entry["name"].as_str().unwrap(), None),
        };
        let resource = catalog::find(group, "v1", plural);
        resource.is_some_and(|r| subresource.is_none_or(|name| r.subresource(name).is_some()))
    };
    recorded.as_array().unwrap().iter().filter(served).cloned().collect()
}

#[test]
fn resource_lists_equal_the_recorded_ones() {
    let mut count = 0;
    for path in [
        "/api/v1",
        "/apis/apps/v1",
        "/apis/batch/v1",
        "/apis/coordination.k8s.io/v1",
        "/apis/events.k8s.io/v1",
        "/apis/scheduling.k8s.io/v1",
        "/apis/node.k8s.io/v1",
        "/apis/policy/v1",
        "/apis/authorization.k8s.io/v1",
        "/apis/authentication.k8s.io/v1",
    ] {
        let group = path.strip_prefix("/apis/").map_or("", |rest| rest.split_once('/').unwrap().0);
        let mut recorded = answer("discovery/legacy", path).clone();
        recorded["resources"] = served_resources(&recorded["resources"], group).into();
        count += recorded["resources"].as_array().unwrap().len();
        assert_eq!(discovery::resources(RESOURCES, group, "v1"), Some(recorded), "{path}");
    }
    let subresources: usize = RESOURCES.iter().map(|resource| resource.subresources.len()).sum();
    assert_eq!(count, RESOURCES.len() + subresources, "a resource we serve was not recorded");
    assert_eq!(discovery::resources(RESOURCES, "apps", "v9"), None);
}

#[test]
fn groups_equal_the_recorded_ones_and_stand_in_their_order() {
    let mut recorded = answer("discovery/legacy", "/apis").clone();
    let ours = discovery::groups(RESOURCES);
    let names: Vec<&Value> =
        ours["groups"].as_array().unwrap().iter().map(|group| &group["name"]).collect();
    let Value::Array(groups) = &mut recorded["groups"] else { panic!("no groups") };
    groups.retain(|group| names.contains(&&group["name"]));
    assert_eq!(ours, recorded);
    let apps = discovery::group(RESOURCES, "apps");
    assert_eq!(apps.as_ref(), Some(answer("discovery/legacy", "/apis/apps")));
    assert_eq!(discovery::group(RESOURCES, "nope"), None);
    assert_eq!(
        &discovery::core_versions(RESOURCES, "<server>"),
        answer("discovery/legacy", "/api")
    );
}

#[test]
fn the_document_that_has_everything_equals_the_recorded_one() {
    for (path, ours) in [
        ("/api", discovery::aggregated_core(RESOURCES)),
        ("/apis", discovery::aggregated(RESOURCES)),
    ] {
        let recorded = answer("discovery/aggregated", path);
        for key in ["kind", "apiVersion", "metadata"] {
            assert_eq!(ours[key], recorded[key], "{path} {key}");
        }
        for group in recorded["items(kept groups only)"].as_array().unwrap() {
            let name = group["metadata"]["name"].as_str().unwrap_or_default();
            let mut group = group.clone();
            keep_served(&mut group, name);
            let items = ours["items"].as_array().unwrap();
            let our = items.iter().find(|item| item["metadata"] == group["metadata"]).unwrap();
            assert_eq!(our, &group, "{path} {name}");
        }
    }
}

fn keep_served(group: &mut Value, name: &str) {
    let Value::Array(resources) = &mut group["versions"][0]["resources"] else {
        panic!("no resources of {name}")
    };
    resources.retain_mut(|entry| {
        let Some(resource) = catalog::find(name, "v1", entry["resource"].as_str().unwrap()) else {
            return false;
        };
        if let Some(Value::Array(subresources)) = entry.get_mut("subresources") {
            let known = |sub: &Value| resource.subresource(sub["subresource"].as_str().unwrap());
            subresources.retain(|sub| known(sub).is_some());
        }
        true
    });
}
