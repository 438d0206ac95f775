//! Access to the agent's server: [`Access`] authenticates a request and authorizes it, as the kubelet does.
//!
//! ```text
//!   client certificate ─────────────┐
//!   bearer token ──▶ TokenReview ───┼──▶ user ──▶ SubjectAccessReview ──▶ allowed, or 403
//!   neither: anonymous, if enabled ─┘
//! ```
//!
//! The API server and administrators are allowed by their certificate alone, so that logs and exec do not
//! depend on a second request. The API's answers are cached for the times that the configuration gives.
//! Bodies are not read here, and nothing is served.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use client::Client;
use client::kind::{SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS};
use http::header::AUTHORIZATION;
use http::{HeaderMap, Method, StatusCode};
use https::Peer;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tracing::warn;

use super::Refusal;

/// The common name of the API server's client certificate.
pub const API_SERVER: &str = "kube-apiserver-kubelet-client";

/// The group whose members are allowed everything.
const ADMINISTRATORS: &str = "system:masters";
/// The group that upstream adds to every user with a certificate.
const AUTHENTICATED: &str = "system:authenticated";
const ANONYMOUS: (&str, &str) = ("system:anonymous", "system:unauthenticated");

/// Answers kept of each kind of review. Clients without credentials can send any number of tokens.
const KEPT: usize = 4096;
/// Reviews sent to the API at a time, for the same reason.
const REVIEWS: usize = 16;

/// How requests are authenticated and authorized: `authentication` and `authorization` of a
/// KubeletConfiguration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// True if requests without credentials have a user, `system:anonymous`.
    pub anonymous: bool,
    /// How long an answer about a token is kept; `None` if tokens are not accepted.
    pub tokens: Option<Duration>,
    pub authorization: Authorization,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Authorization {
    /// Every authenticated user is allowed everything.
    AlwaysAllow,
    /// The API decides. The two times are how long an answer is kept.
    Webhook { allowed: Duration, denied: Duration },
}

/// Upstream's defaults.
impl Default for Settings {
    fn default() -> Settings {
        Settings {
            anonymous: false,
            tokens: Some(Duration::from_secs(2 * 60)),
            authorization: Authorization::Webhook {
                allowed: Duration::from_secs(5 * 60),
                denied: Duration::from_secs(30),
            },
        }
    }
}

/// An authenticated user, as reviews name one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct User {
    name: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl User {
    fn member(name: &str, groups: &[&str]) -> User {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        User { name: name.to_owned(), groups, ..User::default() }
    }

    /// Reads the user of a TokenReview's status.
    fn read(status: &Value) -> User {
        let texts = |list: &Value| -> Vec<String> {
            let items = list.as_array().map(Vec::as_slice).unwrap_or_default();
            items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let user = &status["user"];
        let text = |field: &str| user[field].as_str().unwrap_or_default().to_owned();
        let extra = user["extra"].as_object().into_iter().flatten();
        User {
            name: text("username"),
            uid: text("uid"),
            groups: texts(&user["groups"]),
            extra: extra.map(|(name, values)| (name.clone(), texts(values))).collect(),
        }
    }
}

/// The API that answers reviews, and the answers it gave.
#[derive(Debug)]
struct Reviews {
    api: Client,
    node: String,
    settings: Settings,
    under_way: Semaphore,
    /// By the digest of a token: tokens themselves are not kept.
    tokens: Cache<[u8; 32], Option<User>>,
    /// By the text of a SubjectAccessReview's spec.
    decisions: Cache<String, bool>,
}

/// Decides which requests are served. Clones share their cache.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// `None`: only the API server and administrators are allowed.
    reviews: Option<Arc<Reviews>>,
}

impl Access {
    /// Asks `api` about everyone but the API server and administrators. `node` is the node's name.
    #[must_use]
    pub fn reviewed(api: Client, node: String, settings: Settings) -> Access {
        let reviews = Reviews {
            api,
            node,
            settings,
            under_way: Semaphore::new(REVIEWS),
            tokens: Cache::default(),
            decisions: Cache::default(),
        };
        Access { reviews: Some(Arc::new(reviews)) }
    }

