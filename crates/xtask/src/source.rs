//! Rust source in a form that can be searched for words and paths.
//!
//! [`blank`] removes comments and literals, [`without_tests`] removes test modules, and both keep
//! every newline, so offsets still have the line numbers of the file. [`std_paths`], [`words`],
//! [`macros`] and [`cfgs`] search the result.
//!
//! It does not expand macros or resolve names: a check built on it finds accidents, not code that
//! is hidden on purpose.

use std::ops::Range;

/// Returns `source` with comments and the contents of string and character literals replaced by
/// spaces.
pub fn blank(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let end = if rest.starts_with(b"//") {
            at + find(rest, b"\n").unwrap_or(rest.len())
        } else if rest.starts_with(b"/*") {
            at + block_comment(rest)
        } else if let Some(length) = raw_string(bytes, at) {
            at + length
        } else if rest[0] == b'"' {
            at + quoted(rest)
        } else if rest[0] == b'\'' {
            at + char_literal(&source[at..])
        } else {
            at += 1;
            continue;
        };
        erase(&mut out[at..end]);
        at = end.max(at + 1);
    }
    // Only whole literals and comments were overwritten with ASCII, so the rest is valid.
    String::from_utf8_lossy(&out).into_owned()
}

/// Removes test-only items from blanked source. Also returns the names of test modules in separate
/// files (`#[cfg(test)] mod tests;`).
pub fn without_tests(blanked: &str) -> (String, Vec<String>) {
    let mut out = blanked.as_bytes().to_vec();
    let mut modules = Vec::new();
    for (span, predicate) in cfgs(blanked) {
        if !(predicate == "test" || predicate.starts_with("all(test")) {
            continue;
        }
        let item = &blanked[span.end..];
        let end = item_end(item);
        let mut head = item[..end].trim_end_matches(';').split_whitespace().rev();
        if let (Some(name), Some("mod")) = (head.next(), head.next()) {
            modules.push(name.to_owned());
        }
        erase(&mut out[span.start..span.end + end]);
    }
    (String::from_utf8_lossy(&out).into_owned(), modules)
}

/// Returns every path below `std`, written out or in a `use` tree, with its start offset.
pub fn std_paths(blanked: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for start in words(blanked, "std") {
        let after = &blanked[start + 3..];
        if after.trim_start().starts_with("::") {
            let mut tree = after;
            expand(&mut tree, "std", start, &mut found);
        }
    }
    found
}

/// Returns the offsets of `word` as a whole identifier.
pub fn words(blanked: &str, word: &str) -> Vec<usize> {
    let part_of_name = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let bytes = blanked.as_bytes();
    blanked
        .match_indices(word)
        .map(|(at, _)| at)
        .filter(|&at| at == 0 || !part_of_name(bytes[at - 1]))
        .filter(|&at| bytes.get(at + word.len()).is_none_or(|&b| !part_of_name(b)))
        .collect()
}

/// Returns the offsets of calls of the macro `name!`.
pub fn macros(blanked: &str, name: &str) -> Vec<usize> {
    let called = |&at: &usize| blanked[at + name.len()..].starts_with('!');
    words(blanked, name).into_iter().filter(called).collect()
}

/// Returns every `cfg(…)`, `cfg!(…)` and `cfg_attr(…)`: its range (the whole attribute for
/// `#[cfg(…)]`) and the text between the parentheses.
pub fn cfgs(blanked: &str) -> Vec<(Range<usize>, &str)> {
    let mut found = Vec::new();
    for name in ["cfg", "cfg_attr"] {
        for start in words(blanked, name) {
            let after = &blanked[start + name.len()..];
            let open = start + name.len() + usize::from(after.starts_with('!'));
            if !blanked[open..].starts_with('(') {
                continue;
            }
            let close = open + block(&blanked[open..]);
            let predicate = blanked[open + 1..close].strip_suffix(')').unwrap_or_default().trim();
            let before = blanked[..start].trim_end();
            let span = match before.strip_suffix("#[").or_else(|| before.strip_suffix("#![")) {
                Some(before) => before.len()..(close + 1).min(blanked.len()),
                None => start..close,
            };
            found.push((span, predicate));
        }
    }
    found.sort_by_key(|(span, _)| span.start);
    found
}

