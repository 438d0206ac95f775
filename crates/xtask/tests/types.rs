//! The generated structures of `objects` are those of its schema.

use objects::schema::Schema;
use xtask::files::{read, report};

#[test]
fn generated_types_are_current() {
    let stale: Vec<String> = xtask::types::generate(Schema::served())
        .into_iter()
        .filter(|(name, text)| read(&xtask::types::directory().join(name)) != *text)
        .map(|(name, _)| format!("{name} is stale; run `cargo run -p xtask -- types`"))
        .collect();
    report(&stale);
}
