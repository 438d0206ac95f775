//! The language of comments, documents and test names.
//!
//! At most one comment line in a hundred of a crate may contain a marker (see `xtask::prose`), and at
//! most one test name in a hundred may contain one or be too long. The markers are approximate, so a
//! few lines may use such a word where it is the right one.

use xtask::files::{crates, files, read, report, root, shown};
use xtask::prose::{self, WORDS_OF_A_TEST};

/// One in this many lines or names may contain a marker.
const ONE_IN: usize = 100;

/// Documents for users and contributors. They have no budget.
const DOCUMENTS: &[&str] =
    &["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/guide", "docs/reference"];

#[test]
fn comments_and_test_names_are_plain() {
    let mut problems = Vec::new();
    for name in crates() {
        let (mut lines, mut all_lines) = (Vec::new(), 0);
        let (mut names, mut all_names) = (Vec::new(), 0);
        for path in files(&root().join("crates").join(&name), "rs") {
            let source = read(&path);
            let path = shown(&path);
            for line in prose::comments(&source) {
                all_lines += 1;
                if let Some(marker) = line.marker {
                    let text = line.text.trim();
                    lines.push(format!("  {path}:{}: \"{marker}\" in: {text}", line.number));
                }
            }
            for (number, test) in prose::test_names(&source) {
                all_names += 1;
                let words: Vec<String> = test.split('_').map(str::to_owned).collect();
                let marker = prose::marker(&words, true);
                if marker.is_some() || words.len() > WORDS_OF_A_TEST {
                    let why = marker.map_or("too long".to_owned(), |marker| format!("{marker:?}"));
                    names.push(format!("  {path}:{number}: {why}: {test}"));
                }
            }
        }
        for (what, found, all) in
            [("comment lines", lines, all_lines), ("test names", names, all_names)]
        {
            let most = all / ONE_IN;
            if found.len() > most {
                let count = found.len();
                problems
                    .push(format!("{name}: {count} of {all} {what} not plain, {most} allowed:"));
                problems.extend(found);
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
