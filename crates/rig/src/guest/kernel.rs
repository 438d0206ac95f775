//! The kernel of guests: [`Kernel`], as fetched by `tools/guest-kernel`, and the load order of its
//! modules.
//!
//! A package has no list of module dependencies, because it is generated at installation. Here they
//! are read from the modules.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::{GuestError, failed};

/// A kernel and its modules.
#[derive(Debug, Clone)]
pub struct Kernel {
    directory: PathBuf,
}

impl Kernel {
    /// Opens the directory that `tools/guest-kernel` printed.
    pub fn new(directory: impl Into<PathBuf>) -> Result<Kernel, GuestError> {
        let kernel = Kernel { directory: directory.into() };
        let image = kernel.image();
        if image.exists() {
            return Ok(kernel);
        }
        let remedy = "tools/guest-kernel fetches it".to_owned();
        Err(GuestError::Missing { path: image.display().to_string(), remedy })
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.directory.join("vmlinuz")
    }

    /// Returns the named modules and their dependencies with their contents, in load order. Names
    /// of built-in modules are skipped.
    pub(crate) fn modules(&self, names: &[&str]) -> Result<Vec<(String, Vec<u8>)>, GuestError> {
        let directory = self.directory.join("modules");
        let mut files = BTreeMap::new();
        find(&directory, &mut files).map_err(failed("look for modules"))?;
        let built_in = directory.join("modules.builtin");
        let built_in = fs::read_to_string(&built_in).map_err(failed("read modules.builtin"))?;
        let built_in: Vec<_> = built_in.lines().map(|line| module_name(Path::new(line))).collect();
        let mut order = Vec::new();
        for name in names {
            add(name, &files, &built_in, &mut order)?;
        }
        Ok(order)
    }
}

/// Adds a module after its dependencies.
fn add(
    name: &str,
    files: &BTreeMap<String, PathBuf>,
    built_in: &[Option<String>],
    order: &mut Vec<(String, Vec<u8>)>,
) -> Result<(), GuestError> {
    let is_there = order.iter().any(|(there, _)| there == name);
    if is_there || built_in.iter().flatten().any(|there| there == name) {
        return Ok(());
    }
    let file = files.get(name).ok_or_else(|| GuestError::NoModule(name.to_owned()))?;
    let contents = fs::read(file).map_err(failed(format!("read {}", file.display())))?;
    for needed in needs(&contents) {
        add(&needed, files, built_in, order)?;
    }
    order.push((name.to_owned(), contents));
    Ok(())
}

/// Returns the dependencies of a module: `depends=a,b`, among other zero-terminated strings.
fn needs(module: &[u8]) -> Vec<String> {
    const WORD: &[u8] = b"\0depends=";
    let Some(at) = module.windows(WORD.len()).position(|part| part == WORD) else {
        return Vec::new();
    };
    let list = module[at + WORD.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let list = String::from_utf8_lossy(list);
    list.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

/// Returns the module name of a file: `virtio_blk` for `…/virtio_blk.ko`.
fn module_name(file: &Path) -> Option<String> {
    Some(file.file_name()?.to_str()?.strip_suffix(".ko")?.replace('-', "_"))
}

fn find(directory: &Path, files: &mut BTreeMap<String, PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            find(&path, files)?;
        } else if let Some(name) = module_name(&path) {
            files.insert(name, path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_after_their_dependencies() {
        let place = tempfile::tempdir().unwrap();
        let modules = place.path().join("modules/kernel/drivers");
        fs::create_dir_all(&modules).unwrap();
        fs::write(place.path().join("modules/modules.builtin"), "kernel/fs/ext4.ko\n").unwrap();
        fs::write(place.path().join("vmlinuz"), "").unwrap();
        let module = |name: &str, needs: &str| {
            let text = format!("\x7fELF\0license=GPL\0depends={needs}\0name={name}\0");
            fs::write(modules.join(format!("{name}.ko")), text).unwrap();
        };
        module("disk", "bus-pci,ring");
        module("bus_pci", "ring,ext4");
        module("ring", "");
        module("other", "");
        let kernel = Kernel::new(place.path()).unwrap();
        let order = kernel.modules(&["disk", "ring"]).unwrap();
        let names: Vec<&str> = order.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["ring", "bus_pci", "disk"]);
        let error = kernel.modules(&["none"]).unwrap_err().to_string();
        assert_eq!(error, "the kernel has no module none");
    }

    #[test]
    fn a_missing_kernel_is_an_error() {
        let error = Kernel::new("/no/such/place").unwrap_err().to_string();
        assert!(error.contains("vmlinuz") && error.contains("tools/guest-kernel"), "{error}");
    }
}
