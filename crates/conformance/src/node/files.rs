//! Recorded files of a kubelet, compared with ours: those of its managers and allocations (kind
//! `state-files`), and everything in its directory and next to its logs (kind `directories`).
//!
//! Manager files are compared byte for byte. Allocations contain uids of pods and a checksum over
//! them, so they are compared by pod.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use host::file_kind::FileKind;
use host::os::owners;
use serde_json::{Map, Value, json};

use super::super::Difference;
use super::steady_state::SteadyState;
use super::testbed::ReplayContext;
use super::text;

/// Files compared byte for byte.
const EXACT: &[&str] = &["cpu_manager_state", "memory_manager_state"];
/// Files with the uids of all pods.
const OF_PODS: &[&str] = &["allocated_pods_state", "actuated_pods_state"];

/// Reads the manager files.
pub(super) fn state(root: &Path) -> BTreeMap<String, String> {
    let read = |name: &&str| {
        let text = std::fs::read_to_string(root.join(name)).ok()?;
        Some(((*name).to_owned(), text))
    };
    EXACT.iter().chain(OF_PODS).chain(&["dra_manager_state"]).filter_map(read).collect()
}

fn differ(what: &str, expected: &str, got: Option<&String>) -> Option<Difference> {
    let got = got.map_or("no file", String::as_str);
    (expected != got).then(|| Difference {
        what: what.to_owned(),
        expected: expected.to_owned(),
        got: got.to_owned(),
    })
}

/// Compares the files while pods run with the recorded ones.
pub(super) fn state_differs(
    root: &Path,
    steady_state: &SteadyState,
    line: &Value,
    before: &BTreeMap<String, String>,
) -> Vec<Difference> {
    let now = state(root);
    let mut found = Vec::new();
    for name in EXACT {
        if let Some(recorded) = line[format!("{name}_before")].as_str() {
            found.extend(differ(&format!("{name} before"), recorded, before.get(*name)));
        }
    }
    for (name, recorded) in line["with_pods"].as_object().into_iter().flatten() {
        let recorded = recorded.as_str().unwrap_or_default();
        let ours = now.get(name);
        if OF_PODS.contains(&name.as_str()) {
            found.extend(allocations_differ(name, recorded, ours, steady_state));
        } else {
            let uids = &line["uids"];
            let ours = ours.map(|ours| with_uids(ours, recorded, uids, steady_state));
            found.extend(differ(name, recorded, ours.as_ref()));
        }
    }
    found
}

/// Replaces our uids by the recorded ones. Checksums cover the uids and are verified on reading, so
/// the recorded ones are used if the rest is equal.
fn with_uids(ours: &str, recorded: &str, uids: &Value, steady_state: &SteadyState) -> String {
    let mut text = ours.to_owned();
    let mut changed = false;
    for (name, uid) in uids.as_object().into_iter().flatten() {
        if let (Some(here), Some(there)) = (steady_state.uids.get(name), uid.as_str()) {
            changed |= text.contains(here);
            text = text.replace(here, there);
        }
    }
    match changed && without_checksums(&text) == without_checksums(recorded) {
        true => recorded.to_owned(),
        false => text,
    }
}

fn without_checksums(text: &str) -> Value {
    let mut value: Value = serde_json::from_str(text).unwrap_or_default();
    for name in ["checksum", "dataChecksum"] {
        if value[name].is_number() {
            value[name] = Value::Null;
        }
    }
    value["data"] = serde_json::from_str(text_of(&value["data"])).unwrap_or_default();
    value
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the entries of an allocation file by uid.
fn entries(file: &str) -> Map<String, Value> {
    let file: Value = serde_json::from_str(file).unwrap_or_default();
    let data: Value = serde_json::from_str(text_of(&file["data"])).unwrap_or_default();
    data["entries"].as_object().cloned().unwrap_or_default()
}

fn allocations_differ(
    name: &str,
    recorded: &str,
    ours: Option<&String>,
    steady_state: &SteadyState,
) -> Vec<Difference> {
    let Some(ours) = ours else {
        return differ(name, "to be there", None).into_iter().collect();
    };
    let (theirs, ours) = (entries(recorded), entries(&steady_state.named(ours)));
    let mut found = Vec::new();
    for (pod, wanted) in theirs.iter().filter(|(pod, _)| pod.starts_with("<UID:")) {
        let got = ours.get(pod).unwrap_or(&Value::Null);
        if without_nothing(wanted) != without_nothing(got) {
            found.push(Difference {
                what: format!("{name} of {pod}"),
                expected: wanted.to_string(),
                got: got.to_string(),
            });
        }
    }
    found
}

/// Removes empty fields.
fn without_nothing(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(_, value)| !value.is_null());
            fields
                .map(|(name, value)| (name.clone(), without_nothing(value)))
                .collect::<Map<_, _>>()
                .into()
        }
        other => other.clone(),
    }
}

