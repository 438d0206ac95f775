//! Compares the descriptor of our proto file with the rest of the crate.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use cri::{Rpc, StreamingRpc, v1};
use prost_reflect::{DescriptorPool, MessageDescriptor, MethodDescriptor};

/// Returns the compiled `proto/runtime.proto`.
pub(crate) fn pool() -> &'static DescriptorPool {
    static POOL: OnceLock<DescriptorPool> = OnceLock::new();
    POOL.get_or_init(|| {
        let bytes: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/runtime.v1.bin"));
        DescriptorPool::decode(bytes).unwrap()
    })
}

/// Returns the call of that name from either service.
pub(crate) fn method(name: &str) -> MethodDescriptor {
    let mut methods = pool().services().flat_map(|service| service.methods().collect::<Vec<_>>());
    methods.find(|method| method.name() == name).unwrap_or_else(|| panic!("no call {name}"))
}

fn message(name: &str) -> MessageDescriptor {
    pool().get_message_by_name(&format!("runtime.v1.{name}")).unwrap()
}

/// Runs `$what!(path, type of the request)` for every request type of the crate.
#[macro_export]
macro_rules! for_every_request {
    ($what:ident) => {
        $what!(unary:
            VersionRequest, RunPodSandboxRequest, StopPodSandboxRequest, RemovePodSandboxRequest,
            PodSandboxStatusRequest, ListPodSandboxRequest, CreateContainerRequest,
            StartContainerRequest, StopContainerRequest, RemoveContainerRequest,
            ListContainersRequest, ContainerStatusRequest, UpdateContainerResourcesRequest,
            ReopenContainerLogRequest, ExecSyncRequest, ExecRequest, AttachRequest,
            PortForwardRequest, ContainerStatsRequest, ListContainerStatsRequest,
            PodSandboxStatsRequest, ListPodSandboxStatsRequest, UpdateRuntimeConfigRequest,
            StatusRequest, CheckpointContainerRequest, ListMetricDescriptorsRequest,
            ListPodSandboxMetricsRequest, RuntimeConfigRequest, UpdatePodSandboxResourcesRequest,
            ListImagesRequest, ImageStatusRequest, PullImageRequest, RemoveImageRequest,
            ImageFsInfoRequest);
        $what!(streaming:
            StreamPodSandboxesRequest, StreamContainersRequest, StreamContainerStatsRequest,
            StreamPodSandboxStatsRequest, StreamPodSandboxMetricsRequest, GetEventsRequest,
            StreamImagesRequest);
    };
}

/// Returns the last part of a Rust type's name in lower case, which is the message's name except
/// for its case.
fn type_name<T>() -> String {
    std::any::type_name::<T>().rsplit("::").next().unwrap().to_lowercase()
}

#[test]
fn every_call_of_the_services_has_its_request_and_response() {
    let mut ours: BTreeMap<String, (String, String, bool)> = BTreeMap::new();
    macro_rules! note {
        (unary: $($request:ident),*) => { $(
            let types = (type_name::<v1::$request>(), type_name::<<v1::$request as Rpc>::Response>());
            ours.insert(<v1::$request as Rpc>::PATH.to_owned(), (types.0, types.1, false));
            assert!(<v1::$request as Rpc>::PATH.ends_with(<v1::$request as Rpc>::METHOD));
        )* };
        (streaming: $($request:ident),*) => { $(
            let types =
                (type_name::<v1::$request>(), type_name::<<v1::$request as StreamingRpc>::Response>());
            ours.insert(<v1::$request as StreamingRpc>::PATH.to_owned(), (types.0, types.1, true));
            assert!(<v1::$request as StreamingRpc>::PATH.ends_with(<v1::$request as StreamingRpc>::METHOD));
        )* };
    }
    for_every_request!(note);
    let theirs = pool()
        .services()
        .flat_map(|service| service.methods().collect::<Vec<_>>())
        .map(|method| {
            let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
            let (input, output) = (method.input(), method.output());
            let names = (input.name().to_lowercase(), output.name().to_lowercase());
            (path, (names.0, names.1, method.is_server_streaming()))
        })
        .collect::<BTreeMap<_, _>>();
    assert_eq!(ours, theirs);
}

/// Field numbers that other implementations rely on.
#[test]
fn fields_have_the_numbers_of_the_protocol() {
    let check = |name: &str, field: &str, number: u32| {
        let found = message(name).get_field_by_name(field).map(|field| field.number());
        assert_eq!(found, Some(number), "{name}.{field}");
    };
    // KEP-3008, with two numbers of our own.
    check("ContainerConfig", "qos_resources", 117);
    check("PodSandboxConfig", "qos_resources", 10);
    check("PodSandboxStatus", "qos_resources", 10);
    check("ContainerResources", "qos_resources", 3);
    check("UpdateContainerResourcesRequest", "qos_resources", 5);
    check("UpdatePodSandboxResourcesRequest", "qos_resources", 104);
    check("RuntimeStatus", "resources", 2);
    check("ResourcesInfo", "pod_qos_resources", 1);
    check("ResourcesInfo", "container_qos_resources", 2);
    for (name, fields) in [
        ("QOSResourceInfo", &["name", "mutable", "classes"][..]),
        ("QOSResourceClassInfo", &["name", "capacity"]),
        ("PodQOSResource", &["name", "class"]),
        ("ContainerQOSResource", &["name", "class"]),
        ("WindowsCpuGroupAffinity", &["cpu_mask", "cpu_group"]),
        ("WindowsSandboxSecurityContext", &["run_as_username", "credential_spec", "host_process"]),
        (
            "WindowsContainerSecurityContext",
            &["run_as_username", "credential_spec", "host_process"],
        ),
    ] {
        for (number, field) in (1..).zip(fields) {
            check(name, field, number);
        }
    }
    // The proposal's number is used for another field now.
    check("ContainerConfig", "CDI_devices", 17);
    check("ContainerConfig", "stop_signal", 18);
    // Out of order upstream.
    check("WindowsContainerResources", "affinity_cpus", 6);
    check("WindowsPodSandboxConfig", "security_context", 1);
    check("LinuxSandboxSecurityContext", "run_as_group", 8);
    check("LinuxSandboxSecurityContext", "seccomp_profile_path", 7);
    check("LinuxContainerSecurityContext", "supplemental_groups_policy", 17);
    check("LinuxContainerSecurityContext", "no_new_privs", 11);
    check("LinuxContainerSecurityContext", "run_as_group", 12);
    check("ImageSpec", "user_specified_image", 18);
    check("Namespace", "options", 2);
    check("StatusResponse", "runtime_handlers", 3);
}
