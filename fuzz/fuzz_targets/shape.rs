//! Machine descriptions in words: a machine or an error.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = planner::machine::shape::parse(text);
});
