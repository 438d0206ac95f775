//! Sets of fields: [`FieldSet`], stored in the form of `managedFields`.
//!
//! A set is a tree of path elements: `f:name` is a field or key, `k:{…}` an item of a list by its
//! keys, `v:…` an item by value, `i:…` one by index. A leaf is a member of the set; an inner node
//! is a member only if it also has `.`. Reading keeps that form, so a set is written without being
//! rebuilt. [`super::walk`] computes the fields of an object.

use serde_json::{Map, Value};

/// Marks an inner node as a member.
const SELF: &str = ".";

/// A subtree: the path elements below a node.
pub(super) type Node = Map<String, Value>;

/// Fields of an object, for instance those a manager owns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldSet(pub(super) Node);

/// The value is not a set of fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a set of fields")]
pub struct ParseFieldSetError;

impl FieldSet {
    /// Reads `fieldsV1`. Path elements of an unknown kind are dropped, as upstream does.
    pub fn parse(value: &Value) -> Result<FieldSet, ParseFieldSetError> {
        match value {
            Value::Null => Ok(FieldSet::default()),
            Value::Object(node) => {
                let mut root = Node::new();
                read_below(node, &mut root)?;
                Ok(FieldSet(root))
            }
            _ => Err(ParseFieldSetError),
        }
    }

    /// Reads a set that [`FieldSet::into_value`] wrote and that needs no check.
    pub(super) fn trusted(value: &Value) -> FieldSet {
        FieldSet(value.as_object().cloned().unwrap_or_default())
    }

    #[must_use]
    pub fn into_value(self) -> Value {
        Value::Object(self.0)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reports whether a field is a member, given its path elements: `["f:spec", "f:replicas"]`.
    #[must_use]
    pub fn has(&self, path: &[&str]) -> bool {
        let Some((last, holders)) = path.split_last() else { return false };
        let mut node = &self.0;
        for element in holders {
            let Some(Value::Object(next)) = node.get(*element) else { return false };
            node = next;
        }
        node.get(*last).is_some_and(|at| at.as_object().is_some_and(is_member))
    }

    /// A set with one member.
    #[must_use]
    pub fn of(path: &[&str]) -> FieldSet {
        let mut node = Node::new();
        for element in path.iter().rev() {
            let below = std::mem::take(&mut node);
            node.insert((*element).to_owned(), Value::Object(below));
        }
        FieldSet(node)
    }

    pub fn add(&mut self, other: &FieldSet) {
        unite(&mut self.0, &other.0);
    }

    /// Removes the members of another set.
    pub fn subtract(&mut self, other: &FieldSet) {
        subtract(&mut self.0, &other.0, Descendants::Keep);
    }

    /// Removes the members of another set with all their descendants.
    pub fn subtract_with_all_below(&mut self, other: &FieldSet) {
        subtract(&mut self.0, &other.0, Descendants::Remove);
    }

    #[must_use]
    pub fn intersection(&self, other: &FieldSet) -> FieldSet {
        FieldSet(intersect(&self.0, &other.0))
    }

    /// Returns every member as a readable path: `.spec.containers[name="c"].image`. The members of
    /// a node come before those of its children. The list ends where its text exceeds a limit,
    /// because each path repeats its parents' keys, which may be long.
    #[must_use]
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Paths { list: Vec::new(), left: MAX_PATHS_TEXT };
        paths.add(&self.0, "");
        paths.list
    }
}

pub(super) fn is_member(node: &Node) -> bool {
    node.is_empty() || node.contains_key(SELF)
}

/// Makes a node a member.
pub(super) fn make_member(node: &mut Node) {
    if !node.is_empty() {
        node.insert(SELF.to_owned(), Value::Object(Node::new()));
    }
}

fn below(node: &Node) -> impl Iterator<Item = (&String, &Node)> {
    node.iter().filter_map(|(element, at)| match at {
        Value::Object(at) if element != SELF => Some((element, at)),
        _ => None,
    })
}

/// Sets or removes the mark of a member.
fn set_member(node: &mut Node, member: bool) {
    node.remove(SELF);
    if member {
        make_member(node);
    }
}

fn read_below(from: &Node, to: &mut Node) -> Result<(), ParseFieldSetError> {
    for (element, at) in from {
        if element == SELF {
            continue;
        }
        let Some(element) = checked(element)? else { continue };
        let mut node = Node::new();
        let member = match at {
            Value::Null => true,
            Value::Object(at) => {
                read_below(at, &mut node)?;
                is_member(at)
            }
            _ => return Err(ParseFieldSetError),
        };
        set_member(&mut node, member);
        if member || !node.is_empty() {
            to.insert(element, Value::Object(node));
        }
    }
    Ok(())
}

