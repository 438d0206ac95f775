//! The language of comments, documents and test names, held by a budget for each crate.
//!
//! A budget is the number of lines that may contain a marker (see `xtask::prose`). Lower a budget
//! when you have rewritten some lines; the test fails if a budget is higher than necessary.

use xtask::files::{crates, files, read, report, root, shown};
use xtask::prose::{self, WORDS_OF_A_TEST};

/// Crate, comment lines with a marker, test names with a marker or too many words.
const BUDGETS: &[(&str, usize, usize)] = &[
    ("agent", 874, 173),
    ("apiserver", 151, 60),
    ("berth", 179, 85),
    ("client", 43, 8),
    ("conformance", 168, 28),
    ("controllers", 149, 41),
    ("cri", 100, 30),
    ("host", 112, 45),
    ("https", 17, 9),
    ("objects", 370, 77),
    ("placement", 136, 24),
    ("planner", 95, 25),
    ("rig", 42, 1),
    ("scheduling", 132, 32),
    ("store", 83, 28),
    ("xtask", 13, 3),
];

/// Documents for users and contributors. They have no budget.
const DOCUMENTS: &[&str] =
    &["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/guide", "docs/reference"];

#[test]
fn comments_and_test_names_keep_to_their_budget() {
    let mut problems = Vec::new();
    for name in crates() {
        let mut lines = Vec::new();
        let mut names = Vec::new();
        for path in files(&root().join("crates").join(&name), "rs") {
            let source = read(&path);
            let path = shown(&path);
            for line in prose::comments(&source) {
                if let Some(marker) = line.marker {
                    let text = line.text.trim();
                    lines.push(format!("  {path}:{}: \"{marker}\" in: {text}", line.number));
                }
            }
            for (number, test) in prose::test_names(&source) {
                let words: Vec<String> = test.split('_').map(str::to_owned).collect();
                let marker = prose::marker(&words, true);
                if marker.is_some() || words.len() > WORDS_OF_A_TEST {
                    let why = marker.map_or("too long".to_owned(), |marker| format!("{marker:?}"));
                    names.push(format!("  {path}:{number}: {why}: {test}"));
                }
            }
        }
        let known = BUDGETS.iter().find(|(known, ..)| *known == name);
        let (_, most_lines, most_names) = known.copied().unwrap_or((&name, 0, 0));
        for (what, found, most) in
            [("comment lines", lines, most_lines), ("test names", names, most_names)]
        {
            let count = found.len();
            if count > most {
                problems.push(format!("{name}: {count} {what} with markers, {most} allowed:"));
                problems.extend(found);
            } else if count < most {
                problems.push(format!("{name}: {count} {what} with markers; lower the budget"));
            }
        }
    }
    report(&problems);
}

#[test]
fn documents_are_plain() {
    let mut problems = Vec::new();
    for name in DOCUMENTS {
        let path = root().join(name);
        let paths = if path.is_dir() { files(&path, "md") } else { vec![path] };
        for path in paths {
            let text = read(&path);
            problems.extend(prose::document(&text).into_iter().filter_map(|line| {
                let marker = line.marker?;
                Some(format!("{}:{}: \"{marker}\" in: {}", shown(&path), line.number, line.text))
            }));
        }
    }
    report(&problems);
}
