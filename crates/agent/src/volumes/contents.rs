//! What is to be in each volume of a pod: [`contents`].
//!
//! Pure: config maps, secrets and tokens come in as values, files go out as values. What is wrong with
//! a volume is its content too, so that all that can be told is told at once.

use std::collections::{BTreeMap, BTreeSet};

use cri::v1;
use objects::resources::{MEMORY, huge_page_size};
use objects::{Quantity, resources};

use super::references::{TokenKey, claim_of, mounted_volumes};
use super::{ClaimFault, FilesKind, Problem, Projections, source_of};
use crate::runtime::lower::{Configs, PodInput, downward};
use crate::runtime::{cgroups, lower};
use crate::spec::{
    ConfigMapSource, DownwardApiSource, EmptyDirSource, KeyToPath, Pod, Projection, Volume,
};

/// Mode of files where nothing is said, as the API server would put it in.
const DEFAULT_MODE: u32 = 0o644;
/// Mode of a token that is given to a user or a group of its own.
const PRIVATE_MODE: u32 = 0o600;
/// The longest path of a file in a volume, and the longest name in it, in bytes.
const LONGEST_PATH: usize = 4096;
const LONGEST_NAME: usize = 255;

/// What was fetched from the API, as far as it exists.
#[derive(Debug, Clone, Copy)]
pub struct VolumeInputs<'a> {
    pub configs: &'a Configs,
    pub tokens: &'a Tokens,
    pub claims: &'a Claims,
}

/// Persistent volume claims that exist.
pub type Claims = BTreeMap<String, Claim>;

/// What decides whether a claim can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Claim {
    pub is_deleted: bool,
    /// Whether it says that it has a volume.
    pub is_bound: bool,
    /// Whether it says which.
    pub has_volume: bool,
}

/// Tokens, or why there is none.
pub type Tokens = BTreeMap<TokenKey, Result<String, String>>;

/// The content of each volume that is mounted, or what is wrong with it, by its name.
pub type Contents = Vec<(String, Result<Content, Problem>)>;

#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    EmptyDir(Medium),
    HostPath {
        path: String,
        /// Empty if nothing is to be checked.
        kind: String,
    },
    Files {
        kind: FilesKind,
        /// By their paths in the volume, with `/` between names.
        files: BTreeMap<String, File>,
        /// The most that the file system may hold, where it is in memory.
        size: Option<u64>,
    },
    /// By the reference as it is written. Whoever pulls it puts its id into what is mounted.
    Image(v1::ImageSpec),
}

/// Where an empty directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    Disk,
    Memory {
        /// In bytes; half of the machine's memory if it is not told.
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
    /// Who owns it, where not the agent.
    pub owner: Option<u32>,
}

/// What is in a file is nobody's business: it may be a secret.
impl std::fmt::Debug for File {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "File({} bytes, {:o}, {:?})", self.data.len(), self.mode, self.owner)
    }
}

/// What is to be in the volumes of a pod.
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
    if let Some(of) = &volume.empty_dir {
        return medium(input, of).map(Content::EmptyDir);
    }
    if let Some(of) = &volume.host_path {
        let (path, kind) = (of.path.clone(), of.kind.clone().unwrap_or_default());
        return Ok(Content::HostPath { path, kind });
    }
    if let Some(Projections { kind, sources: from, default_mode }) = source_of(volume) {
        let files = files(input, sources, &from, mode_or(default_mode, DEFAULT_MODE))?;
        return Ok(Content::Files { kind, files, size: memory_size(input, None) });
    }
    if let Some(of) = &volume.image {
        return Ok(Content::Image(v1::ImageSpec {
            image: of.reference.clone(),
            user_specified_image: of.reference.clone(),
            ..Default::default()
        }));
    }
    if let Some(name) = claim_of(input.pod, volume) {
        return Err(of_claim(input.pod, name, sources.claims));
    }
    if let Some(of) = &volume.csi {
        return Err(Problem::NoDriver(of.driver.clone()));
    }
    match volume.other.keys().next() {
        Some(kind) => Err(Problem::Unsupported { kind: kind.clone() }),
        // What the API server would have put in.
        None => Ok(Content::EmptyDir(Medium::Disk)),
    }
}

/// What is wrong with a claim; with one that is as it should be, that its volume cannot be mounted.
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

fn medium(input: &PodInput<'_>, of: &EmptyDirSource) -> Result<Medium, Problem> {
    match of.medium.as_str() {
        "" => Ok(Medium::Disk),
        "Memory" => Ok(Medium::Memory { size: memory_size(input, of.size_limit.as_ref()) }),
        other => match other.strip_prefix("HugePages") {
            Some(size) => page_size(input.pod, other, size),
            None => Err(Problem::Medium(other.to_owned())),
        },
    }
}

