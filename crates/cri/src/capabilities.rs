//! What the runtime at the other end is and can do: [`Capabilities`], found out by
//! [`Client::probe`].
//!
//! It asks, it does not infer from names and versions, but for host processes
//! ([`check_host_processes`]), of which no runtime tells. What it finds holds for as long as that runtime
//! runs; after a reconnection it is to be asked again.

use bytes::{Buf as _, BufMut as _, Bytes};
use thiserror::Error;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use crate::classes::ClassSupport;
use crate::client::Client;
use crate::error::{Error, Origin};
use crate::rpc::StreamingRpc;
use crate::v1;

/// The version of the API that clients say they speak. The kubelet's has been this one since the
/// beginning.
const KUBE_API_VERSION: &str = "0.1.0";

/// Nothing has this id: runtimes look up ids and beginnings of ids, which are hexadecimal.
const NO_ID: &str = "nothing-has-this-id";

/// What a runtime is and can do.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// Such as `containerd`.
    pub runtime_name: String,
    pub runtime_version: String,
    /// Such as `v1`.
    pub runtime_api_version: String,
    /// Whether it can run containers at all.
    pub runtime_ready: Condition,
    /// Whether it can run containers with a network of their own.
    pub network_ready: Condition,
    /// Its handlers (`runtimeHandler` of a RuntimeClass). Empty where the runtime does not tell.
    pub handlers: Vec<Handler>,
    /// Whether it follows `supplementalGroupsPolicy`.
    pub supplemental_groups_policy: bool,
    /// Whether a pod may have a user namespace and the host's network.
    pub user_namespaces_host_network: bool,
    /// Which form of QoS-class resources it understands (KEP-3008).
    pub classes: ClassSupport,
    /// Who makes the cgroups; `None` where the runtime does not tell.
    pub cgroup_driver: Option<v1::CgroupDriver>,
    /// Whether it knows `GetContainerEvents`. Without it there are no events; with it the call may
    /// still be refused (containerd 1.6 does, and CRI-O where it is switched off), which is found out
    /// by making it: trying would take an event from whoever listens next.
    pub may_send_events: bool,
    /// Whether it knows `UpdatePodSandboxResources`.
    pub sandbox_updates: bool,
    /// Whether it answers `ListPodSandboxMetrics`.
    pub sandbox_metrics: bool,
    /// Whether it answers `StreamContainers`, and so the other lists in parts.
    pub list_streaming: bool,
}

/// A condition of the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    pub status: bool,
    /// One word, such as `NetworkPluginNotReady`.
    pub reason: String,
    pub message: String,
}

/// A runtime handler; the default one has no name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handler {
    pub name: String,
    pub recursive_read_only_mounts: bool,
    pub user_namespaces: bool,
}

/// A runtime that would start a plain container where a process of the host is asked for: whoever does
/// not know the field passes over it.
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

/// The containerd that runs host processes first.
const SINCE: [u32; 2] = [1, 6];

/// Whether a runtime, by its own name and version, runs containers as processes of the host (Windows).
pub fn check_host_processes(name: &str, version: &str) -> Result<(), NoHostProcesses> {
    if name == "containerd" && release(version).is_some_and(|release| release >= SINCE) {
        return Ok(());
    }
    Err(NoHostProcesses { name: name.to_owned(), version: version.to_owned() })
}

/// The first two numbers of `v1.6.20`, `1.7.24~ds1` or `2.0-rc.1`.
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
    /// Finds out what the runtime is and can do. Changes nothing there.
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

    /// Whether the runtime knows a call, found out with a request that cannot be decoded: a runtime
    /// that knows the call refuses the request before it does anything, and one that does not says
    /// so.
    async fn knows<R: StreamingRpc>(&self) -> Result<bool, Error> {
        let deadline = Some(self.request_timeout());
        known(self.unary(R::METHOD, R::PATH, (), Undecodable, deadline).await)
    }
}

/// Whether the runtime knows a call, by the answer to it. Only that there was no answer leaves the
/// question open.
fn known<T>(answer: Result<T, Error>) -> Result<bool, Error> {
    match answer {
        Ok(_) => Ok(true),
        Err(error) if error.is_unimplemented() => Ok(false),
        Err(error) if error.origin == Origin::Runtime && !error.is_unavailable() => Ok(true),
        Err(error) => Err(error),
    }
}

impl Condition {
    /// One that the runtime does not mention is not met, as for the kubelet.
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

/// Sends what is no message, and takes any.
struct Undecodable;

/// A field with the wire type 7, which there is not.
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
    fn host_processes_are_for_runtimes_that_are_known_to_run_them() {
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
