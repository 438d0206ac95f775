//! Identity and features of a runtime: [`Capabilities`], read by [`Client::probe`].
//!
//! Features are probed with calls and not inferred from names and versions. The exception is host
//! processes ([`check_host_processes`]), which no runtime reports. The result is valid while that
//! runtime runs; probe again after a reconnection.

use bytes::{Buf as _, BufMut as _, Bytes};
use thiserror::Error;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use crate::classes::ClassSupport;
use crate::client::Client;
use crate::error::{Error, Origin};
use crate::rpc::StreamingRpc;
use crate::v1;

/// The API version that the client sends. The kubelet has always sent this one.
const KUBE_API_VERSION: &str = "0.1.0";

/// No object has this id: runtimes look up ids and their prefixes, which are hexadecimal.
const NO_ID: &str = "nothing-has-this-id";

/// Identity and features of a runtime.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// For example `containerd`.
    pub runtime_name: String,
    pub runtime_version: String,
    /// For example `v1`.
    pub runtime_api_version: String,
    /// Reports whether the runtime can run containers.
    pub runtime_ready: Condition,
    /// Reports whether the runtime can set up pod networks.
    pub network_ready: Condition,
    /// The runtime's handlers (`runtimeHandler` of a RuntimeClass); empty if it does not report
    /// them.
    pub handlers: Vec<Handler>,
    /// True if the runtime supports `supplementalGroupsPolicy`.
    pub supplemental_groups_policy: bool,
    /// True if a pod may combine a user namespace with the host's network.
    pub user_namespaces_host_network: bool,
    /// The form of QoS-class resources (KEP-3008) that the runtime understands.
    pub classes: ClassSupport,
    /// The driver that manages the cgroups; `None` if the runtime does not report it.
    pub cgroup_driver: Option<v1::CgroupDriver>,
    /// True if the runtime implements `GetContainerEvents`. The call may still be rejected (by
    /// containerd 1.6, and by CRI-O if events are disabled). Only the call itself shows this; a
    /// trial call would consume an event of the next listener.
    pub may_send_events: bool,
    /// True if the runtime implements `UpdatePodSandboxResources`.
    pub sandbox_updates: bool,
    /// True if the runtime implements `ListPodSandboxMetrics`.
    pub sandbox_metrics: bool,
    /// True if the runtime implements `StreamContainers`, and so the other streamed lists.
    pub list_streaming: bool,
}

/// A condition of the runtime's status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    pub status: bool,
    /// A CamelCase word such as `NetworkPluginNotReady`.
    pub reason: String,
    pub message: String,
}

/// A runtime handler; the default handler has an empty name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handler {
    pub name: String,
    pub recursive_read_only_mounts: bool,
    pub user_namespaces: bool,
}

/// A runtime that would start an ordinary container instead of a host process, because it ignores
/// the unknown field.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "the container runtime {name} {version} is not known to run HostProcess containers; containerd \
     {} or newer is",
    SINCE.map(|part| part.to_string()).join(".")
)]
pub struct NoHostProcesses {
    pub name: String,
    pub version: String,
}

/// The first containerd release that runs host processes.
const SINCE: [u32; 2] = [1, 6];

/// Checks by name and version that a runtime runs HostProcess containers (Windows).
pub fn check_host_processes(name: &str, version: &str) -> Result<(), NoHostProcesses> {
    if name == "containerd" && release(version).is_some_and(|release| release >= SINCE) {
        return Ok(());
    }
    Err(NoHostProcesses { name: name.to_owned(), version: version.to_owned() })
}

/// Parses the first two numbers of `v1.6.20`, `1.7.24~ds1` or `2.0-rc.1`.
fn release(version: &str) -> Option<[u32; 2]> {
    let mut parts = version.strip_prefix('v').unwrap_or(version).split('.');
    let mut number = || {
        let part = parts.next()?;
        let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
        part[..end].parse().ok()
    };
    Some([number()?, number()?])
}

