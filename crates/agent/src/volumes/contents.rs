//! The wanted contents of a pod's volumes: [`contents`].
//!
//! Pure: config maps, secrets and tokens are arguments, files are results. A problem of a volume is returned
//! in place of its content, so that all problems are reported at once.

use std::collections::{BTreeMap, BTreeSet};

use cri::v1;
use objects::resources::{MEMORY, huge_page_size};
use objects::{Quantity, resources};

use super::references::{TokenKey, claim_of, mounted_volumes};
use super::{ClaimFault, FilesKind, Problem, Projections, source_of};
use thiserror::Error;

use crate::runtime::lower::{Configs, PodInput, downward};
use crate::runtime::{cgroups, lower};
use lifecycle::spec::{
    ConfigMapSource, DownwardApiSource, EmptyDirSource, KeyToPath, Pod, Projection, Volume,
};

/// The default mode of files, as set by the API server.
const DEFAULT_MODE: u32 = 0o644;
/// The mode of a token that belongs to a specific user or group.
const PRIVATE_MODE: u32 = 0o600;
/// The longest path of a file in a volume, and the longest name in it, in bytes.
const LONGEST_PATH: usize = 4096;
const LONGEST_NAME: usize = 255;

/// The existing objects of the API.
#[derive(Debug, Clone, Copy)]
pub struct VolumeInputs<'a> {
    pub configs: &'a Configs,
    pub tokens: &'a Tokens,
    pub claims: &'a Claims,
}

/// The existing persistent volume claims.
pub type Claims = BTreeMap<String, Claim>;

/// The properties that decide if a claim can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Claim {
    pub is_deleted: bool,
    /// True if its phase is `Bound`.
    pub is_bound: bool,
    /// True if it names its volume.
    pub has_volume: bool,
}

/// The API server's reason for not issuing a token.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct TokenError(pub String);

/// Tokens, or errors.
pub type Tokens = BTreeMap<TokenKey, Result<String, TokenError>>;

/// The content of each mounted volume, or its problem, by name.
pub type Contents = Vec<(String, Result<Content, Problem>)>;

#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    EmptyDir(Medium),
    HostPath {
        path: String,
        /// Empty if nothing is checked.
        kind: String,
    },
    Files {
        kind: FilesKind,
        /// By path in the volume, with `/` between names.
        files: BTreeMap<String, File>,
        /// The largest size of the file system, if it is in memory.
        size: Option<u64>,
    },
    /// By the reference in the spec. After the pull, the image ID replaces it.
    Image(v1::ImageSpec),
}

/// The medium of an empty directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    Disk,
    Memory {
        /// In bytes; half of the machine's memory if not given.
        size: Option<u64>,
    },
    HugePages {
        /// In bytes.
        page_size: u64,
    },
}

/// A file of a volume.
#[derive(Clone, PartialEq, Eq)]
pub struct File {
    pub data: Vec<u8>,
    pub mode: u32,
    /// The owner, if it is not the agent.
    pub owner: Option<u32>,
}

/// Omits the data, which may be secret.
impl std::fmt::Debug for File {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "File({} bytes, {:o}, {:?})", self.data.len(), self.mode, self.owner)
    }
}

/// Returns the wanted contents of a pod's volumes.
#[must_use]
pub fn contents(input: &PodInput<'_>, sources: &VolumeInputs<'_>) -> Contents {
    mounted_volumes(input.pod)
        .map(|volume| (volume.name.clone(), of_volume(input, sources, volume)))
        .collect()
}