/// Compares the files after the pods are deleted.
pub(super) fn state_after(root: &Path, line: &Value) -> Vec<Difference> {
    let now = state(root);
    let each = EXACT.iter().filter_map(|name| {
        let recorded = line[format!("{name}_after_delete")].as_str()?;
        differ(&format!("{name} after the pods"), recorded, now.get(*name))
    });
    each.collect()
}

/// Compares another file by its path.
pub(super) fn record(root: &Path, line: &Value) -> Vec<Difference> {
    let path = text(line, "path");
    let directory = Path::new(path).parent().unwrap_or(Path::new(""));
    let below = directory.strip_prefix("<ROOT_DIR>").unwrap_or(directory);
    let there = std::fs::read_dir(root.join(below)).into_iter().flatten().flatten().next();
    match there {
        Some(_) => Vec::new(),
        None => vec![Difference {
            what: path.to_owned(),
            expected: line["content"].to_string(),
            got: "no file".to_owned(),
        }],
    }
}

/// The properties of a file: `[kind, mode, gid, target]`.
type Entry = (String, String, Option<u64>, String);

/// Lists everything below a directory, under the recorded directory name.
fn listed(directory: &Path, called: &str, into: &mut BTreeMap<String, Entry>) {
    let mut open = vec![(directory.to_owned(), called.to_owned())];
    while let Some((path, called)) = open.pop() {
        let Ok(metadata) = std::fs::symlink_metadata(&path) else { continue };
        let target = std::fs::read_link(&path).ok().map(|to| to.display().to_string());
        let kind = match (target.is_some(), owners::kind(&metadata)) {
            (true, _) => "link",
            (_, FileKind::Directory) => "dir",
            (_, FileKind::File) => "file",
            (_, FileKind::Socket) => "socket",
            _ => "other",
        };
        if kind == "dir" {
            for entry in std::fs::read_dir(&path).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                open.push((entry.path(), format!("{called}/{name}")));
            }
        }
        let mode = format!("{:o}", owners::mode(&metadata));
        let entry = (kind.to_owned(), mode, owners::group(&metadata).map(u64::from));
        into.insert(called, (entry.0, entry.1, entry.2, target.unwrap_or_default()));
    }
}

/// Replaces ids in a path by the recording's placeholders.
fn named(steady_state: &SteadyState, path: &str) -> String {
    let path = steady_state.named(path);
    let is_hash = |text: &str| text.len() == 8 && text.chars().all(|c| c.is_ascii_hexdigit());
    let parts = path.split('/').map(|part| match part.strip_prefix("..") {
        Some(stamp) if stamp.starts_with(|c: char| c.is_ascii_digit()) => "..<STAMP>",
        _ if is_hash(part) => "<RAND>",
        _ => part,
    });
    parts.collect::<Vec<_>>().join("/")
}

/// Compares files and directories while pods run.
pub(super) fn tree_differs(
    context: &ReplayContext,
    root: &Path,
    steady_state: &SteadyState,
    line: &Value,
) -> Vec<Difference> {
    let (logs, links) = context.logs();
    let mut found = BTreeMap::new();
    listed(root, "/var/lib/kubelet", &mut found);
    listed(&context.manifests(), "/var/lib/kubelet/static-pods", &mut found);
    listed(&logs, "/var/log/pods", &mut found);
    listed(&links, "/var/log/containers", &mut found);
    let template = context.template();
    let ours = found.into_iter().map(|(path, (kind, mode, group, target))| {
        let target = named(steady_state, &template.localised(&target));
        (named(steady_state, &path), (kind, mode, group, target))
    });
    let ours = ours.collect();
    let recorded = ["root", "logs"].iter().filter_map(|list| line[*list].as_array()).flatten();
    differences(&recorded.cloned().collect::<Vec<_>>(), &ours)
}

