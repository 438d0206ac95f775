//! The textual dump of Go values that older checksums are hashes of: that of the `spew` library,
//! format `%#v`, keys sorted, pointers without addresses.
//!
//! Main type: [`Spew`], which collects the text; [`Dump`] is implemented by what can be dumped.
//! Types are printed before the fields of a structure and nowhere else, as the library does. It is
//! only as complete as the state files need.

use crate::cpuset::CpuSet;

use super::go_json::{Map, Pointer, Slice};

/// A dump in the making.
#[derive(Debug, Default)]
pub(super) struct Spew {
    text: String,
    /// The library forgets to print the next type after a nil pointer. Old files were hashed that
    /// way, so this does too.
    skip_type: bool,
}

/// A value that can be dumped, without its type.
pub(super) trait Dump {
    fn dump(&self, spew: &mut Spew);
}

/// The dump of a pointer to a structure of the given type.
pub(super) fn dump(type_name: &str, fields: &[Field<'_>]) -> String {
    let mut spew = Spew { text: format!("(*{type_name})"), skip_type: false };
    spew.structure(fields);
    spew.text
}

/// Name, type and value of a structure's field.
pub(super) type Field<'a> = (&'static str, &'static str, &'a dyn Dump);

impl Spew {
    pub(super) fn structure(&mut self, fields: &[Field<'_>]) {
        self.skip_type = false;
        self.text.push('{');
        for (n, (name, type_name, value)) in fields.iter().enumerate() {
            if n > 0 {
                self.text.push(' ');
            }
            self.text.push_str(name);
            self.text.push(':');
            if !self.skip_type {
                self.text.push('(');
                self.text.push_str(type_name);
                self.text.push(')');
            }
            value.dump(self);
        }
        self.text.push('}');
    }

    fn plain(&mut self, text: &str) {
        self.skip_type = false;
        self.text.push_str(text);
    }

    /// Items between brackets, separated by spaces.
    fn items<I>(&mut self, open: &str, items: I, dump: impl Fn(&mut Spew, I::Item))
    where
        I: Iterator,
    {
        self.plain(open);
        for (n, item) in items.enumerate() {
            if n > 0 {
                self.text.push(' ');
            }
            dump(self, item);
        }
        self.text.push(']');
    }
}

impl Dump for String {
    fn dump(&self, spew: &mut Spew) {
        spew.plain(self);
    }
}

impl Dump for u64 {
    fn dump(&self, spew: &mut Spew) {
        spew.plain(&self.to_string());
    }
}

impl Dump for i64 {
    fn dump(&self, spew: &mut Spew) {
        spew.plain(&self.to_string());
    }
}

impl<K: Dump, V: Dump> Dump for Map<K, V> {
    fn dump(&self, spew: &mut Spew) {
        match self {
            None => spew.plain("<nil>"),
            Some(map) => spew.items("map[", map.iter(), |spew, (key, value)| {
                key.dump(spew);
                spew.text.push(':');
                value.dump(spew);
            }),
        }
    }
}

impl<T: Dump> Dump for Slice<T> {
    fn dump(&self, spew: &mut Spew) {
        match self {
            None => spew.plain("<nil>"),
            Some(items) => spew.items("[", items.iter(), |spew, item| item.dump(spew)),
        }
    }
}

impl<T: Dump> Dump for Pointer<T> {
    fn dump(&self, spew: &mut Spew) {
        match self {
            None => {
                spew.plain("<nil>");
                spew.skip_type = true;
            }
            Some(value) => {
                spew.plain("<*>");
                value.dump(spew);
            }
        }
    }
}

impl Dump for CpuSet {
    fn dump(&self, spew: &mut Spew) {
        spew.structure(&[("elems", "map[int]struct {}", &Elements(self))]);
    }
}

/// The map inside a Go CPU set.
struct Elements<'a>(&'a CpuSet);

impl Dump for Elements<'_> {
    fn dump(&self, spew: &mut Spew) {
        spew.items("map[", self.0.iter(), |spew, cpu| spew.plain(&format!("{cpu}:{{}}")));
    }
}
