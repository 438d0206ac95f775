//! Impersonation: requests that are made on behalf of another user. [`requested`] reads the headers
//! and rejects invalid ones.
//!
//! Administrators may impersonate every user; other roles may impersonate none. A request with
//! unreadable headers is rejected: it must never run with the rights of its sender.

use std::collections::BTreeMap;

use http::HeaderMap;
use objects::go;
use percent_encoding::percent_decode_str;

use crate::error::ApiError;
use crate::identity::{ADMINISTRATORS, AUTHENTICATED, NODES, User};

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// The outcome of reading the headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Requested {
    /// The request is made for its sender.
    Nothing,
    /// The request is made for this user.
    User(User),
    /// The sender may not impersonate. Contains the kind of user, as in upstream's verbs
    /// `impersonate-on:<kind>:<verb>`.
    Denied(&'static str),
}

/// Reads the user that a request impersonates.
pub(crate) fn requested(sender: &User, headers: &HeaderMap) -> Result<Requested, ApiError> {
    let user = named_user(headers)?;
    if user.name.is_empty() {
        let is_empty = user.uid.is_empty() && user.groups.is_empty();
        if is_empty && !headers.keys().any(|name| name.as_str().starts_with(EXTRA)) {
            return Ok(Requested::Nothing);
        }
        let shown = go_syntax(&user);
        let message = format!("requested {shown} without impersonating a user name");
        return Err(ApiError::bad_request(message));
    }
    if !sender.is_in(ADMINISTRATORS) {
        return Ok(Requested::Denied(kind(&user)));
    }
    Ok(Requested::User(complete(user)))
}

/// Returns the user as named by the headers.
fn named_user(headers: &HeaderMap) -> Result<User, ApiError> {
    let first = |name| Ok(values(headers, name)?.into_iter().next().unwrap_or_default());
    let mut user = User {
        name: first(USER)?,
        uid: first(UID)?,
        groups: values(headers, GROUP)?,
        extra: BTreeMap::new(),
    };
    for name in headers.keys().filter(|name| name.as_str().starts_with(EXTRA)) {
        let key = name.as_str().strip_prefix(EXTRA).unwrap_or_default();
        let key = match percent_decode_str(key).decode_utf8() {
            Ok(decoded) if is_escaped_well(key) => decoded.into_owned(),
            _ => key.to_owned(),
        };
        user.extra.entry(key).or_default().extend(values(headers, name.as_str())?);
    }
    Ok(user)
}

fn values(headers: &HeaderMap, name: &str) -> Result<Vec<String>, ApiError> {
    let all = headers.get_all(name).iter().map(|value| match value.to_str() {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(ApiError::bad_request(format!(
            "the value of the header {name:?} is not visible ASCII"
        ))),
    });
    all.collect()
}

/// Returns true if every `%` is followed by two hexadecimal digits. Upstream keeps a key unchanged
/// otherwise.
fn is_escaped_well(key: &str) -> bool {
    let mut parts = key.split('%');
    parts.next();
    parts.all(|subresource| {
        subresource.len() >= 2 && subresource.bytes().take(2).all(|byte| byte.is_ascii_hexdigit())
    })
}

fn has_only_name(user: &User) -> bool {
    user.uid.is_empty() && user.groups.is_empty() && user.extra.is_empty()
}

fn kind(user: &User) -> &'static str {
    match () {
        () if !has_only_name(user) => "user-info",
        () if service_account(&user.name).is_some() => "serviceaccount",
        () if node(&user.name) => "arbitrary-node",
        () => "user-info",
    }
}

/// Returns the namespace and the name of the service account that a user name stands for.
fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    let is_good = !namespace.is_empty() && !name.is_empty() && !name.contains(':');
    is_good.then_some((namespace, name))
}

fn node(user: &str) -> bool {
    user.strip_prefix("system:node:").is_some_and(|name| !name.is_empty())
}

/// Adds the groups that the user would have with credentials of its own.
fn complete(mut user: User) -> User {
    if user.groups.is_empty() {
        if let Some((namespace, _)) = service_account(&user.name) {
            user.groups.push("system:serviceaccounts".to_owned());
            user.groups.push(format!("system:serviceaccounts:{namespace}"));
        } else if node(&user.name) && has_only_name(&user) {
            user.groups.push(NODES.to_owned());
        }
    }
    let own = if user.name == ANONYMOUS { UNAUTHENTICATED } else { AUTHENTICATED };
    if !user.is_in(AUTHENTICATED) && !user.is_in(UNAUTHENTICATED) {
        user.groups.push(own.to_owned());
    }
    user
}