    /// Returns the name of a sender that may make a request, or refuses it. `segments` are the parts of its path, decoded.
    pub(super) async fn check(
        &self,
        method: &Method,
        segments: &[&str],
        headers: &HeaderMap,
        peer: Option<&Peer>,
    ) -> Result<String, Refusal> {
        let is_trusted = |peer: &Peer| {
            peer.name == API_SERVER || peer.groups.iter().any(|group| group == ADMINISTRATORS)
        };
        if let Some(peer) = peer.filter(|peer| is_trusted(peer)) {
            return Ok(peer.name.clone());
        }
        let user = match (peer, &self.reviews) {
            (Some(peer), _) => {
                let groups = peer.groups.iter().map(String::as_str).chain([AUTHENTICATED]);
                Some(User::member(&peer.name, &groups.collect::<Vec<_>>()))
            }
            (None, Some(reviews)) => reviews.authenticate(headers).await,
            (None, None) => None,
        };
        let Some(user) = user else {
            return Err(Refusal::new(StatusCode::UNAUTHORIZED, "Unauthorized"));
        };
        let subresources = subresources(segments);
        let verb = verb(method);
        for subresource in subresources {
            let allowed = match &self.reviews {
                None => Ok(false),
                Some(reviews) => reviews.authorize(&user, verb, subresource).await,
            };
            match allowed {
                Ok(true) => return Ok(user.name),
                Ok(false) => {}
                Err(error) => {
                    let text = format!(
                        "Authorization error (user={}, verb={verb}, resource=nodes, \
                         subresource={subresource})",
                        user.name
                    );
                    warn!(%error, "{text}");
                    return Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, text));
                }
            }
        }
        let text = format!(
            "Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{}])",
            user.name,
            subresources.join(" ")
        );
        Err(Refusal::new(StatusCode::FORBIDDEN, text))
    }
}

impl Reviews {
    /// Returns the user that the headers give proof of, if any.
    async fn authenticate(&self, headers: &HeaderMap) -> Option<User> {
        let Some(header) = headers.get(AUTHORIZATION) else {
            let (name, group) = ANONYMOUS;
            return self.settings.anonymous.then(|| User::member(name, &[group]));
        };
        let kept_for = self.settings.tokens?;
        let token = bearer(header.to_str().ok()?)?;
        let key: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(user) = self.tokens.get(&key) {
            return user;
        }
        let review = json!({
            "apiVersion": TOKEN_REVIEWS.api_version(), "kind": TOKEN_REVIEWS.kind,
            "spec": {"token": token},
        });
        let _permit = self.under_way.acquire().await.ok()?;
        match self.api.create(TOKEN_REVIEWS, "", &review).await {
            Ok(answer) => {
                let status = &answer["status"];
                let user = (status["authenticated"] == true).then(|| User::read(status));
                self.tokens.put(key, user.clone(), kept_for);
                user
            }
            // A failed review is not cached: the next request asks again.
            Err(error) => {
                warn!(%error, "failed to review a bearer token");
                None
            }
        }
    }

