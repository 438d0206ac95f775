use proptest::prelude::*;

use super::read::{At, Findings};
use super::*;

fn one(text: &str) -> Node {
    let (mut documents, errors) = parse(text);
    assert_eq!(errors, []);
    assert_eq!(documents.len(), 1, "{text}");
    documents.remove(0)
}

fn errors(text: &str) -> Vec<String> {
    parse(text).1.iter().map(ToString::to_string).collect()
}

#[test]
fn a_stream_gives_its_documents_and_skips_empty_ones() {
    let (documents, errors) = parse("---\na: 1\n---\n---\n# nothing\n---\nb: 2\n...\n");
    assert_eq!(errors, []);
    assert_eq!(documents.len(), 2);
    assert_eq!(documents[1].get_text("b"), Some("2"));
    assert_eq!(documents[1].get("b").unwrap().mark, Mark { line: 7, column: 4 });
}

#[test]
fn json_is_yaml() {
    let node = one("{\"a\": [1, 2.5, true, null, \"x\\u00e9\"],\n \"b\": {\"c\": \"1\"}}");
    let expected: serde_json::Value =
        serde_json::from_str("{\"a\":[1,2.5,true,null,\"x\u{e9}\"],\"b\":{\"c\":\"1\"}}").unwrap();
    assert_eq!(node.to_json(), expected);
}

#[test]
fn byte_order_mark_and_windows_line_ends_are_accepted() {
    let node = one("\u{feff}a: 1\r\nb:\r\n  - x\r\n");
    assert_eq!(node.get("b").unwrap().value, one("[x]").value_with(Mark { line: 3, column: 5 }));
}

impl Node {
    /// Returns the value with all positions set to one, for comparison.
    fn value_with(self, mark: Mark) -> Value {
        match self.value {
            Value::List(items) => {
                Value::List(items.into_iter().map(|n| Node { mark, ..n }).collect())
            }
            value => value,
        }
    }
}

#[test]
fn a_field_given_twice_is_refused_with_both_places() {
    assert_eq!(
        errors("a:\n  b: 1\n  c: 2\n  b: 3\n"),
        ["line 4, column 3: a.b: the field is given twice (first at line 2, column 3)"]
    );
}

#[test]
fn a_broken_document_does_not_hide_the_next() {
    let (documents, errors) = parse("a: [1, 2\n---\nb: 1\n---\nc: 'x\n---\n");
    assert_eq!(documents.len(), 1);
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert_eq!((errors[0].mark.line, errors[1].mark.line), (1, 6));
}

#[test]
fn aliases_and_merges_are_resolved() {
    let node = one("base: &b {x: 1, y: 2}\nitem:\n  <<: *b\n  y: 3\nlist: [*b]\n");
    assert_eq!(node.get("item").unwrap().get_text("y"), Some("3"));
    assert_eq!(node.get("item").unwrap().get_text("x"), Some("1"));
    assert_eq!(
        errors("a:\n  <<: 1\n"),
        ["line 2, column 3: a: '<<' takes a map or a list of maps"]
    );
}

#[test]
fn an_alias_bomb_is_defused() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for n in 1..12 {
        let before = format!("*a{}, ", n - 1).repeat(9);
        text += &format!("a{n}: &a{n} [{before}]\n");
    }
    let errors = errors(&text);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains("expand to more than 100000 values"), "{errors:?}");
}

#[test]
fn aliases_of_a_long_word_are_refused_by_their_length() {
    let word = "x".repeat(100_000);
    let text = |aliases: usize| format!("a: &a {word}\nb: [{}]\n", "*a,".repeat(aliases));
    assert_eq!(one(&text(40)).get("b").unwrap().to_json()[39], serde_json::json!(word));
    let errors = errors(&text(10_000));
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains("expand to more than 4194304 bytes of text"), "{errors:?}");
    // Nothing was copied after the limit, so the size of the tree is bounded by the text and the
    // limit.
    let words = |node: &Node| node.to_json().to_string().len();
    let unfolded: usize = parse(&text(10_000)).0.iter().map(words).sum();
    assert!(unfolded < 6 << 20, "{unfolded}");
}

#[test]
fn anchors_within_anchors_are_not_copied_once_for_each() {
    let anchors: String = (0..90).map(|n| format!("&a{n} [")).collect();
    let text = format!("{anchors}{}{}", "x,".repeat(10_000), "]".repeat(90));
    let errors = errors(&text);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains("expand to more than 100000 values"), "{errors:?}");
    // An anchor without an alias costs its own size.
    assert_eq!(parse(&format!("&a [{}]", "x,".repeat(50_000))).1, []);
}

#[test]
fn a_reader_can_limit_the_values_of_a_text() {
    let text = format!("[{}]", "x,".repeat(99));
    assert_eq!(parse_within(&text, 100).1, []);
    let (documents, errors) = parse_within(&text, 50);
    assert_eq!(documents, []);
    let errors: Vec<_> = errors.iter().map(|error| error.problem.to_string()).collect();
    assert_eq!(errors, ["the text has more than 50 values"]);
    // Values of aliases count too.
    let text = format!("a: &a [{}]\nb: [*a, *a]\n", "x,".repeat(50));
    assert_eq!(parse_within(&text, 200).1, []);
    assert!(!parse_within(&text, 150).1.is_empty());
}