/// Returns the line of `offset`, counted from 1.
pub fn line(source: &str, offset: usize) -> usize {
    1 + source.as_bytes()[..offset].iter().filter(|&&b| b == b'\n').count()
}

/// Follows `::a::b::{c, d::e}` from the start of `rest` and pushes every full path.
fn expand(rest: &mut &str, prefix: &str, start: usize, found: &mut Vec<(usize, String)>) {
    let Some(tail) = rest.trim_start().strip_prefix("::") else {
        found.push((start, prefix.to_owned()));
        return;
    };
    *rest = tail.trim_start();
    if let Some(tail) = rest.strip_prefix('{') {
        *rest = tail;
        loop {
            *rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
            if rest.is_empty() {
                return;
            }
            if let Some(tail) = rest.strip_prefix('}') {
                *rest = tail;
                return;
            }
            segment(rest, prefix, start, found);
            // Skip `as name` and everything else before the next item of the list.
            *rest = rest.trim_start_matches(|c: char| c != ',' && c != '}');
        }
    }
    segment(rest, prefix, start, found);
}

/// Reads one identifier (or `*`) and the path after it.
fn segment(rest: &mut &str, prefix: &str, start: usize, found: &mut Vec<(usize, String)>) {
    let name = |c: char| c.is_alphanumeric() || c == '_' || c == '*';
    let length = rest.find(|c| !name(c)).unwrap_or(rest.len());
    let (segment, tail) = rest.split_at(length);
    *rest = tail;
    if segment.is_empty() {
        // `std::<T>` or text that is not a path; skip one character, so that the caller makes
        // progress.
        *rest = rest.get(rest.chars().next().map_or(0, char::len_utf8)..).unwrap_or_default();
        found.push((start, prefix.to_owned()));
        return;
    }
    expand(rest, &format!("{prefix}::{segment}"), start, found);
}

/// Returns the length of the item at the start of `text` with its attributes, up to its block or
/// semicolon.
fn item_end(text: &str) -> usize {
    let mut at = 0;
    while let Some(next) = text[at..].find(['(', '[', '{', ';']) {
        at += next;
        match text.as_bytes()[at] {
            b';' => return at + 1,
            b'{' => return at + block(&text[at..]),
            _ => at += block(&text[at..]),
        }
    }
    text.len()
}

/// Returns the length of the bracketed text at the start of `text`, including both brackets.
fn block(text: &str) -> usize {
    let mut depth = 0;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    text.len()
}

fn erase(bytes: &mut [u8]) {
    for byte in bytes.iter_mut().filter(|b| **b != b'\n') {
        *byte = b' ';
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|w| w == needle)
}

