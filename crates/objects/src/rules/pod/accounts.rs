//! Service account admission: the token and the pull secrets that a pod gets from its account, and
//! the secrets that it may not use.
//!
//! Pure: the caller finds the account. A refusal is answered with 403 and its text after `pods
//! "name" is forbidden: `.

use serde_json::{Value, json};
use thiserror::Error;

use super::admission::{spec_mut, text};
use super::references;
use crate::pod::MIRROR_ANNOTATION;

/// The account of pods that name none. A controller creates it in every namespace.
pub const DEFAULT: &str = "default";

/// The directory where clients in containers look for the token.
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The prefix of the names of token volumes.
const VOLUME: &str = "kube-api-access-";
/// An hour and a little: upstream recognises tokens that clients did not request themselves by this
/// lifetime.
const TOKEN_SECONDS: i64 = 3607;
/// `rw-r--r--`
const FILE_MODE: i64 = 0o644;
/// The config map with the CA of the API server, which a controller maintains in every namespace.
pub const ROOT_CA: &str = "kube-root-ca.crt";

const ENFORCE: &str = "kubernetes.io/enforce-mountable-secrets";

/// The lists of containers, and the name of an item in a refusal.
const INIT_CONTAINERS: (&str, &str) = ("initContainers", "init container");
const CONTAINERS: (&str, &str) = ("containers", "container");
const EPHEMERAL_CONTAINERS: (&str, &str) = ("ephemeralContainers", "ephemeral container");

/// A pod may not run with its account as it is.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AccountRefusal {
    #[error("a mirror pod may not reference service accounts")]
    MirrorWithAccount,
    #[error("a mirror pod may not reference secrets")]
    MirrorWithSecret,
    #[error("a mirror pod may not use ServiceAccountToken volume projections")]
    MirrorWithToken,
    #[error("no service account specified for pod {namespace}/{name}")]
    NoAccount { namespace: String, name: String },
    #[error(
        "error looking up service account {namespace}/{name}: serviceaccount {name:?} not found"
    )]
    Unknown { namespace: String, name: String },
    #[error(
        "{referrer} secret.secretName=\"{secret}\" is not allowed because service account \
         {account} does not reference that secret"
    )]
    Secret { referrer: String, secret: String, account: String },
    #[error(
        "imagePullSecrets[{index}].name=\"{secret}\" is not allowed because service account \
         {account} does not reference that imagePullSecret"
    )]
    PullSecret { index: usize, secret: String, account: String },
}

/// Returns the account of a new pod, and sets it if the pod names none. Mirror pods have none: the
/// agent creates them and they stay as they are.
pub fn of_new(pod: &mut Value) -> Result<Option<String>, AccountRefusal> {
    if pod["metadata"]["annotations"].get(MIRROR_ANNOTATION).is_some() {
        return check_mirror(&pod["spec"]).map(|()| None);
    }
    let Some(spec) = spec_mut(pod) else { return Ok(None) };
    let named = spec.get("serviceAccountName").and_then(Value::as_str).unwrap_or_default();
    let name = if named.is_empty() { DEFAULT } else { named }.to_owned();
    // The same field under its older name.
    for field in ["serviceAccountName", "serviceAccount"] {
        spec.insert(field.to_owned(), name.as_str().into());
    }
    Ok(Some(name))
}

/// Returns the account of an existing pod that gets an ephemeral container.
pub fn of_existing(pod: &Value) -> Result<&str, AccountRefusal> {
    match text(&pod["spec"], "serviceAccountName") {
        "" => Err(AccountRefusal::NoAccount {
            namespace: text(&pod["metadata"], "namespace").to_owned(),
            name: text(&pod["metadata"], "name").to_owned(),
        }),
        name => Ok(name),
    }
}

fn check_mirror(spec: &Value) -> Result<(), AccountRefusal> {
    if !text(spec, "serviceAccountName").is_empty() {
        return Err(AccountRefusal::MirrorWithAccount);
    }
    if !references::secret_names(spec).is_empty() {
        return Err(AccountRefusal::MirrorWithSecret);
    }
    let token = |source: &Value| source.get("serviceAccountToken").is_some();
    match items(spec, "volumes").flat_map(projected).any(token) {
        true => Err(AccountRefusal::MirrorWithToken),
        false => Ok(()),
    }
}

/// Adds to a new pod what its account provides: a token, and pull secrets. `suffix` makes the name
/// of the token's volume unique.
pub fn fill_in(pod: &mut Value, account: &Value, suffix: &str) -> Result<(), AccountRefusal> {
    if wants_token(pod, account) {
        mount_token(pod, suffix);
    }
    let Some(spec) = spec_mut(pod) else { return Ok(()) };
    let own = spec.get("imagePullSecrets").and_then(Value::as_array);
    let has_own = own.is_some_and(|own| !own.is_empty());
    let names: Vec<Value> = items(account, "imagePullSecrets")
        .map(|secret| json!({"name": text(secret, "name")}))
        .collect();
    if !has_own && !names.is_empty() {
        spec.insert("imagePullSecrets".to_owned(), names.into());
    }
    check_new(pod, account)
}

