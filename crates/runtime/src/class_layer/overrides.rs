//! Classes that were changed after the creation of their container: [`Overrides`], one file for each container.
//!
//! The annotation of a container cannot be changed, so a later assignment is stored here. A file is replaced as a whole;
//! after a crash it has the old or the new assignments. It is removed with its container.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::catalog::Assignments;

/// The suffix of complete files; others are leftovers of a crash.
const SUFFIX: &str = ".json";

/// The reason why changed classes cannot be read or stored.
#[derive(Debug, thiserror::Error)]
pub enum OverridesError {
    #[error("failed to {action} {}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(
        "{} is not a map of QoS resources to classes; remove the file to return the container to the classes of its \
         creation",
        path.display()
    )]
    Malformed {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}

#[derive(Debug)]
pub(crate) struct Overrides {
    directory: PathBuf,
    by_id: BTreeMap<String, Assignments>,
}

impl Overrides {
    /// Reads the files in the directory, which is made if it is absent.
    pub(crate) fn load(directory: &Path) -> Result<Overrides, OverridesError> {
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| OverridesError::File { action, path, source }
        };
        std::fs::create_dir_all(directory).map_err(failed("create", directory))?;
        let mut by_id = BTreeMap::new();
        for entry in std::fs::read_dir(directory).map_err(failed("read", directory))? {
            let path = entry.map_err(failed("read", directory))?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let Some(id) = name.strip_suffix(SUFFIX).map(str::to_owned) else { continue };
            let text = std::fs::read(&path).map_err(failed("read", &path))?;
            let assignments = serde_json::from_slice(&text)
                .map_err(|source| OverridesError::Malformed { path, source })?;
            by_id.insert(id, assignments);
        }
        Ok(Overrides { directory: directory.to_owned(), by_id })
    }

    pub(crate) fn get(&self, id: &str) -> Option<&Assignments> {
        self.by_id.get(id)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = &str> {
        self.by_id.keys().map(String::as_str)
    }

    /// Stores the assignments of a container.
    pub(crate) fn set(
        &mut self,
        id: &str,
        assignments: &Assignments,
    ) -> Result<(), OverridesError> {
        let path = self.path(id);
        let partial = path.with_extension("partial");
        let failed = |source| OverridesError::File { action: "write", path: path.clone(), source };
        let text = serde_json::to_vec(assignments)
            .map_err(|source| OverridesError::Malformed { path: path.clone(), source })?;
        let write = || {
            let mut file = std::fs::File::create(&partial)?;
            std::io::Write::write_all(&mut file, &text)?;
            file.sync_all()?;
            std::fs::rename(&partial, &path)
        };
        write().map_err(failed)?;
        self.by_id.insert(id.to_owned(), assignments.clone());
        Ok(())
    }

    /// Forgets a container.
    pub(crate) fn remove(&mut self, id: &str) -> Result<(), OverridesError> {
        if self.by_id.remove(id).is_none() {
            return Ok(());
        }
        let path = self.path(id);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(OverridesError::File { action: "remove", path, source })
            }
            _ => Ok(()),
        }
    }

    fn path(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{id}{SUFFIX}"))
    }
}

/// Returns true if an id of the runtime can be the name of a file.
pub(crate) fn is_file_name(id: &str) -> bool {
    !id.is_empty()
        && id.len() <= 128
        && !id.starts_with('.')
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(class: &str) -> Assignments {
        [("k8s.io/rdt".to_owned(), class.to_owned())].into()
    }

    #[test]
    fn stored_classes_are_read_back_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let mut overrides = Overrides::load(directory.path()).unwrap();
        overrides.set("a", &classes("gold")).unwrap();
        overrides.set("b", &classes("gold")).unwrap();
        overrides.set("a", &classes("bronze")).unwrap();
        let mut overrides = Overrides::load(directory.path()).unwrap();
        assert_eq!(overrides.get("a"), Some(&classes("bronze")));
        assert_eq!(overrides.get("b"), Some(&classes("gold")));
        overrides.remove("b").unwrap();
        overrides.remove("absent").unwrap();
        let overrides = Overrides::load(directory.path()).unwrap();
        assert_eq!(overrides.get("b"), None);
    }

    #[test]
    fn file_of_a_crashed_write_is_ignored() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a.partial"), "{").unwrap();
        assert_eq!(Overrides::load(directory.path()).unwrap().get("a"), None);
    }

    #[test]
    fn malformed_file_is_refused_with_the_remedy() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a.json"), "[1]").unwrap();
        let error = Overrides::load(directory.path()).unwrap_err().to_string();
        assert!(
            error.contains("a.json is not a map of QoS resources to classes; remove"),
            "{error}"
        );
    }

    #[test]
    fn ids_with_separators_are_refused_as_file_names() {
        for (id, expected) in [
            ("0a1b", true),
            ("a-b_c.d", true),
            ("", false),
            ("..", false),
            ("a/b", false),
            ("a\0", false),
        ] {
            assert_eq!(is_file_name(id), expected, "{id:?}");
        }
    }
}
