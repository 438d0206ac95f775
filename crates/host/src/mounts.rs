//! Mounts: [`Mount`], read from `/proc/self/mountinfo`.
//!
//! [`parse`] reads the text and [`at_or_below`] selects; both are the same on every system.
//! [`crate::os::mounts`] mounts. [`resolve_beneath`] resolves a path inside a directory for
//! processes that cannot mount.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The directory of the file system that is mounted here; `/` unless it is a bind mount.
    pub root: String,
    pub point: PathBuf,
    /// For example `tmpfs` or `cgroup2`.
    pub kind: String,
    /// Options of the file system, for example the controllers of a cgroup.
    pub options: Vec<String>,
}

/// Parses a `mountinfo` in mount order. Malformed lines are skipped: the kernel only appends
/// fields.
#[must_use]
pub fn parse(text: &str) -> Vec<Mount> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Mount> {
    // Optional fields end with a separate dash.
    let (about_mount, about_system) = line.split_once(" - ")?;
    let mut fields = about_mount.split(' ').skip(3);
    let (root, point) = (fields.next()?, fields.next()?);
    let mut fields = about_system.split(' ');
    let (kind, _source) = (fields.next()?, fields.next()?);
    let options = fields.next().unwrap_or_default();
    Some(Mount {
        root: unescape(root),
        point: unescape(point).into(),
        kind: kind.to_owned(),
        options: options.split(',').filter(|option| !option.is_empty()).map(Into::into).collect(),
    })
}

/// Replaces escapes such as `\040`, which encode bytes that would end a field.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let code = (*first == b'\\')
            .then(|| tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok()))
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the mount points at or below `directory`, in the order in which they can be unmounted.
#[must_use]
pub fn at_or_below(mounts: &[Mount], directory: &Path) -> Vec<PathBuf> {
    let points = mounts.iter().rev().map(|mount| &mount.point);
    points.filter(|point| point.starts_with(directory)).cloned().collect()
}

/// Resolves `sub` inside `volume`. Links are followed and must not lead outside; missing
/// directories are created with the mode of `volume`.
///
/// A process with write access to the volume can change a link after it was followed, so this is
/// for systems and users that cannot mount. Otherwise use [`crate::os::mounts::bind_beneath`],
/// which has no such race.
pub fn resolve_beneath(volume: &Path, sub: &str) -> io::Result<PathBuf> {
    let parts = components(sub)?;
    let base = fs::canonicalize(volume)?;
    let mode = crate::os::owners::mode(&fs::metadata(&base)?);
    let mut path = base.clone();
    for part in parts {
        path.push(part);
        if matches!(fs::symlink_metadata(&path), Err(error) if error.kind() == ErrorKind::NotFound)
        {
            fs::create_dir(&path)?;
            crate::os::owners::set_mode(&path, mode)?;
        }
        path = fs::canonicalize(&path)?;
        if !path.starts_with(&base) {
            let text = format!("{} is outside of {}", path.display(), base.display());
            return Err(io::Error::new(ErrorKind::PermissionDenied, text));
        }
    }
    Ok(path)
}

/// Returns the components of a relative path without `..`.
pub(crate) fn components(sub: &str) -> io::Result<Vec<&Path>> {
    let mut parts = Vec::new();
    for component in Path::new(sub).components() {
        match component {
            Component::Normal(name) => parts.push(Path::new(name)),
            Component::CurDir => {}
            Component::ParentDir => return Err(invalid(sub, "must not contain '..'")),
            Component::RootDir | Component::Prefix(_) => {
                return Err(invalid(sub, "must not be an absolute path"));
            }
        }
    }
    Ok(parts)
}

