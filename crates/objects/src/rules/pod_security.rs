//! Pod Security Standards: the level (`privileged`, `baseline` or `restricted`) of a namespace, and
//! the violations of a pod.
//!
//! [`Policy::of_labels`] reads a namespace's labels, [`evaluate`] finds [`Violation`]s, and
//! [`review_pod`], [`review_template`] and [`review_namespace`] make errors, warnings and audit
//! annotations out of them. The caller handles exemptions. The individual checks are in [`checks`].

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde_json::Value;

use crate::cursor::{Causes, Cursor};
use crate::go;

mod checks;

/// The newest version for which a check has a rule.
const NEWEST: u32 = 35;

const PREFIX: &str = "pod-security.kubernetes.io/";

/// A level of the Pod Security Standards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    Privileged,
    Baseline,
    Restricted,
}

impl Level {
    fn from_word(word: &str) -> Option<Level> {
        Some(match word {
            "privileged" => Level::Privileged,
            "baseline" => Level::Baseline,
            "restricted" => Level::Restricted,
            _ => return None,
        })
    }
}

/// The Kubernetes version of the rules: `v1.25`, or the latest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    Minor(u32),
    Latest,
}

impl Version {
    fn from_word(word: &str) -> Option<Version> {
        if word == "latest" {
            return Some(Version::Latest);
        }
        let digits = word.strip_prefix("v1.")?;
        let plain = digits == "0" || !digits.starts_with('0');
        let number = digits.bytes().all(|b| b.is_ascii_digit()) && plain;
        number.then(|| digits.parse().ok().map(Version::Minor))?
    }

    fn minor(self) -> u32 {
        match self {
            Version::Minor(minor) => minor.min(NEWEST),
            Version::Latest => NEWEST,
        }
    }
}

/// A level of a version, shown as `baseline:latest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Standard {
    pub level: Level,
    pub version: Version,
}

impl Standard {
    pub const PRIVILEGED: Standard =
        Standard { level: Level::Privileged, version: Version::Latest };
}

impl fmt::Display for Standard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        match self.version {
            Version::Latest => write!(f, "{level}:latest"),
            Version::Minor(minor) => write!(f, "{level}:v1.{minor}"),
        }
    }
}

/// The policy of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Pods that violate it are rejected.
    pub enforce: Standard,
    /// Violations are recorded in the audit log.
    pub audit: Standard,
    /// Violations are returned as warnings.
    pub warn: Standard,
}

impl Default for Policy {
    fn default() -> Policy {
        let standard = Standard::PRIVILEGED;
        Policy { enforce: standard, audit: standard, warn: standard }
    }
}

impl Policy {
    /// Reads a namespace's labels. A malformed value counts as restricted for enforce and as
    /// privileged for the others, and is reported at its label. Without labels of their own, warn
    /// and audit follow enforce.
    pub fn of_labels(labels: &Value, causes: &mut Causes) -> Policy {
        let mut policy = Policy::default();
        if labels.as_object().is_none_or(|labels| labels.is_empty()) {
            return policy;
        }
        let metadata = Cursor::top(labels, "metadata.labels");
        let mut read = |mode: &str, standard: &mut Standard, fallback: Level| {
            let key = format!("{PREFIX}{mode}");
            let level = metadata.key(&key);
            let mut good = false;
            if level.is_set() {
                good = true;
                standard.level = Level::from_word(level.text()).unwrap_or_else(|| {
                    good = false;
                    causes.invalid(&level, "must be one of privileged, baseline, restricted");
                    fallback
                });
            }
            let version_key = format!("{PREFIX}{mode}-version");
            let version = metadata.key(&version_key);
            if version.is_set() {
                standard.version = Version::from_word(version.text()).unwrap_or_else(|| {
                    causes.invalid(&version, "must be \"latest\" or \"v1.x\"");
                    Version::Latest
                });
            }
            (level.is_set(), version.is_set(), good)
        };
        let (_, _, enforced) = read("enforce", &mut policy.enforce, Level::Restricted);
        let (audit_level, audit_version, _) = read("audit", &mut policy.audit, Level::Privileged);
        let (warn_level, warn_version, _) = read("warn", &mut policy.warn, Level::Privileged);
        if enforced {
            if !warn_level && !warn_version && policy.enforce.level > policy.warn.level {
                policy.warn = policy.enforce;
            }
            if !audit_level && !audit_version && policy.enforce.level > policy.audit.level {
                policy.audit = policy.enforce;
            }
        }
        policy
    }

