//! Expansion of variable references in commands and values: [`expand`], as upstream does it.
//!
//! `$(NAME)` is the variable's value, `$$` is a dollar, and other text stays. Works on bytes, because a value
//! from a secret need not be UTF-8.

use std::collections::BTreeSet;

use super::LowerError;
use lifecycle::spec::VolumeMount;

/// Replaces the references in `input`. Unknown references stay.
pub fn expand<'v>(input: &[u8], lookup: impl Fn(&[u8]) -> Option<&'v [u8]>) -> Vec<u8> {
    let mut output = Vec::with_capacity(input.len());
    let mut rest = input;
    while let Some(dollar) = rest.iter().position(|byte| *byte == b'$') {
        output.extend_from_slice(&rest[..dollar]);
        rest = &rest[dollar..];
        let name = rest.strip_prefix(b"$(").and_then(|from_name| {
            from_name.iter().position(|byte| *byte == b')').map(|end| &from_name[..end])
        });
        let length = match name {
            Some(name) => {
                let length = name.len() + b"$()".len();
                output.extend_from_slice(lookup(name).unwrap_or(&rest[..length]));
                length
            }
            None if rest.starts_with(b"$$") => {
                output.push(b'$');
                2
            }
            None => {
                // The byte after the dollar cannot start a reference.
                let length = rest.len().min(2);
                output.extend_from_slice(&rest[..length]);
                length
            }
        };
        rest = &rest[length..];
    }
    output.extend_from_slice(rest);
    output
}

/// Expands text to text.
pub fn expand_text<'v>(input: &str, lookup: impl Fn(&[u8]) -> Option<&'v [u8]>) -> String {
    String::from_utf8_lossy(&expand(input.as_bytes(), lookup)).into_owned()
}

/// Returns the sub-path of a mount: literal, or with all variables expanded.
pub fn sub_path<'v>(
    mount: &VolumeMount,
    lookup: impl Fn(&[u8]) -> Option<&'v [u8]>,
) -> Result<String, LowerError> {
    if mount.sub_path_expr.is_empty() {
        return Ok(mount.sub_path.clone());
    }
    let missing = std::cell::RefCell::new(BTreeSet::new());
    let path = expand_text(&mount.sub_path_expr, |name| {
        let value = lookup(name).filter(|value| !value.is_empty());
        if value.is_none() {
            missing.borrow_mut().insert(String::from_utf8_lossy(name).into_owned());
        }
        value
    });
    let missing = missing.into_inner();
    if missing.is_empty() {
        Ok(path)
    } else {
        Err(LowerError::SubPathExpr(missing.into_iter().collect()))
    }
}
