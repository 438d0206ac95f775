//! Tests of atomic updates on disk.

use std::fs;

use super::super::atomic::write;
use super::*;

fn files(of: &[(&str, &str)]) -> BTreeMap<String, File> {
    of.iter()
        .map(|(path, text)| {
            let file = File { data: text.as_bytes().to_vec(), mode: 0o640, owner: None };
            ((*path).to_owned(), file)
        })
        .collect()
}

/// Returns the visible names in the volume with their contents.
fn visible(target: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(target).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.starts_with("..") {
            continue;
        }
        let path = target.join(&name);
        if path.is_dir() {
            for below in fs::read_dir(&path).unwrap() {
                let below = below.unwrap();
                let text = read(&below.path());
                found.push(format!("{name}/{}={text}", below.file_name().to_string_lossy()));
            }
        } else {
            found.push(format!("{name}={}", read(&path)));
        }
    }
    found.sort();
    found
}

fn stamps(target: &Path) -> Vec<String> {
    let entries = fs::read_dir(target).unwrap().map(|entry| entry.unwrap());
    let directories = entries.filter(|entry| entry.file_type().unwrap().is_dir());
    directories.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

#[test]
#[cfg_attr(windows, ignore = "not on wine: symbolic links are not created")]
fn files_are_replaced_atomically_and_only_if_they_differ() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path();
    let put = |of: &[(&str, &str)]| write(target, &files(of), |_| Ok(())).unwrap();
    assert!(put(&[("a", "1"), ("dir/b", "2"), ("dir/c", "3")]));
    assert_eq!(visible(target), ["a=1", "dir/b=2", "dir/c=3"]);
    assert_eq!(fs::read_link(target.join("a")).unwrap(), Path::new("..data/a"));
    let first = stamps(target);
    assert_eq!(first.len(), 1);
    assert_eq!(fs::read_link(target.join("..data")).unwrap(), Path::new(&first[0]));
    assert!(!put(&[("a", "1"), ("dir/b", "2"), ("dir/c", "3")]));
    assert_eq!(stamps(target), first);
    assert!(put(&[("dir/b", "two"), ("e", "5")]));
    assert_eq!(visible(target), ["dir/b=two", "e=5"]);
    assert_eq!(stamps(target).len(), 1);
    assert_ne!(stamps(target), first);
    assert!(put(&[]));
    assert_eq!(visible(target), Vec::<String>::new());
    assert!(!put(&[]));
}

#[test]
#[cfg_attr(windows, ignore = "not on wine: symbolic links are not created")]
fn interrupted_write_is_completed_by_the_next() {
    let old = files(&[("a", "1"), ("gone", "x")]);
    let new = files(&[("a", "2"), ("b", "3")]);
    let directory = tempfile::tempdir().unwrap();
    for cut in 0..4 {
        let target = directory.path().join(cut.to_string());
        fs::create_dir(&target).unwrap();
        write(&target, &old, |_| Ok(())).unwrap();
        match cut {
            // An incomplete directory without a link.
            0 => {
                fs::create_dir(target.join("..2020_01_01_00_00_00.dead")).unwrap();
                fs::write(target.join("..2020_01_01_00_00_00.dead/a"), "half").unwrap();
            }
            // A link that was created and not renamed.
            1 => host::os::owners::link(Path::new("..none"), &target.join("..data_tmp"), true)
                .unwrap(),
            // The data is in place, but not the visible links.
            2 => {
                write(&target, &new, |_| Ok(())).unwrap();
                fs::remove_file(target.join("b")).unwrap();
                host::os::owners::link(Path::new("..data/gone"), &target.join("gone"), false)
                    .unwrap();
            }
            // RuleContext owners failed.
            _ => {
                let failed = write(&target, &new, |_| Err(std::io::Error::other("no")));
                assert!(failed.unwrap_err().to_string().ends_with(": no"));
                assert_eq!(visible(&target), ["a=1", "gone=x"]);
            }
        }
        assert!(write(&target, &new, |_| Ok(())).unwrap(), "{cut}");
        assert_eq!(visible(&target), ["a=2", "b=3"], "{cut}");
        assert_eq!(stamps(&target).len(), 1, "{cut}");
        assert!(fs::symlink_metadata(target.join("..data_tmp")).is_err(), "{cut}");
        assert!(fs::symlink_metadata(target.join("gone")).is_err(), "{cut}");
    }
}

#[test]
#[cfg_attr(windows, ignore = "not on wine: symbolic links are not created")]
fn concurrent_readers_see_only_old_or_only_new_files() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path();
    let put = |text: &str| write(target, &files(&[("a", text), ("dir/b", text)]), |_| Ok(()));
    put("0").unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 1..=200 {
                put(&number.to_string()).unwrap();
            }
        });
        while !writer.is_finished() {
            let current = target.join(fs::read_link(target.join("..data")).unwrap());
            let (a, b) = (fs::read(current.join("a")), fs::read(current.join("dir/b")));
            // A version that was replaced between the reads may be gone, but versions are never mixed.
            if let (Ok(a), Ok(b)) = (a, b) {
                assert_eq!(a, b);
            }
        }
    });
    assert_eq!(visible(target), ["a=200", "dir/b=200"]);
}

#[test]
fn path_outside_the_volume_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("volume");
    fs::create_dir(&target).unwrap();
    for path in ["../out", "/etc/out", "a/../../out", ""] {
        let error = write(&target, &files(&[(path, "x")]), |_| Ok(())).unwrap_err();
        assert_eq!(error.to_string(), format!("invalid path: must be relative path: {path}"));
    }
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}