fn invalid(sub: &str, problem: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, format!("subPath {sub:?} {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
41 31 0:38 /x /a\\040b/c\\134d rw master:1 propagate_from:2 - tmpfs tmp\\043fs rw,size=4k
42 31 0:38 / /a\\040b ro - ext4 /dev/vda
nonsense
43 31 0:38 / /short";

    #[test]
    fn escapes_optional_fields_and_malformed_lines_are_parsed() {
        let mounts = parse(TEXT);
        let shown: Vec<_> = mounts
            .iter()
            .map(|mount| {
                let options = mount.options.join("+");
                format!("{} {} {} {options}", mount.root, mount.point.display(), mount.kind)
            })
            .collect();
        assert_eq!(
            shown,
            [
                "/ /proc proc rw",
                "/ /sys/fs/cgroup/cpu cgroup rw+cpu+cpuacct",
                "/x /a b/c\\d tmpfs rw+size=4k",
                "/ /a b ext4 ",
            ]
        );
    }

    #[test]
    fn an_invalid_escape_is_kept() {
        for (text, expected) in [("a\\04", "a\\04"), ("\\", "\\"), ("\\777x", "\\777x"), ("", "")] {
            assert_eq!(unescape(text), expected);
        }
    }

    #[test]
    fn the_last_mount_is_unmounted_first() {
        let mounts = parse(TEXT);
        let below = |path: &str| at_or_below(&mounts, Path::new(path));
        assert_eq!(below("/a b"), [PathBuf::from("/a b"), PathBuf::from("/a b/c\\d")]);
        assert_eq!(below("/a"), Vec::<PathBuf>::new());
        assert_eq!(below("/proc"), [PathBuf::from("/proc")]);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_parsed_without_panic(text in ".{0,200}") {
            let whole = parse(&text).len();
            proptest::prop_assert!(whole <= text.lines().count());
            let line = format!("1 2 0:1 {text} - {text}");
            proptest::prop_assert!(parse(&line).len() <= line.lines().count());
            proptest::prop_assert!(unescape(&text).chars().count() <= text.chars().count());
        }

        #[test]
        fn kernel_escaped_paths_are_unescaped(path in "/[a-z \\\\\t\n#é]{0,20}") {
            let mut written = String::new();
            for char in path.chars() {
                match char {
                    ' ' | '\t' | '\n' | '\\' | '#' => written += &format!("\\{:03o}", char as u32),
                    other => written.push(other),
                }
            }
            let mounts = parse(&format!("1 2 0:1 / {written} rw - tmpfs tmpfs rw"));
            proptest::prop_assert_eq!(&mounts[0].point, &PathBuf::from(path));
        }
    }

    #[test]
    fn a_sub_path_is_created_inside_the_volume() {
        let directory = tempfile::tempdir().unwrap();
        let path = resolve_beneath(directory.path(), "x/./y").unwrap();
        assert_eq!(path, fs::canonicalize(directory.path()).unwrap().join("x").join("y"));
        assert!(path.is_dir());
        assert_eq!(resolve_beneath(directory.path(), "x/y").unwrap(), path);
        for (sub, expected) in [
            ("../x", "subPath \"../x\" must not contain '..'"),
            ("x/../y", "subPath \"x/../y\" must not contain '..'"),
            ("/etc", "subPath \"/etc\" must not be an absolute path"),
        ] {
            assert_eq!(resolve_beneath(directory.path(), sub).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    #[cfg_attr(windows, ignore = "not on wine: symbolic links are reported made and are not")]
    fn a_link_out_of_the_volume_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let volume = directory.path().join("volume");
        fs::create_dir_all(volume.join("inside")).unwrap();
        fs::create_dir(directory.path().join("outside")).unwrap();
        let link = |name: &str, target: &Path| {
            crate::os::owners::link(target, &volume.join(name), true).unwrap();
        };
        link("good", Path::new("inside"));
        link("bad", Path::new("../outside"));
        link("absolute", &directory.path().join("outside"));
        assert!(resolve_beneath(&volume, "good/new").unwrap().ends_with("inside/new"));
        for sub in ["bad", "bad/new", "absolute", "absolute/new"] {
            let error = resolve_beneath(&volume, sub).unwrap_err();
            assert!(error.to_string().contains("is outside of"), "{sub}: {error}");
        }
        assert_eq!(fs::read_dir(directory.path().join("outside")).unwrap().count(), 0);
    }
}
