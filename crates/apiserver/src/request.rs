//! A request as handlers see it: [`Request`] with its query parameters, and [`RequestContext`].

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::IntErrorKind;

use bytes::Bytes;
use http::{HeaderMap, Method};
use percent_encoding::percent_decode_str;

use crate::accept::AcceptedFormat;
use crate::api::Api;
use crate::error::ApiError;
use crate::identity::User;
use crate::route::ResourcePath;

/// A complete request. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: Method,
    pub path: String,
    pub query: Query,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub caller: Caller,
    /// The client address, if the request came over a connection.
    pub source: Option<IpAddr>,
}

/// A request to a resource, with all that its handler needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestContext<'a> {
    pub(crate) api: &'a Api,
    pub(crate) request: &'a Request,
    pub(crate) path: &'a ResourcePath,
    pub(crate) format: AcceptedFormat,
}

/// The sender of a request, according to its credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    Known(User),
    /// The request has no credentials.
    Anonymous,
    /// The credentials are not valid.
    InvalidCredentials,
}

impl Request {
    /// Returns the user, or one without a name if the caller is not authenticated.
    #[must_use]
    pub fn user(&self) -> &User {
        static ANONYMOUS: User = User {
            name: String::new(),
            groups: Vec::new(),
            uid: String::new(),
            extra: BTreeMap::new(),
        };
        match &self.caller {
            Caller::Known(user) => user,
            Caller::Anonymous | Caller::InvalidCredentials => &ANONYMOUS,
        }
    }

    /// Replaces the user of the request, and returns the sender.
    pub(crate) fn impersonate(&mut self, user: User) -> User {
        match std::mem::replace(&mut self.caller, Caller::Known(user)) {
            Caller::Known(sender) => sender,
            Caller::Anonymous | Caller::InvalidCredentials => User::default(),
        }
    }

    /// Returns the value of a header; empty if it is absent or not text.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// The query parameters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    #[must_use]
    pub fn of(pairs: impl IntoIterator<Item = (String, String)>) -> Query {
        Query(pairs.into_iter().collect())
    }

    #[must_use]
    pub fn parse(text: &str) -> Query {
        let decode = |text: &str| {
            let spaced = text.replace('+', " ");
            percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
        };
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        });
        Query(pairs.collect())
    }

    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns all parameters in order.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns the value of a parameter; empty if it is absent.
    #[must_use]
    pub fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns true if a parameter is present and neither `false` nor `0`, as upstream parses
    /// flags.
    #[must_use]
    pub fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    /// Parses an integer parameter, if it is present.
    pub fn int(&self, name: &str) -> Result<Option<i64>, ApiError> {
        match self.get(name) {
            None => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|error: std::num::ParseIntError| {
                let what = match error.kind() {
                    IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
                    _ => "invalid syntax",
                };
                ApiError::bad_request(format!("strconv.ParseInt: parsing {text:?}: {what}"))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_and_read_by_type() {
        let query = Query::parse(
            "watch=1&labelSelector=a%3Db%2Cc+in+(d)&limit=x&timeoutSeconds=5&dryRun=All&dryRun=All&f=false",
        );
        assert!(query.flag("watch") && !query.flag("f") && !query.flag("absent"));
        assert_eq!(query.text("labelSelector"), "a=b,c in (d)");
        assert_eq!(query.int("timeoutSeconds"), Ok(Some(5)));
        let refused = |text: &str| Query::parse(text).int("limit").unwrap_err().message;
        assert_eq!(refused("limit=x"), "strconv.ParseInt: parsing \"x\": invalid syntax");
        assert_eq!(refused("limit="), "strconv.ParseInt: parsing \"\": invalid syntax");
        let large = "99999999999999999999";
        let out_of_range = format!("strconv.ParseInt: parsing {large:?}: value out of range");
        assert_eq!(refused(&format!("limit={large}")), out_of_range);
        assert_eq!(query.all("dryRun").count(), 2);
    }
}
