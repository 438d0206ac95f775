//! Any bytes as protobuf of a pod, in the envelope and without: a canonical object or an error.

#![no_main]

use libfuzzer_sys::fuzz_target;
use objects::protobuf::{self, Envelope};
use objects::schema::Schema;

fuzz_target!(|bytes: &[u8]| {
    let schema = Schema::served();
    let Some(id) = schema.find("io.k8s.api.core.v1.Pod") else { return };
    let message = Envelope::read(bytes).map_or(bytes, |envelope| envelope.message);
    let Ok(decoded) = protobuf::decode(schema, id, message) else { return };
    let again = schema.decode_value(id, decoded.value.clone()).map(|again| again.value);
    assert_eq!(again, Ok(decoded.value.clone()));
    let mut out = Vec::new();
    assert_eq!(protobuf::encode(schema, id, &decoded.value, &mut out), Ok(()));
});
