//! Claims of dynamic resources (`spec.resourceClaims`): what a pod is to have before anything of it starts.
//!
//! No driver for them is ever registered here, so a pod that claims something does not start: it is told
//! what is missing, in upstream's words where upstream would miss the same. Pure.

use serde_json::Value;
use thiserror::Error;

use crate::spec::{Pod, PodResourceClaim};

/// Why a pod cannot be given what it claims.
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
    /// That there is no such claim.
    pub(crate) fn missing(name: &str) -> ClaimError {
        let error = format!("resourceclaims.resource.k8s.io {name:?} not found");
        ClaimError::Fetch { name: name.to_owned(), error }
    }
}

/// The claim that is meant: the one that is named, or the one that was made from a template. `None` where
/// none is needed.
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

/// What keeps a claim from being prepared, given what the API has under its name.
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
    fn a_claim_is_named_by_the_pod_or_by_whoever_made_it() {
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
    fn what_is_missing_is_told_in_the_words_of_upstream() {
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
