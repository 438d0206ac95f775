//! Standard base64, in which JSON holds the bytes of protobuf.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

pub(super) fn text_of(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Decodes base64, or returns `None`. Line breaks are skipped, as in Go.
pub(super) fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let line_break = |character| matches!(character, '\r' | '\n');
    match text.contains(line_break) {
        true => STANDARD.decode(text.replace(line_break, "")).ok(),
        false => STANDARD.decode(text).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_breaks_do_not_count() {
        assert_eq!(bytes_of("//79\r\nAA==\n").as_deref(), Some(&b"\xff\xfe\xfd\x00"[..]));
        assert_eq!(bytes_of("Zg"), None);
    }
}
