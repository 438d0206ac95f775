//! The `continue` token of a list, in upstream's format.

use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, URL_SAFE_NO_PAD};
use base64::{Engine as _, alphabet};
use objects::schema::syntax;
use serde::{Deserialize, Serialize};

use crate::error::ApiError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Continuation {
    /// The snapshot to continue with; `None` for the newest.
    pub(crate) revision: Option<u64>,
    /// The part of the last key after the collection's prefix.
    pub(crate) after: String,
}

#[derive(Serialize, Deserialize)]
struct Token {
    #[serde(default)]
    v: String,
    #[serde(default)]
    rv: i64,
    #[serde(default)]
    start: String,
}

/// As Go decodes it: trailing bits are ignored.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::URL_SAFE,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone),
);

const VERSION: &str = "meta.k8s.io/v1";

impl Continuation {
    /// Returns the token to continue after `after`.
    pub(crate) fn token(revision: u64, after: &str) -> String {
        let rv = i64::try_from(revision).unwrap_or(i64::MAX);
        encode(&Token { v: VERSION.to_owned(), rv, start: format!("{after}\0") })
    }

    pub(crate) fn parse(text: &str) -> Result<Continuation, ApiError> {
        let bad = |what: String| {
            ApiError::bad_request(format!(
                "invalid continue token: continue key is not valid: {what}"
            ))
        };
        let bytes = LENIENT.decode(text).map_err(|error| bad(error.to_string()))?;
        let token: Token = serde_json::from_slice(&bytes)
            .map_err(|error| bad(syntax::go_error(&bytes).unwrap_or_else(|| error.to_string())))?;
        if token.v != VERSION {
            let what = format!("server does not recognize this encoded version {}", token.v);
            return Err(bad(what));
        }
        if token.rv == 0 {
            let what = format!("incorrect encoded start resourceVersion (version {VERSION})");
            return Err(bad(what));
        }
        if token.start.is_empty() {
            return Err(bad(format!("encoded start key empty (version {VERSION})")));
        }
        let escapes = token.start.split('/').any(|segment| segment == "..");
        if escapes || token.start.starts_with('/') {
            return Err(bad(token.start));
        }
        // `c1\0` is the first key after `c1`.
        let after = token.start.strip_suffix('\0').unwrap_or(&token.start).to_owned();
        Ok(Continuation { revision: u64::try_from(token.rv).ok(), after })
    }

    /// Returns the error for a compacted snapshot, with a token to continue inconsistently.
    pub(crate) fn expired(&self) -> ApiError {
        let mut error = ApiError::expired(
            "The provided continue parameter is too old to display a consistent list result. You \
             can start a new list without the continue parameter, or use the continue token in \
             this response to retrieve the remainder of the results. Continuing with the provided \
             token results in an inconsistent list - objects that were created, modified, or \
             deleted between the time the first chunk was returned and now may show up in the \
             list.",
        );
        error.metadata = Some(serde_json::json!({
            "continue": encode(&Token {
                v: VERSION.to_owned(),
                rv: -1,
                start: format!("{}\0", self.after),
            }),
        }));
        error
    }
}

fn encode(token: &Token) -> String {
    // A structure of two strings and a number always serializes.
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(token).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_round_trip_and_invalid_ones_are_rejected() {
        let token = Continuation::token(7, "ns/c1");
        let parsed = Continuation::parse(&token).unwrap();
        assert_eq!(parsed, Continuation { revision: Some(7), after: "ns/c1".to_owned() });
        let continuation =
            parsed.expired().metadata.unwrap()["continue"].as_str().unwrap().to_owned();
        let anyway = Continuation::parse(&continuation).unwrap();
        assert_eq!(anyway, Continuation { revision: None, after: "ns/c1".to_owned() });
        for bad in
            ["", "!", "e30", &encode(&Token { v: VERSION.into(), rv: 2, start: "../x".into() })]
        {
            assert!(Continuation::parse(bad).is_err(), "{bad}");
        }
    }
}
