//! From the parser's events to a tree. Entry: [`parse`]. The only file that knows the parser.

use std::collections::{HashMap, HashSet};

use granit_parser::{Event, Parser, ScalarStyle, Span, Tag};

use super::{Entry, Mark, Node, Problem, Scalar, Value, YamlError};
use crate::decode_budget::MAX_DEPTH;
use crate::field::{FieldPath, Step};

/// How many values anchors and aliases may add to a stream. Nine lines of nested aliases stand for
/// billions.
const MAX_ALIASED: usize = 100_000;

/// How many bytes of keys and words anchors and aliases may add to a stream. A long word can be
/// repeated by an alias of three bytes.
const MAX_ALIASED_BYTES: usize = 4 << 20;

/// Broken documents after which reading stops: who feeds garbage learns no more from the rest.
const MAX_BROKEN: usize = 20;

/// Complaints after which no more are noted.
const MAX_ERRORS: usize = 200;

/// Reads a stream of YAML documents: everything that could be read, and everything that is wrong.
/// A document that breaks off is left out and reading goes on with the next; empty documents are
/// skipped. The documents may be acted on only if nothing is wrong.
#[must_use]
pub fn parse(text: &str) -> (Vec<Node>, Vec<YamlError>) {
    parse_within(text, usize::MAX)
}

/// Reads a stream as [`parse`] does, and stops with an error at a number of values. A value of one
/// letter takes thirty times as much memory as it has text.
#[must_use]
pub fn parse_within(text: &str, values: usize) -> (Vec<Node>, Vec<YamlError>) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let options = granit_parser::options! {
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
        emit_comments: false,
    };
    let mut parser = Parser::new_from_str_with_options(text, options);
    let mut builder = Builder::default();
    let mut broken = 0;
    loop {
        match parser.next_event() {
            None => break,
            Some(Ok((event, span))) => {
                builder.event(event, &span);
                let problem = if builder.values > values {
                    Problem::TooManyValues { limit: values }
                } else if builder.open.len() > MAX_DEPTH {
                    // The parser counts lists in brackets and lists by indentation apart.
                    Problem::TooDeep { limit: MAX_DEPTH }
                } else {
                    continue;
                };
                builder.error(mark(&span.start), problem);
                builder.abandon();
                break;
            }
            Some(Err(error)) => {
                let problem = Problem::Syntax(error.kind().to_string());
                builder.error(mark(error.marker()), problem);
                builder.abandon();
                broken += 1;
                if broken == MAX_BROKEN || !parser.proceed_next_document().unwrap_or(false) {
                    break;
                }
            }
        }
    }
    (builder.documents, builder.errors)
}

fn mark(marker: &granit_parser::Marker) -> Mark {
    let from_one = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).max(1);
    Mark { line: from_one(marker.line()), column: from_one(marker.col().saturating_add(1)) }
}

/// A list or map whose end has not come yet.
struct Open {
    mark: Mark,
    anchor: usize,
    content: Content,
}

enum Content {
    List(Vec<Node>),
    Map { entries: Vec<Entry>, key: Option<(String, Mark)>, merged: Vec<Node> },
}

/// A finished value other places may repeat.
struct Anchored {
    node: Node,
    size: Size,
}

/// The size of a tree.
#[derive(Clone, Copy, Default)]
struct Size {
    values: usize,
    /// The bytes of keys and words.
    bytes: usize,
    /// How many lists and maps are within each other.
    depth: usize,
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    anchors: HashMap<usize, Anchored>,
    /// The values of the stream so far, those of aliases included.
    values: usize,
    /// The amount that was copied for anchors and aliases.
    unfolded: Size,
    /// There was more to copy than may be. Nothing is copied any more.
    exhausted: bool,
    documents: Vec<Node>,
    errors: Vec<YamlError>,
}

