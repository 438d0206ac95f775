//! The edits that the layer makes to requests and responses, over encoded messages. Pure.
//!
//! Field numbers are those of `cri/proto/runtime.proto`; a test compares them with the generated types. Every edit keeps
//! the fields that it does not know.

use bytes::Bytes;
use cri::v1;
use prost::Message as _;

use super::catalog::{Assignments, Level};
use crate::wire::{FieldNumber, Message, WireError};

/// The annotation of sandboxes and containers that holds their assignments, so that they survive restarts of the layer
/// without a file of its own. The client does not see it in statuses.
pub(crate) const ANNOTATION: &str = "class-layer.berth.dev/assignments";

/// A class as requested: name and class.
pub(crate) type Requested = Vec<(String, String)>;

/// The numbers of the fields of one kind of configuration.
#[derive(Debug)]
struct Fields {
    annotations: FieldNumber,
    classes: FieldNumber,
}

const SANDBOX_CONFIG: Fields = Fields { annotations: 7, classes: 10 };
const CONTAINER_CONFIG: Fields = Fields { annotations: 10, classes: 117 };
const LINUX_CONFIG: FieldNumber = 15;
const LINUX_CONFIG_RESOURCES: FieldNumber = 1;
const RESOURCES_UNIFIED: FieldNumber = 9;
const SANDBOX_STATUS: Fields = Fields { annotations: 8, classes: 10 };
const SANDBOX_STATUS_CONTAINERS: FieldNumber = 3;
const CONTAINER_STATUS_ANNOTATIONS: FieldNumber = 13;
const CONTAINER_STATUS_RESOURCES: FieldNumber = 16;
const CONTAINER_RESOURCES_CLASSES: FieldNumber = 3;
const UPDATE_CLASSES: FieldNumber = 5;
const SANDBOX_UPDATE_CLASSES: FieldNumber = 104;
const RUNTIME_STATUS_RESOURCES: FieldNumber = 2;

/// Edits of the configuration of a container, which put classes in force at its creation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Adjustment {
    /// Annotations that the runtime reads.
    pub annotations: Vec<(String, String)>,
    /// Files of cgroup v2 with their content.
    pub unified: Vec<(String, String)>,
}

/// The configuration in a request, opened for edits.
#[derive(Debug)]
pub(crate) struct ConfigEdit {
    request: Message,
    config: Message,
    number: FieldNumber,
    fields: &'static Fields,
}

impl ConfigEdit {
    /// Opens the `config` of a `RunPodSandboxRequest`.
    pub(crate) fn run_sandbox(request: &Bytes) -> Result<ConfigEdit, WireError> {
        Self::open(Message::parse(request)?, 1, &SANDBOX_CONFIG)
    }

    /// Opens the `config` of a `CreateContainerRequest` and removes the classes of its `sandbox_config`.
    pub(crate) fn create_container(request: &Bytes) -> Result<ConfigEdit, WireError> {
        let mut request = Message::parse(request)?;
        strip_sandbox_classes(&mut request, 3)?;
        Self::open(request, 2, &CONTAINER_CONFIG)
    }

    fn open(
        request: Message,
        number: FieldNumber,
        fields: &'static Fields,
    ) -> Result<ConfigEdit, WireError> {
        let config = request.nested(number)?.unwrap_or_default();
        Ok(ConfigEdit { request, config, number, fields })
    }

    /// Removes the requested classes and returns them.
    pub(crate) fn take_requested(&mut self) -> Result<Requested, WireError> {
        requested(self.config.take(self.fields.classes)?)
    }

    /// Puts back classes that the runtime itself offers.
    pub(crate) fn put_back(&mut self, classes: &Requested) {
        push_classes(&mut self.config, self.fields.classes, classes);
    }

    /// Adds the annotation with the assignments. The client's own annotation of that name does not pass.
    pub(crate) fn record(&mut self, assignments: &Assignments) -> Result<(), WireError> {
        remove_annotation(&mut self.config, self.fields.annotations)?;
        if !assignments.is_empty() {
            let text = serde_json::to_string(assignments).unwrap_or_default();
            self.config.push_entry(self.fields.annotations, ANNOTATION, &text);
        }
        Ok(())
    }

