//! Compares Berth with recorded decisions of upstream components.
//!
//! Main entry: [`run_dir`], which reads every vector file of a directory and returns a [`Report`].
//! Each kind of vector has a module with a `check` function that takes one line and returns the
//! differences. This module reads files, counts and prints; it compares nothing itself.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use apiserver::{Plugin, Plugins};
use classes::vectors::Machines;
use placement::Topology;
use serde_json::{Value, json};

pub use node::{Options, ReplayError};

mod admit;
mod checkpoint;
mod class_files;
mod cpu_assign;
mod cpu_static;
mod cpuset;
mod exchanges;
mod fields;
mod memory_static;
mod node;
mod quantity;
mod scenarios;
mod topology_merge;
mod transcripts;
mod windows_affinity;

/// Runs one line of a vector file and returns the differences from the recorded result.
///
/// A line with a `quirk` records an upstream defect: with a `right` answer the check compares with
/// that, otherwise its differences are expected.
type Check = fn(&Vectors, &Value) -> Vec<Difference>;

/// File stem → check. The check dispatches on a line's `kind`, where there are several.
#[rustfmt::skip] // One a line.
const KINDS: &[(&str, Check)] = &[
    ("admit", admit::check),
    ("checkpoint", checkpoint::check),
    ("cpu_assign", cpu_assign::check),
    ("cpu_static", cpu_static::check),
    ("cpuset", cpuset::check),
    ("memory_static", memory_static::check),
    ("quantity", quantity::check),
    ("scenarios", scenarios::check),
    ("topology_merge", topology_merge::check),
    ("windows_affinity", windows_affinity::check),
];

/// Returns the admission plugins of the recorded servers, which had no accounts.
fn recorded_plugins() -> Plugins {
    Plugins::default().without(Plugin::ServiceAccount)
}

/// Objects that lines refer to by name.
#[derive(Debug, Default)]
pub struct Vectors {
    pub topologies: BTreeMap<String, Topology>,
}

impl Vectors {
    /// Returns the machine that a line names.
    fn topology(&self, line: &Value) -> Result<&Topology> {
        let name = fields::string(line, "topology")?;
        self.topologies.get(&name).with_context(|| format!("no machine named {name:?}"))
    }
}

/// One difference between our result and the expected one.
#[derive(Debug, Clone)]
pub struct Difference {
    pub what: String,
    pub expected: String,
    pub got: String,
}

impl Difference {
    /// Returns the difference between two values, if any.
    pub fn between<T: PartialEq + std::fmt::Debug>(
        what: impl Into<String>,
        expected: &T,
        got: &T,
    ) -> Option<Difference> {
        (expected != got).then(|| Difference {
            what: what.into(),
            expected: format!("{expected:?}"),
            got: format!("{got:?}"),
        })
    }
}