/// Returns the length of the (possibly nested) block comment at the start of `text`.
fn block_comment(text: &[u8]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        match &text[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at.min(text.len())
}

/// Returns the length of the raw string literal whose `r` is at `at`.
fn raw_string(bytes: &[u8], at: usize) -> Option<usize> {
    // The `r` may follow a prefix letter (`br`, `cr`) but must not end a name.
    let prefix = at.checked_sub(1).and_then(|p| bytes.get(p)).copied().unwrap_or(b' ');
    if bytes[at] != b'r' || prefix.is_ascii_alphanumeric() && !matches!(prefix, b'b' | b'c') {
        return None;
    }
    let hashes = bytes[at + 1..].iter().take_while(|&&b| b == b'#').count();
    let quote = at + 1 + hashes;
    if bytes.get(quote) != Some(&b'"') {
        return None;
    }
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let body = &bytes[quote + 1..];
    let length = find(body, &close).map_or(body.len(), |found| found + close.len());
    Some(quote + 1 + length - at)
}

/// Returns the length of the quoted string at the start of `text`, including the quotes.
fn quoted(text: &[u8]) -> usize {
    let mut at = 1;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

/// Returns the length of the character literal at the start of `text`; 0 if the quote belongs to a
/// lifetime.
fn char_literal(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match chars.next() {
        // The character after the backslash may be a quote.
        Some((_, '\\')) => match text.get(3..).and_then(|tail| tail.find('\'')) {
            Some(close) => 3 + close + 1,
            None => text.len(),
        },
        Some(_) => match chars.next() {
            Some((at, '\'')) => at + 1,
            _ => 0,
        },
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::{blank, cfgs, line, macros, std_paths, without_tests, words};

    #[test]
    fn comments_and_literals_are_blanked_and_lines_are_kept() {
        for (source, expected) in [
            ("a // std::fs\nb", "a\nb"),
            ("a /* x /* y\n */ z */ b", "a\nb"),
            (r#"f("std::fs \" x", y)"#, "f(,y)"),
            (r##"f(r#"a " b"#, y)"##, "f(,y)"),
            ("f('\"', '\\'', b'x', 'é')", "f(,,b,)"),
            ("fn f<'a>(x: &'a str)", "fnf<'a>(x:&'astr)"),
            ("for r in rs {}", "forrinrs{}"),
            ("\"open", ""),
            ("'", "'"),
        ] {
            let blanked = blank(source);
            assert_eq!(blanked.replace(' ', ""), expected, "{source:?}");
            assert_eq!(blanked.len(), source.len(), "{source:?}");
        }
    }

    #[test]
    fn test_items_are_removed_and_test_files_are_named() {
        let source = "a;\n#[cfg(test)]\nmod tests {\n fn b() { c }\n}\n#[cfg(test)]\n#[x]\nmod walk;\n\
                      #[cfg(test)]\nfn d(_: [u8; 4]) {}\n#[cfg(not(test))]\ne;";
        let (code, files) = without_tests(source);
        assert_eq!(code.split_whitespace().collect::<Vec<_>>(), ["a;", "#[cfg(not(test))]", "e;"]);
        assert_eq!(files, ["walk"]);
        assert_eq!(
            line(&code, code.find("e;").unwrap()),
            line(source, source.rfind("e;").unwrap())
        );
    }

    #[test]
    fn std_paths_are_found_in_every_import_form() {
        let check = |source: &str, expected: &[&str]| {
            let found: Vec<_> = std_paths(source).into_iter().map(|(_, path)| path).collect();
            assert_eq!(found, expected, "{source:?}");
        };
        check("let x = std::fs::read(p);", &["std::fs::read"]);
        check(
            "use std::{fmt, env as e, time::{Duration, Instant}, io};",
            &["std::fmt", "std::env", "std::time::Duration", "std::time::Instant", "std::io"],
        );
        check("use ::std :: net::*;", &["std::net::*"]);
        check("my_std::fs::x(); std.fs;", &[]);
        check("use std::{fs", &["std::fs"]);
    }

    #[test]
    fn words_and_macros_are_whole_names() {
        assert_eq!(words("Instant Instantly AnInstant x.Instant", "Instant"), [0, 30]);
        assert_eq!(macros("println!() eprintln!() println", "println"), [0]);
    }

    #[test]
    fn configuration_predicates_are_found_in_every_form() {
        let source =
            "#[cfg(windows)] x; if cfg!(any(unix, a)) {} #[cfg_attr(windows, ignore)] #![cfg(b)]";
        let found: Vec<_> = cfgs(source).into_iter().map(|(_, predicate)| predicate).collect();
        assert_eq!(found, ["windows", "any(unix, a)", "windows, ignore", "b"]);
    }
}
