//! Bearer tokens: static tokens, and those of service accounts.
//!
//! A service account token is a JWT signed with a secret that only this server has. Its [`Claims`]
//! name the account and its uid, the audiences, and the bound object; [`crate::tokens`] checks that
//! these still exist. Certificates are handled by the listener.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use objects::timestamp::Timestamp;
use ring::hmac;
use serde_json::{Map, Value, json};

use crate::identity::{AUTHENTICATED, User};

/// The issuer of tokens, and their default audience: this server.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc";

/// A token that is valid as long as the server runs.
#[derive(Debug, Clone)]
pub struct StaticToken {
    pub token: String,
    pub user: User,
}

/// Signs and verifies service account tokens.
#[derive(Debug)]
pub(crate) struct Signer {
    key: hmac::Key,
}

/// A reference to an object by name and uid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectRef {
    pub(crate) name: String,
    pub(crate) uid: String,
}

impl ObjectRef {
    pub(crate) fn from_object(object: &Value) -> ObjectRef {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        ObjectRef { name: text("name"), uid: text("uid") }
    }

    fn claim(&self) -> Value {
        // A node that does not exist has a name only.
        let mut claim = json!({"name": self.name});
        if !self.uid.is_empty() {
            claim["uid"] = Value::from(self.uid.as_str());
        }
        claim
    }

    fn read(claim: &Value) -> Option<ObjectRef> {
        let text = |field: &str| claim[field].as_str().map(str::to_owned);
        Some(ObjectRef { name: text("name")?, uid: text("uid").unwrap_or_default() })
    }
}

/// The claims of a service account token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claims {
    /// The unique id of the token.
    pub(crate) id: String,
    pub(crate) namespace: String,
    pub(crate) account: ObjectRef,
    pub(crate) audiences: Vec<String>,
    /// The objects that the token is bound to; a pod's node is included.
    pub(crate) pod: Option<ObjectRef>,
    pub(crate) secret: Option<ObjectRef>,
    pub(crate) node: Option<ObjectRef>,
    pub(crate) issued: Timestamp,
    pub(crate) expires: Timestamp,
}

impl Claims {
    fn subject(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.account.name)
    }

    fn render(&self) -> Value {
        let mut own = Map::new();
        own.insert("namespace".to_owned(), Value::from(self.namespace.as_str()));
        own.insert("serviceaccount".to_owned(), self.account.claim());
        for (kind, bound) in [("pod", &self.pod), ("secret", &self.secret), ("node", &self.node)] {
            if let Some(bound) = bound {
                own.insert(kind.to_owned(), bound.claim());
            }
        }
        json!({
            "iss": ISSUER,
            "sub": self.subject(),
            "aud": self.audiences,
            "jti": self.id,
            "iat": self.issued.seconds(),
            "nbf": self.issued.seconds(),
            "exp": self.expires.seconds(),
            "kubernetes.io": own,
        })
    }

    fn read(claims: &Value) -> Option<Claims> {
        let time = |field: &str| Some(Timestamp::new(claims[field].as_i64()?, 0));
        let audiences = claims["aud"].as_array()?.iter();
        let audiences = audiences.map(|one| one.as_str().map(str::to_owned));
        let own = &claims["kubernetes.io"];
        Some(Claims {
            id: claims["jti"].as_str()?.to_owned(),
            namespace: own["namespace"].as_str()?.to_owned(),
            account: ObjectRef::read(&own["serviceaccount"])?,
            audiences: audiences.collect::<Option<_>>()?,
            pod: ObjectRef::read(&own["pod"]),
            secret: ObjectRef::read(&own["secret"]),
            node: ObjectRef::read(&own["node"]),
            issued: time("iat")?,
            expires: time("exp")?,
        })
    }

    /// Returns the user of the account, with upstream's extra fields for the token.
    pub(crate) fn user(&self) -> User {
        let mut extra = vec![("credential-id".to_owned(), format!("JTI={}", self.id))];
        for (kind, bound) in [("node", &self.node), ("pod", &self.pod)] {
            let Some(bound) = bound else { continue };
            extra.push((format!("{kind}-name"), bound.name.clone()));
            if !bound.uid.is_empty() {
                extra.push((format!("{kind}-uid"), bound.uid.clone()));
            }
        }
        let extra = extra.into_iter();
        User {
            name: self.subject(),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{}", self.namespace),
                AUTHENTICATED.to_owned(),
            ],
            uid: self.account.uid.clone(),
            extra: extra
                .map(|(key, value)| (format!("authentication.kubernetes.io/{key}"), vec![value]))
                .collect(),
        }
    }
}

