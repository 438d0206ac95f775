//! Quantities: a parsed quantity survives a round trip.

#![no_main]

use libfuzzer_sys::fuzz_target;
use objects::Quantity;

fuzz_target!(|text: &str| {
    if let Ok(quantity) = Quantity::parse(text) {
        assert_eq!(Quantity::parse(&quantity.to_string()).as_ref(), Ok(&quantity));
    }
});
