//! Files of environment variables that one container writes for another: [`value`].
//!
//! A subset of shell syntax: `NAME='value'`. A value ends at the next quote, may span lines, and is taken
//! literally. Empty lines and lines that begin with `#` are skipped.

/// A syntax error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// Returns the value of the first variable of that name, if it exists.
pub(super) fn value<'a>(text: &'a str, wanted: &str) -> Result<Option<&'a str>, Malformed> {
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        if rest.starts_with('#') {
            rest = rest.split_once('\n').map_or("", |(_, after)| after).trim_start();
            continue;
        }
        let (name, after) = rest.split_once("='").ok_or(Malformed)?;
        if !is_name(name) {
            return Err(Malformed);
        }
        let (value, after) = after.split_once('\'').ok_or(Malformed)?;
        let (end, after) = after.split_once('\n').unwrap_or((after, ""));
        if !end.trim().is_empty() {
            return Err(Malformed);
        }
        if name == wanted {
            return Ok(Some(value));
        }
        rest = after.trim_start();
    }
    Ok(None)
}

/// Returns true for printable ASCII except `=`, quotes and `#`.
fn is_name(name: &str) -> bool {
    let fits = |b: u8| b.is_ascii_graphic() && !matches!(b, b'=' | b'\'' | b'"' | b'#');
    !name.is_empty() && name.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_the_text_between_quotes() {
        let text = "# what is to be known\n\n  A='x y # z'\nB='one\ntwo'  \r\nEMPTY=''\nA='later'";
        let table =
            [("A", Some("x y # z")), ("B", Some("one\ntwo")), ("EMPTY", Some("")), ("NONE", None)];
        for (name, expected) in table {
            assert_eq!(value(text, name), Ok(expected), "{name}");
        }
        let bad = ["A=x", "A = 'x'", "A=\"x\"", "A='x", "A='x' y", "='x'", "A\nB='x'"];
        for text in bad {
            assert_eq!(value(text, "B"), Err(Malformed), "{text}");
        }
    }
}