fn of_volume(
    input: &PodInput<'_>,
    sources: &VolumeInputs<'_>,
    volume: &Volume,
) -> Result<Content, Problem> {
    if let Some(volume_source) = &volume.empty_dir {
        return medium(input, volume_source).map(Content::EmptyDir);
    }
    if let Some(volume_source) = &volume.host_path {
        let (path, kind) =
            (volume_source.path.clone(), volume_source.kind.clone().unwrap_or_default());
        return Ok(Content::HostPath { path, kind });
    }
    if let Some(Projections { kind, sources: from, default_mode }) = source_of(volume) {
        let files = files(input, sources, &from, mode_or(default_mode, DEFAULT_MODE))?;
        return Ok(Content::Files { kind, files, size: memory_size(input, None) });
    }
    if let Some(volume_source) = &volume.image {
        return Ok(Content::Image(v1::ImageSpec {
            image: volume_source.reference.clone(),
            user_specified_image: volume_source.reference.clone(),
            ..Default::default()
        }));
    }
    if let Some(name) = claim_of(input.pod, volume) {
        return Err(of_claim(input.pod, name, sources.claims));
    }
    if let Some(volume_source) = &volume.csi {
        return Err(Problem::NoDriver(volume_source.driver.clone()));
    }
    match volume.other.keys().next() {
        Some(kind) => Err(Problem::Unsupported { kind: kind.clone() }),
        // The API server's default.
        None => Ok(Content::EmptyDir(Medium::Disk)),
    }
}

/// Returns the problem of a claim; a valid claim is a problem too, because its volume is not supported.
fn of_claim(pod: &Pod, name: String, claims: &Claims) -> Problem {
    let fault = match claims.get(&name) {
        None => ClaimFault::Missing { name: name.clone() },
        Some(Claim { is_deleted: true, .. }) => ClaimFault::Deleted,
        Some(Claim { is_bound: false, .. }) => ClaimFault::Unbound,
        Some(Claim { has_volume: false, .. }) => ClaimFault::NoVolume,
        Some(_) => return Problem::Unsupported { kind: "persistentVolumeClaim".to_owned() },
    };
    Problem::Claim { namespace: pod.metadata.namespace.clone(), name, fault }
}

fn mode_or(mode: Option<i32>, default: u32) -> u32 {
    mode.and_then(|mode| u32::try_from(mode).ok()).unwrap_or(default)
}

fn medium(input: &PodInput<'_>, volume_source: &EmptyDirSource) -> Result<Medium, Problem> {
    match volume_source.medium.as_str() {
        "" => Ok(Medium::Disk),
        "Memory" => {
            Ok(Medium::Memory { size: memory_size(input, volume_source.size_limit.as_ref()) })
        }
        other => match other.strip_prefix("HugePages") {
            Some(size) => page_size(input.pod, other, size),
            None => Err(Problem::Medium(other.to_owned())),
        },
    }
}

/// Returns the size limit of a file system in memory: the smallest of the node's allocatable memory, the
/// pod's limit and its own.
fn memory_size(input: &PodInput<'_>, own: Option<&Quantity>) -> Option<u64> {
    let allocatable = input.node_env.allocatable.get(MEMORY).map(Quantity::value);
    let of_pod = cgroups::memory_limit(input.pod);
    let own = own.map(Quantity::value);
    let least = [allocatable, of_pod, own].into_iter().flatten().filter(|size| *size > 0).min();
    least.and_then(|size| u64::try_from(size).ok())
}

/// Parses the page size; `suffix` is empty or `-<size>`. A container must request pages of that size.
fn page_size(pod: &Pod, medium: &str, suffix: &str) -> Result<Medium, Problem> {
    let wanted = match suffix.strip_prefix('-') {
        None if suffix.is_empty() => None,
        None => return Err(Problem::Medium(medium.to_owned())),
        Some(size) => Some(
            Quantity::parse(size)
                .ok()
                .map(|size| size.value())
                .filter(|size| *size > 0)
                .ok_or_else(|| Problem::Medium(medium.to_owned()))?,
        ),
    };
    let containers = pod.spec.containers.iter().chain(&pod.spec.init_containers);
    let requested: BTreeSet<i64> = lower::qos::pod_level(pod)
        .into_iter()
        .chain(containers.map(|container| &container.resources))
        .flat_map(|resources| resources.requests.keys())
        .filter(|name| resources::is_huge_pages(name))
        .filter_map(|name| huge_page_size(name))
        .filter(|size| wanted.is_none_or(|wanted| wanted == *size))
        .collect();
    let mut sizes = requested.into_iter();
    match (sizes.next().and_then(|size| u64::try_from(size).ok()), sizes.next()) {
        (Some(page_size), None) => Ok(Medium::HugePages { page_size }),
        (Some(_), Some(_)) => Err(Problem::ManyPageSizes(medium.to_owned())),
        (None, _) => Err(Problem::NoHugePages(medium.to_owned())),
    }
}