    /// Applies an adjustment to the configuration of a container.
    pub(crate) fn adjust(&mut self, adjustment: &Adjustment) -> Result<(), WireError> {
        for (key, value) in &adjustment.annotations {
            self.config.push_entry(self.fields.annotations, key, value);
        }
        if adjustment.unified.is_empty() {
            return Ok(());
        }
        let mut linux = self.config.nested(LINUX_CONFIG)?.unwrap_or_default();
        let mut resources = linux.nested(LINUX_CONFIG_RESOURCES)?.unwrap_or_default();
        for (file, content) in &adjustment.unified {
            resources.push_entry(RESOURCES_UNIFIED, file, content);
        }
        linux.set_nested(LINUX_CONFIG_RESOURCES, &resources);
        self.config.set_nested(LINUX_CONFIG, &linux);
        Ok(())
    }

    /// Returns the edited request.
    pub(crate) fn finish(mut self) -> Bytes {
        self.request.set_nested(self.number, &self.config);
        self.request.encode()
    }
}

/// Removes the classes of the sandbox configuration of a `PullImageRequest`.
pub(crate) fn strip_pull(request: &Bytes) -> Result<Bytes, WireError> {
    let mut request = Message::parse(request)?;
    strip_sandbox_classes(&mut request, 3)?;
    Ok(request.encode())
}

fn strip_sandbox_classes(request: &mut Message, number: FieldNumber) -> Result<(), WireError> {
    if let Some(mut sandbox) = request.nested(number)?
        && !sandbox.take(SANDBOX_CONFIG.classes)?.is_empty()
    {
        request.set_nested(number, &sandbox);
    }
    Ok(())
}

/// Removes the classes of an update and returns them. The rest is empty but for the id if the update changes nothing
/// else.
pub(crate) fn take_update(level: Level, request: &Bytes) -> Result<(Requested, Bytes), WireError> {
    let mut message = Message::parse(request)?;
    let requested = requested(message.take(update_classes(level))?)?;
    Ok((requested, message.encode()))
}

/// Puts classes that the runtime itself offers back into an update.
pub(crate) fn put_back_update(
    level: Level,
    request: &Bytes,
    classes: &Requested,
) -> Result<Bytes, WireError> {
    let mut message = Message::parse(request)?;
    push_classes(&mut message, update_classes(level), classes);
    Ok(message.encode())
}

fn update_classes(level: Level) -> FieldNumber {
    match level {
        Level::Pod => SANDBOX_UPDATE_CLASSES,
        Level::Container => UPDATE_CLASSES,
    }
}

/// Adds the layer's resources to a `StatusResponse`. Returns the resources that the runtime itself offers and the edited
/// response. A resource of the layer replaces one of the same name.
pub(crate) fn advertise(
    response: &Bytes,
    offered: &v1::ResourcesInfo,
) -> Result<(Option<v1::ResourcesInfo>, Bytes), WireError> {
    let mut response = Message::parse(response)?;
    let mut status = response.nested(1)?.unwrap_or_default();
    let own = status
        .nested(RUNTIME_STATUS_RESOURCES)?
        .map(|own| decode::<v1::ResourcesInfo>(&own.encode()));
    let own = own.transpose()?;
    let mut merged = offered.clone();
    if let Some(own) = &own {
        let ours = |name: &str| {
            let all = offered.pod_qos_resources.iter().chain(&offered.container_qos_resources);
            all.into_iter().any(|resource| {
                cri::full_resource_name(&resource.name) == cri::full_resource_name(name)
            })
        };
        let foreign = |list: &[v1::QosResourceInfo]| -> Vec<v1::QosResourceInfo> {
            list.iter().filter(|resource| !ours(&resource.name)).cloned().collect()
        };
        merged.pod_qos_resources.extend(foreign(&own.pod_qos_resources));
        merged.container_qos_resources.extend(foreign(&own.container_qos_resources));
    }
    let merged = Message::parse(&merged.encode_to_vec().into())?;
    status.set_nested(RUNTIME_STATUS_RESOURCES, &merged);
    response.set_nested(1, &status);
    Ok((own, response.encode()))
}