impl Client {
    /// Reads the identity and the features of the runtime. Changes no state there.
    pub async fn probe(&self) -> Result<Capabilities, Error> {
        let version = v1::VersionRequest { version: KUBE_API_VERSION.to_owned() };
        let version = self.call(version).await?;
        let status = self.call(v1::StatusRequest::default()).await?;
        let cgroup_driver = match self.call(v1::RuntimeConfigRequest {}).await {
            Ok(config) => config.linux.map(|linux| linux.cgroup_driver()),
            Err(error) if error.is_unimplemented() => None,
            Err(error) => return Err(error),
        };
        let nothing = v1::UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: NO_ID.to_owned(),
            ..Default::default()
        };
        let sandbox_updates = known(self.call(nothing).await)?;
        let sandbox_metrics = known(self.call(v1::ListPodSandboxMetricsRequest {}).await)?;
        let filter = v1::ContainerFilter { id: NO_ID.to_owned(), ..Default::default() };
        let nothing = v1::StreamContainersRequest { filter: Some(filter) };
        let list_streaming = known(self.stream(nothing).all().await)?;
        let may_send_events = self.knows::<v1::GetEventsRequest>().await?;

        let features = status.features.unwrap_or_default();
        let runtime = status.status.unwrap_or_default();
        Ok(Capabilities {
            runtime_name: version.runtime_name,
            runtime_version: version.runtime_version,
            runtime_api_version: version.runtime_api_version,
            runtime_ready: Condition::find(&runtime, "RuntimeReady"),
            network_ready: Condition::find(&runtime, "NetworkReady"),
            handlers: status.runtime_handlers.into_iter().map(Handler::from).collect(),
            supplemental_groups_policy: features.supplemental_groups_policy,
            user_namespaces_host_network: features.user_namespaces_host_network,
            classes: ClassSupport::of(&runtime),
            cgroup_driver,
            may_send_events,
            sandbox_updates,
            sandbox_metrics,
            list_streaming,
        })
    }

    /// Returns true if the runtime implements a call. The probe is a request that cannot be
    /// decoded: a runtime that implements the call rejects the request without side effects;
    /// another one returns Unimplemented.
    async fn knows<R: StreamingRpc>(&self) -> Result<bool, Error> {
        let deadline = Some(self.request_timeout());
        known(self.unary(R::METHOD, R::PATH, (), Undecodable, deadline).await)
    }
}

/// Returns true if the response shows that the runtime implements the call. Fails if there was no
/// response.
fn known<T>(answer: Result<T, Error>) -> Result<bool, Error> {
    match answer {
        Ok(_) => Ok(true),
        Err(error) if error.is_unimplemented() => Ok(false),
        Err(error) if error.origin == Origin::Runtime && !error.is_unavailable() => Ok(true),
        Err(error) => Err(error),
    }
}

impl Condition {
    /// Finds a condition; one that the runtime does not report counts as not met, as in the
    /// kubelet.
    fn find(status: &v1::RuntimeStatus, wanted: &str) -> Self {
        match status.conditions.iter().find(|condition| condition.r#type == wanted) {
            None => Self {
                status: false,
                reason: String::new(),
                message: format!("the runtime does not report {wanted}"),
            },
            Some(found) => Self {
                status: found.status,
                reason: found.reason.clone(),
                message: found.message.clone(),
            },
        }
    }
}

impl From<v1::RuntimeHandler> for Handler {
    fn from(handler: v1::RuntimeHandler) -> Self {
        let features = handler.features.unwrap_or_default();
        Self {
            name: handler.name,
            recursive_read_only_mounts: features.recursive_read_only_mounts,
            user_namespaces: features.user_namespaces,
        }
    }
}

/// A codec that sends an undecodable message and accepts any response.
struct Undecodable;

/// A field with the wire type 7, which does not exist.
const NO_MESSAGE: u8 = 0x0f;

impl Codec for Undecodable {
    type Encode = ();
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Undecodable {
    type Item = ();
    type Error = Status;

    fn encode(&mut self, (): (), buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_u8(NO_MESSAGE);
        Ok(())
    }
}

impl Decoder for Undecodable {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_processes_need_a_runtime_known_to_support_them() {
        for (name, version, can) in [
            ("containerd", "v1.6.0", true),
            ("containerd", "1.6.20~ds1", true),
            ("containerd", "v1.7.24", true),
            ("containerd", "v2.0.0-rc.1", true),
            ("containerd", "2.10", true),
            ("containerd", "v1.5.18", false),
            ("containerd", "v1.15-dev", true),
            ("containerd", "main", false),
            ("containerd", "", false),
            ("docker", "28.2.2", false),
        ] {
            assert_eq!(check_host_processes(name, version).is_ok(), can, "{name} {version}");
        }
        let refused = check_host_processes("docker", "28.2.2").unwrap_err().to_string();
        assert_eq!(
            refused,
            "the container runtime docker 28.2.2 is not known to run HostProcess containers; \
             containerd 1.6 or newer is"
        );
    }
}