/// Returns the files of all sources; a later source overrides an earlier one of the same path.
fn files(
    input: &PodInput<'_>,
    sources: &VolumeInputs<'_>,
    from: &[Projection],
    mode: u32,
) -> Result<BTreeMap<String, File>, Problem> {
    let mut all = BTreeMap::new();
    let mut problems = Vec::new();
    for source in from {
        match of_source(input, sources, source, mode) {
            Ok(files) => all.extend(files),
            Err(problem) => problems.push(problem),
        }
    }
    match problems.len() {
        0 => Ok(all),
        1 => Err(problems.remove(0)),
        _ => Err(Problem::Several(problems)),
    }
}

type Files = BTreeMap<String, File>;

fn of_source(
    input: &PodInput<'_>,
    sources: &VolumeInputs<'_>,
    source: &Projection,
    mode: u32,
) -> Result<Files, Problem> {
    if let Some(volume_source) = &source.config_map {
        return of_config_map(sources.configs, volume_source, mode);
    }
    if let Some(volume_source) = &source.secret {
        let missing = || Problem::NoSecret(volume_source.name.clone());
        let data = or_empty(
            sources.configs.secrets.get(&volume_source.name),
            volume_source.optional,
            missing,
        )?;
        return pick(
            volume_source,
            mode,
            |key| data.get(key).cloned(),
            data.keys(),
            Problem::NoSecretKey,
        );
    }
    if let Some(volume_source) = &source.downward_api {
        return of_downward_api(input, volume_source, mode);
    }
    if let Some(volume_source) = &source.service_account_token {
        let key = TokenKey::from(volume_source);
        let owner = fs_user(input.pod);
        let is_private = owner.is_some() || input.pod.spec.security_context.fs_group.is_some();
        let mode = if is_private { PRIVATE_MODE } else { mode };
        let token = match sources.tokens.get(&key) {
            Some(Ok(token)) => token,
            Some(Err(error)) => return Err(Problem::Token(error.to_string())),
            None => return Err(Problem::Token("it was not requested yet".to_owned())),
        };
        let file = File { data: token.clone().into_bytes(), mode, owner };
        return Ok(BTreeMap::from([(clean(&volume_source.path)?, file)]));
    }
    match source.other.keys().next() {
        Some(kind) => Err(Problem::UnsupportedSource { kind: kind.clone() }),
        None => Ok(BTreeMap::new()),
    }
}

/// Returns the value, or an empty one if it is missing and optional.
fn or_empty<T: Default + Clone>(
    found: Option<&T>,
    optional: Option<bool>,
    missing: impl FnOnce() -> Problem,
) -> Result<T, Problem> {
    match found {
        Some(found) => Ok(found.clone()),
        None if optional == Some(true) => Ok(T::default()),
        None => Err(missing()),
    }
}

