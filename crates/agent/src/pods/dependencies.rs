//! The API objects that pods refer to: [`PodDependencies`].
//!
//! Config maps, secrets and runtime classes are fetched when they are needed, so that reads see the latest
//! writes; services are watched. Objects that the agent is not allowed to read count as missing.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use client::kind::{
    CLAIMS, CONFIG_MAPS, RESOURCE_CLAIMS, RUNTIME_CLASSES, SECRETS, SERVICE_ACCOUNTS, SERVICES,
};
use client::{Cache, Client, Error, Reflector, Scope};
use objects::timestamp::Timestamp;
use objects::types;
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::{debug, info, warn};

use crate::runtime::images::credentials::SecretData;
use crate::runtime::lower::{Configs, Service, ServicePort};
use crate::volumes::{Claim, Claims, References, TokenError, TokenKey, Tokens};
use client::ErrorLog;
use client::clock::Clock;
use lifecycle::resource_claims::{self, ClaimError};
use lifecycle::spec::{NameOnly, Pod};

/// The existing objects that a pod refers to.
#[derive(Clone, Default)]
pub struct Dependencies {
    pub configs: Configs,
    pub tokens: Tokens,
    pub claims: Claims,
}

impl std::fmt::Debug for Dependencies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Do not print secrets and tokens.
        f.debug_struct("Dependencies").field("claims", &self.claims).finish_non_exhaustive()
    }
}

/// Reads the objects that pods refer to.
pub struct PodDependencies {
    api: Client,
    clock: Arc<dyn Clock>,
    services: Cache<Service>,
    api_address: Option<SocketAddr>,
    tokens: Mutex<TokenCache>,
    /// Errors of pull secrets, by namespace and name.
    pull_secret_errors: Mutex<BTreeMap<(String, String), ErrorLog>>,
}

/// Tokens by pod UID, each with the time until which it is reused (seconds since 1970).
type TokenCache = BTreeMap<(String, TokenKey), (String, i64)>;

