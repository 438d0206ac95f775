//! Recorded texts with placeholders, compared with ours: [`Template`].
//!
//! A placeholder matches anything of its form (`<PORT>` digits, `<ID-1>` 64 hexadecimal digits).
//! Placeholders for one thing of a pod (its uid, its containers' ids) match the same text
//! throughout one recorded line; two of them never match the same text.

use std::collections::HashMap;

use serde_json::Value;

use super::super::Difference;

/// The values of a line's placeholders, and the recorded counterparts of our paths.
#[derive(Clone, Debug, Default)]
pub(super) struct Template {
    bound: HashMap<String, String>,
    /// Our path and its recorded counterpart, longer ones first.
    paths: Vec<(String, String)>,
}

/// A part of a recorded text.
#[derive(Debug, PartialEq, Eq)]
enum Piece<'a> {
    Literal(&'a str),
    /// The whole placeholder and its name without number.
    Placeholder(&'a str, &'a str),
}

impl Template {
    pub(super) fn new(mut paths: Vec<(String, String)>) -> Template {
        paths.sort_by_key(|(ours, _)| std::cmp::Reverse(ours.len()));
        Template { bound: HashMap::new(), paths }
    }

    /// Replaces our paths in a text by the recorded ones.
    pub(super) fn localised(&self, text: &str) -> String {
        self.paths.iter().fold(text.to_owned(), |text, (ours, theirs)| text.replace(ours, theirs))
    }

    /// Compares a text with the recorded one; on a match the values of placeholders are kept.
    pub(super) fn text(&mut self, recorded: &str, ours: &str) -> bool {
        let ours = self.localised(ours);
        let mut bound = self.bound.clone();
        let matched = matches(&pieces(recorded), &ours, &mut bound);
        if matched {
            self.bound = bound;
        }
        matched
    }

    /// Collects every path at which our value differs from the recorded one.
    pub(super) fn value(
        &mut self,
        recorded: &Value,
        ours: &Value,
        place: &str,
        found: &mut Vec<Difference>,
    ) {
        match (recorded, ours) {
            (Value::Object(a), Value::Object(b)) => {
                for (name, wanted) in a {
                    let got = b.get(name).unwrap_or(&Value::Null);
                    self.value(wanted, got, &format!("{place}.{name}"), found);
                }
                for (name, got) in b.iter().filter(|(name, _)| !a.contains_key(*name)) {
                    self.value(&Value::Null, got, &format!("{place}.{name}"), found);
                }
            }
            (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
                for (index, (wanted, got)) in a.iter().zip(b).enumerate() {
                    self.value(wanted, got, &format!("{place}[{index}]"), found);
                }
            }
            (Value::String(wanted), Value::String(got)) if self.text(wanted, got) => {}
            (wanted, got) if wanted == got => {}
            (wanted, got) => found.push(Difference {
                what: place.to_owned(),
                expected: wanted.to_string(),
                got: self.localised(&got.to_string()),
            }),
        }
    }
}

fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut found = Vec::new();
    let mut rest = text;
    let mut from = 0;
    while let Some(start) = rest[from..].find('<').map(|at| at + from) {
        let Some(end) = rest[start..].find('>').map(|at| at + start) else { break };
        let name = rest[start + 1..end].trim_end_matches(|c: char| c.is_ascii_digit());
        let name = name.strip_suffix('-').unwrap_or(name);
        if class(name).is_none() {
            from = start + 1;
            continue;
        }
        if start > 0 {
            found.push(Piece::Literal(&rest[..start]));
        }
        found.push(Piece::Placeholder(&rest[start..=end], name));
        rest = &rest[end + 1..];
        from = 0;
    }
    if !rest.is_empty() {
        found.push(Piece::Literal(rest));
    }
    found
}

/// Returns the characters that a placeholder matches.
fn class(name: &str) -> Option<fn(char) -> bool> {
    let hexadecimal = |c: char| c.is_ascii_hexdigit();
    Some(match name {
        "ID" | "ANY_ID" | "RAND" | "HASH" | "CONFIG_HASH" => hexadecimal,
        "UID" => |c| c.is_ascii_hexdigit() || c == '-',
        "DIGEST" => |c| c.is_ascii_alphanumeric() || c == ':',
        "TIME" | "DATE" | "STAMP" => |c| c.is_ascii_alphanumeric() || "-:.+_ ".contains(c),
        "NODE_IP" | "POD_IP" | "NAMESERVER" => |c| c.is_ascii_hexdigit() || ".:".contains(c),
        "PORT" | "N" => |c| c.is_ascii_digit(),
        "DURATION" => |c| c.is_ascii_alphanumeric() || ".µ".contains(c),
        "NODE_ALLOCATABLE_MEMORY" => |c| c.is_ascii_alphanumeric(),
        "TOKEN" => |c| !c.is_whitespace(),
        "CGROUP_ROOT" | "RUNTIME_STATE" | "RUNTIME_ROOT" => |c| !c.is_whitespace() && c != '"',
        _ => return None,
    })
}

