//! Lines of the files `rdt` and `rdt_class`: a machine, and operations on its classes.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::quirks::{self, Right};
use super::{
    Comparison, Machines, alternatives, detected, errors, fields, list, sorted_log, text, text_map,
    texts,
};
use crate::annotations::{self, Annotated, AnnotationKeys, Origin, RdtClasses};
use crate::hardware::Resctrl;
use crate::hardware::resctrl::DetectError;
use crate::rdt::config::Kubernetes;
use crate::rdt::names::{self, Group, Prefix};
use crate::rdt::plan::write_failure;
use crate::rdt::tree::{ControlGroup, TaskId, Tree};
use crate::rdt::{Config, Plan, PlanError, plan};

pub(super) fn check(machines: &Machines, line: &Value) -> Comparison {
    let mut session = Session::new(machines, line);
    match text(&line["kind"]) {
        "init" => session.check_init(line),
        "config" => session.check_config(line, "config"),
        _ => {
            if let Some(expected) = line.get("init_error") {
                let got = session.hardware.as_ref().err().map(ToString::to_string);
                session.expect("init_error", expected, &json!(got));
            }
            for (number, step) in list(&line["steps"]).iter().enumerate() {
                session.step(step, &format!("step {}", number + 1));
            }
        }
    }
    session.finish()
}

struct Session<'a> {
    line: &'a Value,
    quirks: Vec<&'a str>,
    hardware: Result<Resctrl, DetectError>,
    tree: Tree,
    prefix: Prefix,
    /// The classes of the file in effect.
    configured: BTreeMap<String, Kubernetes>,
    comparison: Comparison,
    /// A step has changed less than the recorded one did.
    diverged: bool,
    /// A file was refused.
    refused: bool,
}

/// The changes of one operation.
#[derive(Default)]
struct Changes {
    error: Option<String>,
    log: Vec<String>,
    created: BTreeSet<String>,
    removed: BTreeSet<String>,
    schemata: BTreeMap<String, String>,
}

