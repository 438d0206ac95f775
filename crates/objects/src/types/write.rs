//! Writing of fields: which are left out, and which are `null`.

/// Writes a field as the schema does.
macro_rules! entry {
    ($to:ident, $wire:literal, $value:expr) => {
        if !super::write::is_zero(&$value) {
            serde::ser::SerializeMap::serialize_entry(&mut $to, $wire, &$value)?;
        }
    };
    ($to:ident, $wire:literal, $value:expr, always) => {
        serde::ser::SerializeMap::serialize_entry(&mut $to, $wire, &$value)?;
    };
    ($to:ident, $wire:literal, $value:expr, nullable) => {
        let value = Some(&$value).filter(|value| !value.is_empty());
        serde::ser::SerializeMap::serialize_entry(&mut $to, $wire, &value)?;
    };
}
pub(super) use entry;

/// Reports whether a field has its zero value.
pub(super) fn is_zero<T: PartialEq + Default>(value: &T) -> bool {
    *value == T::default()
}
