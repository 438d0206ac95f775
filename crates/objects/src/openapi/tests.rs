use super::*;
use crate::catalog;

fn rendered(version: &str) -> OpenApi {
    OpenApi::render(Schema::served(), catalog::RESOURCES, version)
}

#[test]
fn hashes_are_stable_and_differ_between_documents() {
    let one = rendered("v1.37.0");
    assert_eq!(one.v2, rendered("v1.37.0").v2);
    assert_eq!(one.v3, rendered("v1.37.0").v3);
    assert_ne!(one.v2.hash, rendered("v1.37.1").v2.hash);
    assert_eq!(one.v2.hash.len(), 128);
    assert!(Document::new(b"abc".to_vec()).hash.starts_with("DDAF35A193617ABACC417349AE204131"));
}

/// The fields of a protobuf message that have a length, by number.
fn fields(mut message: &[u8]) -> Vec<(u64, &[u8])> {
    fn varint(message: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = message.split_first().unwrap();
            *message = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    }
    let mut found = Vec::new();
    while !message.is_empty() {
        let tag = varint(&mut message);
        let value = varint(&mut message);
        if tag & 7 == 2 {
            let (bytes, rest) = message.split_at(usize::try_from(value).unwrap());
            found.push((tag >> 3, bytes));
            message = rest;
        }
    }
    found
}

/// Returns all values of a path of field numbers.
fn at<'a>(message: &'a [u8], path: &[u64]) -> Vec<&'a [u8]> {
    let Some((first, rest)) = path.split_first() else {
        return vec![message];
    };
    let here = fields(message).into_iter().filter(|(number, _)| number == first);
    here.flat_map(|(_, value)| at(value, rest)).collect()
}

fn text(message: &[u8], path: &[u64]) -> Vec<String> {
    at(message, path).iter().map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()).collect()
}

/// Returns the value of an entry, in a message whose entries are in a field.
fn entry<'a>(message: &'a [u8], path: &[u64], name: &str) -> &'a [u8] {
    let entries = at(message, path);
    let found = entries.iter().find(|entry| text(entry, &[1]) == [name]);
    at(found.unwrap(), &[2])[0]
}

#[test]
fn the_protobuf_form_has_what_kubectl_looks_for() {
    let documents = rendered("v1.37.0");
    let json: Value = serde_json::from_slice(&documents.v2.body).unwrap();
    let document = &documents.v2_protobuf.body;
    assert_eq!(text(document, &[1]), ["2.0"]);
    assert_eq!(text(document, &[2, 2]), ["v1.37.0"]);
    let names = |key: &str| json[key].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(text(document, &[8, 2, 1]), names("paths"));
    assert_eq!(text(document, &[9, 1, 1]), names("definitions"));
    assert_eq!(text(document, &[10, 1, 1]), names("parameters"));

    let item = entry(document, &[8, 2], "/api/v1/namespaces/{namespace}/pods/{name}");
    let patch = at(item, &[8])[0];
    assert_eq!(text(patch, &[8, 1, 2, 3, 4]), ["dryRun", "fieldValidation"]);
    let kind = entry(patch, &[13], "x-kubernetes-group-version-kind");
    assert_eq!(text(kind, &[2]), [r#"{"group":"","kind":"Pod","version":"v1"}"#]);
    assert_eq!(text(item, &[9, 1, 2, 4, 4]), ["name"]);
    assert_eq!(
        text(at(item, &[9])[1], &[2, 1])[0].rsplit_once('-').unwrap().0,
        "#/parameters/namespace"
    );

    let spec = entry(document, &[9, 1], "io.k8s.api.core.v1.PodSpec");
    assert_eq!(text(spec, &[19]), ["containers"]);
    let containers = entry(spec, &[25, 1], "containers");
    assert_eq!(text(containers, &[22, 1]), ["array"]);
    assert_eq!(text(containers, &[23, 1, 1]), ["#/definitions/io.k8s.api.core.v1.Container"]);
    let key = entry(containers, &[31], "x-kubernetes-patch-merge-key");
    assert_eq!(text(key, &[2]), [r#""name""#]);
    let selector = entry(spec, &[25, 1], "nodeSelector");
    assert_eq!(text(selector, &[21, 1, 22, 1]), ["string"]);
    let policy = entry(spec, &[25, 1], "restartPolicy");
    assert_eq!(text(policy, &[20, 2]), [r#""Always""#, r#""Never""#, r#""OnFailure""#]);
}

#[test]
fn the_third_edition_has_a_protobuf_form_too() {
    let documents = rendered("v1.37.0");
    let json: Value = serde_json::from_slice(&documents.v3["api/v1"].body).unwrap();
    let document = documents.v3_protobuf("api/v1").unwrap();
    assert_eq!(document.hash, documents.v3["api/v1"].hash);
    let document = &document.body;
    assert_eq!(text(document, &[1]), ["3.0.0"]);
    assert_eq!(text(document, &[2, 6]), ["v1.37.0"]);
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(text(document, &[4, 1, 1]), names(&json["paths"]));
    assert_eq!(text(document, &[5, 1, 1, 1]), names(&json["components"]["schemas"]));
    assert_eq!(text(document, &[5, 7, 1, 2, 1, 4]), ["header"]);

    let item = entry(document, &[4, 1], "/api/v1/namespaces/{namespace}/pods/{name}");
    let patch = at(item, &[10])[0];
    let parameters = text(patch, &[6, 1, 1]);
    assert!(parameters.iter().any(|name| name == "dryRun"), "{parameters:?}");
    let kind = entry(patch, &[13], "x-kubernetes-group-version-kind");
    assert_eq!(text(kind, &[2]), [r#"{"group":"","kind":"Pod","version":"v1"}"#]);
    let answer = entry(patch, &[8, 2], "200");
    let target = "#/components/schemas/io.k8s.api.core.v1.Pod";
    let media = entry(at(answer, &[1, 3])[0], &[1], "application/json");
    assert_eq!(text(media, &[1, 2, 1]), [target]);

    let spec = entry(document, &[5, 1, 1], "io.k8s.api.core.v1.PodSpec");
    assert_eq!(text(spec, &[1, 23]), ["containers"]);
    let containers = entry(spec, &[1, 31, 1], "containers");
    assert_eq!(text(containers, &[1, 25]), ["array"]);
    let selector = entry(spec, &[1, 31, 1], "nodeSelector");
    assert_eq!(text(selector, &[1, 32, 1, 1, 25]), ["string"]);
    assert_eq!(documents.v3_protobuf("apis/nope/v1"), None);
}
