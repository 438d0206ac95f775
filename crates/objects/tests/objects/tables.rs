//! Tables of recorded objects, compared with the recorded tables: columns without descriptions,
//! cells, row conditions and the objects of rows.

use objects::table::{self, IncludeObject, TableOptions, TableVersion};
use serde_json::Value;

use crate::recorded::{self, Kept, Step};

#[test]
fn recorded_tables_come_out_the_same() {
    let mut compared = 0;
    for scenario in recorded::scenarios(&["table/"]) {
        let mut kept = Kept::default();
        for step in &scenario.steps {
            let expected = &step.response.body;
            if expected["kind"] == "Table"
                && step.request.method == "GET"
                && let Some(made) = make(&kept, step)
            {
                check(&format!("{} {}", scenario.id, step.request.path), &made, expected);
                compared += 1;
            }
            kept.learn(step);
        }
    }
    assert!(compared >= 44, "{compared}");
}

fn make(kept: &Kept, step: &Step) -> Option<Value> {
    let target = recorded::target(&step.request.path)?;
    let accept = step.request.headers["Accept"].as_str().unwrap_or_default();
    let include = step.request.query["includeObject"].as_str().unwrap_or_default();
    let form = TableOptions {
        version: if accept.contains("v=v1beta1") {
            TableVersion::V1Beta1
        } else {
            TableVersion::V1
        },
        include: IncludeObject::parse(include).unwrap(),
        with_columns: true,
    };
    let now = recorded::recorded_at().plus_seconds(7);
    Some(match target.name {
        Some(_) => table::of_object(target.resource, kept.get(&target)?, form, now),
        None => {
            let mut items = kept.list(&target, &step.request.query);
            if step.request.query["limit"] == "1" {
                items.truncate(1);
            }
            let meta = step.response.body["metadata"].clone();
            table::of_list(target.resource, meta, items, form, now)
        }
    })
}

fn check(at: &str, made: &Value, expected: &Value) {
    for field in ["kind", "apiVersion", "metadata"] {
        assert_eq!(made[field], expected[field], "{at}: {field}");
    }
    assert_eq!(columns(made), columns(expected), "{at}");
    let rows = |table: &Value| table["rows"].as_array().cloned().unwrap_or_default();
    let (made, expected) = (rows(made), rows(expected));
    assert_eq!(made.len(), expected.len(), "{at}");
    for (made, expected) in made.iter().zip(&expected) {
        assert_eq!(made["conditions"], expected["conditions"], "{at}");
        assert_eq!(made["object"], expected["object"], "{at}");
        let cells = |row: &Value| row["cells"].as_array().cloned().unwrap_or_default();
        let (made, expected) = (cells(made), cells(expected));
        assert_eq!(made.len(), expected.len(), "{at}");
        for (made, expected) in made.iter().zip(&expected) {
            assert!(is_same(made, expected), "{at}: {made} instead of {expected}");
        }
    }
}

fn columns(table: &Value) -> Vec<Value> {
    let mut columns = table["columnDefinitions"].as_array().cloned().unwrap_or_default();
    for column in &mut columns {
        column.as_object_mut().unwrap().remove("description");
    }
    columns
}

/// Equal except for ages.
fn is_same(made: &Value, expected: &Value) -> bool {
    let expected_text = expected.as_str().unwrap_or_default();
    let Some((before, after)) = expected_text.split_once("<age>") else {
        return made == expected;
    };
    let age = made.as_str().and_then(|t| t.strip_prefix(before)?.strip_suffix(after));
    age.is_some_and(|age| age.starts_with(|c: char| c.is_ascii_digit()))
}
