//! Compares schemata by meaning: the kernel rounds bandwidth, and a class may set a part of the
//! values only.
//!
//! The value itself is [`Schemata`] of the crate `classes`, which also parses and renders it.

use classes::schemata::{Control, Schemata};

/// Returns true if a group with the schemata `found` has the `wanted` values. Values that are not
/// wanted may have any value. The kernel rounds bandwidth up to multiples of `bandwidth_step`.
#[must_use]
pub fn holds(found: &Schemata, wanted: &Schemata, bandwidth_step: u64) -> bool {
    let values = wanted
        .lines
        .iter()
        .flat_map(|line| line.values.iter().map(|(id, value)| (line.control, *id, *value)));
    values.into_iter().all(|(control, id, value)| {
        let value = match control {
            Control::MemoryBandwidth => value.checked_next_multiple_of(bandwidth_step.max(1)),
            Control::Cache(..) => Some(value),
        };
        value.is_some() && found.value(control, id) == value
    })
}

/// Returns the lines of schemata in one line, for messages.
pub(super) fn one_line(schemata: &Schemata) -> String {
    schemata.to_string().trim_end().replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_kernel_and_programs_are_compared_by_meaning() {
        let parse = |text: &str| Schemata::parse(text).unwrap();
        let kernel = "    MB:0=   40;1=  100\n    L2:0=00003;1=003ff\n    L3:0=fffff;1=000f0\n";
        let check = |wanted: &str, step, expected| {
            assert_eq!(holds(&parse(kernel), &parse(wanted), step), expected, "{wanted:?}");
        };
        check("", 10, true);
        check("L3:0=fffff;1=f0\nMB:0=40\n", 10, true);
        check("MB:0=33;1=91\n", 10, true);
        check("MB:0=33;1=91\n", 1, false);
        check("L3:0=ffff\n", 10, false);
        check("L3:2=f\n", 10, false);
        check("L3CODE:0=f\n", 10, false);
        check("MB:7=18446744073709551615\n", 10, false);
        assert_eq!(one_line(&parse("L3:0=f\nMB:0=5\n")), "L3:0=f MB:0=5");
    }
}
