//! Builds a tree from the parser's events. Entry: [`parse`]. The only file that uses the parser.

use std::collections::{HashMap, HashSet};

use granit_parser::{Event, Parser, ScalarStyle, Span, Tag};

use super::{Entry, Mark, Node, Problem, Scalar, Value, YamlError};
use crate::decode_budget::MAX_DEPTH;
use crate::field::{FieldPath, Step};

/// The limit on values that anchors and aliases add to a stream. Nine lines of nested aliases
/// expand to billions.
const MAX_ALIASED: usize = 100_000;

/// The limit on bytes of keys and scalars that anchors and aliases add to a stream. An alias of
/// three bytes can repeat a long scalar.
const MAX_ALIASED_BYTES: usize = 4 << 20;

/// The number of broken documents after which reading stops: further errors would not help.
const MAX_BROKEN: usize = 20;

/// The number of errors after which no more are reported.
const MAX_ERRORS: usize = 200;

/// Reads a stream of YAML documents: everything that could be read, and all errors. A broken
/// document is left out and reading continues with the next; empty documents are skipped. The
/// documents may be used only if there are no errors.
#[must_use]
pub fn parse(text: &str) -> (Vec<Node>, Vec<YamlError>) {
    parse_within(text, usize::MAX)
}

/// Reads a stream like [`parse`], and stops with an error at a number of values. A value of one
/// letter takes thirty times as much memory as its text.
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
                    // The parser counts flow lists and block lists separately.
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

/// A list or map that is not complete.
struct Open {
    mark: Mark,
    anchor: usize,
    content: Content,
}

enum Content {
    List(Vec<Node>),
    Map { entries: Vec<Entry>, key: Option<(Scalar, Mark)>, merged: Vec<Node> },
}

/// A complete value that aliases may repeat.
struct Anchored {
    node: Node,
    size: Size,
}

/// The size of a tree.
#[derive(Clone, Copy, Default)]
struct Size {
    values: usize,
    /// The bytes of keys and scalars.
    bytes: usize,
    /// The nesting of lists and maps.
    depth: usize,
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    anchors: HashMap<usize, Anchored>,
    /// The values of the stream so far, including those of aliases.
    values: usize,
    /// The amount that was copied for anchors and aliases.
    unfolded: Size,
    /// A limit on copies was exceeded. Nothing is copied any more.
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

    /// Drops the broken document.
    fn abandon(&mut self) {
        self.open.clear();
        self.anchors.clear();
    }

    fn error(&mut self, mark: Mark, problem: Problem) {
        // The path is built only if it is needed: it costs time, and there may be thousands of
        // errors.
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(YamlError { mark, path: self.path(), problem });
        }
    }

    /// Returns the path of the value that is being read.
    fn path(&self) -> FieldPath {
        self.open
            .iter()
            .filter_map(|open| match &open.content {
                Content::List(items) => Some(Step::Index(items.len())),
                Content::Map { key, .. } => {
                    key.as_ref().map(|(key, _)| Step::Field(super::shortened(&key.text)))
                }
            })
            .collect()
    }

    /// Reports whether a tag makes a scalar text. Other tags have no meaning here and are errors.
    fn said_to_be_text(&mut self, tag: Option<&Tag>, at: Mark) -> bool {
        match tag {
            Some(tag) if tag.is_yaml_core_schema() => tag.core_suffix() == Some("str"),
            // A lone `!` means "do not interpret".
            Some(tag) if tag.suffix().is_empty() => true,
            Some(tag) => {
                self.error(at, Problem::Tag(super::shortened(&tag.original())));
                false
            }
            None => false,
        }
    }

    /// Adds a complete value to its parent.
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
            // Anchors end with their document.
            self.anchors.clear();
            return;
        };
        match &mut open.content {
            Content::List(items) => items.push(node),
            Content::Map { entries, key, merged } => match key.take() {
                Some((key, mark)) if key.text == "<<" => {
                    // Kept for the end of the map: fields of the map itself win.
                    merged.push(Node { mark, ..node });
                }
                Some((Scalar { text: key, plain: plain_key }, mark)) => {
                    entries.push(Entry { key, plain_key, mark, value: node });
                }
                None => match node.value {
                    Value::Scalar(scalar) => *key = Some((scalar, node.mark)),
                    Value::List(_) | Value::Map(_) => {
                        let mark = node.mark;
                        *key = Some((Scalar { text: String::new(), plain: false }, mark));
                        self.error(mark, Problem::KeyNotText);
                    }
                },
            },
        }
    }

    /// Accounts for a copy, or returns the limit that it exceeds.
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
            // One error about expansion is enough; there may be thousands.
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
        // The value itself is counted where it is added.
        self.values += size.values - 1;
        Ok(self.anchors.get(&id).map(|anchored| anchored.node.clone()))
    }

    /// Reports duplicate keys and keeps the first of each.
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
                    // A caller that ignores errors uses the last one.
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
