//! Tables for selectors. Error texts are those of kube-apiserver.

use serde_json::json;

use super::*;

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

#[test]
fn a_query_selects_by_its_requirements() {
    let check = |query: &str, pairs: &[(&str, &str)], expected: bool| {
        let selector = LabelSelector::parse(query).unwrap();
        assert_eq!(selector.matches_map(&labels(pairs)), expected, "{query:?} on {pairs:?}");
        // The written form is equivalent and is written the same again.
        let again: LabelSelector = selector.to_string().parse().unwrap();
        assert_eq!(again.to_string(), selector.to_string());
        assert_eq!(again.matches_map(&labels(pairs)), expected, "{query:?} as {selector}");
    };
    let a = &[("app", "a"), ("n", "2")];
    check("", a, true);
    check("app=a", a, true);
    check("app==a", a, true);
    check(" app = a ", a, true);
    check("app!=a", a, false);
    check("nope!=a", a, true);
    check("app", a, true);
    check("!app", a, false);
    check("!nope", a, true);
    check("app in (a,b)", a, true);
    check("app in (b,)", a, false);
    check("app in ()", a, false);
    check("app in ()", &[("app", "")], true);
    check("app in (b,,c)", &[("app", "")], true);
    check("app notin (a)", a, false);
    check("nope notin (a)", a, true);
    check("in in (in,notin)", &[("in", "notin")], true);
    check("app=", a, false);
    check("app=,n", &[("app", ""), ("n", "")], true);
    check("n>1,n<3", a, true);
    check("n>2", a, false);
    check("app>1", a, false);
    check("nope<1", a, false);
    check("app in (a),!odd,n=2", a, true);
    check("example.com/x=y", &[("example.com/x", "y")], true);
}

#[test]
fn malformed_label_queries_have_upstream_errors() {
    let check = |query: &str, expected: &str| {
        assert_eq!(LabelSelector::parse(query).unwrap_err().to_string(), expected, "{query:?}");
    };
    check(
        "n>x",
        "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, \
         the value must be an integer",
    );
    check("app in a", "unable to parse requirement: found 'a' expected: '('");
    check("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt");
    check("=a", "found '=', expected: !, identifier, or 'end of string'");
    check("app===a", "unable to parse requirement: found '=', expected: identifier");
    check("app,", "found '', expected: identifier after ','");
    check(",app", "found ',', expected: !, identifier, or 'end of string'");
    check("!", "unable to parse requirement: found '', expected: identifier");
    check("app=a b", "found 'b', expected: ',' or 'end of string'");
    check(
        "app=a/b",
        "unable to parse requirement: values[0][app]: Invalid value: \"a/b\": a valid label must be \
         an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and \
         end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used \
         for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')",
    );
    check(
        "bad_key!/x=1",
        "unable to parse requirement: found '!', expected: in, notin, =, ==, !=, gt, lt",
    );
    check(
        &format!("app={}", "x".repeat(64)),
        &format!(
            "unable to parse requirement: values[0][app]: Invalid value: \"{}\": must be no more \
             than 63 bytes",
            "x".repeat(64)
        ),
    );
    check(
        "x/y/z=1",
        "unable to parse requirement: <nil>: Invalid value: \"x/y/z\": a valid label key must \
         consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
         alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for \
         validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain \
         prefix and '/' (e.g. 'example.com/MyName')",
    );
    check("n in (0,1", "unable to parse requirement: found '', expected: ',' or ')'");
    check("n in (", "unable to parse requirement: found '', expected: ',', ')' or identifier");
    check("n in (,", "unable to parse requirement: found '', expected: ',', or identifier");
    check("!a=b", "found '=', expected: ',' or 'end of string'");
}

#[test]
fn a_structured_selector_is_all_of_its_parts() {
    let check = |selector: Value, pairs: &[(&str, &str)], expected: bool| {
        let read = LabelSelector::from_value(&selector).unwrap();
        assert_eq!(read.matches_map(&labels(pairs)), expected, "{selector} on {pairs:?}");
    };
    let a = &[("app", "a"), ("tier", "web")];
    check(json!({}), a, true);
    check(json!({"matchLabels": null}), &[], true);
    check(json!({"matchLabels": {"app": "a", "tier": "web"}}), a, true);
    check(json!({"matchLabels": {"app": "a", "tier": "db"}}), a, false);
    let expression = |operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": "app", "operator": operator, "values": values}]});
    check(expression("In", &["a", "b"]), a, true);
    check(expression("In", &["b"]), a, false);
    check(expression("NotIn", &["a"]), a, false);
    check(expression("NotIn", &["a"]), &[], true);
    check(expression("Exists", &[]), a, true);
    check(expression("DoesNotExist", &[]), &[], true);
}

