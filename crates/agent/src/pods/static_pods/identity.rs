//! The UIDs of static pods: [`Identities`] keeps the UID under which a static pod runs.
//!
//! A manifest has no UID, so every agent derives one from it. The kubelet hashes a dump of Go values, which
//! is not imitated here. A pod that a kubelet started therefore runs under another UID than [`super::read`]
//! derives, and it keeps that UID: its containers, directories, ledger entries and mirror pod stay valid, and
//! a kubelet that takes the node back finds them.
//!
//! A file records the manifest of each UID. It distinguishes a manifest that changed while no agent ran from
//! a manifest whose pod another agent started.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use host::files::write_atomically;
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::mirror::{self, Name};
use crate::pods::pod_set::PodWithManifest;

/// The name of the file. A kubelet ignores it.
const FILE: &str = "static_pod_uids";

/// The UID of a static pod, and the manifest that it was created from.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
struct Identity {
    /// The UID that Berth derives from the manifest.
    manifest: String,
    uid: String,
}

/// The UIDs of static pods by `namespace/name`.
#[derive(Debug)]
pub struct Identities {
    path: PathBuf,
    known: BTreeMap<String, Identity>,
}

impl Identities {
    /// Reads the file below `root`. Without a usable file, running pods are adopted.
    #[must_use]
    pub fn open(root: &Path) -> Identities {
        let path = root.join(FILE);
        let known = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).unwrap_or_else(|error| {
                warn!(path = %path.display(), %error, "failed to read the UIDs of static pods");
                BTreeMap::new()
            }),
            Err(_) => BTreeMap::new(),
        };
        Identities { path, known }
    }

    /// Gives every static pod its UID. `running` has the static pods that ran before the agent started, and
    /// is empty later.
    pub fn resolve(
        &mut self,
        wanted: Vec<PodWithManifest>,
        running: &BTreeMap<Name, String>,
    ) -> Vec<PodWithManifest> {
        let mut known = BTreeMap::new();
        let mut resolved = Vec::with_capacity(wanted.len());
        for read in wanted {
            let name = read.pod.full_name();
            let runs = running.get(&mirror::name(&read.pod)).map(String::as_str);
            let manifest = read.pod.metadata.uid.clone();
            let uid = uid(&manifest, self.known.get(&name), runs).to_owned();
            if runs == Some(uid.as_str()) && self.known.get(&name).is_none_or(|of| of.uid != uid) {
                info!(pod = name, uid, "adopted a running static pod");
            }
            resolved.push(if uid == manifest { read } else { read.with_static_uid(&uid) });
            known.insert(name, Identity { manifest, uid });
        }
        if known != self.known {
            self.known = known;
            self.save();
        }
        resolved
    }

    /// Writes the file. Without it, only a manifest that changes while no agent runs would be missed.
    fn save(&self) {
        let written =
            serde_json::to_vec(&self.known).map_err(|error| error.to_string()).and_then(|text| {
                write_atomically(&self.path, &text).map_err(|error| error.to_string())
            });
        if let Err(error) = written {
            warn!(path = %self.path.display(), error, "failed to write the UIDs of static pods");
        }
    }
}

/// Returns the UID of a static pod. `manifest` is the UID derived from its current manifest, `before` is the
/// recorded identity, and `runs` is the UID under which a pod of its name runs.
fn uid<'a>(manifest: &'a str, before: Option<&'a Identity>, runs: Option<&'a str>) -> &'a str {
    match (before, runs) {
        // Another agent started it from the current manifest.
        (before, Some(runs)) if before.is_none_or(|before| before.uid != runs) => runs,
        (Some(before), _) if before.manifest == manifest => &before.uid,
        _ => manifest,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::pods::static_pods::CONFIG_HASH;

    #[test]
    fn running_pod_keeps_its_uid_until_its_manifest_changes() {
        let before = |manifest: &str, uid: &str| {
            Some(Identity { manifest: manifest.to_owned(), uid: uid.to_owned() })
        };
        let table = [
            ("a new pod", "a", None, None, "a"),
            ("made by Berth", "a", before("a", "a"), Some("a"), "a"),
            ("made by an older Berth", "a", None, Some("a"), "a"),
            ("made by a kubelet", "a", None, Some("k"), "k"),
            ("adopted before", "a", before("a", "k"), Some("k"), "k"),
            ("adopted before, and the machine was restarted", "a", before("a", "k"), None, "k"),
            ("changed while no agent ran", "b", before("a", "k"), Some("k"), "b"),
            ("changed, and a kubelet ran it", "b", before("a", "k"), Some("k2"), "k2"),
            ("changed", "b", before("a", "a"), Some("a"), "b"),
            ("changed, and does not run", "b", before("a", "k"), None, "b"),
        ];
        for (name, manifest, before, runs, expected) in table {
            assert_eq!(uid(manifest, before.as_ref(), runs), expected, "{name}");
        }
    }

    fn read(uid: &str) -> PodWithManifest {
        let pod = json!({"metadata": {
            "name": "web-node-1", "namespace": "default", "uid": uid,
            "annotations": {CONFIG_HASH: uid},
        }});
        let text = pod.to_string().into();
        PodWithManifest { pod: Arc::new(serde_json::from_value(pod).unwrap()), text }
    }

    #[test]
    fn adopted_uid_is_saved_and_replaces_the_manifest_hash() {
        let root = tempfile::tempdir().unwrap();
        let name = ("default".to_owned(), "web-node-1".to_owned());
        let running = BTreeMap::from([(name, "k".to_owned())]);
        let adopted = Identities::open(root.path()).resolve(vec![read("a")], &running);
        let metadata = &adopted[0].pod.metadata;
        assert_eq!((metadata.uid.as_str(), metadata.annotations[CONFIG_HASH].as_str()), ("k", "k"));
        assert_eq!(adopted, [read("k")]);

        let mut later = Identities::open(root.path());
        assert_eq!(later.resolve(vec![read("a")], &running), [read("k")]);
        assert_eq!(later.resolve(vec![read("b")], &BTreeMap::new()), [read("b")]);
        assert_eq!(later.resolve(Vec::new(), &BTreeMap::new()), []);
        // A manifest that was removed and added again is a new pod.
        assert_eq!(later.resolve(vec![read("a")], &BTreeMap::new()), [read("a")]);
        fs::write(root.path().join(FILE), "nonsense").unwrap();
        assert_eq!(Identities::open(root.path()).resolve(vec![read("a")], &running), [read("k")]);
    }
}