/// The pod's setting wins over the account's.
fn wants_token(pod: &Value, account: &Value) -> bool {
    let word = |of: &Value| of.get("automountServiceAccountToken").and_then(Value::as_bool);
    word(&pod["spec"]).or_else(|| word(account)).unwrap_or(true)
}

/// Mounts a token in every container that has no other mount at its path.
fn mount_token(pod: &mut Value, suffix: &str) {
    let own = items(&pod["spec"], "volumes")
        .map(|volume| text(volume, "name").to_owned())
        .find(|name| name.starts_with(VOLUME));
    let name = own.clone().unwrap_or_else(|| format!("{VOLUME}{suffix}"));
    let Some(spec) = spec_mut(pod) else { return };
    let mut mounted = false;
    for (list, _) in [INIT_CONTAINERS, CONTAINERS] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for container in containers.filter_map(Value::as_object_mut) {
            let mounts = container.entry("volumeMounts").or_insert_with(|| json!([]));
            let Some(mounts) = mounts.as_array_mut() else { continue };
            if mounts.iter().all(|mount| text(mount, "mountPath") != MOUNT_PATH) {
                mounts.push(json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH}));
                mounted = true;
            }
        }
    }
    if own.is_none() && mounted {
        let volumes = spec.entry("volumes").or_insert_with(|| json!([]));
        if let Some(volumes) = volumes.as_array_mut() {
            volumes.push(token_volume(&name));
        }
    }
}