#[test]
fn errors_are_limited_in_number_and_in_size() {
    let key = "k".repeat(1000);
    let mut text = String::new();
    for level in 0..90 {
        text += &format!("{}{key}{level}:\n", " ".repeat(level));
    }
    for _ in 0..10_000 {
        text += &format!("{}same: 1\n", " ".repeat(90));
    }
    let (_, errors) = parse(&text);
    assert_eq!(errors.len(), 200);
    let size: usize = errors.iter().map(|error| format!("{:?}", error.path).len()).sum();
    assert!(size < 4 << 20, "{size}");
}

#[test]
fn deep_nesting_is_refused_also_when_it_hides_in_aliases() {
    assert!(errors(&"[".repeat(100_000))[0].contains("not YAML"));
    let mut text = "a0: &a0 [x]\n".to_owned();
    for n in 1..5000 {
        text += &format!("a{n}: &a{n} [*a{}]\n", n - 1);
    }
    assert!(errors(&text)[0].contains("nested deeper than 100 levels"));
    assert!(errors("a: &a [*a]")[0].contains("is inside the value that it refers to"));
    let indented: String = (0..90).map(|level| format!("{}a:\n", " ".repeat(level))).collect();
    let both = format!("{indented}{}{}{}", " ".repeat(90), "[".repeat(90), "]".repeat(90));
    assert!(errors(&both)[0].contains("nested deeper than 100 levels"));
}

#[test]
fn a_megabyte_of_garbage_gets_a_short_clear_answer() {
    let garbage: String = (0..1_000_000_u32)
        .map(|n| char::from_u32(n.wrapping_mul(2_654_435_761) >> 17 & 0x7f).unwrap_or('x'))
        .collect();
    let errors = errors(&garbage);
    assert!(!errors.is_empty() && errors.len() <= 20);
    assert!(errors.iter().all(|e| e.len() < 300), "{errors:?}");
    for text in ["x".repeat(1_000_000), "- ".repeat(500_000), "{".repeat(1_000_000)] {
        let _ = parse(&text);
    }
}

#[test]
fn tags_of_other_making_are_refused() {
    assert!(errors("a: !!python/object x")[0].contains("no meaning in Kubernetes files"));
    assert_eq!(one("a: !!str 5").to_json(), serde_json::json!({"a": "5"}));
}

#[test]
fn words_resolve_as_kubernetes_reads_them() {
    let table = [
        ("12", Resolved::Number),
        ("-1.5e3", Resolved::Number),
        ("0x1F", Resolved::Number),
        (".5", Resolved::Number),
        ("1Gi", Resolved::Text),
        ("inf", Resolved::Text),
        ("yes", Resolved::Bool(true)),
        ("~", Resolved::Null),
        ("nullish", Resolved::Text),
        ("1.2.3", Resolved::Text),
    ];
    for (text, resolved) in table {
        let scalar = Scalar { text: text.to_owned(), plain: true };
        assert_eq!(scalar.resolve(), resolved, "{text}");
        assert_eq!(Scalar { plain: false, ..scalar }.resolve(), Resolved::Text);
    }
}

#[test]
fn errors_have_position_field_actual_and_expected_value() {
    let node = one("spec:\n  containers:\n  - name: 5\n    cpu: 1GB\n    mem: 010\n    n: -1\n");
    let mut findings = Findings::default();
    let root = At::root(&node);
    let spec = root.object(&mut findings).unwrap().field("spec").unwrap();
    let list = spec.object(&mut findings).unwrap().field("containers").unwrap();
    for item in list.items(&mut findings) {
        let container = item.object(&mut findings).unwrap();
        container.field("name").unwrap().text(&mut findings);
        container.field("cpu").unwrap().quantity(&mut findings);
        container.field("mem").unwrap().quantity(&mut findings);
        container.field("n").unwrap().integer(0, i64::MAX, &mut findings);
        container.refuse_unknown(&["name", "mem", "n", "cpus"], &mut findings);
    }
    let messages: Vec<_> = findings.sorted().errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        messages,
        [
            "line 3, column 11: spec.containers[0].name: expected a text; write it in quotes: \
             \"5\", found the number 5",
            "line 4, column 5: spec.containers[0].cpu: unknown field \"cpu\"; did you mean \
             \"cpus\"?",
            "line 4, column 10: spec.containers[0].cpu: \"1GB\" is not a quantity such as 500m, 2 \
             or 1Gi (did you mean \"1G\"?): quantities must match the regular expression \
             '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            "line 5, column 10: spec.containers[0].mem: expected a quantity such as 500m, 2 or \
             1Gi; YAML takes a leading zero for an octal number, write \"010\" or \"10\", found \
             the number 010",
            "line 6, column 8: spec.containers[0].n: expected a whole number, 0 or more, found \
             the number -1",
        ]
    );
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in "\\PC{0,200}") {
        for node in parse(&text).0 {
            let _ = node.to_json();
        }
    }

    #[test]
    fn no_nearly_yaml_text_makes_the_reader_panic(
        text in "([a-c]|: |\n|- |  |[\\[\\]{},&*!|>'\"#%@]|---\n|<<: |&a |\\*a){0,60}"
    ) {
        for node in parse(&text).0 {
            let _ = node.to_json();
        }
    }
}