impl std::fmt::Debug for PodDependencies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Do not print tokens.
        f.debug_struct("PodDependencies").field("services", &self.services).finish_non_exhaustive()
    }
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct ConfigMap {
    data: BTreeMap<String, String>,
    binary_data: BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Secret {
    data: BTreeMap<String, String>,
}

impl PodDependencies {
    /// Services are known once [`PodDependencies::watch_services`] runs. `api_address`, if given, is the
    /// address of the API's own service.
    #[must_use]
    pub fn new(
        api: Client,
        clock: Arc<dyn Clock>,
        api_address: Option<SocketAddr>,
    ) -> PodDependencies {
        PodDependencies {
            api,
            clock,
            services: Cache::new(&[]),
            api_address,
            tokens: Mutex::default(),
            pull_secret_errors: Mutex::default(),
        }
    }

    /// Keeps the services up to date as long as it is polled.
    pub async fn watch_services(&self) {
        let reflector = Reflector::new(self.api.clone(), SERVICES, Scope::default(), service);
        let apply = |change| {
            self.services.apply(change);
            true
        };
        reflector.run(apply).await;
    }

    /// Fetches the existing objects that a pod refers to, and tokens where available.
    pub async fn fetch(&self, pod: &Pod, references: &References) -> Result<Dependencies, Error> {
        let namespace = &pod.metadata.namespace;
        let mut configs = Configs::default();
        for name in references.config_maps.keys() {
            let found: Option<ConfigMap> =
                or_none(self.api.get(CONFIG_MAPS, namespace, name).await)?;
            if let Some(found) = found {
                configs.config_maps.insert(name.clone(), found.data);
                configs.binary.insert(name.clone(), decoded(found.binary_data).collect());
            }
        }
        for name in references.secrets.keys() {
            if let Some(data) = self.secret(namespace, name).await? {
                configs.secrets.insert(name.clone(), data);
            }
        }
        let mut tokens = Tokens::new();
        for key in &references.tokens {
            let token = self.token(pod, key).await;
            tokens.insert(key.clone(), token);
        }
        let mut claims = Claims::new();
        for name in &references.claims {
            match or_none(self.api.get::<Value>(CLAIMS, namespace, name).await) {
                Ok(None) => {}
                Ok(Some(found)) => {
                    claims.insert(name.clone(), claim(&found));
                }
                // An API without claims serves no claims.
                Err(error) => {
                    let pod = pod.full_name();
                    debug!(pod, claim = name, %error, "failed to read a persistent volume claim");
                }
            }
        }
        Ok(Dependencies { configs, tokens, claims })
    }

    /// Returns why the dynamic resources of a pod cannot be prepared, if it claims any.
    pub async fn prepare_claims(&self, pod: &Pod) -> Result<(), ClaimError> {
        for claim in &pod.spec.resource_claims {
            let Some(name) = resource_claims::name_of(pod, claim)? else { continue };
            let found = self.api.get::<Value>(RESOURCE_CLAIMS, &pod.metadata.namespace, &name);
            let found = or_none(found.await).map_err(|error| ClaimError::Fetch {
                name: name.clone(),
                error: error.to_string(),
            })?;
            return Err(resource_claims::problem(&name, found.as_ref()));
        }
        Ok(())
    }

    pub async fn secret(&self, namespace: &str, name: &str) -> Result<Option<SecretData>, Error> {
        let found: Option<Secret> = or_none(self.api.get(SECRETS, namespace, name).await)?;
        Ok(found.map(|found| decoded(found.data).collect()))
    }

    /// Returns the existing pull secrets of a pod.
    pub async fn pull_secrets(&self, pod: &Pod) -> Vec<SecretData> {
        let mut found = Vec::new();
        for NameOnly { name } in &pod.spec.image_pull_secrets {
            // The registry reports missing credentials.
            let read = self.secret(&pod.metadata.namespace, name).await;
            self.log_pull_secret(pod, name, &read);
            found.extend(read.ok().flatten());
        }
        found
    }

    fn log_pull_secret(&self, pod: &Pod, secret: &str, read: &Result<Option<SecretData>, Error>) {
        let error = match read {
            Ok(Some(_)) => None,
            Ok(None) => Some("not found".to_owned()),
            Err(error) => Some(error.to_string()),
        };
        let key = (pod.metadata.namespace.clone(), secret.to_owned());
        let mut errors = self.pull_secret_errors.lock().unwrap_or_else(PoisonError::into_inner);
        let pod = pod.full_name();
        match error {
            None => {
                if let Some(failures) = errors.remove(&key).and_then(|mut log| log.recovered()) {
                    info!(pod, secret, failures, "read the pull secret again");
                }
            }
            Some(error) => {
                if errors.entry(key).or_default().failed(&error) {
                    warn!(pod, secret, error, "failed to read a pull secret; pulling without it");
                }
            }
        }
    }

    /// Returns all services, once the first list has arrived.
    pub async fn services(&self) -> Vec<Service> {
        self.services.synced().await;
        let all = self.services.all();
        let all = all.iter().map(|(_, service)| Service::clone(service));
        match self.api_address {
            None => all.collect(),
            Some(address) => all.map(|service| service.with_api_at(address)).collect(),
        }
    }

    /// Returns the runtime handler of a class.
    pub async fn handler(&self, class: &str) -> Result<String, Error> {
        let found: Value = match self.api.get(RUNTIME_CLASSES, "", class).await {
            Err(error) if error.is_not_found() => return Err(no_class(class)),
            answer => answer?,
        };
        Ok(found["handler"].as_str().unwrap_or_default().to_owned())
    }

    /// Returns a token of the pod's service account that is valid while the pod exists. A token is reused for
    /// most of its lifetime.
    async fn token(&self, pod: &Pod, key: &TokenKey) -> Result<String, TokenError> {
        let (of, now) = (&pod.metadata, self.clock.now());
        let kept = (of.uid.clone(), key.clone());
        if let Some((token, until)) = self.kept().get(&kept)
            && *until > now.seconds()
        {
            return Ok(token.clone());
        }
        let mut request = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "expirationSeconds": key.expiration_seconds,
                "boundObjectRef": {
                    "apiVersion": "v1", "kind": "Pod", "name": of.name, "uid": of.uid,
                },
            },
        });
        if !key.audience.is_empty() {
            request["spec"]["audiences"] = json!([key.audience]);
        }
        let account = match pod.spec.service_account_name.as_str() {
            "" => "default",
            name => name,
        };
        let kind = SERVICE_ACCOUNTS;
        let answer = self
            .api
            .create_subresource_returning(kind, &of.namespace, account, "token", &request)
            .await;
        let answer = answer.map_err(|error| TokenError(error.to_string()))?;
        let text = |field: &str| answer["status"][field].as_str().unwrap_or_default();
        let token = text("token").to_owned();
        let ends = Timestamp::parse(text("expirationTimestamp")).map_or(0, Timestamp::seconds);
        // Renewed after four fifths of its lifetime, or a day, as upstream does.
        let life = (ends - now.seconds()) * 4 / 5;
        let mut all = self.kept();
        all.retain(|_, (_, until)| *until > now.seconds());
        all.insert(kept, (token.clone(), now.seconds() + life.min(24 * 60 * 60)));
        Ok(token)
    }

    fn kept(&self) -> MutexGuard<'_, TokenCache> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn claim(of: &Value) -> Claim {
    Claim {
        is_deleted: of["metadata"]["deletionTimestamp"].is_string(),
        is_bound: of["status"]["phase"] == "Bound",
        has_volume: of["spec"]["volumeName"].as_str().is_some_and(|name| !name.is_empty()),
    }
}

fn or_none<T>(found: Result<T, Error>) -> Result<Option<T>, Error> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Decodes base64 values. Invalid values are skipped: an API server does not write them.
fn decoded(data: BTreeMap<String, String>) -> impl Iterator<Item = (String, Vec<u8>)> {
    data.into_iter().filter_map(|(key, text)| Some((key, STANDARD.decode(text).ok()?)))
}

fn service(service: types::Service) -> Service {
    let port = |of: types::ServicePort| ServicePort {
        name: of.name,
        port: u16::try_from(of.port).unwrap_or(0),
        protocol: of.protocol,
    };
    Service {
        namespace: service.metadata.namespace,
        name: service.metadata.name,
        cluster_ip: service.spec.cluster_ip,
        ports: service.spec.ports.into_iter().map(port).collect(),
    }
}

/// Returns the error for a missing class, with the text of upstream's cache, which differs from its API's.
fn no_class(class: &str) -> Error {
    Error::Refused(Box::new(client::Refused {
        status: 404,
        reason: "NotFound".to_owned(),
        message: format!("runtimeclass.node.k8s.io \"{class}\" not found"),
        causes: Vec::new(),
        retry_after: None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_runtime_class_error_matches_upstreams_cache() {
        let error = no_class("x");
        assert!(error.is_not_found());
        assert_eq!(error.to_string(), "runtimeclass.node.k8s.io \"x\" not found");
    }
}
