//! Finds comment lines, document lines and test names that are not plain technical English.
//!
//! [`marker`] returns the expression that a line should not contain. The expressions come from the
//! rules in CONTRIBUTING.md. They are approximate: a line without a marker can still be unclear.

use std::collections::BTreeSet;

/// Words that describe data flow as speech, or name a person instead of a thing.
const WORDS: &[&str] = &[
    "anybody",
    "everybody",
    "hear",
    "heard",
    "hears",
    "nobody",
    "said",
    "say",
    "says",
    "somebody",
    "tell",
    "telling",
    "tells",
    "told",
    "who",
    "whoever",
    "whom",
];

/// Phrases that are translations of another language's idioms, or unclear.
const PHRASES: &[&str] = &[
    "all the same",
    "are no",
    "are none",
    "as far as",
    "be had",
    "beside",
    "by now",
    "go by",
    "goes by",
    "is no",
    "is none",
    "let in",
    "lets in",
    "the like",
    "was none",
];

/// First words of a doc comment that is a noun clause instead of a sentence.
const CLAUSES: &[&str] = &["what", "whether", "who"];

/// The smallest number of words of a line that counts.
const WORDS_OF_A_LINE: usize = 4;

/// The largest number of words of a test name.
pub const WORDS_OF_A_TEST: usize = 10;

/// A line of prose: its number from 1, its text, and its first marker, if it has one.
#[derive(Debug, PartialEq, Eq)]
pub struct Line<'a> {
    pub number: usize,
    pub text: &'a str,
    pub marker: Option<&'static str>,
}

/// Returns the comment lines of Rust source that have at least four words.
pub fn comments(source: &str) -> Vec<Line<'_>> {
    let mut found = Vec::new();
    let mut in_comment = false;
    for (index, line) in source.lines().enumerate() {
        let text = line.trim_start();
        let Some(comment) = text.strip_prefix("//") else {
            in_comment = false;
            continue;
        };
        let doc = comment.strip_prefix(['/', '!']);
        let first = !in_comment && doc.is_some();
        in_comment = true;
        found.extend(line_of(index, doc.unwrap_or(comment), first));
    }
    found
}

/// Returns the lines of a Markdown document that have at least four words, without code blocks.
pub fn document(text: &str) -> Vec<Line<'_>> {
    let mut in_code = false;
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code && !line.starts_with("    ") {
            found.extend(line_of(index, line, false));
        }
    }
    found
}

/// Returns the names of the test functions of Rust source, with their line numbers.
pub fn test_names(source: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_attributes = false;
    for (index, line) in source.lines().enumerate() {
        let line = line.trim_start();
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            in_attributes = true;
        }
        let function = line.trim_start_matches("pub ").trim_start_matches("async ");
        let Some(rest) = function.strip_prefix("fn ") else { continue };
        if in_attributes {
            let end = rest.find(['(', '<']).unwrap_or(rest.len());
            found.push((index + 1, &rest[..end]));
        }
        in_attributes = false;
    }
    found
}

/// Returns the first marker in a text of words. `first` is set for the first line of a doc comment.
pub fn marker(words: &[String], first: bool) -> Option<&'static str> {
    let clause = words.first().filter(|_| first).and_then(|word| find(CLAUSES, word));
    let word = || words.iter().find_map(|word| find(WORDS, word));
    let phrase = || {
        PHRASES.iter().copied().find(|phrase| {
            let phrase: Vec<&str> = phrase.split(' ').collect();
            let mut windows = words.windows(phrase.len()).enumerate();
            windows.any(|(at, window)| {
                // "There is no limit" and "is no longer" are plain.
                let plain = at.checked_sub(1).is_some_and(|before| words[before] == "there")
                    || words.get(at + phrase.len()).is_some_and(|after| after == "longer");
                window == phrase.as_slice() && !plain
            })
        })
    };
    clause.or_else(word).or_else(phrase)
}

/// Returns the lower-case words of a text, without quotations.
pub fn words(text: &str) -> Vec<String> {
    let mut plain = String::with_capacity(text.len());
    let mut quote = None;
    for (at, letter) in text.char_indices() {
        match quote {
            Some(open) if letter == open => quote = None,
            Some(_) => {}
            // A quotation that does not end on the line is an apostrophe or the start of code.
            None if "`\"".contains(letter) && text[at + 1..].contains(letter) => {
                quote = Some(letter);
                plain.push(' ');
            }
            None => plain.push(letter),
        }
    }
    plain
        .split(|letter: char| !letter.is_ascii_alphabetic() && letter != '\'')
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
        .collect()
}

fn line_of(index: usize, text: &str, first: bool) -> Option<Line<'_>> {
    let words = words(text);
    let marker = marker(&words, first);
    (words.len() >= WORDS_OF_A_LINE).then_some(Line { number: index + 1, text, marker })
}

fn find(list: &[&'static str], word: &str) -> Option<&'static str> {
    list.iter().copied().find(|known| *known == word)
}

/// Returns the backticked spans of a Markdown document, without code blocks.
pub fn code_spans(text: &str) -> BTreeSet<&str> {
    let mut in_code = false;
    let mut found = BTreeSet::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            found.extend(line.split('`').skip(1).step_by(2));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_found_outside_quotations() {
        let check = |text: &str, first: bool, expected: Option<&str>| {
            assert_eq!(marker(&words(text), first), expected, "{text:?}");
        };
        check("The caller is told of it.", false, Some("told"));
        check("The caller gets the error `told`.", false, None);
        check("Prints \"nobody\" as upstream does.", false, None);
        check("Memory that goes by nodes", false, Some("goes by"));
        check("What the caller sends.", true, Some("what"));
        check("What the caller sends.", false, None);
        check("There is no limit, and none is no longer needed.", false, None);
        check("A name that is no path", false, Some("is no"));
        check("Returns the caller's pod.", true, None);
    }

    #[test]
    fn only_the_first_line_starts_a_doc_comment() {
        let source = "/// Returns a list of\n/// what the caller wants.\nfn f() {}\n";
        assert!(comments(source).iter().all(|line| line.marker.is_none()));
        let source = "/// Whether the pod is ready.\nfn f() {}\n";
        assert_eq!(comments(source)[0].marker, Some("whether"));
    }

    #[test]
    fn test_names_are_those_of_test_functions() {
        let source =
            "fn a() {}\n#[test]\n#[ignore]\nfn b_c() {}\n#[tokio::test]\nasync fn d() {}\n";
        assert_eq!(test_names(source), [(4, "b_c"), (6, "d")]);
    }

    #[test]
    fn code_blocks_are_not_prose() {
        let text = "one two three four\n```\nthe caller is told that\n```\nsee `a::b` here\n";
        assert_eq!(document(text).len(), 1);
        assert_eq!(code_spans(text), BTreeSet::from(["a::b"]));
    }
}