/// Returns the classes to report for a container or sandbox, from its id and the assignments in its annotation.
pub(crate) type Report<'a> = &'a dyn Fn(Level, &str, Assignments) -> Requested;

/// Adds the classes of the container to a `ContainerStatusResponse`.
pub(crate) fn report_container(response: &Bytes, report: Report<'_>) -> Result<Bytes, WireError> {
    let mut response = Message::parse(response)?;
    if let Some(mut status) = response.nested(1)? {
        report_container_status(&mut status, report)?;
        response.set_nested(1, &status);
    }
    Ok(response.encode())
}

/// Adds the classes of the sandbox and of the containers in it to a `PodSandboxStatusResponse`.
pub(crate) fn report_sandbox(response: &Bytes, report: Report<'_>) -> Result<Bytes, WireError> {
    let mut response = Message::parse(response)?;
    if let Some(mut status) = response.nested(1)? {
        let assignments = remove_annotation(&mut status, SANDBOX_STATUS.annotations)?;
        let id = text(&status, 1)?;
        let classes = report(Level::Pod, &id, assignments);
        push_classes(&mut status, SANDBOX_STATUS.classes, &classes);
        response.set_nested(1, &status);
    }
    for encoded in response.take(SANDBOX_STATUS_CONTAINERS)? {
        let mut status = Message::parse(&encoded)?;
        report_container_status(&mut status, report)?;
        response.push(SANDBOX_STATUS_CONTAINERS, &status.encode());
    }
    Ok(response.encode())
}

fn report_container_status(status: &mut Message, report: Report<'_>) -> Result<(), WireError> {
    let assignments = remove_annotation(status, CONTAINER_STATUS_ANNOTATIONS)?;
    let id = text(status, 1)?;
    let classes = report(Level::Container, &id, assignments);
    if !classes.is_empty() {
        let mut resources = status.nested(CONTAINER_STATUS_RESOURCES)?.unwrap_or_default();
        push_classes(&mut resources, CONTAINER_RESOURCES_CLASSES, &classes);
        status.set_nested(CONTAINER_STATUS_RESOURCES, &resources);
    }
    Ok(())
}

/// Returns the assignments in the annotations of a container or sandbox.
pub(crate) fn assignments(annotations: &std::collections::BTreeMap<String, String>) -> Assignments {
    annotations.get(ANNOTATION).map(|text| parse_assignments(text)).unwrap_or_default()
}

/// A text that is not one of the layer's own holds no assignment.
fn parse_assignments(text: &str) -> Assignments {
    serde_json::from_str(text).unwrap_or_default()
}

/// Removes the layer's annotation and returns the assignments in it.
fn remove_annotation(message: &mut Message, number: FieldNumber) -> Result<Assignments, WireError> {
    let is_ours = |entry: &Bytes| Ok(text(&Message::parse(entry)?, 1)? == ANNOTATION);
    let Some(entry) = message.take_if(number, is_ours)?.pop() else {
        return Ok(Assignments::new());
    };
    Ok(parse_assignments(&text(&Message::parse(&entry)?, 2)?))
}

/// Returns a singular string. Invalid UTF-8 is replaced, since no name that the layer knows has it.
fn text(message: &Message, number: FieldNumber) -> Result<String, WireError> {
    let value = message.last(number)?.map(|value| String::from_utf8_lossy(value).into_owned());
    Ok(value.unwrap_or_default())
}

/// Both messages that request a class have the same fields.
fn requested(values: Vec<Bytes>) -> Result<Requested, WireError> {
    let classes = values.into_iter().map(|value| {
        let class = decode::<v1::ContainerQosResource>(&value)?;
        Ok((class.name, class.class))
    });
    classes.collect()
}

fn push_classes(message: &mut Message, number: FieldNumber, classes: &Requested) {
    for (name, class) in classes {
        let class = v1::ContainerQosResource { name: name.clone(), class: class.clone() };
        message.push(number, &class.encode_to_vec());
    }
}

fn decode<M: prost::Message + Default>(encoded: &Bytes) -> Result<M, WireError> {
    M::decode(encoded.clone())
        .map_err(|error| WireError::Malformed { at: 0, reason: error.to_string() })
}

#[cfg(test)]
mod tests;