    /// Reports whether pods need no checks.
    #[must_use]
    pub fn is_privileged(&self) -> bool {
        [self.enforce, self.audit, self.warn].iter().all(|s| s.level == Level::Privileged)
    }
}

/// A violation of a level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// A short name: `hostProcess`.
    pub reason: &'static str,
    /// The containers or fields, and the value.
    pub detail: String,
}

/// Returns the violations of a standard by a pod, in upstream's order.
#[must_use]
pub fn evaluate(standard: Standard, metadata: &Value, spec: &Value) -> Vec<Violation> {
    match standard.level {
        Level::Privileged => Vec::new(),
        level => checks::run(level, standard.version.minor(), metadata, spec),
    }
}

fn details(violations: &[Violation]) -> String {
    let details = violations.iter().map(|Violation { reason, detail }| match detail.as_str() {
        "" => (*reason).to_owned(),
        detail => format!("{reason} ({detail})"),
    });
    details.collect::<Vec<_>>().join(", ")
}

/// The result of the review of a pod or a template.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Review {
    /// The message of the rejection (403), without the name of the object.
    pub refusal: Option<String>,
    pub warnings: Vec<String>,
    /// Annotations of the audit event, without the plug-in's prefix.
    pub audit: BTreeMap<&'static str, String>,
}

/// Reviews a pod that is created, or updated in a way that [`is_significant`].
#[must_use]
pub fn review_pod(policy: &Policy, metadata: &Value, spec: &Value) -> Review {
    if policy.is_privileged() {
        return Review::default();
    }
    let mut review = Review::default();
    review.audit.insert("enforce-policy", policy.enforce.to_string());
    let enforced = Finding::of(policy.enforce, metadata, spec);
    if let Some(text) = &enforced.text {
        let standard = policy.enforce.to_string();
        review.refusal = Some(format!("violates PodSecurity {standard:?}: {text}"));
    }
    look_further(policy, Some(&enforced), metadata, spec, &mut review);
    review
}

/// Reviews the template of a workload, which is never rejected.
#[must_use]
pub fn review_template(policy: &Policy, metadata: &Value, spec: &Value) -> Review {
    let mut review = Review::default();
    look_further(policy, None, metadata, spec, &mut review);
    review
}

/// The violations of one standard, as text.
struct Finding {
    standard: Standard,
    text: Option<String>,
}

impl Finding {
    fn of(standard: Standard, metadata: &Value, spec: &Value) -> Self {
        let violations = evaluate(standard, metadata, spec);
        let text = (!violations.is_empty()).then(|| details(&violations));
        Self { standard, text }
    }

    fn would(&self) -> Option<String> {
        let shown = self.standard.to_string();
        self.text.as_ref().map(|text| format!("would violate PodSecurity {shown:?}: {text}"))
    }
}

/// Adds audit annotations and warnings. Earlier results are reused: the standards are mostly equal.
fn look_further(
    policy: &Policy,
    enforced: Option<&Finding>,
    metadata: &Value,
    spec: &Value,
    review: &mut Review,
) {
    let enforced = |standard: Standard| enforced.filter(|known| known.standard == standard);
    let own;
    let audited = match enforced(policy.audit) {
        Some(known) => known,
        None => {
            own = Finding::of(policy.audit, metadata, spec);
            &own
        }
    };
    review.audit.extend(audited.would().map(|text| ("audit-violations", text)));
    // A rejected request needs no warning in addition.
    if review.refusal.is_some() {
        return;
    }
    review.warnings.extend(match enforced(policy.warn) {
        Some(known) => known.would(),
        None if audited.standard == policy.warn => audited.would(),
        None => Finding::of(policy.warn, metadata, spec).would(),
    });
}