/// Reports whether a placeholder has one value throughout a line.
fn names_one_thing(name: &str) -> bool {
    matches!(name, "ID" | "UID" | "NODE_IP" | "POD_IP" | "CONFIG_HASH")
}

fn matches(pieces: &[Piece<'_>], text: &str, bound: &mut HashMap<String, String>) -> bool {
    let Some((first, rest)) = pieces.split_first() else { return text.is_empty() };
    match first {
        Piece::Literal(literal) => {
            text.strip_prefix(literal).is_some_and(|text| matches(rest, text, bound))
        }
        Piece::Placeholder(whole, name) => {
            if names_one_thing(name)
                && let Some(known) = bound.get(*whole).cloned()
            {
                return text
                    .strip_prefix(known.as_str())
                    .is_some_and(|text| matches(rest, text, bound));
            }
            let Some(class) = class(name) else { return false };
            let longest = text.find(|c| !class(c)).unwrap_or(text.len());
            let mut end = longest;
            // Try the longest match first, because the following text may have the same form.
            while end > 0 {
                if text.is_char_boundary(end) && fits(name, &text[..end]) {
                    let mut tried = bound.clone();
                    let free = !names_one_thing(name) || {
                        let taken = tried.values().any(|value| value == &text[..end]);
                        tried.insert((*whole).to_owned(), text[..end].to_owned());
                        !taken || *name != "ID"
                    };
                    if free && matches(rest, &text[end..], &mut tried) {
                        *bound = tried;
                        return true;
                    }
                }
                end -= 1;
            }
            false
        }
    }
}

fn fits(name: &str, text: &str) -> bool {
    match name {
        "ID" | "ANY_ID" => text.len() == 64,
        // The uid of a static pod is the hash of its file.
        "UID" => text.len() == 36 || text.len() == 32,
        "DIGEST" => text.strip_prefix("sha256:").is_some_and(|hex| hex.len() == 64),
        "RAND" => text.len() == 8,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_match_their_form() {
        let id = "ab".repeat(32);
        let other = "cd".repeat(32);
        let check = |recorded: &str, ours: &str, expected: bool| {
            let mut template = Template::new(vec![("/x/root".into(), "/var/lib/kubelet".into())]);
            assert_eq!(template.text(recorded, ours), expected, "{recorded} {ours}");
        };
        check("plain", "plain", true);
        check("plain", "other", false);
        check("at <PORT>: no", "at 4711: no", true);
        check("at <PORT>: no", "at x: no", false);
        check("took <DURATION>ms", "took 12ms", true);
        check("<ID-1> <ID-1>", &format!("{id} {id}"), true);
        check("<ID-1> <ID-1>", &format!("{id} {other}"), false);
        check("<ID-1> <ID-2>", &format!("{id} {id}"), false);
        check("<ID-1>", &id[1..], false);
        check("/var/lib/kubelet/pods", "/x/root/pods", true);
        check("a <b> c", "a <b> c", true);
        check("<N", "<N", true);
    }

    #[test]
    fn placeholder_values_hold_for_the_line() {
        let mut template = Template::default();
        let uid = "01234567-89ab-cdef-0123-456789abcdef";
        assert!(template.text("pod <UID>", &format!("pod {uid}")));
        assert!(template.text("<UID>", uid));
        assert!(!template.text("<UID>", &uid.replace('0', "1")));
    }

    #[test]
    fn values_differ_by_path() {
        let mut template = Template::default();
        let mut found = Vec::new();
        let recorded = serde_json::json!({"a": [{"b": 1}, 2], "c": null, "d": "<N>"});
        let ours = serde_json::json!({"a": [{"b": 2}, 2], "d": "7", "e": true});
        template.value(&recorded, &ours, "status", &mut found);
        let places: Vec<_> = found.iter().map(|difference| difference.what.as_str()).collect();
        assert_eq!(places, ["status.a[0].b", "status.e"]);
    }
}