impl Signer {
    pub(crate) fn new(secret: &[u8]) -> Signer {
        Signer { key: hmac::Key::new(hmac::HMAC_SHA256, secret) }
    }

    pub(crate) fn sign(&self, claims: &Claims) -> String {
        let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256","typ":"JWT"}"#);
        let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims.render().to_string()));
        let signature = hmac::sign(&self.key, signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    /// Returns the claims of a valid token that has not expired.
    pub(crate) fn read(&self, token: &str, now: Timestamp) -> Option<Claims> {
        let (signed, signature) = token.rsplit_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        hmac::verify(&self.key, signed.as_bytes(), &signature).ok()?;
        let (_, claims) = signed.split_once('.')?;
        let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
        Claims::read(&claims).filter(|claims| now.seconds() < claims.expires.seconds())
    }
}

/// Returns the user of a static token. Compares all tokens in constant time.
pub(crate) fn find_static_token<'a>(tokens: &'a [StaticToken], token: &str) -> Option<&'a User> {
    let mut found = None;
    for known in tokens {
        if constant_time_eq(known.token.as_bytes(), token.as_bytes()) {
            found = Some(&known.user);
        }
    }
    found
}

/// Compares two byte strings in constant time.
fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |unequal, (a, b)| unequal | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims() -> Claims {
        let named = |name: &str| ObjectRef { name: name.to_owned(), uid: format!("{name}-uid") };
        Claims {
            id: "id".to_owned(),
            namespace: "ns".to_owned(),
            account: named("sa"),
            audiences: vec![ISSUER.to_owned(), "vault".to_owned()],
            pod: Some(named("p")),
            secret: None,
            node: Some(ObjectRef { name: "n".to_owned(), uid: String::new() }),
            issued: Timestamp::new(10, 0),
            expires: Timestamp::new(100, 0),
        }
    }

    #[test]
    fn tokens_are_valid_until_expiry_and_only_as_signed() {
        let signer = Signer::new(b"secret");
        let token = signer.sign(&claims());
        assert_eq!(signer.read(&token, Timestamp::new(99, 0)), Some(claims()));
        assert_eq!(signer.read(&token, Timestamp::new(100, 0)), None);
        assert_eq!(Signer::new(b"other").read(&token, Timestamp::new(0, 0)), None);
        for bad in ["", ".", "a.b.c", &token[..token.len() - 2]] {
            assert_eq!(signer.read(bad, Timestamp::new(0, 0)), None, "{bad}");
        }
    }

    #[test]
    fn user_contains_the_bound_objects() {
        let user = claims().user();
        assert_eq!(
            (user.name.as_str(), user.uid.as_str()),
            ("system:serviceaccount:ns:sa", "sa-uid")
        );
        let extra = |key: &str| {
            let found = user.extra.get(&format!("authentication.kubernetes.io/{key}"));
            found.map(|values| values.join(","))
        };
        assert_eq!(extra("credential-id").as_deref(), Some("JTI=id"));
        assert_eq!(extra("pod-uid").as_deref(), Some("p-uid"));
        assert_eq!(extra("node-name").as_deref(), Some("n"));
        assert_eq!(extra("node-uid"), None);
    }
}
