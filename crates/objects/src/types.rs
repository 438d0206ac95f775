//! The served types as Rust structures: [`Pod`], [`Node`] and the other kinds that components read.
//!
//! `core_v1` and the other modules named after API groups are generated from `api/*.api` by
//! `cargo run -p xtask -- types`; a test of `xtask` checks that they are current. Readers accept
//! objects of any API server: unknown fields are skipped, and `null` is the same as absent. Writers
//! produce the canonical form of [`crate::schema`]. Defaults and validation are in [`crate::rules`].
//!
//! A field is an `Option` where Go has a pointer, and boxed if it points to a structure. Other
//! fields have their zero value when absent. `metadata.managedFields` is left out: it is the largest
//! part of many objects, and only the API server uses it.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::quantity::Quantity;
use crate::resources::ResourceList;

mod read;
mod scalar;
mod write;

pub mod apps_v1;
pub mod coordination_v1;
pub mod core_v1;
pub mod meta_v1;
pub mod policy_v1;

pub use apps_v1::*;
pub use coordination_v1::*;
pub use core_v1::*;
pub use meta_v1::*;
pub use policy_v1::*;
pub use scalar::{Base64, IntOrString, MicroTime, Time};

/// An object of the API in any form, with the metadata that identifies one of its states.
pub trait Object {
    fn namespace(&self) -> &str;
    fn name(&self) -> &str;
    fn resource_version(&self) -> &str;
}

impl Object for Value {
    fn namespace(&self) -> &str {
        self["metadata"]["namespace"].as_str().unwrap_or_default()
    }

    fn name(&self) -> &str {
        self["metadata"]["name"].as_str().unwrap_or_default()
    }

    fn resource_version(&self) -> &str {
        self["metadata"]["resourceVersion"].as_str().unwrap_or_default()
    }
}

/// Declares structures with their readers and writers. After `=>` are the name of the field in JSON and
/// other spellings that are read. Fields marked `always` are written even if they are zero, those marked
/// `nullable` as `null` if they are empty.
macro_rules! objects {
    ($(
        $(#[$doc:meta])*
        pub struct $name:ident $(: $object:ident)? {
            $($field:ident: $type:ty => $wire:literal $(| $alias:literal)* $($presence:ident)?,)*
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Default)]
        pub struct $name {
            $(pub $field: $type,)*
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<$name, D::Error> {
                struct Fields;

                impl<'de> serde::de::Visitor<'de> for Fields {
                    type Value = $name;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str(concat!("an object of type ", stringify!($name)))
                    }

                    fn visit_map<A: serde::de::MapAccess<'de>>(
                        self,
                        mut entries: A,
                    ) -> Result<$name, A::Error> {
                        let mut object = $name::default();
                        while let Some(name) = entries.next_key::<super::read::FieldName<'de>>()? {
                            match name.as_str() {
                                $($wire $(| $alias)* => {
                                    object.$field = super::read::value(&mut entries)?;
                                })*
                                _ => super::read::skip(&mut entries)?,
                            }
                        }
                        Ok(object)
                    }
                }

                from.deserialize_map(Fields)
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                let mut entries = serde::Serializer::serialize_map(to, None)?;
                $(super::write::entry!(entries, $wire, self.$field $(, $presence)?);)*
                serde::ser::SerializeMap::end(entries)
            }
        }

        $(impl super::$object for $name {
            fn namespace(&self) -> &str {
                &self.metadata.namespace
            }

            fn name(&self) -> &str {
                &self.metadata.name
            }

            fn resource_version(&self) -> &str {
                &self.metadata.resource_version
            }
        })?
    )*};
}
use objects;

/// The metadata of an object of any kind.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Deserialize)]
pub struct PartialObjectMetadata {
    #[serde(default)]
    pub metadata: ObjectMeta,
}

impl Object for PartialObjectMetadata {
    fn namespace(&self) -> &str {
        &self.metadata.namespace
    }

    fn name(&self) -> &str {
        &self.metadata.name
    }

    fn resource_version(&self) -> &str {
        &self.metadata.resource_version
    }
}

#[cfg(test)]
mod tests;
