//! Bearer tokens: the ones made at the first start, and those of service accounts.
//!
//! A service account's token is a JWT signed with a secret only this server has; it names the
//! account and its uid, so that a deleted account's tokens are worth nothing. Certificates are the
//! listener's business.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use objects::timestamp::Timestamp;
use ring::hmac;
use serde_json::{Value, json};

use crate::identity::{AUTHENTICATED, User};

/// A token that is good as long as the server says so.
#[derive(Debug, Clone)]
pub struct StaticToken {
    pub token: String,
    pub user: User,
}

/// Signs and reads service accounts' tokens.
#[derive(Debug)]
pub(crate) struct Signer {
    key: hmac::Key,
}

/// What a good token of a service account says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Claims {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

impl Signer {
    pub(crate) fn new(secret: &[u8]) -> Signer {
        Signer { key: hmac::Key::new(hmac::HMAC_SHA256, secret) }
    }

    pub(crate) fn sign(
        &self,
        namespace: &str,
        name: &str,
        account: &Value,
        expires: Timestamp,
    ) -> String {
        let claims = json!({
            "iss": "https://kubernetes.default.svc",
            "sub": format!("system:serviceaccount:{namespace}:{name}"),
            "exp": expires.seconds(),
            "kubernetes.io": {
                "namespace": namespace,
                "serviceaccount": {"name": name, "uid": account["metadata"]["uid"]},
            },
        });
        let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256","typ":"JWT"}"#);
        let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signature = hmac::sign(&self.key, signed.as_bytes());
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    /// The claims of a token that we signed and that has not expired.
    pub(crate) fn read(&self, token: &str, now: Timestamp) -> Option<Claims> {
        let (signed, signature) = token.rsplit_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        hmac::verify(&self.key, signed.as_bytes(), &signature).ok()?;
        let (_, claims) = signed.split_once('.')?;
        let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
        if claims["exp"].as_i64()? <= now.seconds() {
            return None;
        }
        let of = &claims["kubernetes.io"];
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Some(Claims {
            namespace: text(&of["namespace"])?,
            name: text(&of["serviceaccount"]["name"])?,
            uid: text(&of["serviceaccount"]["uid"])?,
        })
    }
}

/// The user of a static token. Looks at all of them, and at all of each, whichever fits.
pub(crate) fn of_static<'a>(tokens: &'a [StaticToken], token: &str) -> Option<&'a User> {
    let mut found = None;
    for known in tokens {
        if same(known.token.as_bytes(), token.as_bytes()) {
            found = Some(&known.user);
        }
    }
    found
}

/// Compares without telling by its time where two texts part.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |unequal, (a, b)| unequal | (a ^ b)) == 0
}

/// The user a service account acts as.
pub(crate) fn account_user(claims: &Claims) -> User {
    User {
        name: format!("system:serviceaccount:{}:{}", claims.namespace, claims.name),
        groups: vec![
            "system:serviceaccounts".to_owned(),
            format!("system:serviceaccounts:{}", claims.namespace),
            AUTHENTICATED.to_owned(),
        ],
        uid: claims.uid.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_good_until_they_expire_and_only_as_signed() {
        let signer = Signer::new(b"secret");
        let account = json!({"metadata": {"uid": "u"}});
        let token = signer.sign("ns", "sa", &account, Timestamp::new(100, 0));
        let claims = signer.read(&token, Timestamp::new(99, 0)).unwrap();
        assert_eq!((claims.name.as_str(), claims.uid.as_str()), ("sa", "u"));
        assert_eq!(account_user(&claims).name, "system:serviceaccount:ns:sa");
        assert_eq!(signer.read(&token, Timestamp::new(100, 0)), None);
        assert_eq!(Signer::new(b"other").read(&token, Timestamp::new(0, 0)), None);
        for bad in ["", ".", "a.b.c", &token[..token.len() - 2]] {
            assert_eq!(signer.read(bad, Timestamp::new(0, 0)), None, "{bad}");
        }
    }
}