/// Returns recorded entries that are missing or different, and surplus entries in the directories
/// of recorded pods.
fn differences(recorded: &[Value], ours: &BTreeMap<String, Entry>) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut known = BTreeSet::new();
    let mut pods = BTreeSet::new();
    for entry in recorded {
        let path = text_of(&entry[0]);
        // Remains of earlier pods are not replayed.
        if path.contains("<UID>") || path.contains("<ID-") {
            continue;
        }
        known.insert(path);
        if let Some((pods_of, rest)) = path.split_once("/pods/<UID:") {
            let pod = rest.split('/').next().unwrap_or_default();
            pods.insert(format!("{pods_of}/pods/<UID:{pod}/"));
        }
        let Some((kind, mode, group, target)) = ours.get(path) else {
            found.push(Difference {
                what: path.to_owned(),
                expected: entry.to_string(),
                got: "nothing".to_owned(),
            });
            continue;
        };
        let recorded_mode = text_of(&entry[2]);
        let mut got = json!([path, kind, mode, group]);
        let mut wanted = json!([path, entry[1], recorded_mode, entry[3]]);
        // The recorder could not read the mode.
        if recorded_mode.is_empty() {
            (got, wanted) = (json!([path, kind]), json!([path, entry[1]]));
        }
        if entry[4].is_string() {
            for (list, value) in [(&mut got, json!(target)), (&mut wanted, entry[4].clone())] {
                if let Some(list) = list.as_array_mut() {
                    list.push(value);
                }
            }
        }
        if got != wanted {
            found.push(Difference {
                what: path.to_owned(),
                expected: wanted.to_string(),
                got: got.to_string(),
            });
        }
    }
    let more = ours.iter().filter(|(path, _)| {
        pods.iter().any(|pod| path.starts_with(pod)) && !known.contains(path.as_str())
    });
    found.extend(more.map(|(path, entry)| Difference {
        what: path.clone(),
        expected: "nothing".to_owned(),
        got: format!("{entry:?}"),
    }));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steady_state() -> SteadyState {
        let mut steady_state = SteadyState::default();
        steady_state.uids.insert("p".to_owned(), "1111-2222".to_owned());
        steady_state
    }

    #[test]
    fn state_is_compared_byte_for_byte_except_uids() {
        let file = |uid: &str, cpus: &str, sum: u64| {
            let entries = json!({uid: {"c": cpus}});
            let data = json!({"entries": entries}).to_string();
            json!({"entries": entries, "checksum": sum, "data": data, "dataChecksum": sum})
                .to_string()
        };
        let recorded = file("9999-0000", "1", 5);
        let uids = json!({"p": "9999-0000"});
        let ours = with_uids(&file("1111-2222", "1", 7), &recorded, &uids, &steady_state());
        assert_eq!(ours, recorded);
        let ours = with_uids(&file("1111-2222", "0", 7), &recorded, &uids, &steady_state());
        assert_ne!(ours, recorded);
        // Without a uid the checksum must be equal.
        assert_ne!(
            with_uids(&file("x", "1", 7), &file("x", "1", 5), &uids, &steady_state()),
            file("x", "1", 5)
        );
    }

    #[test]
    fn allocations_are_compared_by_pod() {
        let file = |uid: &str, cpu: &str| {
            let resources = json!({"ContainerResources": {"c": {"limits": {"cpu": cpu}}}, "PodLevelResources": null});
            json!({"data": json!({"entries": {uid: resources, "<UID>": {}}}).to_string()})
                .to_string()
        };
        let recorded = file("<UID:p>", "1");
        let check = |ours: &str, count: usize| {
            let found = allocations_differ("f", &recorded, Some(&ours.to_owned()), &steady_state());
            assert_eq!(found.len(), count, "{found:?}");
        };
        check(&file("1111-2222", "1"), 0);
        check(&file("1111-2222", "2"), 1);
        check(&file("3333", "1"), 1);
        assert_eq!(allocations_differ("f", &recorded, None, &steady_state()).len(), 1);
    }

    #[test]
    fn files_are_compared_by_kind_mode_group_and_target() {
        let entry = |kind: &str, mode: &str, target: &str| {
            (kind.to_owned(), mode.to_owned(), Some(0), target.to_owned())
        };
        let recorded = [
            json!(["/k/a", "file", "600", 0]),
            json!(["/k/pods/<UID:p>", "dir", "750", 0]),
            json!(["/k/pods/<UID:p>/l", "link", "777", 0, "x"]),
            json!(["/k/pods/<UID:p>/..data", "link", "", 5, "..<STAMP>"]),
            json!(["/k/pods/<UID>/old", "dir", "750", 0]),
        ];
        let mut ours = BTreeMap::from([
            ("/k/a".to_owned(), entry("file", "600", "")),
            ("/k/own".to_owned(), entry("file", "600", "")),
            ("/k/pods/<UID:p>".to_owned(), entry("dir", "750", "")),
            ("/k/pods/<UID:p>/l".to_owned(), entry("link", "777", "x")),
            ("/k/pods/<UID:p>/..data".to_owned(), entry("link", "777", "..<STAMP>")),
        ]);
        assert!(differences(&recorded, &ours).is_empty(), "{:?}", differences(&recorded, &ours));
        ours.insert("/k/a".to_owned(), entry("file", "644", ""));
        ours.insert("/k/pods/<UID:p>/l".to_owned(), entry("link", "777", "y"));
        ours.insert("/k/pods/<UID:p>/more".to_owned(), entry("file", "600", ""));
        ours.remove("/k/pods/<UID:p>/..data");
        let found = differences(&recorded, &ours);
        let paths: Vec<&str> = found.iter().map(|found| found.what.as_str()).collect();
        let names = ["/l", "/..data", "/more"].map(|name| format!("/k/pods/<UID:p>{name}"));
        assert_eq!(paths, ["/k/a", &names[0], &names[1], &names[2]]);
    }

    #[test]
    fn paths_get_the_recordings_placeholders() {
        let path = named(&steady_state(), "/k/pods/1111-2222/v/..2026_01_01/12ab34cd");
        assert_eq!(path, "/k/pods/<UID:p>/v/..<STAMP>/<RAND>");
        assert_eq!(named(&steady_state(), "/k/..data"), "/k/..data");
    }
}