/// How large a file system in memory may grow: as all pods together, as the pod, or as it says itself,
/// whichever is least.
fn memory_size(input: &PodInput<'_>, own: Option<&Quantity>) -> Option<u64> {
    let allocatable = input.facts.allocatable.get(MEMORY).map(Quantity::value);
    let of_pod = cgroups::memory_limit(input.pod);
    let own = own.map(Quantity::value);
    let least = [allocatable, of_pod, own].into_iter().flatten().filter(|size| *size > 0).min();
    least.and_then(|size| u64::try_from(size).ok())
}

/// `suffix` is empty or `-<size>`. Pages of that size have to be requested by a container.
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

/// The files of all sources; a later one takes the place of an earlier one of the same path.
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
    if let Some(of) = &source.config_map {
        return of_config_map(sources.configs, of, mode);
    }
    if let Some(of) = &source.secret {
        let missing = || Problem::NoSecret(of.name.clone());
        let data = or_empty(sources.configs.secrets.get(&of.name), of.optional, missing)?;
        return pick(of, mode, |key| data.get(key).cloned(), data.keys(), Problem::NoSecretKey);
    }
    if let Some(of) = &source.downward_api {
        return of_downward_api(input, of, mode);
    }
    if let Some(of) = &source.service_account_token {
        let key = TokenKey::from(of);
        let owner = fs_user(input.pod);
        let is_private = owner.is_some() || input.pod.spec.security_context.fs_group.is_some();
        let mode = if is_private { PRIVATE_MODE } else { mode };
        let token = match sources.tokens.get(&key) {
            Some(Ok(token)) => token,
            Some(Err(why)) => return Err(Problem::Token(why.clone())),
            None => return Err(Problem::Token("it was not asked for yet".to_owned())),
        };
        let file = File { data: token.clone().into_bytes(), mode, owner };
        return Ok(BTreeMap::from([(clean(&of.path)?, file)]));
    }
    match source.other.keys().next() {
        Some(kind) => Err(Problem::UnsupportedSource { kind: kind.clone() }),
        None => Ok(BTreeMap::new()),
    }
}

/// What was found; nothing if it may be missing.
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

fn of_config_map(configs: &Configs, of: &ConfigMapSource, mode: u32) -> Result<Files, Problem> {
    let missing = || Problem::NoConfigMap(of.name.clone());
    let text = or_empty(configs.config_maps.get(&of.name), of.optional, missing)?;
    let binary = configs.binary.get(&of.name);
    let find = |key: &str| {
        let text = text.get(key).map(|text| text.clone().into_bytes());
        text.or_else(|| binary?.get(key).cloned())
    };
    let keys = text.keys().chain(binary.into_iter().flat_map(BTreeMap::keys));
    pick(of, mode, find, keys, Problem::NoConfigMapKey)
}

/// All keys under their own names, or those that are asked for under the names that are asked for.
fn pick<'a>(
    of: &ConfigMapSource,
    mode: u32,
    find: impl Fn(&str) -> Option<Vec<u8>>,
    keys: impl Iterator<Item = &'a String>,
    missing: impl Fn(String) -> Problem,
) -> Result<Files, Problem> {
    let whole = |key: &'a String| KeyToPath { key: key.clone(), path: key.clone(), mode: None };
    let all: Vec<KeyToPath>;
    let items = if of.items.is_empty() {
        all = keys.map(whole).collect();
        &all
    } else {
        &of.items
    };
    let mut files = BTreeMap::new();
    for item in items {
        match find(&item.key) {
            Some(data) => {
                let file = File { data, mode: mode_or(item.mode, mode), owner: None };
                files.insert(clean(&item.path)?, file);
            }
            None if of.optional == Some(true) => {}
            None => return Err(missing(item.key.clone())),
        }
    }
    Ok(files)
}

fn of_downward_api(
    input: &PodInput<'_>,
    of: &DownwardApiSource,
    mode: u32,
) -> Result<Files, Problem> {
    let mut files = BTreeMap::new();
    for item in &of.items {
        let value = if let Some(field) = &item.field_ref {
            // Addresses are not known before the volumes are there.
            downward::field(input, &[], &field.field_path)
        } else if let Some(resource) = &item.resource_field_ref {
            downward::resource(input.pod, input.facts, None, resource)
        } else {
            continue;
        };
        let value = value.map_err(|error| Problem::Downward(error.to_string()))?;
        let file = File { data: value.into_bytes(), mode: mode_or(item.mode, mode), owner: None };
        files.insert(clean(&item.path)?, file);
    }
    Ok(files)
}

/// The user that all containers run as, if they say so and it is one.
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

/// A path of a file without empty names, and only if it stays in the volume and out of what belongs to
/// the agent there, whose names begin with two dots.
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
