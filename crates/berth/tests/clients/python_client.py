"""PyPI's kubernetes client against a Berth server: python_client.py KUBECONFIG.

Run by the test `pypis_client_is_at_home`; an assertion that fails ends it with a trace. Covers the
generated client, watches, server-side apply, the dynamic client and errors.
"""

import json
import sys

from kubernetes import client, config, dynamic, utils, watch
from kubernetes.client.exceptions import ApiException

NAMESPACE = "python"


def pod(name):
    return client.V1Pod(
        metadata=client.V1ObjectMeta(name=name, labels={"app": "web"}),
        spec=client.V1PodSpec(
            containers=[
                client.V1Container(
                    name="c",
                    image="registry.example/app:1.0",
                    resources=client.V1ResourceRequirements(requests={"cpu": "0.25"}),
                )
            ]
        ),
    )


def refused(status, reason, call, *arguments, **named):
    """The Status of a call that has to fail."""
    try:
        call(*arguments, **named)
    except ApiException as error:
        body = json.loads(error.body)
        assert (error.status, body["reason"]) == (status, reason), error
        assert body["kind"] == "Status" and body["code"] == status, body
        return body
    raise AssertionError(f"{call.__name__} did not fail")


def typed(core):
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=NAMESPACE)))
    made = core.create_namespaced_pod(NAMESPACE, pod("a"))
    assert made.metadata.uid and made.status.phase == "Pending"
    assert made.spec.containers[0].resources.requests == {"cpu": "250m"}, made.spec

    read = core.read_namespaced_pod("a", NAMESPACE)
    assert read.metadata.uid == made.metadata.uid
    assert read.metadata.creation_timestamp.tzinfo is not None

    core.create_namespaced_pod(NAMESPACE, pod("b"))
    listed = core.list_namespaced_pod(NAMESPACE, label_selector="app=web", limit=1)
    assert [item.metadata.name for item in listed.items] == ["a"]
    rest = core.list_namespaced_pod(NAMESPACE, limit=1, _continue=listed.metadata._continue)
    assert [item.metadata.name for item in rest.items] == ["b"]

    # The client sends a strategic merge patch for an object and a JSON patch for a list.
    patched = core.patch_namespaced_pod(
        "a", NAMESPACE, {"spec": {"containers": [{"name": "c", "image": "registry.example/app:2"}]}}
    )
    assert patched.spec.containers[0].image == "registry.example/app:2"
    assert patched.spec.containers[0].resources.requests == {"cpu": "250m"}
    patched = core.patch_namespaced_pod(
        "a", NAMESPACE, [{"op": "add", "path": "/metadata/labels/tier", "value": "front"}]
    )
    assert patched.metadata.labels == {"app": "web", "tier": "front"}

    stale = made
    stale.metadata.labels = {"app": "other"}
    refused(409, "Conflict", core.replace_namespaced_pod, "a", NAMESPACE, stale)


def watching(core):
    """What happens after a list, in order."""
    start = core.list_namespaced_pod(NAMESPACE).metadata.resource_version
    core.patch_namespaced_pod("b", NAMESPACE, {"metadata": {"labels": {"seen": "yes"}}})
    core.delete_namespaced_pod("b", NAMESPACE)
    seen = []
    watcher = watch.Watch()
    for event in watcher.stream(
        core.list_namespaced_pod, NAMESPACE, resource_version=start, timeout_seconds=60
    ):
        changed = event["object"].metadata
        # The scheduler writes to pods too.
        if changed.name == "b" and changed.labels.get("seen") == "yes":
            seen.append(event["type"])
        if event["type"] == "DELETED":
            watcher.stop()
    assert seen[0] == "MODIFIED" and seen[-1] == "DELETED", seen


def errors(core):
    body = refused(404, "NotFound", core.read_namespaced_pod, "nope", NAMESPACE)
    assert body["message"] == 'pods "nope" not found', body
    refused(409, "AlreadyExists", core.create_namespaced_pod, NAMESPACE, pod("a"))
    body = refused(422, "Invalid", core.create_namespaced_pod, NAMESPACE, pod("Not_A_Name"))
    assert body["details"]["causes"][0]["field"] == "metadata.name", body


def dynamically(api):
    """Server-side apply, and fields that the generated client does not know."""
    objects = dynamic.DynamicClient(api)
    maps = objects.resources.get(api_version="v1", kind="ConfigMap")

    def apply(colour, manager, **named):
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "till"},
            "data": {"colour": colour},
        }
        return maps.server_side_apply(
            body=body, name="till", namespace=NAMESPACE, field_manager=manager, **named
        )

    assert apply("red", "painter").data.colour == "red"
    try:
        apply("blue", "decorator")
    except dynamic.exceptions.ConflictError as error:
        assert 'conflict with "painter"' in error.summary(), error.summary()
    else:
        raise AssertionError("no conflict")
    assert apply("blue", "decorator", force_conflicts=True).data.colour == "blue"

    pods = objects.resources.get(api_version="v1", kind="Pod")
    body = api.sanitize_for_serialization(pod("classy"))
    body.update({"apiVersion": "v1", "kind": "Pod"})
    wanted = [{"name": "rdt", "class": "gold"}]
    body["spec"]["containers"][0]["resources"]["qosResources"] = wanted
    made = pods.create(body=body, namespace=NAMESPACE)
    assert made.to_dict()["spec"]["containers"][0]["resources"]["qosResources"] == wanted
    names = {item.metadata.name for item in pods.get(namespace=NAMESPACE).items}
    assert names == {"a", "classy"}, names


def others(api):
    apps = client.AppsV1Api(api)
    utils.create_from_dict(
        api,
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "fleet"},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": {"app": "fleet"}},
                "template": {
                    "metadata": {"labels": {"app": "fleet"}},
                    "spec": {"containers": [{"name": "c", "image": "registry.example/app:1"}]},
                },
            },
        },
        namespace=NAMESPACE,
    )
    scale = apps.patch_namespaced_deployment_scale("fleet", NAMESPACE, {"spec": {"replicas": 1}})
    assert scale.spec.replicas == 1
    review = client.AuthorizationV1Api(api).create_self_subject_access_review(
        client.V1SelfSubjectAccessReview(
            spec=client.V1SelfSubjectAccessReviewSpec(
                resource_attributes=client.V1ResourceAttributes(verb="create", resource="pods")
            )
        )
    )
    assert review.status.allowed
    assert client.VersionApi(api).get_code().git_version.startswith("v1.")


def main():
    config.load_kube_config(config_file=sys.argv[1])
    api = client.ApiClient()
    core = client.CoreV1Api(api)
    typed(core)
    watching(core)
    errors(core)
    dynamically(api)
    others(api)
    deleted = core.delete_namespaced_pod("a", NAMESPACE, grace_period_seconds=0)
    assert deleted.metadata.name == "a"
    refused(404, "NotFound", core.read_namespaced_pod, "a", NAMESPACE)


main()