/// Turns a parse error into a difference: the reader is wrong, not the data.
fn or_malformed(result: Result<Vec<Difference>>) -> Vec<Difference> {
    result.unwrap_or_else(|error| {
        vec![Difference {
            what: "the line".into(),
            expected: "a readable vector".into(),
            got: format!("{error:#}"),
        }]
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed,
    DeliberatelyDifferent,
    /// About a feature that Berth does not have; `quirk` names it.
    NotServed,
}

#[derive(Debug)]
struct Outcome {
    kind: String,
    id: String,
    verdict: Verdict,
    quirk: Option<String>,
    differences: Vec<Difference>,
}

/// The outcomes of all vectors of a directory.
#[derive(Debug, Default)]
pub struct Report {
    outcomes: Vec<Outcome>,
    /// Files with an unknown kind of vector.
    not_served: Vec<String>,
}

impl Report {
    fn count(&self, verdict: Verdict) -> usize {
        self.outcomes.iter().filter(|o| o.verdict == verdict).count()
    }

    #[must_use]
    pub fn passed(&self) -> usize {
        self.count(Verdict::Passed)
    }

    #[must_use]
    pub fn failed(&self) -> usize {
        self.count(Verdict::Failed)
    }

    #[must_use]
    pub fn deliberately_different(&self) -> usize {
        self.count(Verdict::DeliberatelyDifferent)
    }

    #[must_use]
    pub fn not_served(&self) -> usize {
        self.count(Verdict::NotServed)
    }

    /// Renders only the failures.
    #[must_use]
    pub fn failures(&self) -> String {
        let mut text = String::from("\n");
        for outcome in self.outcomes.iter().filter(|o| o.verdict == Verdict::Failed) {
            outcome.render(&mut text);
        }
        text
    }

    /// Renders everything as JSON: counts, and each line with its verdict, reason and differences
    /// (those of lines whose kind or id contains `show`, or all).
    #[must_use]
    pub fn to_json(&self, show: Option<&str>) -> Value {
        let is_shown = |outcome: &&Outcome| {
            show.is_none_or(|word| outcome.kind.contains(word) || outcome.id.contains(word))
        };
        let lines: Vec<Value> =
            self.outcomes.iter().filter(is_shown).map(Outcome::to_json).collect();
        json!({
            "passed": self.passed(),
            "failed": self.failed(),
            "deliberatelyDifferent": self.deliberately_different(),
            "notServed": self.not_served(),
            "unknownFiles": self.not_served,
            "lines": lines,
        })
    }

    /// Renders a table per kind, the differences if `show` is given (those of lines whose kind or
    /// id contains it), and the closing line.
    #[must_use]
    pub fn render(&self, show: Option<&str>) -> String {
        let mut text = String::new();
        if let Some(word) = show {
            for outcome in &self.outcomes {
                if !outcome.differences.is_empty()
                    && (outcome.kind.contains(word) || outcome.id.contains(word))
                {
                    outcome.render(&mut text);
                }
            }
        }
        let mut kinds: BTreeMap<&str, [usize; 4]> = BTreeMap::new();
        let mut quirks: BTreeMap<&str, usize> = BTreeMap::new();
        let mut missing: BTreeMap<&str, usize> = BTreeMap::new();
        for outcome in &self.outcomes {
            kinds.entry(&outcome.kind).or_default()[outcome.verdict as usize] += 1;
            match (&outcome.quirk, outcome.verdict) {
                (Some(what), Verdict::NotServed) => *missing.entry(what).or_default() += 1,
                (Some(quirk), _) => *quirks.entry(quirk).or_default() += 1,
                (None, _) => {}
            }
        }
        let width = kinds.keys().map(|k| k.len()).max().unwrap_or(0).max("kind".len());
        let _ =
            writeln!(text, "{:width$}  passed  failed  deliberately different  not served", "kind");
        for (kind, [passed, failed, different, missing]) in kinds {
            let _ = writeln!(
                text,
                "{kind:width$}  {passed:>6}  {failed:>6}  {different:>22}  {missing:>10}"
            );
        }
        for file in &self.not_served {
            let _ = writeln!(text, "not served: {file}");
        }
        if !quirks.is_empty() {
            let list: Vec<_> = quirks.iter().map(|(quirk, n)| format!("{quirk} {n}")).collect();
            let _ = writeln!(
                text,
                "\n{} deliberately different (upstream defects: {})",
                self.deliberately_different(),
                list.join(", ")
            );
            for quirk in class_files::reasons(quirks.keys().copied()) {
                let _ = writeln!(text, "  {}: {}", quirk.name, quirk.reason);
            }
        }
        if !missing.is_empty() {
            let list: Vec<_> = missing.iter().map(|(what, n)| format!("{what} {n}")).collect();
            let _ = writeln!(text, "{} not served ({})", self.not_served(), list.join(", "));
        }
        let _ = writeln!(text, "{} passed, {} failed", self.passed(), self.failed());
        text
    }
}

impl Outcome {
    fn to_json(&self) -> Value {
        let verdict = match self.verdict {
            Verdict::Passed => "passed",
            Verdict::Failed => "failed",
            Verdict::DeliberatelyDifferent => "deliberatelyDifferent",
            Verdict::NotServed => "notServed",
        };
        let differences: Vec<Value> = self
            .differences
            .iter()
            .map(|of| json!({"what": of.what, "expected": of.expected, "got": of.got}))
            .collect();
        json!({
            "kind": self.kind, "id": self.id, "verdict": verdict, "reason": self.quirk,
            "differences": differences,
        })
    }

    fn render(&self, text: &mut String) {
        let word = match self.verdict {
            Verdict::Passed | Verdict::NotServed => return,
            Verdict::Failed => "FAILED",
            Verdict::DeliberatelyDifferent => "different on purpose",
        };
        let quirk = self.quirk.as_deref().map(|q| format!(" ({q})")).unwrap_or_default();
        let _ = writeln!(text, "{} {}: {word}{quirk}", self.kind, self.id);
        for Difference { what, expected, got } in &self.differences {
            let _ = writeln!(text, "  {what}\n    expected  {expected}\n    got       {got}");
        }
        text.push('\n');
    }
}

/// Runs every vector file in `dir`.
pub fn run_dir(dir: &Path, options: &Options) -> Result<Report> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        paths.push(entry?.path());
    }
    run_files(paths, options).with_context(|| format!("cannot run {}", dir.display()))
}

