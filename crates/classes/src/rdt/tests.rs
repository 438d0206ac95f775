//! Cache ids, and the worked examples of goresctrl's documentation.

use super::*;

#[test]
fn cache_id_lists_are_ranges() {
    let list = CacheIdList::parse("0,2-300").unwrap();
    let contained = [0, 1, 2, 300, 301].map(|id| list.contains(CacheId(id)));
    assert_eq!(contained, [true, false, true, true, false]);
    for text in ["x", "1-1", "-1", "2-1", "1,", "99999999999999999999"] {
        assert!(CacheIdList::parse(text).is_err(), "{text}");
    }
}
