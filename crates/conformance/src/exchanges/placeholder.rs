//! The recorder's placeholders and their bindings.

use serde_json::Value;

use super::Bound;

/// The values of placeholders in one scenario.
#[derive(Debug, Default)]
pub(super) struct Bindings {
    bound: Bound,
}

/// A part of a text with placeholders.
enum Piece<'a> {
    Text(&'a str),
    Placeholder(&'a str),
}

const NUMBERED: &[&str] = &["<uid-", "<rv-", "<suffix-", "<continue-", "<clusterip-", "<nodeport-"];
const PLAIN: &[&str] = &[
    "<time>",
    "<microtime>",
    "<age>",
    "<server>",
    "<etag>",
    "<hash>",
    "<string>",
    "<last-modified>",
    "<expires>",
    "<token>",
];

/// Returns the placeholder at the start of a text.
fn placeholder(text: &str) -> Option<&str> {
    if let Some(plain) = PLAIN.iter().find(|plain| text.starts_with(**plain)) {
        return Some(&text[..plain.len()]);
    }
    let prefix = NUMBERED.iter().find(|prefix| text.starts_with(**prefix))?;
    let digits = text[prefix.len()..].bytes().take_while(u8::is_ascii_digit).count();
    let end = prefix.len() + digits;
    (digits > 0 && text[end..].starts_with('>')).then(|| &text[..=end])
}

fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let (mut start, mut at) = (0, 0);
    while let Some(offset) = text[at..].find('<') {
        at += offset;
        if let Some(found) = placeholder(&text[at..]) {
            if start < at {
                pieces.push(Piece::Text(&text[start..at]));
            }
            pieces.push(Piece::Placeholder(found));
            at += found.len();
            start = at;
        } else {
            at += 1;
        }
    }
    if start < text.len() {
        pieces.push(Piece::Text(&text[start..]));
    }
    pieces
}

impl Bindings {
    /// Replaces bound placeholders by their values.
    pub(super) fn fill(&self, text: &str) -> String {
        pieces(text)
            .into_iter()
            .map(|piece| match piece {
                Piece::Text(text) => text,
                Piece::Placeholder(name) => self.bound.get(name).map_or(name, String::as_str),
            })
            .collect()
    }

    pub(super) fn fill_value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.fill(text)),
            Value::Array(items) => items.iter().map(|item| self.fill_value(item)).collect(),
            Value::Object(fields) => {
                fields.iter().map(|(k, v)| (self.fill(k), self.fill_value(v))).collect()
            }
            other => other.clone(),
        }
    }

    /// Binds a placeholder to a known value.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.bound.insert(name.to_owned(), value.to_owned());
    }

    /// Binds unbound uids in a text to uids that no object has.
    pub(super) fn invent_uids(&mut self, text: &str) {
        for piece in pieces(text) {
            let Piece::Placeholder(name) = piece else { continue };
            let number = name.strip_prefix("<uid-").and_then(|rest| rest.strip_suffix('>'));
            if let Some(number) = number.and_then(|number| number.parse::<u32>().ok()) {
                let made_up = || format!("00000000-0000-4000-8000-{number:012}");
                self.bound.entry(name.to_owned()).or_insert_with(made_up);
            }
        }
    }

    /// Compares a text with the expected one, and binds placeholders that occur for the first time.
    pub(super) fn matches(&mut self, expected: &str, got: &str) -> bool {
        let pieces = pieces(expected);
        let mut rest = got;
        for (index, piece) in pieces.iter().enumerate() {
            match piece {
                Piece::Text(text) => match rest.strip_prefix(text) {
                    Some(after) => rest = after,
                    None => return false,
                },
                Piece::Placeholder(name) => {
                    let end = match pieces.get(index + 1) {
                        None => rest.len(),
                        Some(Piece::Placeholder(_)) => return false,
                        Some(Piece::Text(next)) => match rest.find(next) {
                            Some(end) => end,
                            None => return false,
                        },
                    };
                    if !self.bind(name, &rest[..end]) {
                        return false;
                    }
                    rest = &rest[end..];
                }
            }
        }
        rest.is_empty()
    }

    fn bind(&mut self, name: &str, value: &str) -> bool {
        if !looks_right(name, value) {
            return false;
        }
        if name == "<etag>" {
            // A client sends back the latest value.
            self.bound.insert(name.to_owned(), value.to_owned());
            return true;
        }
        if PLAIN.contains(&name) {
            return true;
        }
        let bound = self.bound.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        bound == value
    }

    /// Compares revisions: a list's or bookmark's may be newer than the recorded one.
    pub(super) fn at_least(&mut self, expected: &str, got: &str) -> bool {
        let Some(bound) = self.bound.get(expected) else {
            return self.matches(expected, got);
        };
        match (bound.parse::<u64>(), got.parse::<u64>()) {
            (Ok(bound), Ok(got)) => got >= bound,
            _ => false,
        }
    }
}

/// Reports whether a value has the placeholder's form.
fn looks_right(name: &str, value: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match name {
        "<time>" => value.len() == 20 && value.ends_with('Z') && value.as_bytes()[10] == b'T',
        "<microtime>" => value.len() == 27 && value.ends_with('Z'),
        "<age>" => {
            value == "<unknown>"
                || value == "<invalid>"
                || value.ends_with(['s', 'm', 'h', 'd', 'y'])
        }
        _ if name.starts_with("<rv-") || name.starts_with("<nodeport-") => digits(value),
        _ if name.starts_with("<uid-") => value.len() == 36,
        _ if name.starts_with("<suffix-") => {
            value.len() == 5 && value.bytes().all(|b| b"bcdfghjklmnpqrstvwxz2456789".contains(&b))
        }
        _ => !value.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_bound_once() {
        let mut bindings = Bindings::default();
        assert!(bindings.matches("a <rv-1>!", "a 7!"));
        assert!(bindings.matches("<rv-1>", "7"));
        assert!(!bindings.matches("<rv-1>", "8"));
        assert!(!bindings.matches("<rv-2>", "x"));
        assert!(bindings.at_least("<rv-1>", "9") && !bindings.at_least("<rv-1>", "6"));
        assert_eq!(bindings.fill("/x/<rv-1>/<uid-3>"), "/x/7/<uid-3>");
        assert!(bindings.matches("<no such>", "<no such>"));
    }
}