impl Builder {
    fn event(&mut self, event: Event<'_>, span: &Span) {
        let at = mark(&span.start);
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let said_text = self.said_to_be_text(tag.as_deref(), at);
                let plain = style == ScalarStyle::Plain && !said_text;
                let scalar = Scalar { text: text.into_owned(), plain };
                self.finish(Node { mark: at, value: Value::Scalar(scalar) }, anchor);
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.said_to_be_text(tag.as_deref(), at);
                self.open(at, anchor, Content::List(Vec::new()));
            }
            Event::MappingStart(_, anchor, tag) => {
                self.said_to_be_text(tag.as_deref(), at);
                let content = Content::Map { entries: Vec::new(), key: None, merged: Vec::new() };
                self.open(at, anchor, content);
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(Open { mark, anchor, content }) = self.open.pop() {
                    let value = match content {
                        Content::List(items) => Value::List(items),
                        Content::Map { entries, merged, .. } => {
                            let entries = self.unique(entries);
                            Value::Map(self.merge(entries, merged))
                        }
                    };
                    self.finish(Node { mark, value }, anchor);
                }
            }
            Event::Alias(id) => self.alias(id, at),
            _ => {}
        }
    }

    fn open(&mut self, mark: Mark, anchor: usize, content: Content) {
        self.open.push(Open { mark, anchor, content });
    }

    /// Forgets the document that broke off.
    fn abandon(&mut self) {
        self.open.clear();
        self.anchors.clear();
    }

    fn error(&mut self, mark: Mark, problem: Problem) {
        // The path is made only if it is needed: it costs time, and there may be thousands of errors.
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(YamlError { mark, path: self.path(), problem });
        }
    }

    /// The way to the value that is being read.
    fn path(&self) -> FieldPath {
        self.open
            .iter()
            .filter_map(|open| match &open.content {
                Content::List(items) => Some(Step::Index(items.len())),
                Content::Map { key, .. } => {
                    key.as_ref().map(|(key, _)| Step::Field(super::shortened(key)))
                }
            })
            .collect()
    }

    /// Whether a tag says that a scalar is text whatever it looks like. Tags of other making have
    /// no meaning here and are complained about.
    fn said_to_be_text(&mut self, tag: Option<&Tag>, at: Mark) -> bool {
        match tag {
            Some(tag) if tag.is_yaml_core_schema() => tag.core_suffix() == Some("str"),
            // The lone `!` says "not to be interpreted".
            Some(tag) if tag.suffix().is_empty() => true,
            Some(tag) => {
                self.error(at, Problem::Tag(super::shortened(&tag.original())));
                false
            }
            None => false,
        }
    }

    /// Puts a finished value where it belongs.
    fn finish(&mut self, node: Node, anchor: usize) {
        self.values += 1;
        if anchor != 0 && !self.exhausted {
            let size = measure(&node);
            match self.unfold(size) {
                Ok(()) => {
                    self.anchors.insert(anchor, Anchored { node: node.clone(), size });
                }
                Err(problem) => self.error(node.mark, problem),
            }
        }
        let Some(open) = self.open.last_mut() else {
            if !node.is_null() {
                self.documents.push(node);
            }
            // Anchors do not reach into the next document.
            self.anchors.clear();
            return;
        };
        match &mut open.content {
            Content::List(items) => items.push(node),
            Content::Map { entries, key, merged } => match key.take() {
                Some((key, mark)) if key == "<<" => {
                    // Kept for the end of the map: fields given beside it win.
                    merged.push(Node { mark, ..node });
                }
                Some((key, mark)) => entries.push(Entry { key, mark, value: node }),
                None => match node.value {
                    Value::Scalar(scalar) => *key = Some((scalar.text, node.mark)),
                    Value::List(_) | Value::Map(_) => {
                        let mark = node.mark;
                        *key = Some((String::new(), mark));
                        self.error(mark, Problem::KeyNotText);
                    }
                },
            },
        }
    }

    /// Accounts for a copy, or returns which limit it exceeds.
    fn unfold(&mut self, size: Size) -> Result<(), Problem> {
        self.unfolded.values = self.unfolded.values.saturating_add(size.values);
        self.unfolded.bytes = self.unfolded.bytes.saturating_add(size.bytes);
        let problem = if self.unfolded.values > MAX_ALIASED {
            Problem::TooManyAliases { limit: MAX_ALIASED }
        } else if self.unfolded.bytes > MAX_ALIASED_BYTES {
            Problem::TooLongAliases { limit: MAX_ALIASED_BYTES }
        } else {
            return Ok(());
        };
        self.exhausted = true;
        Err(problem)
    }

    fn alias(&mut self, id: usize, at: Mark) {
        match self.copied(id) {
            Ok(Some(node)) => return self.finish(node, 0),
            Ok(None) => {}
            // One complaint about unfolding is enough; there may be thousands.
            Err(problem) if self.errors.iter().any(|error| error.problem == problem) => {}
            Err(problem) => self.error(at, problem),
        }
        let null = Scalar { text: String::new(), plain: true };
        self.finish(Node { mark: at, value: Value::Scalar(null) }, 0);
    }

    /// Returns a copy of an anchored value, or nothing once a limit was exceeded.
    fn copied(&mut self, id: usize) -> Result<Option<Node>, Problem> {
        if self.exhausted {
            return Ok(None);
        }
        let Some(anchored) = self.anchors.get(&id) else { return Err(Problem::AliasInsideItself) };
        let size = anchored.size;
        if self.open.len() + size.depth > MAX_DEPTH {
            return Err(Problem::TooDeep { limit: MAX_DEPTH });
        }
        self.unfold(size)?;
        // The value itself is counted where it is put.
        self.values += size.values - 1;
        Ok(self.anchors.get(&id).map(|anchored| anchored.node.clone()))
    }

    /// Complains about keys given twice and keeps the first of each.
    fn unique(&mut self, entries: Vec<Entry>) -> Vec<Entry> {
        let mut at: HashMap<String, (usize, Mark)> = HashMap::with_capacity(entries.len());
        let mut kept: Vec<Entry> = Vec::with_capacity(entries.len());
        for entry in entries {
            match at.get(&entry.key).copied() {
                Some((index, first)) => {
                    if self.errors.len() < MAX_ERRORS {
                        let path = self.path().child(&entry.key);
                        let problem = Problem::DuplicateKey { first };
                        self.errors.push(YamlError { mark: entry.mark, path, problem });
                    }
                    // A caller that goes on regardless goes on with the last.
                    kept[index] = entry;
                }
                None => {
                    at.insert(entry.key.clone(), (kept.len(), entry.mark));
                    kept.push(entry);
                }
            }
        }
        kept
    }

    /// Adds the fields of `<<` that the map does not have itself.
    fn merge(&mut self, mut entries: Vec<Entry>, merged: Vec<Node>) -> Vec<Entry> {
        if merged.is_empty() {
            return entries;
        }
        let mut present: HashSet<String> = entries.iter().map(|e| e.key.clone()).collect();
        for node in merged {
            let maps = match node.value {
                Value::List(items) => items,
                value => vec![Node { value, mark: node.mark }],
            };
            for map in maps {
                let Value::Map(fields) = map.value else {
                    self.error(map.mark, Problem::MergeOfNoMap);
                    continue;
                };
                entries.extend(fields.into_iter().filter(|f| present.insert(f.key.clone())));
            }
        }
        entries
    }
}

/// Measures a tree, which is nested no deeper than the parser and [`Builder::copied`] allow.
fn measure(node: &Node) -> Size {
    let mut size = Size { values: 1, bytes: 0, depth: 0 };
    let mut add = |key: &str, node: &Node| {
        let inner = measure(node);
        size.values += inner.values;
        size.bytes += key.len() + inner.bytes;
        size.depth = size.depth.max(inner.depth + 1);
    };
    match &node.value {
        Value::Scalar(scalar) => size.bytes = scalar.text.len(),
        Value::List(items) if items.is_empty() => size.depth = 1,
        Value::Map(entries) if entries.is_empty() => size.depth = 1,
        Value::List(items) => items.iter().for_each(|item| add("", item)),
        Value::Map(entries) => entries.iter().for_each(|entry| add(&entry.key, &entry.value)),
    }
    size
}
