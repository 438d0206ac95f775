//! Unvalidated objects: the scheduler may reject them, but must not panic.

use proptest::prelude::*;
use scheduling::{Scheduler, Settings, Tie};
use serde_json::{Value, json};

use crate::worlds;

fn odd() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        Value::Null,
        json!(0),
        json!(-1),
        json!(i64::MAX),
        json!(i64::MIN),
        json!(i32::MAX),
        json!(i32::MIN),
        json!(u64::MAX),
        json!(1.5),
        json!(""),
        json!("9223372036854775807"),
        json!("-9223372036854775808"),
        json!("9E18"),
        json!("-3"),
        json!("1e-9"),
        json!("\u{0}\u{1F980}"),
        json!("kubernetes.io/hostname"),
        json!("Exists"),
        json!([]),
        json!([null]),
        json!({}),
        json!({"x": {}}),
        json!(true),
    ])
}

/// Returns the number of values in a tree.
fn size(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(fields) => fields.values().map(size).sum(),
        _ => 0,
    }
}

/// Replaces one value by another.
fn replace(value: &mut Value, at: &mut usize, with: &Value) {
    if *at == 0 {
        *value = with.clone();
        *at = usize::MAX;
        return;
    }
    *at -= 1;
    match value {
        Value::Array(items) => items.iter_mut().for_each(|v| replace(v, at, with)),
        Value::Object(fields) => fields.values_mut().for_each(|v| replace(v, at, with)),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn invalid_objects_do_not_panic(
        nodes in prop::collection::vec(worlds::node(), 1..5),
        pods in prop::collection::vec(worlds::pod(), 1..8),
        oddities in prop::collection::vec((0..200usize, 0..1000usize, odd()), 0..12),
    ) {
        let mut objects: Vec<Value> = nodes.into_iter().chain(pods.iter().cloned()).collect();
        let first_pod = objects.len() - pods.len();
        for (n, object) in objects.iter_mut().enumerate() {
            object["metadata"]["name"] = format!("o{n}").into();
            if n > first_pod && n % 2 == 0 {
                object["spec"]["nodeName"] = "o0".into();
            }
        }
        for (which, at, with) in &oddities {
            let count = objects.len();
            let object = &mut objects[which % count];
            let mut at = at % size(object);
            replace(object, &mut at, with);
        }
        let settings = Settings { qos_resources: true, class_score_weight: 1, ..Settings::default() };
        let mut scheduler = Scheduler::new(&settings).unwrap();
        for (n, object) in objects.iter().enumerate() {
            // A rejection is a valid result.
            if n < first_pod {
                let _ = scheduler.cluster_mut().apply_node(object);
            } else {
                let _ = scheduler.cluster_mut().apply_pod(object);
                for namespace in ["default", "other", ""] {
                    if let Ok(explained) =
                        scheduler.explain(&format!("{namespace}/o{n}"), Tie::Seed(n as u64))
                    {
                        scheduler.adopt(&explained.attempt);
                    }
                }
            }
        }
        for n in 0..objects.len() {
            scheduler.cluster_mut().remove_node(&format!("o{n}"));
            scheduler.cluster_mut().remove_pod(&format!("default/o{n}"));
        }
    }
}
