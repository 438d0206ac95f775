use super::*;
use crate::catalog;

#[test]
fn hashes_are_stable_and_tell_documents_apart() {
    let schema = Schema::served();
    let one = OpenApi::render(schema, catalog::RESOURCES, "v1.37.0");
    let same = OpenApi::render(schema, catalog::RESOURCES, "v1.37.0");
    let other = OpenApi::render(schema, catalog::RESOURCES, "v1.37.1");
    assert_eq!(one.v2, same.v2);
    assert_eq!(one.v3, same.v3);
    assert_ne!(one.v2.hash, other.v2.hash);
    assert_eq!(one.v2.hash.len(), 128);
}