/// Reports whether an update of a pod changes a field that the standards check.
#[must_use]
pub fn is_significant(pod: &Value, old: &Value) -> bool {
    const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
    const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
    let annotation = |pod: &Value, key: &str| {
        pod["metadata"].get("annotations").and_then(|a| a.get(key)).cloned()
    };
    let changed = |key: &str| annotation(pod, key) != annotation(old, key);
    let list = |pod: &'_ Value, field: &str| -> Vec<Value> {
        pod["spec"].get(field).and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let container_changed = |new: &Value, old: &Value| {
        let name = new["name"].as_str().unwrap_or_default();
        new.get("image") != old.get("image") || changed(&format!("{SECCOMP_CONTAINER}{name}"))
    };
    if changed(SECCOMP_POD) {
        return true;
    }
    for field in ["containers", "initContainers"] {
        let (new, old) = (list(pod, field), list(old, field));
        if new.len() != old.len() || new.iter().zip(&old).any(|(n, o)| container_changed(n, o)) {
            return true;
        }
    }
    let old_ephemeral = list(old, "ephemeralContainers");
    let mut before: HashMap<&Value, &Value> = HashMap::with_capacity(old_ephemeral.len());
    for old in &old_ephemeral {
        before.entry(&old["name"]).or_insert(old);
    }
    list(pod, "ephemeralContainers")
        .iter()
        .any(|new| before.get(&new["name"]).is_none_or(|old| container_changed(new, old)))
}

/// Returns the warnings about existing pods of a namespace whose enforced standard changes from
/// `old` to `new`. Nothing is rejected.
#[must_use]
pub fn review_namespace<'a>(
    name: &str,
    old: &Policy,
    new: &Policy,
    pods: impl IntoIterator<Item = &'a Value>,
) -> Vec<String> {
    let relaxed =
        new.enforce.version == old.enforce.version && new.enforce.level <= old.enforce.level;
    if new.enforce == old.enforce || new.enforce.level == Level::Privileged || relaxed {
        return Vec::new();
    }
    // Reasons → the first pod's name and the number of pods.
    let mut found: BTreeMap<String, (String, usize)> = BTreeMap::new();
    for pod in pods {
        let violations = evaluate(new.enforce, &pod["metadata"], &pod["spec"]);
        if violations.is_empty() {
            continue;
        }
        let reasons: Vec<&str> = violations.iter().map(|violation| violation.reason).collect();
        let pod = pod["metadata"]["name"].as_str().unwrap_or_default();
        let entry = found.entry(reasons.join(", ")).or_insert_with(|| (pod.to_owned(), 0));
        entry.1 += 1;
        if pod < entry.0.as_str() {
            entry.0 = pod.to_owned();
        }
    }
    if found.is_empty() {
        return Vec::new();
    }
    let mut lines: Vec<String> = found
        .into_iter()
        .map(|(reasons, (pod, count))| match count {
            1 => format!("{pod}: {reasons}"),
            2 => format!("{pod} (and 1 other pod): {reasons}"),
            count => format!("{pod} (and {} other pods): {reasons}", count - 1),
        })
        .collect();
    lines.sort();
    let (name, standard) = (go::quoted(name), go::quoted(&new.enforce.to_string()));
    let mut warnings = vec![format!(
        "existing pods in namespace {name} violate the new PodSecurity enforce level {standard}"
    )];
    warnings.append(&mut lines);
    warnings
}

#[cfg(test)]
mod tests;