impl<'a> Session<'a> {
    fn new(machines: &Machines, line: &'a Value) -> Session<'a> {
        let mut tree = Tree::default();
        tree.root.tasks = [TaskId(1), TaskId(2)].into();
        for group in list(&line["groups"]) {
            let mut control_group =
                ControlGroup { tasks: tasks(&group["tasks"]), ..ControlGroup::default() };
            for mon_group in list(&group["mon_groups"]) {
                let directory = text(&mon_group["dir"]).to_owned();
                control_group.mon_groups.insert(directory, tasks(&mon_group["tasks"]));
            }
            match text(&group["dir"]) {
                "." => tree.root = control_group,
                directory => {
                    tree.groups.insert(directory.to_owned(), control_group);
                }
            }
        }
        Session {
            line,
            quirks: super::quirks_of(line),
            hardware: machines.resctrl(line),
            tree,
            prefix: Prefix(text(&line["prefix"]).to_owned()),
            configured: BTreeMap::new(),
            comparison: Comparison::default(),
            diverged: false,
            refused: false,
        }
    }

    fn has(&self, right: Right) -> bool {
        self.quirks.iter().any(|name| quirks::find(name).is_some_and(|quirk| quirk.right == right))
    }

    fn is_marked(&self, quirk: &str) -> bool {
        self.quirks.contains(&quirk)
    }

    fn expect(&mut self, what: &str, expected: &Value, got: &Value) {
        if expected != got {
            self.comparison.differ(what, expected.clone(), got.clone());
        }
    }

    fn deliberate(&mut self, what: &str, expected: Value, got: Value) {
        let difference = super::Difference { what: what.to_owned(), expected, got };
        self.comparison.deliberate.push(difference);
    }

    fn finish(mut self) -> Comparison {
        // A line that records success where an error is right must be refused somewhere. Lines of
        // AMD are marked whatever the file asks for.
        let right_is_error = self.quirks.iter().any(|name| {
            let quirk = quirks::find(name).filter(|quirk| quirk.name != "min-bandwidth-zero");
            quirk.is_some_and(|quirk| quirk.right == Right::Error)
        });
        let is_init = text(&self.line["kind"]) == "init";
        if right_is_error && !is_init && !self.refused {
            self.comparison.differ("the line", json!("an error"), json!("no error"));
        }
        self.comparison
    }

    fn check_init(&mut self, line: &Value) {
        let got = match &self.hardware {
            Ok(resctrl) => json!({"info": detected(resctrl)}),
            Err(error) => json!({"error": error.to_string()}),
        };
        let expected = line["result"].clone();
        let mut derived = expected.clone();
        if self.is_marked("empty-mon-features") {
            derived["info"]["mon_supported"] = false.into();
            for absent in ["mon_features", "num_rmids"] {
                derived["info"].as_object_mut().map(|info| info.remove(absent));
            }
        }
        if self.is_marked("min-bandwidth-zero") {
            derived["info"]["mb"] = got["info"]["mb"].clone();
        }
        if derived != expected {
            self.deliberate("info", expected, got.clone());
        }
        self.expect("info", &derived, &got);
    }

    fn configure(&mut self, text: &str, force: bool, write_errors: &Value) -> Changes {
        let mut changes = Changes::default();
        let config = match Config::parse(text) {
            Ok(config) => config,
            Err(error) => {
                changes.error = Some(PlanError::Text(error).to_string());
                return changes;
            }
        };
        let Ok(hardware) = &self.hardware else {
            changes.error = Some("rdt not initialized".to_owned());
            return changes;
        };
        let (planned, warnings) = plan(&config, hardware, &self.tree, &self.prefix, force);
        changes.log = warnings.iter().map(|warning| format!("WARN: {warning}")).collect();
        match planned {
            Ok(plan) => self.apply(&plan, &mut changes, write_errors),
            Err(error) => changes.error = Some(error.to_string()),
        }
        changes
    }

    fn apply(&mut self, plan: &Plan, changes: &mut Changes, write_errors: &Value) {
        self.tree.apply(plan);
        changes.created = plan.create.iter().cloned().collect();
        changes.removed = plan.remove.iter().cloned().collect();
        for (group, schemata) in &plan.write {
            if let Some(status) = write_errors[group.to_string()].as_str() {
                let reason = write_failure(status, "invalid argument");
                changes.error = Some(format!("resctrl configuration failed: {reason}"));
                return;
            }
            changes.schemata.insert(group.to_string(), schemata.to_string());
        }
        changes.removed.extend(plan.prune.iter().map(|(group, mon_group)| match group {
            Group::Root => format!("mon_groups/{mon_group}"),
            Group::Named(directory) => format!("{directory}/mon_groups/{mon_group}"),
        }));
        let classes = plan.classes.iter();
        self.configured = classes.map(|(name, class)| (name.clone(), class.kubernetes)).collect();
    }

    fn check_config(&mut self, step: &Value, at: &str) {
        let force = step["force"].as_bool().unwrap_or(false);
        let changes =
            self.configure(text(&step["config"]), force, &self.line["schemata_write_errors"]);
        self.refused |= changes.error.is_some();
        let recorded = alternatives(step);
        let differences: Vec<Comparison> =
            recorded.iter().map(|result| self.compare_config(&changes, result, at)).collect();
        if differences.iter().any(|comparison| comparison.differences.is_empty()) {
            return;
        }
        let expected = json!(recorded);
        let got = json!({
            "error": changes.error, "created": changes.created, "removed": changes.removed,
            "schemata": changes.schemata, "log": changes.log,
        });
        let unchanged = changes.created.is_empty() && changes.removed.is_empty();
        let same_error = changes.error.as_deref().is_some_and(|error| {
            recorded.iter().any(|result| errors(result).iter().any(|other| same(other, error)))
        });
        let explained = match &changes.error {
            Some(_) if self.has(Right::ErrorWithoutChange) && same_error => unchanged,
            Some(_) => self.has(Right::Error) && unchanged,
            None => self.has(Right::Accepted),
        };
        if explained {
            self.diverged = true;
            self.deliberate(at, expected, got);
        } else {
            let difference = super::Difference { what: at.to_owned(), expected, got };
            self.comparison.differences.push(difference);
        }
    }

    fn compare_config(&self, changes: &Changes, result: &Value, at: &str) -> Comparison {
        let mut comparison = Comparison::default();
        let mut expect = |what: &str, expected: Value, got: Value| {
            if expected != got {
                comparison.differ(&format!("{at}: {what}"), expected, got);
            }
        };
        let errors = errors(result);
        match &changes.error {
            Some(error) if errors.iter().any(|other| same(other, error)) => {}
            got => expect("error", json!(errors.first()), json!(got)),
        }
        let set = |key: &str| texts(&result[key]).into_iter().collect::<BTreeSet<_>>();
        // After a step that changed less than goresctrl, only the final state is comparable.
        if !self.diverged {
            expect("created", json!(set("created")), json!(changes.created));
            expect("removed", json!(set("removed")), json!(changes.removed));
        }
        if result.get("partly").is_some() || result.get("panic").is_some() {
            expect("change before the error", Value::Null, result.clone());
        }
        if result.get("schemata").is_some() || text(&self.line["kind"]) == "config" {
            let recorded: Map<String, Value> =
                fields(&result["schemata"]).map(|(k, v)| (k.clone(), v.clone())).collect();
            expect("schemata", Value::Object(recorded), json!(changes.schemata));
        }
        if result.get("log").is_some() || text(&self.line["kind"]) == "config" {
            let log = texts(&result["log"]);
            expect("log", json!(sorted_log(&log)), json!(sorted_log(&changes.log)));
        }
        if let Some(groups) = result.get("groups_after") {
            expect("groups_after", groups.clone(), self.groups());
        }
        if let Some(classes) = result.get("configured_classes") {
            expect(
                "configured_classes",
                classes.clone(),
                json!(self.configured.keys().collect::<Vec<_>>()),
            );
        }
        comparison
    }

    /// Describes all groups like the recorder.
    fn groups(&self) -> Value {
        let names = |tasks: &BTreeSet<TaskId>| {
            let names: BTreeSet<String> = tasks.iter().map(|task| task.0.to_string()).collect();
            json!(names)
        };
        let describe = |group: &ControlGroup| {
            let mut described = Map::new();
            if !group.tasks.is_empty() {
                described.insert("tasks".to_owned(), names(&group.tasks));
            }
            if !group.mon_groups.is_empty() {
                let mon_groups = group.mon_groups.iter();
                let mon_groups: Map<String, Value> =
                    mon_groups.map(|(name, tasks)| (name.clone(), names(tasks))).collect();
                described.insert("mon_groups".to_owned(), Value::Object(mon_groups));
            }
            Value::Object(described)
        };
        let groups = self.tree.groups.iter().map(|(name, group)| (name.clone(), describe(group)));
        groups.chain([(".".to_owned(), describe(&self.tree.root))]).collect::<Map<_, _>>().into()
    }

    fn step(&mut self, step: &Value, at: &str) {
        let result = &step["result"];
        let at = format!("{at} ({})", text(&step["op"]));
        let name = step.get("class").or(step.get("name"));
        let class = name.map(text).unwrap_or_default();
        let got = match text(&step["op"]) {
            "config" => return self.check_config(step, &at),
            "set_prefix" => {
                self.prefix = Prefix(text(&step["prefix"]).to_owned());
                return;
            }
            "set_tasks" => return self.set_tasks(step),
            "lookup" => self.lookup(class),
            "classes" => {
                let classes = self.hardware.as_ref().map(|_| self.tree.classes(&self.prefix));
                json!({"classes": classes.unwrap_or_default()})
            }
            "qualified" => json!({"qualified": names::is_qualified(class)}),
            "annotation" => self.annotation(step),
            "blockio_annotation" => {
                let class = self.requested(step, annotations::BLOCKIO).map(|(class, _)| class);
                json!({"class": class.unwrap_or_default()})
            }
            "generic_annotation" => self.generic_annotation(step),
            operation => self.group_operation(operation, class, step),
        };
        self.compare_step(&at, result, &got, class);
    }

    fn compare_step(&mut self, at: &str, result: &Value, got: &Value, class: &str) {
        let mut derived = result.clone();
        if self.is_marked("lookup-path") && derived["found"] == true && !names::is_qualified(class)
        {
            derived = got.clone();
            self.expect(at, &json!(false), &got["found"]);
        }
        if self.is_marked("empty-class-creates-group") {
            self.derive_without_empty_group(&mut derived, got);
        }
        if derived != *result {
            self.deliberate(at, result.clone(), got.clone());
        }
        self.expect(at, &derived, got);
    }

    /// Takes the group that goresctrl creates for the empty class out of a result.
    fn derive_without_empty_group(&self, derived: &mut Value, got: &Value) {
        let Some(fields) = derived.as_object_mut() else { return };
        fields.remove("created");
        if fields.get("dir").and_then(Value::as_str) == Some(&self.prefix.0) {
            fields.insert("dir".to_owned(), json!("."));
        }
        if let Some(Value::Array(classes)) = fields.get_mut("classes") {
            classes.retain(|class| class != "");
        }
        if let Some(Value::Object(groups)) = fields.get_mut("groups_after") {
            // What is in that group is in the root group here, with all that follows from it.
            if groups.remove(&self.prefix.0).is_some() {
                groups.insert(".".to_owned(), got["groups_after"]["."].clone());
            }
        }
        if let (Some(Value::Array(recorded)), Value::Array(ours)) =
            (fields.get("mon_groups"), &got["mon_groups"])
            && recorded.iter().all(|name| ours.contains(name))
        {
            fields.insert("mon_groups".to_owned(), json!(ours));
        }
    }

    fn set_tasks(&mut self, step: &Value) {
        let tasks = tasks(&step["pids"]);
        let path = text(&step["group"]);
        let (group, mon_group) = match path.split_once("/mon_groups/") {
            Some((group, mon_group)) => (group, Some(mon_group)),
            None => (path, None),
        };
        let group = if group == "." { Group::Root } else { Group::Named(group.to_owned()) };
        let Some(group) = self.tree.group_mut(&group) else { return };
        match mon_group {
            Some(name) => {
                group.mon_groups.insert(name.to_owned(), tasks);
            }
            None => group.tasks = tasks,
        }
    }

    fn find(&self, class: &str) -> Result<Group, Option<names::LookupError>> {
        let hardware = self.hardware.as_ref().map_err(|_| None)?;
        names::lookup(class, &self.prefix, &self.tree, &hardware.path).map_err(Some)
    }

    fn lookup(&self, class: &str) -> Value {
        match self.find(class) {
            Ok(group) => json!({"found": true, "class_name": class, "dir": group.to_string()}),
            Err(Some(error)) => json!({"found": false, "log_error": error.to_string()}),
            Err(None) => json!({"found": false}),
        }
    }

    fn requested(&self, step: &Value, keys: AnnotationKeys<'_>) -> Option<(String, Origin)> {
        let container_annotations = text_map(&step["container_annotations"]);
        let pod_annotations = text_map(&step["pod_annotations"]);
        let of = Annotated {
            container: text(&step["container"]),
            container_annotations: &container_annotations,
            pod_annotations: &pod_annotations,
        };
        annotations::requested(keys, of).map(|(class, origin)| (class.to_owned(), origin))
    }

    fn generic_annotation(&self, step: &Value) -> Value {
        let keys = AnnotationKeys {
            container: "c.io/class",
            pod: "p.io/pod",
            pod_container_prefix: "p.io/container.",
        };
        match self.requested(step, keys) {
            Some((class, Origin::Container)) => {
                json!({"class": class, "origin": "container annotations"})
            }
            Some((class, Origin::Pod)) => json!({"class": class, "origin": "pod annotations"}),
            None => json!({"class": "", "origin": "<not found>"}),
        }
    }

    fn annotation(&self, step: &Value) -> Value {
        let container_annotations = text_map(&step["container_annotations"]);
        let pod_annotations = text_map(&step["pod_annotations"]);
        let of = Annotated {
            container: text(&step["container"]),
            container_annotations: &container_annotations,
            pod_annotations: &pod_annotations,
        };
        let classes = self.hardware.as_ref().ok().map(|hardware| RdtClasses {
            tree: &self.tree,
            prefix: &self.prefix,
            mount: &hardware.path,
            configured: &self.configured,
        });
        match annotations::rdt_class(of, classes) {
            Ok(class) => json!({"class": class}),
            Err(error) => json!({"error": error.to_string()}),
        }
    }

    /// Carries out an operation on the group of a class.
    fn group_operation(&mut self, operation: &str, class: &str, step: &Value) -> Value {
        let changes_mon_groups = matches!(operation, "create_mon" | "delete_mon" | "delete_mons");
        let mut got = Map::new();
        match self.find(class) {
            Err(_) => {
                got.insert("error".to_owned(), json!("GetClass: not found"));
            }
            Ok(name) => {
                let mount = self.hardware.as_ref().map(|of| of.path.clone()).unwrap_or_default();
                let (path, prefix) = (name.path(&mount), self.prefix.clone());
                if operation == "add_pids" {
                    for task in tasks(&step["pids"]) {
                        self.tree.add_task(&name, task);
                    }
                }
                let Some(group) = self.tree.group_mut(&name) else { return Value::Null };
                let mon_group = text(&step["name"]);
                let result = match operation {
                    "create_mon" => group.create_mon_group(mon_group, &prefix, &path),
                    "delete_mon" => group.delete_mon_group(mon_group, &prefix, &path),
                    "delete_mons" => {
                        group.delete_mon_groups(&prefix);
                        Ok(())
                    }
                    "mon_groups" => {
                        got.insert("mon_groups".to_owned(), json!(group.mon_groups(&prefix)));
                        Ok(())
                    }
                    "pids" => {
                        let pids = group.tasks.iter().map(|task| task.0.to_string());
                        got.insert("pids".to_owned(), pids.collect::<Vec<_>>().into());
                        Ok(())
                    }
                    _ => Ok(()),
                };
                if let Err(error) = result {
                    got.insert("error".to_owned(), error.to_string().into());
                }
            }
        }
        if changes_mon_groups {
            got.insert("groups_after".to_owned(), self.groups());
        }
        Value::Object(got)
    }
}

fn tasks(value: &Value) -> BTreeSet<TaskId> {
    list(value).iter().filter_map(|pid| text(pid).parse().ok()).map(TaskId).collect()
}

/// Compares an error text. Texts of the YAML and JSON decoders are informative only.
fn same(recorded: &str, got: &str) -> bool {
    const DECODER: &str = "failed to parse configuration data: ";
    recorded == got || (recorded.starts_with(DECODER) && got.starts_with(DECODER))
}