/// Runs these vector files; others are skipped.
pub fn run_files(paths: impl IntoIterator<Item = PathBuf>, options: &Options) -> Result<Report> {
    let mut files = BTreeMap::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(stem) = name.strip_suffix(".jsonl").or(name.strip_suffix(".jsonl.gz")) {
            files.insert(stem.to_owned(), path);
        }
    }
    if files.is_empty() {
        bail!("no vectors (*.jsonl or *.jsonl.gz)");
    }
    let mut vectors = Vectors::default();
    if let Some(path) = files.remove("topologies") {
        for line in read_lines(&path)? {
            let (name, topology) = fields::topology(&line)
                .with_context(|| format!("{}: a line is not a machine", path.display()))?;
            vectors.topologies.insert(name, topology);
        }
    }
    let mut report = Report::default();
    let mut machines = Machines::default();
    for stem in ["shapes", "sysfs"] {
        if let Some(path) = files.remove(stem) {
            read_lines(&path)?.iter().for_each(|line| machines.add(line));
        }
    }
    // The recording of a node has three files, which are replayed together.
    let mut recording = node::Recording::default();
    for (stem, lines) in
        [("pods", &mut recording.pods), ("cri", &mut recording.cri), ("node", &mut recording.node)]
    {
        let Some(path) = files.remove(stem) else { continue };
        let read = read_lines(&path)?;
        // What an API server answers to nodes is recorded in a file of the same name.
        if read.first().is_some_and(|line| line["objects"].is_array()) {
            report.outcomes.extend(exchanges::run(read)?);
        } else {
            *lines = read;
        }
    }
    report.outcomes.extend(node::run(recording, options)?);
    for (stem, path) in files {
        if stem == "exchanges" {
            report.outcomes.extend(exchanges::run(read_lines(&path)?)?);
            continue;
        }
        if stem == "kubectl" {
            report.outcomes.extend(transcripts::run(read_lines(&path)?)?);
            continue;
        }
        if class_files::KINDS.contains(&stem.as_str()) {
            let lines = read_lines(&path)?;
            report
                .outcomes
                .extend(lines.iter().map(|line| class_files::run(&machines, &stem, line)));
            continue;
        }
        let Some((_, check)) = KINDS.iter().find(|(kind, _)| *kind == stem) else {
            report.not_served.push(stem);
            continue;
        };
        for line in read_lines(&path)? {
            report.outcomes.push(run_line(&vectors, &stem, *check, &line));
        }
    }
    Ok(report)
}

fn run_line(vectors: &Vectors, kind: &str, check: Check, line: &Value) -> Outcome {
    let text = |key: &str| line.get(key).and_then(Value::as_str).map(str::to_owned);
    let quirk = text("quirk");
    let has_right_answer = line.get("right").is_some();
    // A panic is a failure of that line, not of the run.
    let (panicked, differences) = match catch_unwind(AssertUnwindSafe(|| check(vectors, line))) {
        Ok(differences) => (false, differences),
        Err(_) => (
            true,
            vec![Difference {
                what: "the run".into(),
                expected: "an answer".into(),
                got: "a panic".into(),
            }],
        ),
    };
    let verdict = match (&quirk, differences.is_empty()) {
        _ if panicked => Verdict::Failed,
        (None, true) => Verdict::Passed,
        (None, false) => Verdict::Failed,
        (Some(_), false) if has_right_answer => Verdict::Failed,
        (Some(_), _) => Verdict::DeliberatelyDifferent,
    };
    let kind = match text("kind").or_else(|| text("category")) {
        Some(sub) => format!("{kind}/{sub}"),
        None => kind.to_owned(),
    };
    let id = text("id").or_else(|| text("name")).unwrap_or_default();
    Outcome { kind, id, verdict, quirk, differences }
}

fn read_lines(path: &Path) -> Result<Vec<Value>> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let text = if path.extension().is_some_and(|e| e == "gz") {
        let mut text = String::new();
        flate2::read::GzDecoder::new(bytes.as_slice())
            .read_to_string(&mut text)
            .with_context(|| format!("{} is not gzip-compressed text", path.display()))?;
        text
    } else {
        String::from_utf8(bytes).with_context(|| format!("{} is not UTF-8", path.display()))?
    };
    text.lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(n, line)| {
            serde_json::from_str(line)
                .with_context(|| format!("{}, line {}: not JSON", path.display(), n + 1))
        })
        .collect()
}