/// Formats the user in Go syntax, as in upstream's message.
fn go_syntax(user: &User) -> String {
    let list = |texts: &[String]| {
        let quoted: Vec<String> = texts.iter().map(|text| go::quoted(text)).collect();
        format!("[]string{{{}}}", quoted.join(", "))
    };
    let groups = match user.groups.as_slice() {
        [] => "[]string(nil)".to_owned(),
        groups => list(groups),
    };
    let extra = match user.extra.is_empty() {
        true => "map[string][]string(nil)".to_owned(),
        false => {
            let pairs = user.extra.iter();
            let pairs = pairs.map(|(key, texts)| format!("{}:{}", go::quoted(key), list(texts)));
            format!("map[string][]string{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
    };
    let (name, uid) = (go::quoted(&user.name), go::quoted(&user.uid));
    format!("&user.DefaultInfo{{Name:{name}, UID:{uid}, Groups:{groups}, Extra:{extra}}}")
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(pairs: &[(&str, &[u8])]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    fn as_admin(pairs: &[(&str, &[u8])]) -> Result<Requested, String> {
        let admin = User::member("admin", ADMINISTRATORS);
        requested(&admin, &headers(pairs)).map_err(|error| {
            assert_eq!(error.code, 400);
            error.message
        })
    }

    #[test]
    fn invalid_impersonation_headers_are_rejected() {
        let info = |inner: &str| {
            format!("requested &user.DefaultInfo{{{inner}}} without impersonating a user name")
        };
        for (given, expected) in [
            (
                vec![("Impersonate-User", "b\u{f6}b".as_bytes())],
                "the value of the header \"impersonate-user\" is not visible ASCII".to_owned(),
            ),
            (
                vec![("Impersonate-User", b"bob".as_slice()), ("Impersonate-Group", b"\xff")],
                "the value of the header \"impersonate-group\" is not visible ASCII".to_owned(),
            ),
            (
                vec![("Impersonate-User", b"bob".as_slice()), ("Impersonate-Extra-x", b"\xff")],
                "the value of the header \"impersonate-extra-x\" is not visible ASCII".to_owned(),
            ),
            (
                vec![("Impersonate-Uid", b"7".as_slice())],
                info(r#"Name:"", UID:"7", Groups:[]string(nil), Extra:map[string][]string(nil)"#),
            ),
            (
                vec![("Impersonate-Group", b"a".as_slice()), ("Impersonate-Group", b"b")],
                info(
                    r#"Name:"", UID:"", Groups:[]string{"a", "b"}, Extra:map[string][]string(nil)"#,
                ),
            ),
            (
                vec![("Impersonate-User", b"".as_slice()), ("Impersonate-Extra-S", b"v")],
                info(
                    r#"Name:"", UID:"", Groups:[]string(nil), Extra:map[string][]string{"s":[]string{"v"}}"#,
                ),
            ),
        ] {
            assert_eq!(as_admin(&given), Err(expected), "{given:?}");
        }
        assert_eq!(as_admin(&[]), Ok(Requested::Nothing));
        assert_eq!(as_admin(&[("Impersonate-User", b"")]), Ok(Requested::Nothing));
    }

    #[test]
    fn impersonated_users_get_their_default_groups() {
        for (name, groups, expected) in [
            ("carol", vec![], vec![AUTHENTICATED]),
            ("carol", vec!["g"], vec!["g", AUTHENTICATED]),
            ("carol", vec![UNAUTHENTICATED], vec![UNAUTHENTICATED]),
            (ANONYMOUS, vec![], vec![UNAUTHENTICATED]),
            (
                "system:serviceaccount:ns:sa",
                vec![],
                vec!["system:serviceaccounts", "system:serviceaccounts:ns", AUTHENTICATED],
            ),
            ("system:serviceaccount:ns:sa", vec!["only"], vec!["only", AUTHENTICATED]),
            ("system:node:n1", vec![], vec![NODES, AUTHENTICATED]),
            ("system:node:n1", vec!["other"], vec!["other", AUTHENTICATED]),
        ] {
            let mut pairs = vec![("Impersonate-User", name.as_bytes())];
            pairs.extend(groups.iter().map(|group: &&str| ("Impersonate-Group", group.as_bytes())));
            let Ok(Requested::User(user)) = as_admin(&pairs) else { panic!("{name}") };
            assert_eq!(user.groups, expected, "{name} {groups:?}");
        }
        let extra = as_admin(&[
            ("Impersonate-User", b"carol"),
            ("Impersonate-Uid", b"u1"),
            ("Impersonate-Extra-A", b"1"),
            ("Impersonate-Extra-A", b"2"),
            ("Impersonate-Extra-acme.com%2fproject", b"p"),
            ("Impersonate-Extra-bad%zz", b"q"),
        ]);
        let Ok(Requested::User(user)) = extra else { panic!("{extra:?}") };
        assert_eq!(user.uid, "u1");
        let found: Vec<_> =
            user.extra.iter().map(|(key, all)| (key.as_str(), all.join(","))).collect();
        let expected = [("a", "1,2"), ("acme.com/project", "p"), ("bad%zz", "q")];
        assert_eq!(found, expected.map(|(key, all)| (key, all.to_owned())));
    }

    #[test]
    fn only_administrators_impersonate() {
        let sender = User::member("imp", "dev");
        for (name, expected) in [
            ("carol", "user-info"),
            ("system:serviceaccount:ns:sa", "serviceaccount"),
            ("system:serviceaccount:ns", "user-info"),
            ("system:node:n1", "arbitrary-node"),
        ] {
            let found = requested(&sender, &headers(&[("Impersonate-User", name.as_bytes())]));
            assert_eq!(found, Ok(Requested::Denied(expected)), "{name}");
        }
    }
}
