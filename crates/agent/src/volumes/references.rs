//! The API objects that a pod needs before it can start: [`references`].
//!
//! Pure. The caller fetches and watches them.

use std::collections::{BTreeMap, BTreeSet};

use super::{Projections, source_of};
use lifecycle::spec::{Pod, ServiceAccountTokenProjection, Volume};

/// The objects of the pod's namespace that it refers to, by kind.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct References {
    /// Config maps by name.
    pub config_maps: BTreeMap<String, Need>,
    /// Secrets by name; pull secrets are optional.
    pub secrets: BTreeMap<String, Need>,
    pub tokens: BTreeSet<TokenKey>,
    /// Persistent volume claims.
    pub claims: BTreeSet<String>,
}

/// Required or optional.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    Optional,
    Required,
}

/// The parameters of a token of the pod's service account.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenKey {
    /// Empty for the API server itself.
    pub audience: String,
    pub expiration_seconds: i64,
}

/// The API server's default, which static pods do not have.
const DEFAULT_EXPIRATION: i64 = 3600;

impl From<&ServiceAccountTokenProjection> for TokenKey {
    fn from(of: &ServiceAccountTokenProjection) -> TokenKey {
        TokenKey {
            audience: of.audience.clone(),
            expiration_seconds: of.expiration_seconds.unwrap_or(DEFAULT_EXPIRATION),
        }
    }
}

/// Returns the references of `pod`: of mounted volumes, of environments, and for pulling images.
#[must_use]
pub fn references(pod: &Pod) -> References {
    let mut found = References::default();
    for volume in mounted_volumes(pod) {
        of_volume(pod, volume, &mut found);
    }
    for (_, container) in pod.containers() {
        for source in &container.env_from {
            if let Some(wanted) = &source.config_map_ref {
                add(&mut found.config_maps, &wanted.name, wanted.optional);
            }
            if let Some(wanted) = &source.secret_ref {
                add(&mut found.secrets, &wanted.name, wanted.optional);
            }
        }
        for source in container.env.iter().filter_map(|variable| variable.value_from.as_ref()) {
            if let Some(wanted) = &source.config_map_key_ref {
                add(&mut found.config_maps, &wanted.name, wanted.optional);
            }
            if let Some(wanted) = &source.secret_key_ref {
                add(&mut found.secrets, &wanted.name, wanted.optional);
            }
        }
    }
    for secret in pod.spec.image_pull_secrets.iter().filter(|secret| !secret.name.is_empty()) {
        add(&mut found.secrets, &secret.name, Some(true));
    }
    found
}

/// Returns the volumes that a container mounts. The others are never set up.
pub(super) fn mounted_volumes(pod: &Pod) -> impl Iterator<Item = &Volume> {
    let mounted: BTreeSet<&str> = pod
        .containers()
        .flat_map(|(_, container)| {
            let mounts = container.volume_mounts.iter().map(|mount| mount.name.as_str());
            mounts.chain(container.volume_devices.iter().map(|device| device.name.as_str()))
        })
        .collect();
    pod.spec.volumes.iter().filter(move |volume| mounted.contains(volume.name.as_str()))
}

/// Returns the claim of a volume, if it has one: its own, or the one created for the pod.
pub(super) fn claim_of(pod: &Pod, volume: &Volume) -> Option<String> {
    match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(claim), _) => Some(claim.claim_name.clone()),
        (None, Some(_)) => Some(format!("{}-{}", pod.metadata.name, volume.name)),
        (None, None) => None,
    }
}

fn of_volume(pod: &Pod, volume: &Volume, found: &mut References) {
    found.claims.extend(claim_of(pod, volume));
    let Some(Projections { sources, .. }) = source_of(volume) else { return };
    for source in sources {
        if let Some(wanted) = source.config_map {
            add(&mut found.config_maps, &wanted.name, wanted.optional);
        }
        if let Some(wanted) = source.secret {
            add(&mut found.secrets, &wanted.name, wanted.optional);
        }
        found.tokens.extend(source.service_account_token.as_ref().map(TokenKey::from));
    }
}

fn add(to: &mut BTreeMap<String, Need>, name: &str, optional: Option<bool>) {
    let need = if optional == Some(true) { Need::Optional } else { Need::Required };
    let known = to.entry(name.to_owned()).or_insert(need);
    *known = need.max(*known);
}
