//! The initramfs archive of a kernel: [`Cpio`], with the features that a kernel needs.
//!
//! All files belong to root. They are added one by one; nothing is read from disk here.

/// An archive under construction, in cpio's `newc` format.
#[derive(Debug, Default)]
pub(crate) struct Cpio {
    bytes: Vec<u8>,
    entries: u32,
}

/// The kinds of entries in `st_mode`.
const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const DEVICE: u32 = 0o020_000;

impl Cpio {
    pub(crate) fn directory(&mut self, name: &str) {
        self.entry(name, DIRECTORY | 0o755, (0, 0), &[]);
    }

    pub(crate) fn file(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.entry(name, FILE | mode, (0, 0), contents);
    }

    /// Adds a character device.
    pub(crate) fn device(&mut self, name: &str, numbers: (u32, u32)) {
        self.entry(name, DEVICE | 0o600, numbers, &[]);
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), contents: &[u8]) {
        self.entries += 1;
        // An archive of 4 GiB would be too large; the kernel rejects it.
        let length = |size: usize| u32::try_from(size).unwrap_or(u32::MAX);
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            length(contents.len()),
            0,
            0,
            device.0,
            device.1,
            length(name.len() + 1),
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_entries_have_names_modes_and_contents() {
        let mut archive = Cpio::default();
        archive.directory("dev");
        archive.file("init", 0o755, b"hello");
        let bytes = archive.finish();
        // A header of 110 bytes and a name, padded to a multiple of four.
        assert_eq!(&bytes[..14], b"07070100000001");
        assert_eq!(&bytes[14..22], b"000041ed");
        assert_eq!(&bytes[110..114], b"dev\0");
        let second = &bytes[116..];
        assert_eq!(&second[..6], b"070701");
        assert_eq!(&second[14..22], b"000081ed");
        assert_eq!(&second[54..62], b"00000005");
        assert_eq!(&second[110..115], b"init\0");
        assert_eq!(&second[116..124], b"hello\0\0\0");
        assert!(second[124..].starts_with(b"070701"));
        assert_eq!(bytes.len() % 4, 0);
    }
}
