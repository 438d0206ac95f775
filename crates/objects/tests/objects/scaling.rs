//! The work for an object grows with its size, not with the square of it: every list and map of every
//! kind is made eight times longer, once with items that all differ and once with items that are all the
//! same, and goes through everything that the API server does with a body.
//!
//! Time is compared with time, by a factor that lies between linear and square growth. A machine under
//! load slows down both, so only a list that fails several times in a row is reported.

use std::time::{Duration, Instant};

use objects::FeatureGates;
use objects::apply::{self, FieldManager};
use objects::catalog::{RESOURCES, Resource};
use objects::patch;
use objects::protobuf;
use objects::rules::{self, Part, Setting};
use objects::schema::{Field, Schema, Shape, TypeId};
use objects::timestamp::Timestamp;
use serde_json::{Value, json};

const SHORT: usize = 400;
const LONG: usize = 8 * SHORT;

/// Linear work takes 8 times as long for the long list, square work 64 times.
const FACTOR: u32 = 24;

const ATTEMPTS: usize = 4;

/// Whether the items of a list differ.
#[derive(Debug, Clone, Copy)]
enum Items {
    Different,
    Same,
}

/// A list or map to make long: the fields that lead to it.
type Place = Vec<String>;

/// Finds all lists and maps below a type. Templates of pods are tried as pods.
fn places(schema: &Schema, id: TypeId, at: &Place, found: &mut Vec<Place>) {
    // No object is nested deeper than this without repeating itself.
    if at.len() > 9 {
        return;
    }
    for field in &schema.get(id).fields {
        let mut place = at.clone();
        place.push(field.name.clone());
        let mut shape = &field.shape;
        if let Shape::List(inner) | Shape::Map(inner) = shape {
            found.push(place.clone());
            shape = inner;
        }
        if let Shape::Struct(inner) = shape
            && schema.get(*inner).name != "PodTemplateSpec"
            && (at.is_empty() || schema.get(*inner).name != "ObjectMeta")
        {
            places(schema, *inner, &place, found);
        }
    }
}

/// Makes a value of a shape with all its simple fields.
fn filled(schema: &Schema, shape: &Shape, mark: usize) -> Value {
    let is_simple =
        |shape: &Shape| !matches!(shape, Shape::Struct(_) | Shape::List(_) | Shape::Map(_));
    match shape {
        Shape::Struct(id) => {
            let fields = schema.get(*id).fields.iter().filter(|field| is_simple(&field.shape));
            let entry = |field: &Field| (field.name.clone(), filled(schema, &field.shape, mark));
            Value::Object(fields.map(entry).collect())
        }
        Shape::String => json!(format!("n{mark}")),
        Shape::Bool => json!(true),
        Shape::Int32 | Shape::Int64 | Shape::IntOrString => json!(mark + 1),
        Shape::Float64 => json!(1.5),
        Shape::Quantity => json!("1"),
        Shape::Time => json!("2026-01-01T00:00:00Z"),
        Shape::MicroTime => json!("2026-01-01T00:00:00.000000Z"),
        Shape::Bytes => json!("YQ=="),
        Shape::Any | Shape::Fields => json!({"f:a": {}}),
        Shape::List(_) | Shape::Map(_) => Value::Null,
    }
}

/// Makes a value whose list or map at a place has `count` items.
fn long(schema: &Schema, shape: &Shape, place: &[String], count: usize, items: Items) -> Value {
    let mark = |at: usize| match items {
        Items::Different => at,
        Items::Same => 0,
    };
    match (shape, place.split_first()) {
        (Shape::Struct(id), Some((name, rest))) => {
            let mut made = filled(schema, shape, 0);
            let field = schema.get(*id).field(name).unwrap();
            made[name.as_str()] = long(schema, &field.shape, rest, count, items);
            made
        }
        (Shape::List(inner), None) => {
            (0..count).map(|at| filled(schema, inner, mark(at))).collect()
        }
        (Shape::Map(inner), None) => {
            let entry = |at: usize| (format!("k{at}"), filled(schema, inner, mark(at)));
            Value::Object((0..count).map(entry).collect())
        }
        (Shape::List(inner), Some(_)) => json!([long(schema, inner, place, count, items)]),
        (Shape::Map(inner), Some(_)) => json!({"k": long(schema, inner, place, count, items)}),
        (shape, _) => filled(schema, shape, 0),
    }
}

