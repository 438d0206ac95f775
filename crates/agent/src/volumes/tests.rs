//! Tests of volumes, from pods to files; [`Place`] is a root directory that is cleaned up.

#![allow(clippy::needless_pass_by_value, reason = "`json!` makes values")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::*;
use crate::runtime::lower::{Configs, MountedVolume, MountedVolumes, PodInput};
use lifecycle::spec::Pod;

mod files;
mod pure;
mod real;

/// Returns a pod with one container `c` that mounts each of `volumes` at its name, merged with `spec`.
fn pod(volumes: Value, spec: Value) -> Pod {
    let mounts: Vec<Value> = volumes
        .as_array()
        .unwrap()
        .iter()
        .map(|volume| json!({"name": volume["name"], "mountPath": volume["name"]}))
        .collect();
    let mut object = json!({
        "metadata": {"name": "p", "namespace": "lives", "uid": "u-1"},
        "spec": {"containers": [{"name": "c", "image": "busybox", "volumeMounts": mounts}]},
    });
    object["spec"]["volumes"] = volumes;
    for (name, value) in spec.as_object().unwrap() {
        object["spec"][name] = value.clone();
    }
    serde_json::from_value(object).unwrap()
}

/// Returns config map `cm1` and secret `sec1`, as in the recordings.
fn configs() -> Configs {
    let text = |of: &[(&str, &str)]| -> BTreeMap<String, String> {
        of.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let config = text(&[("key1", "value1"), ("key2", "value2"), ("file.conf", "a=1\nb=2\n")]);
    let secret = BTreeMap::from([
        ("user".to_owned(), b"admin".to_vec()),
        ("pass".to_owned(), b"s3cret".to_vec()),
    ]);
    let binary = BTreeMap::from([("raw".to_owned(), vec![0, 159, 146])]);
    Configs {
        config_maps: BTreeMap::from([("cm1".to_owned(), config)]),
        binary: BTreeMap::from([("cm1".to_owned(), binary)]),
        secrets: BTreeMap::from([("sec1".to_owned(), secret)]),
    }
}

fn tokens() -> Tokens {
    let key = |audience: &str| TokenKey { audience: audience.to_owned(), expiration_seconds: 3607 };
    Tokens::from([
        (key(""), Ok("the token".to_owned())),
        (key("vault"), Err(TokenError("serviceaccounts \"x\" not found".to_owned()))),
    ])
}

fn contents_with(pod: &Pod, configs: &Configs) -> Contents {
    let world = crate::runtime::lower::tests::World::new();
    let claim = |is_deleted, is_bound, has_volume| Claim { is_deleted, is_bound, has_volume };
    let claims = [
        ("there", claim(false, true, true)),
        ("leaving", claim(true, true, true)),
        ("waiting", claim(false, false, false)),
        ("vague", claim(false, true, false)),
        ("p-v", claim(false, false, false)),
    ];
    let claims = claims.into_iter().map(|(name, claim)| (name.to_owned(), claim)).collect();
    let input: PodInput<'_> = world.input(pod);
    contents(&input, &VolumeInputs { configs, tokens: &tokens(), claims: &claims })
}

fn contents_of(pod: &Pod) -> Contents {
    contents_with(pod, &configs())
}

/// A directory for the volumes of pods. Dropping it unmounts them.
struct Place {
    directory: tempfile::TempDir,
    volumes: Volumes,
}

impl Place {
    /// Returns a root with mounts, if this process may mount, and one without.
    fn both() -> [Place; 2] {
        [Place::new(Volumes::new), Place::new(Volumes::without_mounts)]
    }

    fn new(volumes: fn(PathBuf) -> Volumes) -> Place {
        let directory = tempfile::tempdir().unwrap();
        let volumes = volumes(directory.path().join("root"));
        Place { directory, volumes }
    }

    /// Returns a path outside the agent's directory.
    fn outside(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn set_up(&self, pod: &Pod) -> Result<MountedVolumes, Vec<String>> {
        let result = self.volumes.set_up(pod, &contents_of(pod));
        result.map_err(|errors| errors.iter().map(ToString::to_string).collect())
    }

    fn path(&self, mounted: &MountedVolumes, volume: &str) -> PathBuf {
        match &mounted.volumes[volume] {
            MountedVolume::Path { host_path, .. } => PathBuf::from(host_path),
            other => panic!("{volume} is {other:?}"),
        }
    }

    fn pod_directory(&self) -> PathBuf {
        self.volumes.pod_directory("u-1").unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for uid in self.volumes.pods().unwrap_or_default() {
            let _ = self.volumes.remove(&uid);
        }
    }
}

fn read(path: &Path) -> String {
    String::from_utf8(std::fs::read(path).unwrap()).unwrap()
}
