use std::fs;

use tempfile::TempDir;

use super::*;

fn now() -> Timestamp {
    Timestamp::new(1_136_214_245, 0)
}

fn files(path: &Path) -> ManifestDirectory {
    ManifestDirectory::new(Settings {
        path: path.to_owned(),
        every: Duration::from_secs(20),
        node: "n".to_owned(),
        gates: FeatureGates::default(),
    })
}

fn manifest(name: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{containers: [{{name: c, \
         image: i}}]}}}}"
    )
}

fn names(found: &ManifestScan) -> Vec<String> {
    found.pods.iter().map(|read| read.pod.metadata.name.clone()).collect()
}

#[test]
fn pods_follow_their_manifests() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("manifests");
    let mut files = files(&path);
    let found = files.scan(now());
    assert!(names(&found).is_empty() && found.problems.is_empty());
    fs::create_dir_all(path.join("directory")).unwrap();
    fs::write(path.join("a.yaml"), manifest("a")).unwrap();
    fs::write(path.join(".b.yaml.swp"), "unfinished").unwrap();
    fs::write(path.join("c.json"), manifest("c")).unwrap();
    let found = files.scan(now());
    assert_eq!((names(&found), found.changed), (vec!["a-n".to_owned(), "c-n".to_owned()], true));
    let uids = |found: &ManifestScan| -> Vec<String> {
        found.pods.iter().map(|read| read.pod.metadata.uid.clone()).collect()
    };
    let before = uids(&found);
    let later = files.scan(Timestamp::new(1_136_214_300, 0));
    assert!(!later.changed);
    assert_eq!((uids(&later), &later.pods[0].text), (before.clone(), &found.pods[0].text));
    fs::write(path.join("c.json"), manifest("d")).unwrap();
    let found = files.scan(now());
    assert_eq!((names(&found), found.changed), (vec!["a-n".to_owned(), "d-n".to_owned()], true));
    assert_eq!(uids(&found)[0], before[0]);
    fs::remove_file(path.join("a.yaml")).unwrap();
    let found = files.scan(now());
    assert_eq!((names(&found), found.changed), (vec!["d-n".to_owned()], true));
}

#[test]
fn invalid_manifest_is_reported_once_and_affects_no_other() {
    let place = TempDir::new().unwrap();
    let (good, bad) = (place.path().join("a.yaml"), place.path().join("b.yaml"));
    fs::write(&good, manifest("a")).unwrap();
    fs::write(&bad, "kind: Job").unwrap();
    let mut files = files(place.path());
    let found = files.scan(now());
    assert_eq!(names(&found), ["a-n"]);
    let why = "line 1, column 1: apiVersion: should be \"v1\", found nothing".to_owned();
    assert_eq!(found.problems, [ManifestProblem { file: bad.clone(), why }]);
    let found = files.scan(now());
    assert!(found.problems.is_empty() && !found.changed);
    // Another manifest with the same pod name.
    fs::write(&bad, manifest("a")).unwrap();
    let found = files.scan(now());
    assert_eq!(names(&found), ["a-n"]);
    let why = format!("metadata.name: {} already defines pod default/a-n", good.display());
    assert_eq!(found.problems, [ManifestProblem { file: bad.clone(), why }]);
    assert!(!found.changed);
    // The first manifest is removed.
    fs::remove_file(&good).unwrap();
    let found = files.scan(now());
    assert_eq!((names(&found), found.changed), (vec!["a-n".to_owned()], true));
    assert!(found.problems.is_empty());
    fs::write(&bad, [0xff, 0xfe]).unwrap();
    let found = files.scan(now());
    assert!(found.pods.is_empty() && found.changed);
    assert_eq!(found.problems.len(), 1, "{:?}", found.problems);
}

#[test]
fn path_can_be_a_single_file() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("a.yaml");
    fs::write(&path, manifest("a")).unwrap();
    assert_eq!(names(&files(&path).scan(now())), ["a-n"]);
}