fn token_volume(name: &str) -> Value {
    let namespace = json!({"apiVersion": "v1", "fieldPath": "metadata.namespace"});
    json!({
        "name": name,
        "projected": {
            "defaultMode": FILE_MODE,
            "sources": [
                {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
                {"configMap": {
                    "name": ROOT_CA, "items": [{"key": "ca.crt", "path": "ca.crt"}],
                }},
                {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": namespace}]}},
            ],
        },
    })
}

/// Reports whether pods of an account may refer only to its own secrets. The values are Go's
/// booleans.
fn limits_secrets(account: &Value) -> bool {
    let word = account["metadata"]["annotations"][ENFORCE].as_str().unwrap_or_default();
    matches!(word, "1" | "t" | "T" | "true" | "TRUE" | "True")
}

fn check_new(pod: &Value, account: &Value) -> Result<(), AccountRefusal> {
    if !limits_secrets(account) {
        return Ok(());
    }
    let spec = &pod["spec"];
    let of_volumes = items(spec, "volumes").filter_map(|volume| {
        let secret = volume.get("secret")?;
        Some(("volume with".to_owned(), text(secret, "secretName")))
    });
    check_secrets(account, of_volumes)?;
    for list in [INIT_CONTAINERS, CONTAINERS] {
        check_containers(spec, list, account)?;
    }
    for (index, secret) in items(spec, "imagePullSecrets").enumerate() {
        let secret = text(secret, "name");
        if !has(account, "imagePullSecrets", secret) {
            let (secret, account) = (secret.to_owned(), account_name(account));
            return Err(AccountRefusal::PullSecret { index, secret, account });
        }
    }
    Ok(())
}

/// Rejects ephemeral containers that refer to secrets that their account does not list.
pub fn check_ephemeral(pod: &Value, account: &Value) -> Result<(), AccountRefusal> {
    match limits_secrets(account) {
        true => check_containers(&pod["spec"], EPHEMERAL_CONTAINERS, account),
        false => Ok(()),
    }
}

fn check_containers(
    spec: &Value,
    (list, word): (&str, &str),
    account: &Value,
) -> Result<(), AccountRefusal> {
    for container in items(spec, list) {
        let name = text(container, "name");
        let of_variables = items(container, "env").filter_map(|variable| {
            let secret = variable["valueFrom"].get("secretKeyRef")?;
            let variable = text(variable, "name");
            let referrer = format!("{word} {name} with envVar {variable} referencing");
            Some((referrer, text(secret, "name")))
        });
        check_secrets(account, of_variables)?;
        let of_sources = items(container, "envFrom").filter_map(|source| {
            let secret = source.get("secretRef")?;
            Some((format!("{word} {name} with envFrom referencing"), text(secret, "name")))
        });
        check_secrets(account, of_sources)?;
    }
    Ok(())
}

fn check_secrets<'a>(
    account: &Value,
    mut references: impl Iterator<Item = (String, &'a str)>,
) -> Result<(), AccountRefusal> {
    match references.find(|(_, secret)| !has(account, "secrets", secret)) {
        None => Ok(()),
        Some((referrer, secret)) => {
            let (secret, account) = (secret.to_owned(), account_name(account));
            Err(AccountRefusal::Secret { referrer, secret, account })
        }
    }
}

fn has(account: &Value, list: &str, secret: &str) -> bool {
    items(account, list).any(|own| text(own, "name") == secret)
}

fn account_name(account: &Value) -> String {
    text(&account["metadata"], "name").to_owned()
}

fn items<'a>(of: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    of.get(list).and_then(Value::as_array).into_iter().flatten()
}

/// The sources of a projected volume.
fn projected(volume: &Value) -> impl Iterator<Item = &Value> {
    items(&volume["projected"], "sources")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(more: &Value) -> Value {
        let mut account = json!({"metadata": {"name": "builder"}});
        for (field, value) in more.as_object().unwrap() {
            account[field] = value.clone();
        }
        account
    }

    /// An account whose pods may refer to the secret `mine` and pull with `pull`.
    fn strict() -> Value {
        let mut strict = account(&json!({
            "secrets": [{"name": "mine"}], "imagePullSecrets": [{"name": "pull"}],
        }));
        strict["metadata"]["annotations"] = json!({ENFORCE: "true"});
        strict
    }

    #[test]
    fn pod_without_account_runs_as_default() {
        for (given, wanted) in [(json!({}), "default"), (json!({"serviceAccountName": "a"}), "a")] {
            let mut pod = json!({"spec": given});
            assert_eq!(of_new(&mut pod).unwrap().as_deref(), Some(wanted));
            assert_eq!(pod["spec"]["serviceAccountName"], wanted);
            assert_eq!(pod["spec"]["serviceAccount"], wanted);
        }
    }

    #[test]
    fn a_token_is_mounted_where_nothing_else_is() {
        let own = json!([{"name": "v", "mountPath": MOUNT_PATH}]);
        let mut pod = json!({"spec": {
            "initContainers": [{"name": "i"}],
            "containers": [{"name": "a"}, {"name": "b", "volumeMounts": own}],
            "ephemeralContainers": [{"name": "e"}],
            "volumes": [{"name": "v", "emptyDir": {}}],
        }});
        fill_in(&mut pod, &account(&json!({})), "x2x4x").unwrap();
        let spec = &pod["spec"];
        let mount =
            json!([{"name": "kube-api-access-x2x4x", "readOnly": true, "mountPath": MOUNT_PATH}]);
        assert_eq!(spec["initContainers"][0]["volumeMounts"], mount);
        assert_eq!(spec["containers"][0]["volumeMounts"], mount);
        assert_eq!(spec["containers"][1]["volumeMounts"], own);
        assert_eq!(spec["ephemeralContainers"][0].get("volumeMounts"), None);
        assert_eq!(
            spec["volumes"][1],
            json!({"name": "kube-api-access-x2x4x", "projected": {"defaultMode": 420, "sources": [
                {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
                {"configMap": {
                    "name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}],
                }},
                {"downwardAPI": {"items": [{
                    "path": "namespace",
                    "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                }]}},
            ]}})
        );
    }

    #[test]
    fn a_volume_for_tokens_that_is_there_is_used() {
        let mut pod = json!({"spec": {
            "containers": [{"name": "a"}],
            "volumes": [{"name": "kube-api-access-own", "emptyDir": {}}],
        }});
        fill_in(&mut pod, &account(&json!({})), "x2x4x").unwrap();
        assert_eq!(pod["spec"]["volumes"].as_array().unwrap().len(), 1);
        let mount = &pod["spec"]["containers"][0]["volumeMounts"][0];
        assert_eq!(mount["name"], "kube-api-access-own");
    }

    #[test]
    fn token_mount_is_decided_by_pod_then_account() {
        let word = |word: Option<bool>| match word {
            Some(word) => json!({"automountServiceAccountToken": word}),
            None => json!({}),
        };
        for (pods, accounts, mounted) in [
            (None, None, true),
            (None, Some(false), false),
            (Some(true), Some(false), true),
            (Some(false), Some(true), false),
        ] {
            let mut pod = json!({"spec": word(pods)});
            pod["spec"]["containers"] = json!([{"name": "a"}]);
            fill_in(&mut pod, &account(&word(accounts)), "x2x4x").unwrap();
            let there = pod["spec"].get("volumes").is_some();
            assert_eq!(there, mounted, "pod {pods:?}, account {accounts:?}");
        }
    }

    #[test]
    fn account_pull_secrets_are_used_unless_the_pod_has_some() {
        let account = account(&json!({"imagePullSecrets": [{"name": "a"}, {"name": "b"}]}));
        let mut pod = json!({"spec": {}});
        fill_in(&mut pod, &account, "x").unwrap();
        assert_eq!(pod["spec"]["imagePullSecrets"], json!([{"name": "a"}, {"name": "b"}]));
        let mut pod = json!({"spec": {"imagePullSecrets": [{"name": "own"}]}});
        fill_in(&mut pod, &account, "x").unwrap();
        assert_eq!(pod["spec"]["imagePullSecrets"], json!([{"name": "own"}]));
    }

    #[test]
    fn mirror_pods_use_neither_accounts_nor_secrets() {
        let check = |spec: Value, refusal: Option<AccountRefusal>| {
            let annotations = json!({MIRROR_ANNOTATION: "hash"});
            let mut pod = json!({"metadata": {"annotations": annotations}, "spec": spec});
            let before = pod.clone();
            let expected = refusal.map_or(Ok(None), Err);
            assert_eq!(of_new(&mut pod), expected, "{before}");
            assert_eq!(pod, before);
        };
        check(json!({"containers": [{"name": "a", "env": [{"name": "X", "value": "y"}]}]}), None);
        let account = Some(AccountRefusal::MirrorWithAccount);
        check(json!({"serviceAccountName": "a"}), account);
        let token = json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}});
        check(json!({"volumes": [token]}), Some(AccountRefusal::MirrorWithToken));
        let variable = json!({"name": "X", "valueFrom": {"secretKeyRef": {"name": "s"}}});
        for spec in [
            json!({"imagePullSecrets": [{"name": "s"}]}),
            json!({"containers": [{"env": [variable]}]}),
            json!({"initContainers": [{"envFrom": [{"secretRef": {"name": "s"}}]}]}),
            json!({"volumes": [{"secret": {"secretName": "s"}}]}),
            json!({"volumes": [{"projected": {"sources": [{"secret": {"name": "s"}}]}}]}),
            json!({"volumes": [{"azureFile": {"secretName": "s"}}]}),
            json!({"volumes": [{"csi": {"nodePublishSecretRef": {"name": "s"}}}]}),
        ] {
            check(spec, Some(AccountRefusal::MirrorWithSecret));
        }
    }

    #[test]
    fn pods_of_a_strict_account_refer_to_its_secrets_only() {
        let check = |spec: Value, wanted: &str| {
            let mut pod = json!({"spec": spec});
            pod["spec"]["automountServiceAccountToken"] = false.into();
            let refusal = fill_in(&mut pod, &strict(), "x").err();
            assert_eq!(refusal.map(|r| r.to_string()).unwrap_or_default(), wanted);
        };
        let variable = |name: &str| {
            let secret = json!({"secretKeyRef": {"name": name}});
            json!({"env": [{"name": "X", "valueFrom": secret}], "name": "c"})
        };
        let source = json!({"name": "c", "envFrom": [{"secretRef": {"name": "other"}}]});
        let no = "is not allowed because service account builder does not reference that secret";
        check(json!({"containers": [variable("mine")]}), "");
        check(
            json!({"volumes": [{"secret": {"secretName": "other"}}]}),
            &format!("volume with secret.secretName=\"other\" {no}"),
        );
        check(
            json!({"containers": [variable("other")]}),
            &format!("container c with envVar X referencing secret.secretName=\"other\" {no}"),
        );
        check(
            json!({"initContainers": [source]}),
            &format!("init container c with envFrom referencing secret.secretName=\"other\" {no}"),
        );
        check(
            json!({"imagePullSecrets": [{"name": "pull"}, {"name": "other"}]}),
            "imagePullSecrets[1].name=\"other\" is not allowed because service account builder \
             does not reference that imagePullSecret",
        );
        let pod = json!({"spec": {"ephemeralContainers": [variable("other")]}});
        assert_eq!(
            check_ephemeral(&pod, &strict()).unwrap_err().to_string(),
            format!(
                "ephemeral container c with envVar X referencing secret.secretName=\"other\" {no}"
            )
        );
        assert_eq!(check_ephemeral(&pod, &account(&json!({}))), Ok(()));
    }

    #[test]
    fn a_pod_without_an_account_gets_no_ephemeral_containers() {
        let pod = json!({"metadata": {"namespace": "n", "name": "p"}, "spec": {}});
        assert_eq!(
            of_existing(&pod).unwrap_err().to_string(),
            "no service account specified for pod n/p"
        );
        let unknown = AccountRefusal::Unknown { namespace: "n".into(), name: "a".into() };
        assert_eq!(
            unknown.to_string(),
            "error looking up service account n/a: serviceaccount \"a\" not found"
        );
    }
}
