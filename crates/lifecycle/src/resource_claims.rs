//! Dynamic resource claims (`spec.resourceClaims`), which must be prepared before a pod starts.
//!
//! No driver is ever registered here, so a pod with a claim does not start. The missing part is reported,
//! with upstream's text where upstream has the same problem. Pure.

use serde_json::Value;
use thiserror::Error;

use crate::spec::{Pod, PodResourceClaim};

/// The reason why a claim cannot be prepared.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ClaimError {
    #[error("pod \"{0}\": ResourceClaim not created yet")]
    NotMade(String),
    #[error("fetch ResourceClaim {name}: {error}")]
    Fetch { name: String, error: String },
    #[error("ResourceClaim {0}: this node has no driver for dynamic resources")]
    NoDriver(String),
}

impl ClaimError {
    /// Returns the error for a claim that does not exist.
    pub fn missing(name: &str) -> ClaimError {
        let error = format!("resourceclaims.resource.k8s.io {name:?} not found");
        ClaimError::Fetch { name: name.to_owned(), error }
    }
}

/// Returns the name of the claim: the given one, or the one created from a template. `None` if no claim is
/// needed.
pub fn name_of(pod: &Pod, claim: &PodResourceClaim) -> Result<Option<String>, ClaimError> {
    if let Some(name) = &claim.resource_claim_name {
        return Ok(Some(name.clone()));
    }
    let mut made = pod.status["resourceClaimStatuses"].as_array().into_iter().flatten();
    match made.find(|status| status["name"] == claim.name.as_str()) {
        Some(status) => Ok(status["resourceClaimName"].as_str().map(str::to_owned)),
        None => Err(ClaimError::NotMade(pod.full_name())),
    }
}

/// Returns why a claim cannot be prepared, given the API's object of that name.
#[must_use]
pub fn problem(name: &str, found: Option<&Value>) -> ClaimError {
    match found {
        None => ClaimError::missing(name),
        Some(_) => ClaimError::NoDriver(name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claim_name_comes_from_the_spec_or_the_status() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"namespace": "lives", "name": "p"},
            "spec": {"resourceClaims": [
                {"name": "a", "resourceClaimName": "own"},
                {"name": "b", "resourceClaimTemplateName": "t"},
                {"name": "c", "resourceClaimTemplateName": "t"},
                {"name": "d", "resourceClaimTemplateName": "t"},
            ]},
            "status": {"resourceClaimStatuses": [
                {"name": "b", "resourceClaimName": "p-b-x7"}, {"name": "c"},
            ]},
        }))
        .unwrap();
        let names: Vec<_> =
            pod.spec.resource_claims.iter().map(|claim| name_of(&pod, claim)).collect();
        let not_made = ClaimError::NotMade("lives/p".to_owned());
        let expected =
            [Ok(Some("own".to_owned())), Ok(Some("p-b-x7".to_owned())), Ok(None), Err(not_made)];
        assert_eq!(names, expected);
    }

    #[test]
    fn missing_claims_are_reported_with_upstream_text() {
        assert_eq!(
            problem("noclaim", None).to_string(),
            "fetch ResourceClaim noclaim: resourceclaims.resource.k8s.io \"noclaim\" not found"
        );
        assert_eq!(
            ClaimError::NotMade("lives/p".to_owned()).to_string(),
            "pod \"lives/p\": ResourceClaim not created yet"
        );
        let found = problem("there", Some(&json!({})));
        assert_eq!(found, ClaimError::NoDriver("there".to_owned()));
    }
}
