//! Compares the output of a command with a recording that has placeholders and padding.
//!
//! Main entries: [`differing`] for a whole output, [`same_line`] for a line. A placeholder
//! (`<age>`, `<uid>`) matches any text of its form.

/// Returns the first lines that differ, recorded and printed. `padded` makes the column widths
/// significant.
#[must_use]
pub fn differing(recorded: &str, printed: &str, padded: bool) -> Option<(String, String)> {
    // A column is as wide as its widest cell, so padding is ignored in outputs with such a
    // placeholder.
    let changing = ["<age>", "<addr>", "<clusterip>"];
    let padded = padded && !changing.iter().any(|name| recorded.contains(name));
    let mut expected = recorded.lines();
    let mut got = printed.lines();
    loop {
        let (expected, got) = match (expected.next(), got.next()) {
            (None, None) => return None,
            (Some(expected), Some(got)) => (expected, got),
            (expected, got) => {
                let show = |line: Option<&str>| line.unwrap_or("(no more lines)").to_owned();
                return Some((show(expected), show(got)));
            }
        };
        if !(if padded { matches(expected, got) } else { same_line(expected, got) }) {
            return Some((expected.to_owned(), got.to_owned()));
        }
    }
}

/// Returns true if a line equals the recorded one except for column widths.
#[must_use]
pub fn same_line(expected: &str, got: &str) -> bool {
    matches(&without_padding(expected), &without_padding(got))
}

/// Collapses runs of blanks and removes trailing ones.
fn without_padding(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    for character in line.trim_end().chars() {
        if character != ' ' || !text.ends_with(' ') {
            text.push(character);
        }
    }
    text
}

/// Returns true if a line matches the recorded one.
fn matches(expected: &str, got: &str) -> bool {
    let Some((before, name, after)) = first_placeholder(expected) else { return expected == got };
    let Some(rest) = got.strip_prefix(before) else { return false };
    // Lines are short and placeholders few, so every possible end is tried.
    (1..=rest.len())
        .filter(|end| rest.is_char_boundary(*end) && stands_for(name, &rest[..*end]))
        .any(|end| matches(after, &rest[end..]))
}

const PLACEHOLDERS: [&str; 11] = [
    "<age>",
    "<time>",
    "<uid>",
    "<rv>",
    "<clusterip>",
    "<suffix>",
    "<klog>",
    "<difftime>",
    "<n>",
    "<server>",
    "<addr>",
];

/// Splits a line at its first placeholder.
fn first_placeholder(line: &str) -> Option<(&str, &str, &str)> {
    let find = |name: &&'static str| line.find(name).map(|at| (at, name.len()));
    let (at, length) = PLACEHOLDERS.iter().filter_map(find).min()?;
    Some((&line[..at], &line[at..at + length], &line[at + length..]))
}

/// Returns true if the placeholder matches the text.
fn stands_for(name: &str, text: &str) -> bool {
    let all = |allowed: fn(char) -> bool| text.chars().all(allowed);
    match name {
        "<age>" => {
            matches!(text, "<unknown>" | "<invalid>")
                || text.ends_with(['s', 'm', 'h', 'd', 'y'])
                    && all(|c| c.is_ascii_digit() || "smhdy".contains(c))
        }
        "<time>" | "<difftime>" => {
            text.starts_with(|c: char| c.is_ascii_alphanumeric())
                && all(|c| c.is_ascii_alphanumeric() || " :.,+-".contains(c))
        }
        "<uid>" => text.len() == 36 && all(|c| c.is_ascii_hexdigit() || c == '-'),
        "<rv>" | "<n>" => all(|c| c.is_ascii_digit()),
        "<suffix>" => all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()),
        "<clusterip>" => all(|c| c.is_ascii_hexdigit() || ".:".contains(c)),
        "<server>" | "<addr>" => all(|c| c.is_ascii_alphanumeric() || ".:[]-".contains(c)),
        _ => all(|c| !c.is_control()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_match_only_their_own_form() {
        for (recorded, printed, same) in [
            ("a  <age>", "a  2m3s", true),
            ("a  1 (<age> ago)   <age>", "a  1 (2y10d ago)  3s", true),
            ("a  <age>", "a  soon", false),
            ("uid: <uid>", "uid: 01234567-89ab-cdef-0123-456789abcdef", true),
            ("uid: <uid>", "uid: none", false),
            ("/tmp/LIVE-<n>/x", "/tmp/LIVE-381/x", true),
            ("/tmp/LIVE-<n>/x", "/tmp/LIVE-a81/x", false),
            ("<none>", "<none>", true),
            ("one\ntwo", "one", false),
            ("one", "one\ntwo", false),
        ] {
            assert_eq!(
                differing(recorded, printed, true).is_none(),
                same,
                "{recorded} / {printed}"
            );
        }
    }

    #[test]
    fn padding_is_compared_unless_the_output_has_an_age() {
        assert!(differing("a  b", "a b", true).is_some());
        assert!(differing("a  b", "a b", false).is_none());
        assert!(differing("NAME  AGE\na  <age>", "NAME    AGE\na  4s", true).is_none());
    }
}
