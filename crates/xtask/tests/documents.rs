//! Names of modules, types, tests and files in documents exist.

use std::collections::BTreeSet;

use xtask::files::{crates, files, read, report, root, shown};
use xtask::{prose, source};

/// Documents that describe the code as it is. The changelog describes the past.
const DOCUMENTS: &[&str] = &["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "docs"];

/// The words before the name of an item.
const KEYWORDS: &[&str] =
    &["fn", "mod", "struct", "enum", "trait", "const", "static", "type", "macro_rules!"];

/// The smallest number of words of a code span that is taken for the name of a test.
const WORDS_OF_A_TEST: usize = 5;

#[test]
fn names_in_documents_exist() {
    let code = Code::read();
    let mut problems = Vec::new();
    let documents = DOCUMENTS.iter().flat_map(|name| {
        let path = root().join(name);
        if path.is_dir() { files(&path, "md") } else { vec![path] }
    });
    for path in documents {
        let text = read(&path);
        for span in prose::code_spans(&text) {
            if !code.has(span) {
                problems.push(format!("{}: `{span}` does not exist", shown(&path)));
            }
        }
    }
    report(&problems);
}

/// The names that the source of the workspace declares.
struct Code {
    crates: Vec<String>,
    items: BTreeSet<String>,
}

impl Code {
    fn read() -> Code {
        let mut items = BTreeSet::new();
        for path in files(&root().join("crates"), "rs") {
            if let Some(stem) = path.file_stem() {
                items.insert(stem.to_string_lossy().into_owned());
            }
            let code = source::blank(&read(&path));
            let mut words = code.split(|letter: char| {
                !letter.is_ascii_alphanumeric() && letter != '_' && letter != '!'
            });
            while let Some(word) = words.next() {
                if KEYWORDS.contains(&word) {
                    items.extend(words.next().map(str::to_owned));
                } else if word.starts_with(|letter: char| letter.is_ascii_uppercase()) {
                    // A variant has no keyword before its name.
                    items.insert(word.to_owned());
                }
            }
        }
        Code { crates: crates(), items }
    }

    /// Returns whether a code span names something that exists, or nothing of the repository.
    fn has(&self, span: &str) -> bool {
        let is_name = |text: &str| {
            !text.is_empty() && text.chars().all(|it| it.is_ascii_alphanumeric() || it == '_')
        };
        if let Some((first, rest)) = span.split_once("::") {
            let parts: Vec<&str> = rest.split("::").collect();
            let ours = self.crates.iter().any(|name| name == first);
            let names = parts.iter().all(|part| is_name(part));
            return !ours || !names || parts.iter().all(|part| self.items.contains(*part));
        }
        if span.starts_with("crates/") || span.starts_with("testdata/") {
            return span.contains(['*', '{', '<', ' ']) || root().join(span).exists();
        }
        let words = span.split('_').count();
        let test = is_name(span)
            && words >= WORDS_OF_A_TEST
            && span.chars().all(|it| !it.is_ascii_uppercase());
        // Names of metrics look like names of tests.
        let metrics = ["apiserver_", "berth_", "container_", "kubelet_", "process_"];
        let metric = metrics.iter().any(|prefix| span.starts_with(prefix));
        !test || metric || self.items.contains(span)
    }
}
