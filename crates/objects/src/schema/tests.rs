use serde_json::json;

use super::*;

#[test]
fn the_served_schema_can_be_read() {
    Schema::parse(TEXTS).unwrap();
}

const SMALL: &str = "\
package io.k8s.api.core.v1
type Thing kind=Thing : A thing.
  size      1 quantity       : How big.
  limits    2 {quantity}     : Bounds.
  parts     3 [Part]! map=name merge=name : What it is made of.
  state     4 State          : Always there.
  more      5 *State         : Only if given.
  at        6 *time          : When.
  seen      7 time           : Null when unset.
  flag    8.1 bool
  sure    8.2 *bool
type Part
  name      1 string! : Its name.
      And more of it.
  count     2 int32
  port      3 *int-or-string
type State
  phase     1 string enum=On|Off
  raw       - any
";

fn small() -> (Schema, TypeId) {
    let schema = Schema::parse(&[("small.api", SMALL)]).unwrap();
    let id = schema.find("io.k8s.api.core.v1.Thing").unwrap();
    (schema, id)
}

fn decoded(json: &Value) -> Result<Decoded, DecodeError> {
    let (schema, id) = small();
    let from_bytes = schema.decode(id, json.to_string().as_bytes());
    let from_value = schema.decode_value(id, json.clone());
    assert_eq!(from_bytes, from_value);
    from_bytes
}

#[test]
fn schema_errors_have_positions() {
    for (text, expected) in [
        ("type", "x.api:1: a type needs a name"),
        ("type A\n  a", "x.api:2: a field needs a name, a protobuf number and a type"),
        ("type A\n  a string", "x.api:2: a field needs a name, a protobuf number and a type"),
        ("type A\n  a 1 strin", "x.api:2: a: no type \"strin\""),
        ("type A\n  a 1 string loud", "x.api:2: a: unknown flag \"loud\""),
        ("type A\n  a 1 string\n  a 2 string", "x.api:1: the field \"a\" is defined twice"),
        ("type A\n  a 1 string\n  b 1 bool", "x.api:1: b: the number 1 is taken twice"),
        ("type A\n  a 2.1 string\n  b 2.1 bool", "x.api:1: b: the number 1 is taken twice"),
        ("type A\n  a 2.1 string\n  b 2 bool", "x.api:1: b: the number 2 is taken twice"),
        (
            "type A\n  a string! atomic",
            "x.api:2: a: \"string!\" is no protobuf number: give 17, 2.17 for an embedded field, or -",
        ),
        (
            "type A\n  a 0 string",
            "x.api:2: a: \"0\" is no protobuf number: give 17, 2.17 for an embedded field, or -",
        ),
        ("type A\ntype A", "x.api:2: the type is defined twice"),
        ("nonsense", "x.api:1: neither `package` nor `type`"),
    ] {
        assert_eq!(Schema::parse(&[("x.api", text)]).unwrap_err().to_string(), expected);
    }
}

#[test]
fn values_take_the_form_go_would_write() {
    let given = json!({
        "kind": "Thing", "size": 1.5, "limits": {"cpu": "1000m"}, "parts": [{"name": "a", "count": 0, "port": 0}],
        "more": {}, "at": "2026-01-01T02:00:00+01:00", "flag": false, "sure": false,
    });
    let wanted = json!({
        "kind": "Thing", "size": "1500m", "limits": {"cpu": "1"}, "parts": [{"name": "a", "port": 0}],
        "state": {}, "more": {}, "at": "2026-01-01T01:00:00Z", "seen": null, "sure": false,
    });
    assert_eq!(decoded(&given), Ok(Decoded { value: wanted.clone(), strict: vec![] }));
    assert_eq!(decoded(&wanted), Ok(Decoded { value: wanted, strict: vec![] }));
    let empty = json!({"parts": null, "state": {}, "seen": null});
    assert_eq!(decoded(&json!({})).unwrap().value, empty);
    assert_eq!(decoded(&Value::Null).unwrap().value, empty);
}

#[test]
fn unknown_and_repeated_fields_are_dropped_and_named_in_order() {
    let (schema, id) = small();
    let text =
        br#"{"flag":true,"x":1,"x":{"y":2},"parts":[{"name":"a","z":0,"name":"b"}],"flag":true,
                    "limits":{"cpu":"1","cpu":"2"},"state":{"raw":{"q":1,"q":2}}}"#;
    let decoded = schema.decode(id, text).unwrap();
    assert_eq!(
        decoded.strict,
        [
            r#"unknown field "x""#,
            r#"unknown field "parts[0].z""#,
            r#"duplicate field "parts[0].name""#,
            r#"duplicate field "flag""#,
            r#"duplicate field "limits.cpu""#,
        ]
    );
    let wanted = json!({
        "flag": true, "parts": [{"name": "b"}], "limits": {"cpu": "2"}, "state": {"raw": {"q": 2}}, "seen": null,
    });
    assert_eq!(decoded.value, wanted);
}

#[test]
fn wrong_types_name_the_field_and_the_type() {
    for (given, expected) in [
        (
            json!({"flag": "yes"}),
            "cannot unmarshal string into Go struct field Thing.flag of type bool",
        ),
        (
            json!({"parts": [{"name": "a", "count": "1"}]}),
            "cannot unmarshal string into Go struct field Part.parts.count of type int32",
        ),
        (
            json!({"parts": [{"count": 3_000_000_000_i64}]}),
            "cannot unmarshal number 3000000000 into Go struct field Part.parts.count of type int32",
        ),
        (
            json!({"parts": {}}),
            "cannot unmarshal object into Go struct field Thing.parts of type []v1.Part",
        ),
        (
            json!({"limits": ["a"]}),
            "cannot unmarshal array into Go struct field Thing.limits of type map[string]resource.Quantity",
        ),
    ] {
        assert_eq!(decoded(&given).unwrap_err().to_string(), format!("json: {expected}"));
    }
    let wrong = decoded(&json!({"size": "big"})).unwrap_err();
    assert!(matches!(wrong, DecodeError::Value { ref path, .. } if path == "size"), "{wrong:?}");
}
