//! Checks that an applied object fits the schema: unknown fields, wrong types, list items with
//! equal keys. Texts are upstream's. Validation of values is elsewhere.

use serde_json::Value;

use super::set::render_element;
use super::walk::{Granularity, TypeRef, Walker};
use crate::go;
use crate::schema::{Ownership, Shape, TypeId};

impl<'s> Walker<'s> {
    /// Returns all problems of an applied object as one text.
    pub(super) fn check(self, id: TypeId, object: &Value) -> Result<(), String> {
        let shape = Shape::Struct(id);
        let mut checker = Checker {
            walker: Walker { schema: self.schema },
            path: String::new(),
            found: Vec::new(),
            left: MAX_TEXT,
        };
        checker.check(TypeRef::inner(&shape), object);
        match checker.found.as_slice() {
            [] => Ok(()),
            [one] => Err(one.clone()),
            several => Err(format!("errors:\n  {}", several.join("\n  "))),
        }
    }
}

struct Checker<'s> {
    walker: Walker<'s>,
    path: String,
    found: Vec<String>,
    /// The number of bytes that may still be added.
    left: usize,
}

/// The limit on the returned text. Each problem repeats the path to it.
const MAX_TEXT: usize = 256 << 10;

impl<'s> Checker<'s> {
    fn wrong(&mut self, what: &str) {
        if self.left > 0 {
            let problem = format!("{}: {what}", self.path);
            self.left = self.left.saturating_sub(problem.len());
            self.found.push(problem);
        }
    }

    fn below(&mut self, step: &str, type_ref: TypeRef<'s>, value: &Value) {
        let length = self.path.len();
        self.path.push_str(step);
        self.check(type_ref, value);
        self.path.truncate(length);
    }

    fn check(&mut self, type_ref: TypeRef<'s>, value: &Value) {
        if value.is_null() {
            return;
        }
        match type_ref.shape {
            Shape::Struct(id) => {
                let type_ = self.walker.schema.get(*id);
                let Value::Object(map) = value else { return self.expected("map", value) };
                for (name, value) in map {
                    let step = format!(".{name}");
                    match type_.field(name) {
                        Some(field) => self.below(&step, TypeRef::field(field), value),
                        None => {
                            self.path.push_str(&step);
                            self.wrong("field not declared in schema");
                            self.path.truncate(self.path.len() - step.len());
                            // Upstream does not check the rest of this map.
                            return;
                        }
                    }
                }
            }
            Shape::Map(inner) => {
                let Value::Object(map) = value else { return self.expected("map", value) };
                for (name, value) in map {
                    self.below(&format!(".{name}"), TypeRef::inner(inner), value);
                }
            }
            Shape::List(item) => {
                let Value::Array(items) = value else { return self.expected("list", value) };
                self.check_items(type_ref, item, value, items);
            }
            Shape::String | Shape::Bytes if !value.is_string() => {
                let shown = go::syntax(value);
                self.wrong(&format!(
                    "expected string, got &value.valueUnstructured{{Value:{shown}}}"
                ));
            }
            Shape::Bool if !value.is_boolean() => self.expected("boolean", value),
            Shape::Int32 | Shape::Int64 | Shape::Float64 if !value.is_number() => {
                self.wrong(&format!(
                    "expected numeric (int or float), got {}",
                    go::type_name(value)
                ));
            }
            Shape::Quantity | Shape::IntOrString | Shape::Time | Shape::MicroTime
                if value.is_object() || value.is_array() =>
            {
                self.expected("any scalar", value);
            }
            _ => {}
        }
    }

    fn check_items(
        &mut self,
        type_ref: TypeRef<'s>,
        item: &'s Shape,
        list: &Value,
        items: &[Value],
    ) {
        let granularity = match type_ref.ownership {
            Ownership::Set | Ownership::Map(_) => self.walker.granularity(type_ref, list),
            _ => Granularity::Leaf,
        };
        let mut seen = std::collections::HashSet::new();
        for (index, value) in items.iter().enumerate() {
            let step = match granularity {
                Granularity::Set | Granularity::Keyed(..) => {
                    match self.walker.try_element(granularity, value) {
                        Ok(element) => {
                            let step = render_element(&element);
                            if !seen.insert(element) {
                                self.wrong(&format!("duplicate entries for key {step}"));
                            }
                            step
                        }
                        Err(what) => return self.wrong(&format!("element {index}: {what}")),
                    }
                }
                _ => format!("[{index}]"),
            };
            self.below(&step, TypeRef::inner(item), value);
        }
    }

    fn expected(&mut self, wanted: &str, found: &Value) {
        self.wrong(&format!("expected {wanted}, got &{{{}}}", go::value(found)));
    }
}
