//! Machine descriptions of any format: a parsed machine survives a round trip through our own
//! format.

#![no_main]

use libfuzzer_sys::fuzz_target;
use placement::machine::file::{parse, render_json, render_yaml};

fuzz_target!(|text: &str| {
    if let Ok(machine) = planner::machine::parse(text) {
        for written in [render_json(&machine), render_yaml(&machine)] {
            assert_eq!(parse(&written).ok().as_ref(), Some(&machine), "{written}");
        }
    }
});