    async fn authorize(
        &self,
        user: &User,
        verb: &str,
        subresource: &str,
    ) -> Result<bool, client::Error> {
        let Authorization::Webhook { allowed, denied } = self.settings.authorization else {
            return Ok(true);
        };
        let mut spec = json!({
            "user": user.name,
            "groups": user.groups,
            "resourceAttributes": {
                "verb": verb, "version": "v1", "resource": "nodes", "subresource": subresource,
                "name": self.node,
            },
        });
        if !user.uid.is_empty() {
            spec["uid"] = user.uid.as_str().into();
        }
        if !user.extra.is_empty() {
            spec["extra"] = json!(user.extra);
        }
        let key = spec.to_string();
        if let Some(decision) = self.decisions.get(&key) {
            return Ok(decision);
        }
        let review = json!({
            "apiVersion": SUBJECT_ACCESS_REVIEWS.api_version(),
            "kind": SUBJECT_ACCESS_REVIEWS.kind,
            "spec": spec,
        });
        // Closed only when the agent ends.
        let _permit = self.under_way.acquire().await.ok();
        let answer = self.api.create(SUBJECT_ACCESS_REVIEWS, "", &review).await?;
        let status = &answer["status"];
        let decision = status["allowed"] == true && status["denied"] != true;
        self.decisions.put(key, decision, if decision { allowed } else { denied });
        Ok(decision)
    }
}

/// Returns the token of an `Authorization` header.
fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Returns the API verb of a method.
fn verb(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "get",
    }
}

/// Returns the subresources of the node, of which a user needs one for a path. The table is upstream's.
fn subresources(segments: &[&str]) -> &'static [&'static str] {
    match segments.first() {
        Some(&"stats") => &["stats"],
        Some(&"metrics") => &["metrics"],
        Some(&"logs") => &["log"],
        Some(&"checkpoint") => &["checkpoint"],
        Some(&("pods" | "runningpods")) => &["pods", "proxy"],
        Some(&"healthz") => &["healthz", "proxy"],
        Some(&"configz") => &["configz", "proxy"],
        _ => &["proxy"],
    }
}

/// Cached answers with their expiry.
#[derive(Debug)]
struct Cache<K, V> {
    entries: Mutex<HashMap<K, (V, Instant)>>,
}

impl<K, V> Default for Cache<K, V> {
    fn default() -> Cache<K, V> {
        Cache { entries: Mutex::new(HashMap::new()) }
    }
}

impl<K: Eq + Hash, V: Clone> Cache<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let (value, until) = entries.get(key)?;
        (Instant::now() < *until).then(|| value.clone())
    }

    fn put(&self, key: K, value: V, kept_for: Duration) {
        let now = Instant::now();
        let Some(until) = now.checked_add(kept_for) else { return };
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= KEPT {
            entries.retain(|_, (_, until)| now < *until);
        }
        // Clearing the cache costs less than keeping the entries in order of use.
        if entries.len() >= KEPT {
            entries.clear();
        }
        entries.insert(key, (value, until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_need_the_subresources_that_upstream_asks_for() {
        let table: [(&[&str], &[&str]); 9] = [
            (&["metrics"], &["metrics"]),
            (&["metrics", "cadvisor"], &["metrics"]),
            (&["stats", "summary"], &["stats"]),
            (&["pods"], &["pods", "proxy"]),
            (&["runningpods"], &["pods", "proxy"]),
            (&["configz"], &["configz", "proxy"]),
            (&["exec", "a", "p", "c"], &["proxy"]),
            (&["metrics/..", "exec"], &["proxy"]),
            (&[], &["proxy"]),
        ];
        for (segments, expected) in table {
            assert_eq!(subresources(segments), expected, "{segments:?}");
        }
    }

    #[test]
    fn a_token_is_read_from_its_header() {
        assert_eq!(bearer("Bearer abc"), Some("abc"));
        assert_eq!(bearer("bearer  abc "), Some("abc"));
        for header in ["Bearer", "Bearer ", "Basic abc", "abc", ""] {
            assert_eq!(bearer(header), None, "{header:?}");
        }
    }

    #[test]
    fn a_cache_is_bounded_and_forgets() {
        let cache: Cache<usize, bool> = Cache::default();
        cache.put(0, true, Duration::ZERO);
        assert_eq!(cache.get(&0), None);
        for key in 0..3 * KEPT {
            cache.put(key, true, Duration::from_secs(600));
        }
        assert_eq!(cache.get(&(3 * KEPT - 1)), Some(true));
        assert!(cache.entries.lock().unwrap().len() <= KEPT);
    }
}
