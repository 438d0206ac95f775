//! Applies an object to a pod: it is merged or rejected, and applying it again changes nothing.
//! Sets of fields survive a round trip.

#![no_main]

use libfuzzer_sys::fuzz_target;
use objects::apply::{FieldManager, FieldSet, apply, track_update};
use objects::schema::Schema;
use objects::timestamp::Timestamp;
use serde_json::{Value, json};

const BY: FieldManager<'_> = FieldManager { name: "m", subresource: "", api_version: "v1" };

fuzz_target!(|text: &[u8]| {
    let Ok(given) = serde_json::from_slice::<Value>(text) else { return };
    if let Ok(set) = FieldSet::parse(&given) {
        assert_eq!(FieldSet::parse(&set.clone().into_value()), Ok(set));
    }
    let schema = Schema::served();
    let Some(id) = schema.find("io.k8s.api.core.v1.Pod") else { return };
    let now = Timestamp::new(0, 0);
    let mut live = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "1"}},
        "spec": {"containers": [{"name": "a", "image": "i"}]}, "status": {},
    });
    track_update(schema, id, None, &mut live, &FieldManager { name: "u", ..BY }, now);
    let mut config = json!({"apiVersion": "v1", "kind": "Pod"});
    if let (Value::Object(config), Value::Object(given)) = (&mut config, given) {
        config.extend(given);
    }
    if let Ok(merged) = apply(schema, id, Some(&live), &config, &BY, true, now) {
        let again = apply(schema, id, Some(&merged), &config, &BY, false, now);
        assert!(again.is_ok());
        if let Ok(mut decoded) = schema.decode_value(id, merged) {
            track_update(schema, id, Some(&live), &mut decoded.value, &BY, now);
        }
    }
});