#[test]
fn invalid_structured_selectors_are_rejected() {
    let check = |selector: Value, expected: &str| {
        assert_eq!(LabelSelector::from_value(&selector).unwrap_err().to_string(), expected);
    };
    let expression = |operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": "app", "operator": operator, "values": values}]});
    check(expression("Gt", &["1"]), "\"Gt\" is not a valid label selector operator");
    check(
        expression("In", &[]),
        "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty",
    );
    check(json!("app=a"), "not a label selector");
}

#[test]
fn a_selector_is_written_as_upstream_writes_it() {
    let selector = LabelSelector::from_value(&json!({
        "matchLabels": {"b": "x"},
        "matchExpressions": [
            {"key": "a", "operator": "In", "values": ["z", "y"]},
            {"key": "c", "operator": "DoesNotExist"},
        ],
    }));
    assert_eq!(selector.unwrap().to_string(), "a in (y,z),b=x,!c");
}

#[test]
fn fields_select_by_value_and_absence_is_the_empty_text() {
    let check = |query: &str, expected: bool| {
        let selector = FieldSelector::parse(query).unwrap();
        let fields = labels(&[("metadata.name", "p1"), ("odd", r"a,b=c\d")]);
        let look = |field: &str| fields.get(field).map(String::as_str);
        assert_eq!(selector.matches(look), expected, "{query:?}");
        assert_eq!(FieldSelector::parse(&selector.to_string()).unwrap(), selector);
    };
    check("", true);
    check("metadata.name=p1", true);
    check("metadata.name==p1,", true);
    check("metadata.name!=p1", false);
    check("metadata.name=p1,status.phase!=Running", true);
    check("status.phase=", true);
    check(r"metadata.name=p1\,x", false);
    check(r"odd=a\,b\=c\\d", true);
    assert_eq!(FieldSelector::parse("a=b,a!=c").unwrap().requires_exactly("a"), Some("b"));
}

#[test]
fn malformed_field_queries_have_upstream_errors() {
    let check = |query: &str, expected: &str| {
        assert_eq!(FieldSelector::parse(query).unwrap_err().to_string(), expected, "{query:?}");
    };
    let not_understood = |query: &str| {
        check(query, &format!("invalid selector: '{query}'; can't understand '{query}'"));
    };
    not_understood("metadata.name");
    not_understood("metadata.name in (p1)");
    not_understood("status.phase>Running");
    check("b=1,a", "invalid selector: 'b=1,a'; can't understand 'a'");
    check(r"a=b\c", r"invalid field selector: invalid escape sequence: \c");
    check(r"a=b\", r"invalid field selector: invalid escape sequence: \");
    check("a=b=c", "invalid field selector: unescaped character in value: 61");
}

#[test]
fn a_node_selector_is_one_of_its_terms() {
    let check = |terms: Value, expected: bool| {
        let selector: NodeSelector =
            serde_json::from_value(json!({"nodeSelectorTerms": terms})).unwrap();
        let node = labels(&[("zone", "z1"), ("gen", "5")]);
        let got = selector.matches("n1", |key| node.get(key).map(String::as_str));
        assert_eq!(got, expected, "{terms}");
    };
    let label = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
    let field = |operator: &str, values: &[&str]| json!({"matchFields": [{"key": "metadata.name", "operator": operator, "values": values}]});
    check(json!([]), false);
    check(json!([{}]), false);
    check(json!([{}, label("zone", "In", &["z1"])]), true);
    check(json!([label("zone", "NotIn", &["z1"])]), false);
    check(json!([label("nope", "NotIn", &["z1"])]), true);
    check(json!([label("gen", "Gt", &["4"])]), true);
    check(json!([label("gen", "Lt", &["5"])]), false);
    check(json!([label("zone", "Gt", &["4"])]), false);
    check(json!([label("zone", "Exists", &[])]), true);
    check(json!([label("zone", "DoesNotExist", &[])]), false);
    check(json!([label("zone", "Like", &["z"])]), false);
    check(json!([label("gen", "Gt", &["4", "5"])]), false);
    check(json!([field("In", &["n1"])]), true);
    check(json!([field("NotIn", &["n1"])]), false);
    check(json!([field("In", &["n1", "n2"])]), false);
    check(json!([field("Exists", &[])]), false);
}
