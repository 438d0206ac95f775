//! Patches of the three forms on a pod: an object or an error.

#![no_main]

use libfuzzer_sys::fuzz_target;
use objects::patch;
use objects::schema::Schema;
use serde_json::{Value, json};

fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "labels": {"a": "1"}, "finalizers": ["x/a", "x/b"]},
        "spec": {
            "containers": [{"name": "a", "ports": [{"containerPort": 80, "protocol": "TCP"}]}, {"name": "b"}],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "tolerations": [{"key": "k"}],
        },
    })
}

fuzz_target!(|text: &[u8]| {
    let schema = Schema::served();
    let Some(id) = schema.find("io.k8s.api.core.v1.Pod") else { return };
    for patched in [
        patch::json(pod(), text),
        patch::merge(pod(), text),
        patch::strategic(schema, id, pod(), text),
    ] {
        if let Ok(patched) = patched {
            let _ = schema.decode_value(id, patched.value);
        }
    }
});