/// Normalises a path element; `None` if its kind is unknown.
fn checked(element: &str) -> Result<Option<String>, ParseFieldSetError> {
    let bytes = element.as_bytes();
    if bytes.len() < 2 || bytes[1] != b':' {
        return Err(ParseFieldSetError);
    }
    let rest = &element[2..];
    match bytes[0] {
        b'f' => Ok(Some(element.to_owned())),
        b'i' => match rest.parse::<i64>() {
            Ok(index) => Ok(Some(format!("i:{index}"))),
            Err(_) => Err(ParseFieldSetError),
        },
        b'k' => match serde_json::from_str(rest) {
            Ok(Value::Object(keys)) => Ok(Some(format!("k:{}", Value::Object(keys)))),
            _ => Err(ParseFieldSetError),
        },
        b'v' => match serde_json::from_str::<Value>(rest) {
            Ok(value) => Ok(Some(format!("v:{value}"))),
            Err(_) => Err(ParseFieldSetError),
        },
        _ => Ok(None),
    }
}

fn unite(to: &mut Node, from: &Node) {
    for (element, at) in below(from) {
        match to.get_mut(element) {
            Some(Value::Object(node)) => {
                let member = is_member(node) || is_member(at);
                unite(node, at);
                set_member(node, member);
            }
            _ => {
                to.insert(element.clone(), Value::Object(at.clone()));
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Descendants {
    Keep,
    Remove,
}

/// Iterates over the smaller of the two: there may be thousands of managers with one field each,
/// and one change of thousands of fields.
fn subtract(from: &mut Node, what: &Node, descendants: Descendants) {
    if from.len() < what.len() {
        from.retain(|element, node| match (node, what.get(element)) {
            (Value::Object(node), Some(Value::Object(at))) if element != SELF => {
                subtract_at(node, at, descendants)
            }
            _ => true,
        });
        return;
    }
    for (element, at) in below(what) {
        let Some(Value::Object(node)) = from.get_mut(element) else { continue };
        if !subtract_at(node, at, descendants) {
            from.remove(element);
        }
    }
}

/// Subtracts from a node, and reports whether anything is left.
fn subtract_at(node: &mut Node, what: &Node, descendants: Descendants) -> bool {
    if descendants == Descendants::Remove && is_member(what) {
        return false;
    }
    let member = is_member(node) && !is_member(what);
    subtract(node, what, descendants);
    set_member(node, member);
    member || !node.is_empty()
}

fn intersect(one: &Node, other: &Node) -> Node {
    let (one, other) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    let mut common = Node::new();
    for (element, at) in below(one) {
        let Some(Value::Object(opposite)) = other.get(element) else { continue };
        let member = is_member(at) && is_member(opposite);
        let mut node = intersect(at, opposite);
        set_member(&mut node, member);
        if member || !node.is_empty() {
            common.insert(element.clone(), Value::Object(node));
        }
    }
    common
}

/// The limit on the text that [`FieldSet::paths`] returns.
const MAX_PATHS_TEXT: usize = 256 << 10;

struct Paths {
    list: Vec<String>,
    left: usize,
}

impl Paths {
    fn add(&mut self, node: &Node, prefix: &str) {
        for (element, _) in below(node).filter(|(_, at)| is_member(at)) {
            if self.left == 0 {
                return;
            }
            let path = format!("{prefix}{}", render_element(element));
            self.left = self.left.saturating_sub(path.len());
            self.list.push(path);
        }
        for (element, at) in below(node).filter(|(_, at)| !at.is_empty()) {
            if self.left == 0 {
                return;
            }
            self.add(at, &format!("{prefix}{}", render_element(element)));
        }
    }
}

/// Renders a path element for people: `.name`, `[name="c"]`, `[="v"]`, `[3]`.
pub(super) fn render_element(element: &str) -> String {
    let (kind, rest) = element.split_once(':').unwrap_or(("f", element));
    match kind {
        "k" => match serde_json::from_str(rest) {
            Ok(Value::Object(keys)) => render_keys(&keys),
            _ => format!("[{rest}]"),
        },
        "v" => format!("[={rest}]"),
        "i" => format!("[{rest}]"),
        _ => format!(".{rest}"),
    }
}

fn render_keys(keys: &Map<String, Value>) -> String {
    let keys: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
    format!("[{}]", keys.join(","))
}
