//! The RDT class file as written: partitions, their classes, and what each asks for.
//!
//! Main type: [`Config`]. Values of caches and bandwidth stay texts here; [`super::cache`] and
//! [`super::bandwidth`] interpret them for a machine.

use std::collections::BTreeMap;

use objects::YamlError;

use crate::strict_yaml::{At, Value, read};

/// A whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub options: Options,
    pub partitions: BTreeMap<String, Partition>,
}

/// The resources that a machine may lack although a class asks for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub l2_optional: bool,
    pub l3_optional: bool,
    pub mb_optional: bool,
}

/// A part of the caches that no other partition uses, and the classes in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partition {
    pub request: Request,
    pub classes: BTreeMap<String, Class>,
}

/// A class: one control group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Class {
    pub request: Request,
    pub kubernetes: Kubernetes,
}

/// The annotations that may not request a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kubernetes {
    pub deny_pod_annotation: bool,
    pub deny_container_annotation: bool,
}

/// The resources that a partition or class asks for. An absent one is not the same as an empty one,
/// which asks for everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    pub l2: Option<PerCache<CacheShare>>,
    pub l3: Option<PerCache<CacheShare>>,
    pub mb: Option<PerCache<BandwidthShare>>,
}

/// Values by list of cache ids, or `all`, as written.
pub type PerCache<T> = BTreeMap<String, T>;

/// Shares of one cache as written; an empty text is an absent one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheShare {
    pub unified: String,
    pub code: String,
    pub data: String,
    /// A field with another name.
    pub unknown: Option<String>,
}

/// Alternatives in different units, as written.
pub type BandwidthShare = Vec<String>;

impl Config {
    /// Reads a file.
    pub fn parse(text: &str) -> Result<Config, YamlError> {
        Config::decode(&At::root(&read(text)?))
    }

    /// Reads a file that is a value in another.
    pub fn decode(at: &At<'_>) -> Result<Config, YamlError> {
        config(at)
    }

    /// Returns all classes with their partition.
    pub fn classes(&self) -> impl Iterator<Item = (&str, &str, &Class)> {
        self.partitions.iter().flat_map(|(partition, of)| {
            let class = move |(name, class)| (partition.as_str(), String::as_str(name), class);
            of.classes.iter().map(class)
        })
    }
}

fn config(at: &At<'_>) -> Result<Config, YamlError> {
    let mut config = Config::default();
    for (name, field) in at.fields(&["options", "partitions"])? {
        match name {
            "options" => config.options = options(&field)?,
            _ => config.partitions = named(&field, partition)?,
        }
    }
    Ok(config)
}

fn options(at: &At<'_>) -> Result<Options, YamlError> {
    let mut options = Options::default();
    for (name, level) in at.fields(&["l2", "l3", "mb"])? {
        for (_, optional) in level.fields(&["optional"])? {
            let optional = optional.boolean()?;
            match name {
                "l2" => options.l2_optional = optional,
                "l3" => options.l3_optional = optional,
                _ => options.mb_optional = optional,
            }
        }
    }
    Ok(options)
}

fn named<T>(
    at: &At<'_>,
    read: impl Fn(&At<'_>) -> Result<T, YamlError>,
) -> Result<BTreeMap<String, T>, YamlError> {
    at.entries()?.iter().map(|(name, value)| Ok(((*name).to_owned(), read(value)?))).collect()
}

fn partition(at: &At<'_>) -> Result<Partition, YamlError> {
    let mut partition = Partition::default();
    for (name, field) in at.fields(&["l2Allocation", "l3Allocation", "mbAllocation", "classes"])? {
        match name {
            "classes" => partition.classes = named(&field, class)?,
            _ => request(&mut partition.request, name, &field)?,
        }
    }
    Ok(partition)
}

fn class(at: &At<'_>) -> Result<Class, YamlError> {
    let mut class = Class::default();
    for (name, field) in
        at.fields(&["l2Allocation", "l3Allocation", "mbAllocation", "kubernetes"])?
    {
        match name {
            "kubernetes" => class.kubernetes = kubernetes(&field)?,
            _ => request(&mut class.request, name, &field)?,
        }
    }
    Ok(class)
}

fn kubernetes(at: &At<'_>) -> Result<Kubernetes, YamlError> {
    let mut kubernetes = Kubernetes::default();
    for (name, field) in at.fields(&["denyPodAnnotation", "denyContainerAnnotation"])? {
        match name {
            "denyPodAnnotation" => kubernetes.deny_pod_annotation = field.boolean()?,
            _ => kubernetes.deny_container_annotation = field.boolean()?,
        }
    }
    Ok(kubernetes)
}

fn request(request: &mut Request, name: &str, at: &At<'_>) -> Result<(), YamlError> {
    match name {
        "l2Allocation" => request.l2 = Some(cache(at)?),
        "l3Allocation" => request.l3 = Some(cache(at)?),
        _ => request.mb = Some(bandwidth(at)?),
    }
    Ok(())
}

/// Reads a text for all caches, or a map by cache ids.
fn cache(at: &At<'_>) -> Result<PerCache<CacheShare>, YamlError> {
    match &at.value.value {
        Value::Text(_) => Ok([(super::ALL_CACHES.to_owned(), cache_share(at)?)].into()),
        Value::Null | Value::Map(_) => named(at, cache_share),
        _ => Err(at.expected("a share of the cache such as \"50%\", or a map by cache ids")),
    }
}

fn cache_share(at: &At<'_>) -> Result<CacheShare, YamlError> {
    let mut share = CacheShare::default();
    match &at.value.value {
        Value::Text(text) => share.unified.clone_from(text),
        Value::Null => {}
        Value::Map(_) => {
            for (name, field) in at.entries()? {
                let field = || field.quoted_text();
                match name.to_ascii_lowercase().as_str() {
                    "unified" => share.unified = field()?,
                    "code" => share.code = field()?,
                    "data" => share.data = field()?,
                    _ => share.unknown = Some(name.to_owned()),
                }
            }
        }
        _ => return Err(at.expected("a share of the cache such as \"50%\", in quotes")),
    }
    Ok(share)
}

/// Reads a list for all caches, or a map of lists by cache ids.
fn bandwidth(at: &At<'_>) -> Result<PerCache<BandwidthShare>, YamlError> {
    match &at.value.value {
        Value::List(_) => Ok([(super::ALL_CACHES.to_owned(), bandwidth_share(at)?)].into()),
        Value::Null | Value::Map(_) => named(at, bandwidth_share),
        _ => Err(at.expected("a list such as [\"50%\", \"1000MBps\"], or a map by cache ids")),
    }
}

fn bandwidth_share(at: &At<'_>) -> Result<BandwidthShare, YamlError> {
    at.items()?.iter().map(At::quoted_text).collect()
}