fn body(resource: &Resource, id: TypeId, place: &Place, count: usize, items: Items) -> Vec<u8> {
    let schema = Schema::served();
    let mut object = long(schema, &Shape::Struct(id), place, count, items);
    for name in ["metadata", "spec"] {
        if let (Some(field), true) = (schema.get(id).field(name), object[name].is_null()) {
            object[name] = filled(schema, &field.shape, 0);
        }
    }
    object["kind"] = json!(resource.kind);
    object["apiVersion"] = json!(resource.api_version());
    object.to_string().into_bytes()
}

/// Everything that is done with a body, whether the object is right or not.
fn work(schema: &Schema, resource: &Resource, id: TypeId, body: &[u8]) -> Option<()> {
    let gates = FeatureGates::default();
    let now = Timestamp::new(1_800_000_000, 0);
    let setting = Setting { gates: &gates, allow_privileged: true, now };
    let version = resource.api_version();
    let by = FieldManager { name: "m", subresource: "", api_version: &version };
    let mut new = schema.decode(id, body).ok()?.value;
    rules::meta::distinct_owners(&mut new);
    rules::set_defaults(resource, &mut new);
    apply::track_update(schema, id, None, &mut new, &by, now);
    rules::prepare_create(resource, &mut new, &setting);
    let _ = rules::validate_create(resource, &new, &setting);
    let _ = rules::warnings(resource, &new, None);
    let mut message = Vec::new();
    if protobuf::encode(schema, id, &new, &mut message).is_ok() {
        let _ = protobuf::decode(schema, id, &message);
    }
    for part in [Part::Main, Part::Status, Part::Resize, Part::EphemeralContainers] {
        let mut updated = schema.decode(id, body).ok()?.value;
        rules::set_defaults(resource, &mut updated);
        apply::track_update(schema, id, Some(&new), &mut updated, &by, now);
        rules::prepare_update(resource, &mut updated, &new, part, &setting);
        let _ = rules::validate_update(resource, &updated, &new, part, &setting);
        let _ = rules::warnings(resource, &updated, Some(&new));
    }
    let _ = patch::strategic(schema, id, new.clone(), body);
    let _ = patch::merge(new.clone(), body);
    let mut applied: Value = serde_json::from_slice(body).ok()?;
    applied["metadata"].as_object_mut()?.remove("managedFields");
    let other = FieldManager { name: "other", ..by };
    for force in [false, true] {
        let _ = apply::apply(schema, id, Some(&new), &applied, &other, force, now);
    }
    Some(())
}

/// The shortest of some times, which is the least disturbed one.
fn time(attempts: usize, mut work: impl FnMut()) -> Duration {
    let once = || {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    std::iter::repeat_with(once).take(attempts).min().unwrap_or_default()
}

#[test]
fn work_does_not_grow_with_the_square_of_any_list() {
    let schema = Schema::served();
    let (mut tried, mut wrong) = (0, Vec::new());
    for resource in RESOURCES {
        let Some(id) = resource.type_id(schema) else { continue };
        let mut all = Vec::new();
        places(schema, id, &Vec::new(), &mut all);
        // The metadata of all kinds is that of one.
        all.retain(|place| place[0] != "metadata" || resource.kind == "ConfigMap");
        for place in all {
            for items in [Items::Different, Items::Same] {
                let body = |count: usize| body(resource, id, &place, count, items);
                let (short, long) = (body(SHORT), body(LONG));
                let grows = || {
                    let before = time(3, || drop(work(schema, resource, id, &short)));
                    let after = time(1, || drop(work(schema, resource, id, &long)));
                    (after > before * FACTOR).then_some((before, after))
                };
                tried += 1;
                let failed: Option<Vec<_>> = std::iter::repeat_with(grows).take(ATTEMPTS).collect();
                if let Some(times) = failed {
                    let place = place.join(".");
                    wrong.push(format!("{} {place} {items:?}: {times:?}", resource.kind));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {tried}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(tried > 400, "{tried}");
}
