//! The host name of a pod: [`hostname`], and its domain.
//!
//! Only for pods with their own network namespace. `/etc/hosts` is written elsewhere, with [`name`] and
//! [`Name::domain`].

use objects::rules::names;

use super::LowerError;
use lifecycle::spec::Pod;

/// The longest host name of a pod: a DNS label.
const LONGEST: usize = 63;
/// The longest host name that the kernel accepts.
const LONGEST_FQDN: usize = 64;

/// A host name and its domain, which may be empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    pub host: String,
    pub domain: String,
}

/// Returns the host name for the kernel: the host, or the FQDN if the pod requests it.
pub fn hostname(pod: &Pod, cluster_domain: &str) -> Result<String, LowerError> {
    let Name { host, domain } = name(pod, cluster_domain)?;
    if domain.is_empty() || pod.spec.set_hostname_as_fqdn != Some(true) {
        return Ok(host);
    }
    let fqdn = format!("{host}.{domain}");
    if fqdn.len() > LONGEST_FQDN {
        return Err(LowerError::FqdnTooLong { fqdn, max: LONGEST_FQDN });
    }
    Ok(fqdn)
}

/// Returns host and domain. An override is used unchanged, without a domain.
pub fn name(pod: &Pod, cluster_domain: &str) -> Result<Name, LowerError> {
    let pod_name = &pod.metadata.name;
    if let Some(wanted) = &pod.spec.hostname_override {
        check(&names::dns_subdomain(wanted), |problems| LowerError::HostnameOverride {
            name: wanted.clone(),
            problems,
        })?;
        return Ok(Name { host: shorten(pod_name, wanted)?, domain: String::new() });
    }
    let wanted = &pod.spec.hostname;
    let host = if wanted.is_empty() {
        pod_name
    } else {
        check(&names::dns_label(wanted), |problems| LowerError::Hostname {
            name: wanted.clone(),
            problems,
        })?;
        wanted
    };
    let host = shorten(pod_name, host)?;
    let subdomain = &pod.spec.subdomain;
    if subdomain.is_empty() {
        return Ok(Name { host, domain: String::new() });
    }
    check(&names::dns_label(subdomain), |problems| LowerError::Subdomain {
        name: subdomain.clone(),
        problems,
    })?;
    let namespace = &pod.metadata.namespace;
    Ok(Name { host, domain: format!("{subdomain}.{namespace}.svc.{cluster_domain}") })
}

fn check(
    problems: &names::Problems,
    error: impl FnOnce(String) -> LowerError,
) -> Result<(), LowerError> {
    if problems.is_empty() { Ok(()) } else { Err(error(problems.join(";"))) }
}

/// Truncates a name that is too long, and removes trailing dashes and dots.
fn shorten(pod: &str, name: &str) -> Result<String, LowerError> {
    let Some(start) = name.get(..LONGEST).filter(|start| start.len() < name.len()) else {
        return Ok(name.to_owned());
    };
    match start.trim_end_matches(['-', '.']) {
        "" => Err(LowerError::EmptyHostname { pod: pod.to_owned(), hostname: name.to_owned() }),
        short => Ok(short.to_owned()),
    }
}
