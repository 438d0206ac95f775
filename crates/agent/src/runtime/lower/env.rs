//! The environment of a container: [`variables`].
//!
//! The order is: device plugins, `envFrom`, `env`, services. `env` overrides a variable of `envFrom` of the
//! same name, and both override those of services; a value can refer to every variable before it. Upstream
//! stores variables in a map and sends them in random order; here they have the order of the spec.

use std::collections::BTreeMap;

use super::input::{ContainerInput, PodInput};
use super::{LowerError, downward, env_file, expansion, service_links};
use lifecycle::spec::{EnvVar, EnvVarSource, FileKeySelector, LocalSource};

/// Names and values, in order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Environment(pub Vec<(String, Vec<u8>)>);

impl Environment {
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        // The last variable of a name counts, as in a process.
        let found = self.0.iter().rev().find(|(known, _)| known.as_bytes() == name);
        found.map(|(_, value)| value.as_slice())
    }

    /// Sets a variable, replacing one of the same name.
    fn set(&mut self, name: &str, value: Vec<u8>) {
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }
}

/// Returns all variables of a container.
pub fn variables(
    input: &PodInput<'_>,
    container_input: &ContainerInput<'_>,
) -> Result<Environment, LowerError> {
    let pod = input.pod;
    // Missing only without an API server, whose default this is.
    let links = pod.spec.enable_service_links.unwrap_or(true);
    let services =
        service_links::of_services(container_input.services, &pod.metadata.namespace, links);
    let mut own = Environment::default();
    for source in &container_input.container.env_from {
        let prefix = &source.prefix;
        if let Some(wanted) = &source.config_map_ref {
            for (key, value) in config_map(container_input, wanted)?.into_iter().flatten() {
                own.set(&format!("{prefix}{key}"), value.clone().into_bytes());
            }
        } else if let Some(wanted) = &source.secret_ref {
            for (key, value) in secret(container_input, wanted)?.into_iter().flatten() {
                own.set(&format!("{prefix}{key}"), value.clone());
            }
        }
    }
    for variable in &container_input.container.env {
        if let Some(value) = value(input, container_input, &own, &services, variable)? {
            own.set(&variable.name, value);
        }
    }
    let attached = container_input.attached.env.iter();
    let mut all: Vec<(String, Vec<u8>)> =
        attached.map(|(name, value)| (name.clone(), value.clone().into_bytes())).collect();
    let is_set = |name: &String| own.0.iter().any(|(known, _)| known == name);
    let linked: Vec<_> = services
        .into_iter()
        .filter(|(name, _)| !is_set(name))
        .map(|(name, value)| (name, value.into_bytes()))
        .collect();
    all.extend(own.0);
    all.extend(linked);
    Ok(Environment(all))
}

/// Returns the value of a variable of `env`; `None` if its source is missing and optional.
fn value(
    input: &PodInput<'_>,
    container_input: &ContainerInput<'_>,
    known: &Environment,
    services: &BTreeMap<String, String>,
    variable: &EnvVar,
) -> Result<Option<Vec<u8>>, LowerError> {
    let Some(source) = variable.value_from.as_ref().filter(|_| variable.value.is_empty()) else {
        let value = expansion::expand(variable.value.as_bytes(), |name| {
            let linked = || services.get(std::str::from_utf8(name).ok()?).map(String::as_bytes);
            known.get(name).or_else(linked)
        });
        return Ok(Some(value));
    };
    let namespace = || input.pod.metadata.namespace.clone();
    match source {
        EnvVarSource { field_ref: Some(field), .. } => {
            let value = downward::field(input, container_input.pod_ips, &field.field_path)?;
            Ok(Some(value.into_bytes()))
        }
        EnvVarSource { resource_field_ref: Some(resource), .. } => {
            let own = Some(container_input.container);
            let value = downward::resource(input.pod, input.node_env, own, resource)?;
            Ok(Some(value.into_bytes()))
        }
        EnvVarSource { config_map_key_ref: Some(wanted), .. } => {
            let Some(map) = config_map(container_input, wanted)? else { return Ok(None) };
            let value = map.get(&wanted.key).map(|value| value.clone().into_bytes());
            or_missing(value, wanted, || LowerError::NoConfigMapKey {
                key: wanted.key.clone(),
                namespace: namespace(),
                name: wanted.name.clone(),
            })
        }
        EnvVarSource { secret_key_ref: Some(wanted), .. } => {
            let Some(map) = secret(container_input, wanted)? else { return Ok(None) };
            or_missing(map.get(&wanted.key).cloned(), wanted, || LowerError::NoSecretKey {
                key: wanted.key.clone(),
                namespace: namespace(),
                name: wanted.name.clone(),
            })
        }
        EnvVarSource { file_key_ref: Some(wanted), .. } => file_key(container_input, wanted),
        EnvVarSource { .. } => Ok(Some(Vec::new())),
    }
}

/// Returns a variable of a file. Only the variable may be missing, not the file; an empty value counts as
/// missing.
fn file_key(
    container_input: &ContainerInput<'_>,
    wanted: &FileKeySelector,
) -> Result<Option<Vec<u8>>, LowerError> {
    let FileKeySelector { volume_name, path, key, optional } = wanted;
    let file = container_input.env_files.get(&(volume_name.clone(), path.clone()));
    let file = file.ok_or_else(|| LowerError::NoFileVolume(volume_name.clone()))?;
    let text = file.text.as_deref().ok_or(LowerError::EnvFile)?;
    let value = env_file::value(text, key).map_err(|_| LowerError::EnvFile)?;
    match value.filter(|value| !value.is_empty()) {
        Some(value) => Ok(Some(value.to_owned().into_bytes())),
        None if *optional == Some(true) => Ok(None),
        None => Err(LowerError::NoFileKey { key: key.clone(), path: file.path.clone() }),
    }
}

/// Returns the value, `None` if it is missing and optional, or an error.
fn or_missing<T>(
    found: Option<T>,
    wanted: &LocalSource,
    error: impl FnOnce() -> LowerError,
) -> Result<Option<T>, LowerError> {
    match found {
        None if wanted.optional != Some(true) => Err(error()),
        found => Ok(found),
    }
}

fn config_map<'a>(
    container_input: &ContainerInput<'a>,
    wanted: &LocalSource,
) -> Result<Option<&'a BTreeMap<String, String>>, LowerError> {
    let found = container_input.configs.config_maps.get(&wanted.name);
    or_missing(found, wanted, || LowerError::NoConfigMap { name: wanted.name.clone() })
}

fn secret<'a>(
    container_input: &ContainerInput<'a>,
    wanted: &LocalSource,
) -> Result<Option<&'a BTreeMap<String, Vec<u8>>>, LowerError> {
    let found = container_input.configs.secrets.get(&wanted.name);
    or_missing(found, wanted, || LowerError::NoSecret { name: wanted.name.clone() })
}
