//! Annotations of a node: four texts separated by empty lines. A parsed report survives a round
//! trip.

#![no_main]

use libfuzzer_sys::fuzz_target;
use placement::report::{ANNOTATIONS, NodeReport};

fuzz_target!(|text: &str| {
    let texts = text.split("\n\n").map(str::to_owned);
    let annotations = ANNOTATIONS.map(str::to_owned).into_iter().zip(texts).collect();
    if let Ok(Some(report)) = NodeReport::parse(&annotations) {
        let written = report.render();
        assert_eq!(NodeReport::parse(&written).ok().flatten(), Some(report), "{written:?}");
    }
});
