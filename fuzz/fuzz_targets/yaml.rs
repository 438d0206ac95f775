//! Any text as YAML: trees whose size is bounded by the text and by the alias limits, or errors
//! with their locations.

#![no_main]

use libfuzzer_sys::fuzz_target;
use objects::yaml::{self, Node, Value};

fn count(node: &Node) -> usize {
    1 + match &node.value {
        Value::Scalar(_) => 0,
        Value::List(items) => items.iter().map(count).sum(),
        Value::Map(entries) => entries.iter().map(|entry| count(&entry.value)).sum(),
    }
}

fuzz_target!(|text: &str| {
    let (documents, errors) = yaml::parse(text);
    assert!(documents.iter().map(count).sum::<usize>() <= text.len() + 100_001);
    assert!(errors.len() <= 200);
    for document in &documents {
        let _ = document.to_json();
    }
    let (documents, errors) = yaml::parse_within(text, 10);
    assert!(documents.iter().map(count).sum::<usize>() <= 10 || !errors.is_empty());
});
