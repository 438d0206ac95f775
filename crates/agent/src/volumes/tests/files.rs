//! Files that change all at once, on a real disk.

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

/// What users see: names in the volume, and what can be read by them.
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
#[cfg_attr(windows, ignore = "not on wine: symbolic links are reported made and are not")]
fn files_are_replaced_all_at_once_and_only_if_they_differ() {
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
#[cfg_attr(windows, ignore = "not on wine: symbolic links are reported made and are not")]
fn a_write_that_was_cut_short_at_any_point_is_finished_by_the_next() {
    let old = files(&[("a", "1"), ("gone", "x")]);
    let new = files(&[("a", "2"), ("b", "3")]);
    let directory = tempfile::tempdir().unwrap();
    for cut in 0..4 {
        let target = directory.path().join(cut.to_string());
        fs::create_dir(&target).unwrap();
        write(&target, &old, |_| Ok(())).unwrap();
        match cut {
            // A directory half full that nothing leads to.
            0 => {
                fs::create_dir(target.join("..2020_01_01_00_00_00.dead")).unwrap();
                fs::write(target.join("..2020_01_01_00_00_00.dead/a"), "half").unwrap();
            }
            // A link that was made and not put in place.
            1 => host::os::owners::link(Path::new("..none"), &target.join("..data_tmp"), true)
                .unwrap(),
            // Data in place, links of the users not.
            2 => {
                write(&target, &new, |_| Ok(())).unwrap();
                fs::remove_file(target.join("b")).unwrap();
                host::os::owners::link(Path::new("..data/gone"), &target.join("gone"), false)
                    .unwrap();
            }
            // Owners could not be set.
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
#[cfg_attr(windows, ignore = "not on wine: symbolic links are reported made and are not")]
fn whoever_reads_meanwhile_sees_all_the_old_files_or_all_the_new_ones() {
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
            // A version that was replaced in the middle may be gone, but is never half another one.
            if let (Ok(a), Ok(b)) = (a, b) {
                assert_eq!(a, b);
            }
        }
    });
    assert_eq!(visible(target), ["a=200", "dir/b=200"]);
}

#[test]
fn a_path_that_leads_elsewhere_is_written_nowhere() {
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
