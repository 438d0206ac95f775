use std::sync::Arc;

use super::*;

fn read(uid: &str) -> PodWithManifest {
    let mut pod = Pod::default();
    pod.metadata.uid = uid.to_owned();
    PodWithManifest { pod: Arc::new(pod), text: uid.into() }
}

fn named(name: &str) -> Name {
    ("default".to_owned(), name.to_owned())
}

fn mirrors(wanted: &[(&str, &str)], there: &[(&str, &str, bool)]) -> Mirrors {
    Mirrors {
        complete: true,
        wanted: wanted.iter().map(|(name, uid)| (named(name), read(uid))).collect(),
        there: there
            .iter()
            .map(|(name, shows, is_terminating)| {
                let uid = format!("mirror of {shows}");
                let shows = (*shows).to_owned();
                (named(name), Mirror { uid, shows, is_terminating: *is_terminating })
            })
            .collect(),
    }
}

#[test]
fn mirrors_are_created_deleted_and_created_again() {
    let delete =
        |name: &str, of: &str| Action::Delete { name: named(name), uid: format!("mirror of {of}") };
    let create = |name: &str| Action::Create(named(name));
    let table = [
        (mirrors(&[("a", "1")], &[]), vec![create("a")]),
        (mirrors(&[("a", "1")], &[("a", "1", false)]), vec![]),
        // A terminating mirror, one of another manifest, and one without a manifest.
        (mirrors(&[("a", "1")], &[("a", "1", true)]), vec![delete("a", "1")]),
        (mirrors(&[("a", "2")], &[("a", "1", false)]), vec![delete("a", "1")]),
        (mirrors(&[], &[("a", "1", false)]), vec![delete("a", "1")]),
        // The lists are not complete yet.
        (Mirrors { complete: false, ..mirrors(&[("b", "1")], &[("a", "1", false)]) }, vec![]),
    ];
    for (mirrors, wanted) in table {
        assert_eq!(plan(&mirrors), wanted, "{mirrors:?}");
    }
}

#[test]
fn terminating_mirror_does_not_count() {
    let mirrors = mirrors(&[], &[("a", "1", false), ("b", "2", true)]);
    assert_eq!(mirrors.showing("1"), Some("mirror of 1"));
    assert_eq!(mirrors.showing("2"), None);
    assert_eq!(mirrors.showing("3"), None);
}
