//! Any bytes as JSON of a pod and of a kind with a free-form field: an error, or a canonical
//! object, which decodes to itself and passes through the rules.

#![no_main]

use libfuzzer_sys::fuzz_target;
use objects::FeatureGates;
use objects::catalog;
use objects::rules::{self, RuleContext, Subresource};
use objects::schema::Schema;
use objects::timestamp::Timestamp;

fuzz_target!(|bytes: &[u8]| {
    let schema = Schema::served();
    let _ = schema.decode_any(bytes);
    let gates = FeatureGates::default();
    let ctx = RuleContext { gates: &gates, allow_privileged: true, now: Timestamp::new(0, 0) };
    for (version, kind) in [("v1", "Pod"), ("apps/v1", "ControllerRevision")] {
        let Some(resource) = catalog::of_kind(version, kind) else { continue };
        let Some(id) = resource.type_id(schema) else { continue };
        let Ok(decoded) = schema.decode(id, bytes) else { continue };
        assert!(decoded.strict.len() <= 100);
        let again = schema.decode_value(id, decoded.value.clone()).map(|again| again.value);
        assert_eq!(again, Ok(decoded.value.clone()));
        let mut object = decoded.value;
        rules::set_defaults(resource, &mut object);
        rules::prepare_create(resource, &mut object, &ctx);
        let _ = rules::validate_create(resource, &object, &ctx);
        let _ = rules::warnings(resource, &object, None);
        let _ = rules::validate_update(resource, &object, &object, Subresource::Main, &ctx);
    }
});
