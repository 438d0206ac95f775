//! Paths of either operating system as text, independent of the current one.

use objects::pod::OsName;

/// Joins parts with the system's separator.
pub(super) fn join(os: OsName, parts: &[&str]) -> String {
    let separator = match os {
        OsName::Linux => '/',
        OsName::Windows => '\\',
    };
    let mut path = String::new();
    for part in parts {
        if !path.is_empty() && !path.ends_with(['/', separator]) {
            path.push(separator);
        }
        path.push_str(part);
    }
    path
}

/// Returns the absolute path in a container, on Windows with a drive.
pub(super) fn absolute(os: OsName, path: &str) -> String {
    match os {
        OsName::Linux if path.starts_with('/') => path.to_owned(),
        OsName::Linux => format!("/{path}"),
        // A drive, or another form of a pipe.
        OsName::Windows if path.contains(':') => path.to_owned(),
        OsName::Windows if path.starts_with(r"\\") => path.to_owned(),
        OsName::Windows if path.starts_with(['/', '\\']) => format!("c:{path}"),
        OsName::Windows => format!(r"c:\{path}"),
    }
}
