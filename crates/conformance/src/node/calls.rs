//! The agent's calls to the runtime by pod: [`Calls`].
//!
//! Requests are converted to the JSON of the recording, with the protocol descriptors that the
//! crate `cri` is generated from. Nothing is compared here.

use std::collections::HashMap;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cri::RecordedCall;
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use serde_json::{Value, json};

/// Reports whether a method changes something; the recording has only those.
pub(super) fn is_kept(method: &str) -> bool {
    matches!(
        method,
        "RunPodSandbox"
            | "StopPodSandbox"
            | "RemovePodSandbox"
            | "CreateContainer"
            | "StartContainer"
            | "StopContainer"
            | "RemoveContainer"
            | "UpdateContainerResources"
            | "UpdatePodSandboxResources"
            | "ExecSync"
            | "PullImage"
    )
}

/// A call in the form of the recording.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) method: &'static str,
    pub(super) container: Option<String>,
    pub(super) attempt: Option<u64>,
    pub(super) request: Value,
    /// `None` until the response comes.
    pub(super) response: Option<Value>,
    pub(super) error: Option<(String, String)>,
    pub(super) deadline: Option<u64>,
}

/// All calls, by the uid of the pod.
#[derive(Debug, Default)]
pub(super) struct Calls(HashMap<String, Vec<Call>>);

impl Calls {
    pub(super) fn read(passed: &[RecordedCall]) -> Result<Calls> {
        let pool = DescriptorPool::decode(cri::DESCRIPTION)
            .context("the description of the protocol cannot be read")?;
        let mut calls = Calls::default();
        // The pod of each sandbox and container, and the container's name.
        let mut sandboxes: HashMap<String, String> = HashMap::new();
        let mut containers: HashMap<String, (String, String)> = HashMap::new();
        for passed in passed {
            let request = json_of(&pool, &format!("{}Request", passed.method), &passed.request)?;
            let response = match &passed.response {
                Some(Ok(bytes)) => {
                    Some(json_of(&pool, &format!("{}Response", passed.method), bytes)?)
                }
                _ => None,
            };
            let error = match &passed.response {
                Some(Err(error)) => Some((code_name(error.code), error.message.clone())),
                _ => None,
            };
            let text = |value: &Value| value.as_str().map(str::to_owned);
            let (mut container, mut attempt) = (None, None);
            let uid = match passed.method {
                "RunPodSandbox" => {
                    let uid = text(&request["config"]["metadata"]["uid"]);
                    let made = response.as_ref().and_then(|made| text(&made["pod_sandbox_id"]));
                    if let (Some(uid), Some(id)) = (&uid, made) {
                        sandboxes.insert(id, uid.clone());
                    }
                    uid
                }
                "CreateContainer" => {
                    let metadata = &request["config"]["metadata"];
                    container = text(&metadata["name"]);
                    attempt = Some(metadata["attempt"].as_u64().unwrap_or(0));
                    let uid = text(&request["sandbox_config"]["metadata"]["uid"]);
                    let made = response.as_ref().and_then(|made| text(&made["container_id"]));
                    if let (Some(uid), Some(id), Some(name)) = (&uid, made, &container) {
                        containers.insert(id, (uid.clone(), name.clone()));
                    }
                    uid
                }
                "PullImage" => text(&request["sandbox_config"]["metadata"]["uid"]),
                _ => {
                    let sandbox =
                        text(&request["pod_sandbox_id"]).and_then(|id| sandboxes.get(&id).cloned());
                    let owner =
                        text(&request["container_id"]).and_then(|id| containers.get(&id).cloned());
                    container = owner.as_ref().map(|(_, name)| name.clone());
                    sandbox.or(owner.map(|(uid, _)| uid))
                }
            };
            let Some(uid) = uid else { continue };
            calls.0.entry(uid).or_default().push(Call {
                method: passed.method,
                container,
                attempt,
                request,
                response,
                error,
                deadline: passed.deadline.map(|deadline| deadline.as_secs()),
            });
        }
        Ok(calls)
    }

    pub(super) fn for_pod(&self, uid: &str) -> &[Call] {
        self.0.get(uid).map(Vec::as_slice).unwrap_or_default()
    }
}

/// Spells a code as the recording does.
fn code_name(code: cri::Code) -> String {
    let mut name = String::new();
    for (index, letter) in format!("{code:?}").char_indices() {
        if letter.is_ascii_uppercase() && index > 0 {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

fn json_of(pool: &DescriptorPool, name: &str, bytes: &[u8]) -> Result<Value> {
    let Some(descriptor) = pool.get_message_by_name(&format!("runtime.v1.{name}")) else {
        return Ok(json!({}));
    };
    let message = DynamicMessage::decode(descriptor, bytes)?;
    let options = SerializeOptions::new().use_proto_field_name(true);
    let mut value = message.serialize_with_options(serde_json::value::Serializer, &options)?;
    as_text(&mut value);
    Ok(value)
}

/// Converts bytes that are text in the recording: values of variables, and output of commands.
fn as_text(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(as_text),
        Value::Object(fields) => {
            for (name, value) in fields {
                match name.as_str() {
                    "envs" => {
                        for variable in value.as_array_mut().into_iter().flatten() {
                            if let Some(bytes) = variable.get_mut("value") {
                                decode(bytes);
                            }
                        }
                    }
                    "stdout" | "stderr" if value.is_string() => decode(value),
                    _ => as_text(value),
                }
            }
        }
        _ => {}
    }
}

fn decode(bytes: &mut Value) {
    let decoded = bytes.as_str().and_then(|text| BASE64_STANDARD.decode(text).ok());
    if let Some(text) = decoded.and_then(|bytes| String::from_utf8(bytes).ok()) {
        *bytes = text.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_spelled_as_recorded() {
        assert_eq!(code_name(cri::Code::NotFound), "NOT_FOUND");
        assert_eq!(code_name(cri::Code::Unknown), "UNKNOWN");
        assert_eq!(code_name(cri::Code::Unimplemented), "UNIMPLEMENTED");
    }
}
