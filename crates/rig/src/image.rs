//! Images without a registry: Debian's static busybox in an archive for `ctr images import`.
//!
//! There are two images with the same layer: one for containers, and one for sandboxes, which only
//! sleeps.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The image for containers.
pub const BUSYBOX: &str = "localhost/busybox:1";

/// The image for sandboxes.
pub const PAUSE: &str = "localhost/pause:3.9";

/// The path in Debian's package.
pub(crate) const BINARY: &str = "/usr/bin/busybox";

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// Writes the archive with both images.
pub(crate) fn write(to: &Path) -> io::Result<()> {
    let binary = fs::read(BINARY)?;
    let applets = Command::new(BINARY).arg("--list").output()?.stdout;
    let applets = String::from_utf8_lossy(&applets).into_owned();
    fs::write(to, archive(&binary, applets.split_ascii_whitespace())?)
}

fn archive<'a>(binary: &[u8], applets: impl Iterator<Item = &'a str>) -> io::Result<Vec<u8>> {
    let layer = layer(binary, applets)?;
    let mut blobs = vec![layer.clone()];
    let mut manifests = Vec::new();
    let shell = json!({ "Cmd": ["/bin/sh"], "Env": ["PATH=/bin"], "WorkingDir": "/" });
    let sleep = json!({ "Entrypoint": ["/bin/sleep", "2147483647"], "WorkingDir": "/" });
    for (name, run) in [(BUSYBOX, shell), (PAUSE, sleep)] {
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": run,
            "rootfs": { "type": "layers", "diff_ids": [digest(&layer)] },
        })
        .to_string()
        .into_bytes();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor(CONFIG, &config),
            "layers": [descriptor(LAYER, &layer)],
        })
        .to_string()
        .into_bytes();
        let mut entry = descriptor(MANIFEST, &manifest);
        entry["annotations"] = json!({
            "io.containerd.image.name": name,
            "org.opencontainers.image.ref.name": name,
        });
        entry["platform"] = json!({ "architecture": architecture(), "os": "linux" });
        manifests.push(entry);
        blobs.extend([config, manifest]);
    }
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests });
    let mut tar = Tar::default();
    tar.file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    tar.file("index.json", 0o644, index.to_string().as_bytes())?;
    tar.directory("blobs")?;
    tar.directory("blobs/sha256")?;
    for blob in &blobs {
        tar.file(&digest(blob).replace("sha256:", "blobs/sha256/"), 0o644, blob)?;
    }
    Ok(tar.finish())
}

/// Returns the file system of both images.
fn layer<'a>(binary: &[u8], applets: impl Iterator<Item = &'a str>) -> io::Result<Vec<u8>> {
    let mut tar = Tar::default();
    for directory in ["bin", "dev", "etc", "proc", "root", "sys", "tmp", "var"] {
        tar.directory(directory)?;
    }
    tar.file("bin/busybox", 0o755, binary)?;
    for applet in applets.filter(|applet| *applet != "busybox") {
        tar.link(&format!("bin/{applet}"), "/bin/busybox")?;
    }
    let users = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n";
    tar.file("etc/passwd", 0o644, users)?;
    tar.file("etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n")?;
    Ok(tar.finish())
}

fn descriptor(media_type: &str, blob: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": digest(blob), "size": blob.len() })
}

fn digest(blob: &[u8]) -> String {
    let hash = Sha256::digest(blob);
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// Returns this machine's architecture in the form of image manifests.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// A POSIX tar archive with the features that images need. All files belong to root and date from
/// 1970, so equal contents have equal digests.
#[derive(Default)]
struct Tar(Vec<u8>);

/// The size of an archive is a multiple of this.
const BLOCK: usize = 512;

impl Tar {
    fn file(&mut self, name: &str, mode: u32, contents: &[u8]) -> io::Result<()> {
        self.header(name, mode, b'0', contents.len(), "")?;
        self.0.extend_from_slice(contents);
        self.0.resize(self.0.len().next_multiple_of(BLOCK), 0);
        Ok(())
    }

    fn directory(&mut self, name: &str) -> io::Result<()> {
        self.header(&format!("{name}/"), 0o755, b'5', 0, "")
    }

    fn link(&mut self, name: &str, target: &str) -> io::Result<()> {
        self.header(name, 0o777, b'2', 0, target)
    }

    fn header(
        &mut self,
        name: &str,
        mode: u32,
        kind: u8,
        size: usize,
        target: &str,
    ) -> io::Result<()> {
        let mut header = [0; BLOCK];
        let mut put = |at: usize, room: usize, text: &str| {
            if text.len() > room {
                let message = format!("{text:?} does not fit an archive's header");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
            header[at..at + text.len()].copy_from_slice(text.as_bytes());
            Ok(())
        };
        put(0, 100, name)?;
        put(100, 8, &format!("{mode:07o}"))?;
        put(108, 8, "0000000")?;
        put(116, 8, "0000000")?;
        put(124, 12, &format!("{size:011o}"))?;
        put(136, 12, "00000000000")?;
        // The checksum is computed with its own field as blanks.
        put(148, 8, "        ")?;
        put(156, 1, &char::from(kind).to_string())?;
        put(157, 100, target)?;
        put(257, 8, "ustar\x0000")?;
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend_from_slice(&header);
        Ok(())
    }

    /// Two zero blocks end the archive.
    fn finish(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 2 * BLOCK, 0);
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_blocks_have_correct_checksums() {
        let mut tar = Tar::default();
        tar.file("a", 0o644, b"hello").unwrap();
        tar.link("b", "/a").unwrap();
        let bytes = tar.finish();
        assert_eq!(bytes.len(), 5 * BLOCK);
        assert_eq!(&bytes[..2], b"a\0");
        assert_eq!(&bytes[124..136], b"00000000005\0");
        assert_eq!(&bytes[257..265], b"ustar\x0000");
        assert_eq!(&bytes[BLOCK..BLOCK + 6], b"hello\0");
        assert_eq!(&bytes[2 * BLOCK + 157..2 * BLOCK + 160], b"/a\0");
        // The checksum of the first header, computed with its own field as blanks.
        let mut header = bytes[..BLOCK].to_vec();
        let stored =
            u32::from_str_radix(std::str::from_utf8(&header[148..154]).unwrap(), 8).unwrap();
        header[148..156].fill(b' ');
        assert_eq!(header.iter().map(|byte| u32::from(*byte)).sum::<u32>(), stored);
    }

    #[test]
    fn names_that_do_not_fit_are_rejected() {
        let error = Tar::default().link(&"x".repeat(101), "").unwrap_err().to_string();
        assert!(error.contains("does not fit"), "{error}");
    }

    #[test]
    fn equal_contents_make_equal_archives() {
        let make = || archive(b"binary", ["sh", "busybox", "sleep"].into_iter()).unwrap();
        assert_eq!(make(), make());
        assert_eq!(
            digest(b""),
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }
}
