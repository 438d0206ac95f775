//! Escapes untrusted text for display.
//!
//! Main entries: [`xml`] for SVG and HTML, [`plain`] for terminals. Nothing is dropped silently: a
//! character that cannot be shown is replaced.

use std::borrow::Cow;

/// Replaces a control character for a terminal or a browser.
const REPLACEMENT: char = '\u{fffd}';

/// Escapes text for an element or a quoted attribute.
pub(super) fn xml(text: &str) -> Cow<'_, str> {
    let harmless = |c: char| !matches!(c, '&' | '<' | '>' | '"' | '\'') && !steers(c);
    if text.chars().all(harmless) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if steers(c) => out.push(REPLACEMENT),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Escapes text for one line of a terminal.
pub(super) fn plain(text: &str, ascii_only: bool) -> String {
    let show = |c: char| match c {
        c if ascii_only && c == '·' => '-',
        c if ascii_only && !c.is_ascii() => '?',
        c if steers(c) => match ascii_only {
            true => '?',
            false => REPLACEMENT,
        },
        c => c,
    };
    text.chars().map(show).collect()
}

/// Returns the first `most` characters, with an ellipsis if there are more.
pub(super) fn shorten(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        None => Cow::Borrowed(text),
        Some(_) => {
            let kept: String = text.chars().take(most.saturating_sub(1)).collect();
            Cow::Owned(kept + "…")
        }
    }
}

/// Returns true for control characters: line ends and escapes, overrides of the writing direction,
/// and characters that XML forbids.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(c, '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_becomes_text() {
        assert_eq!(xml("<script>\"&'"), "&lt;script&gt;&quot;&amp;&#39;");
        assert_eq!(xml("shop/cart"), "shop/cart");
        assert_eq!(xml("a\u{0}b\u{202e}c"), "a\u{fffd}b\u{fffd}c");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(plain("\u{1b}[31mred\nnext", false), "\u{fffd}[31mred\u{fffd}next");
        assert_eq!(plain("é\u{1b} · ok", true), "?? - ok");
    }

    #[test]
    fn long_text_ends_with_an_ellipsis() {
        assert_eq!(shorten("abcdef", 6), "abcdef");
        assert_eq!(shorten("abcdefg", 6), "abcde…");
        assert_eq!(shorten("abc", 0), "…");
    }
}