fn of_config_map(
    configs: &Configs,
    volume_source: &ConfigMapSource,
    mode: u32,
) -> Result<Files, Problem> {
    let missing = || Problem::NoConfigMap(volume_source.name.clone());
    let text =
        or_empty(configs.config_maps.get(&volume_source.name), volume_source.optional, missing)?;
    let binary = configs.binary.get(&volume_source.name);
    let find = |key: &str| {
        let text = text.get(key).map(|text| text.clone().into_bytes());
        text.or_else(|| binary?.get(key).cloned())
    };
    let keys = text.keys().chain(binary.into_iter().flat_map(BTreeMap::keys));
    pick(volume_source, mode, find, keys, Problem::NoConfigMapKey)
}

/// Returns all keys under their own names, or the selected keys under the given names.
fn pick<'a>(
    volume_source: &ConfigMapSource,
    mode: u32,
    find: impl Fn(&str) -> Option<Vec<u8>>,
    keys: impl Iterator<Item = &'a String>,
    missing: impl Fn(String) -> Problem,
) -> Result<Files, Problem> {
    let whole = |key: &'a String| KeyToPath { key: key.clone(), path: key.clone(), mode: None };
    let all: Vec<KeyToPath>;
    let items = if volume_source.items.is_empty() {
        all = keys.map(whole).collect();
        &all
    } else {
        &volume_source.items
    };
    let mut files = BTreeMap::new();
    for item in items {
        match find(&item.key) {
            Some(data) => {
                let file = File { data, mode: mode_or(item.mode, mode), owner: None };
                files.insert(clean(&item.path)?, file);
            }
            None if volume_source.optional == Some(true) => {}
            None => return Err(missing(item.key.clone())),
        }
    }
    Ok(files)
}

fn of_downward_api(
    input: &PodInput<'_>,
    volume_source: &DownwardApiSource,
    mode: u32,
) -> Result<Files, Problem> {
    let mut files = BTreeMap::new();
    for item in &volume_source.items {
        let value = if let Some(field) = &item.field_ref {
            // Addresses are not known before the volumes are set up.
            downward::field(input, &[], &field.field_path)
        } else if let Some(resource) = &item.resource_field_ref {
            downward::resource(input.pod, input.node_env, None, resource)
        } else {
            continue;
        };
        let value = value.map_err(|error| Problem::Downward(error.to_string()))?;
        let file = File { data: value.into_bytes(), mode: mode_or(item.mode, mode), owner: None };
        files.insert(clean(&item.path)?, file);
    }
    Ok(files)
}

/// Returns the user of all containers, if they have the same explicit one.
fn fs_user(pod: &Pod) -> Option<u32> {
    let common = pod.spec.security_context.run_as_user;
    let mut users = pod
        .spec
        .init_containers
        .iter()
        .chain(&pod.spec.containers)
        .map(|container| container.security_context.run_as_user.or(common));
    let first = users.next()??;
    users.all(|user| user == Some(first)).then_some(first).and_then(|user| u32::try_from(user).ok())
}

/// Normalizes the path of a file. It must stay in the volume, and must not use the agent's own names, which
/// begin with two dots.
fn clean(path: &str) -> Result<String, Problem> {
    let invalid = |problem: &str| Problem::Path(format!("invalid path: {problem}"));
    if path.is_empty() {
        return Err(invalid("must not be empty: \"\""));
    }
    if path.starts_with('/') {
        return Err(invalid(&format!("must be relative path: {path}")));
    }
    if path.len() > LONGEST_PATH {
        return Err(invalid(&format!("must be less than or equal to {LONGEST_PATH} characters")));
    }
    let names: Vec<&str> = path.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
    if names.contains(&"..") {
        return Err(invalid(&format!("must not contain '..': {path}")));
    }
    if names.iter().any(|name| name.len() > LONGEST_NAME) {
        let problem = format!("filenames must be less than or equal to {LONGEST_NAME} characters");
        return Err(invalid(&problem));
    }
    match names.first() {
        None => Err(invalid(&format!("must name a file: {path}"))),
        Some(first) if first.starts_with("..") => {
            Err(invalid(&format!("must not start with '..': {path}")))
        }
        Some(_) => Ok(names.join("/")),
    }
}
