//! Field numbers of Kubernetes' protobuf: [`Number`] of a field, [`Wire`] of a type.
//!
//! Numbers are upstream's up to v1.36. Our own QoS-class fields start at 1000, fields that upstream
//! added later with unknown numbers at 2000; a type reached only through such a field starts at 1.
//! [`crate::protobuf`] reads and writes messages.

use super::Field;

/// The number of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Number {
    /// Not in protobuf: `kind` and `apiVersion` travel in the envelope.
    Nowhere,
    Own(u32),
    /// `2.17`: Go embeds a structure, whose fields are those of the outer one in JSON and a
    /// separate message in protobuf.
    Within(u32, u32),
}

/// The largest number protobuf allows.
const LARGEST: u32 = (1 << 29) - 1;

impl Number {
    /// Reads `17`, `2.17` or `-`.
    pub(super) fn parse(text: &str) -> Result<Number, String> {
        let wrong =
            || format!("{text:?} is no protobuf number: give 17, 2.17 for an embedded field, or -");
        let one = |text: &str| match text.parse::<u32>() {
            Ok(number @ 1..=LARGEST) => Ok(number),
            _ => Err(wrong()),
        };
        match text.split_once('.') {
            _ if text == "-" => Ok(Number::Nowhere),
            Some((outer, inner)) => Ok(Number::Within(one(outer)?, one(inner)?)),
            None => one(text).map(Number::Own),
        }
    }
}

/// The fields of a type by number. Fields are indexes into [`super::Type::fields`].
#[derive(Debug, Clone, Default)]
pub struct Wire {
    slots: Vec<(u32, Slot)>,
}

#[derive(Debug, Clone)]
pub(crate) enum Slot {
    Field(usize),
    /// A message whose fields belong to the outer type.
    Embedded(Wire),
}

impl Wire {
    /// Sorts fields by number, or returns the number that is used twice.
    pub(super) fn of(fields: &[Field]) -> Result<Wire, String> {
        let mut wire = Wire::default();
        for (place, field) in fields.iter().enumerate() {
            let put = match field.number {
                Number::Nowhere => Ok(()),
                Number::Own(number) => wire.put(number, place),
                Number::Within(outer, inner) => wire.embedded(outer, inner, place),
            };
            put.map_err(|number| format!("{}: the number {number} is taken twice", field.name))?;
        }
        Ok(wire)
    }

    fn put(&mut self, number: u32, place: usize) -> Result<(), u32> {
        match self.slots.binary_search_by_key(&number, |slot| slot.0) {
            Ok(_) => Err(number),
            Err(at) => {
                self.slots.insert(at, (number, Slot::Field(place)));
                Ok(())
            }
        }
    }

    fn embedded(&mut self, outer: u32, inner: u32, place: usize) -> Result<(), u32> {
        match self.slots.binary_search_by_key(&outer, |slot| slot.0) {
            Ok(at) => match &mut self.slots[at].1 {
                Slot::Embedded(wire) => wire.put(inner, place),
                Slot::Field(_) => Err(outer),
            },
            Err(at) => {
                let mut wire = Wire::default();
                wire.put(inner, place)?;
                self.slots.insert(at, (outer, Slot::Embedded(wire)));
                Ok(())
            }
        }
    }

    pub(crate) fn slot(&self, number: u32) -> Option<&Slot> {
        let found = self.slots.binary_search_by_key(&number, |slot| slot.0);
        found.ok().map(|at| &self.slots[at].1)
    }
}
