//! Reads Berth's class file. Entry: [`class_file`].

use std::collections::BTreeMap;

use objects::rules::pod::class_resources;
use objects::yaml::read::{At, Findings, Object};
use objects::yaml::{self, Problem, YamlError};

use super::{
    API_VERSION, Bytes, Capacity, Class, ClassFile, Definition, Effect, Imported, IoPriority, KIND,
    Level, Limit, Memory, Nice, Policy, RLIMIT_TYPES, RealTimePriority, Resource, Rlimit,
    Scheduling,
};
use crate::strict_yaml;
use crate::{blockio, rdt};

/// The informational resource that carries a pod's QoS class.
const POD_QOS: &str = "pod-qos";

pub(super) fn class_file(text: &str) -> Result<ClassFile, Vec<YamlError>> {
    let (documents, errors) = yaml::parse(text);
    if !errors.is_empty() {
        return Err(errors);
    }
    let Some(document) = documents.first() else { return Ok(ClassFile::default()) };
    let mut findings = Findings::default();
    let file = read_file(&At::root(document), &mut findings);
    if let Some(second) = documents.get(1) {
        At::root(second).error("a class file is one document", &mut findings);
    }
    let errors = findings.sorted().errors;
    if errors.is_empty() { Ok(file) } else { Err(errors) }
}

fn read_file(at: &At<'_>, findings: &mut Findings) -> ClassFile {
    let mut file = ClassFile::default();
    let Some(object) = at.object(findings) else { return file };
    object.refuse_unknown(&["apiVersion", "kind", "rdt", "blockio", "resources"], findings);
    for (name, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        match object.field(name).map(|field| (field.text(findings), field)) {
            Some((Some(text), field)) if text != expected => field.expected(expected, findings),
            Some(_) => {}
            None => at.error(format!("{name} is missing; it is {expected}"), findings),
        }
    }
    file.rdt =
        object.field("rdt").and_then(|field| imported(&field, findings, rdt::Config::decode));
    file.blockio = object.field("blockio").and_then(|field| {
        imported(&field, findings, |at| Ok(blockio::Config::decode(at)?.unwrap_or_default()))
    });
    let resources = object.field("resources");
    let items: Vec<At<'_>> = resources.iter().flat_map(|list| list.items(findings)).collect();
    for item in items {
        if let Some((name, resource)) = read_resource(&item, findings)
            && file.resources.insert(name.clone(), resource).is_some()
        {
            item.error(format!("resource {name:?} is defined twice"), findings);
        }
    }
    file
}

fn imported<T>(
    at: &At<'_>,
    findings: &mut Findings,
    decode: impl Fn(&strict_yaml::At<'_>) -> Result<T, YamlError>,
) -> Option<Imported<T>> {
    let object = at.object(findings)?;
    object.refuse_unknown(&["config", "configFile", "default", "mutable", "capacities"], findings);
    let definition = match (object.field("config"), object.field("configFile")) {
        (Some(config), None) => {
            let decoded = strict_yaml::from_node(config.node.clone(), &config.path())
                .and_then(|value| decode(&strict_yaml::At { value: &value, path: config.path() }));
            match decoded {
                Ok(config) => Definition::Inline(config),
                Err(error) => {
                    findings.errors.push(error);
                    return None;
                }
            }
        }
        (None, Some(file)) => Definition::File(file.text(findings)?),
        _ => {
            at.error("give either config or configFile", findings);
            return None;
        }
    };
    let capacities = object.field("capacities").map(|field| field.map_of(findings, capacity));
    Some(Imported {
        definition,
        default: object.field("default").and_then(|field| field.text(findings)),
        mutable: flag(&object, "mutable", findings),
        capacities: capacities.unwrap_or_default(),
    })
}

fn flag(object: &Object<'_>, name: &str, findings: &mut Findings) -> bool {
    object.field(name).and_then(|field| field.boolean(findings)).unwrap_or(false)
}

fn capacity(at: &At<'_>, findings: &mut Findings) -> Option<Capacity> {
    let number = at.integer(0, i64::MAX, findings)?;
    u64::try_from(number).ok().map(Capacity)
}

fn read_resource(at: &At<'_>, findings: &mut Findings) -> Option<(String, Resource)> {
    let object = at.object(findings)?;
    object.refuse_unknown(&["name", "level", "mutable", "default", "classes"], findings);
    let Some(name_at) = object.field("name") else {
        at.error("name is missing", findings);
        return None;
    };
    let name = name_at.text(findings)?;
    if name == POD_QOS || class_resources::is_official(&name) {
        let text = format!(
            "{name:?} is not a vendor's name: names without a domain and those of k8s.io are \
             Kubernetes' own; write example.com/{name}"
        );
        name_at.error(text, findings);
    } else if !is_qualified(&name) {
        name_at.expected(
            "DOMAIN/NAME with a DNS subdomain of up to 253 characters and a name of up to 63 \
             letters, digits, '-', '_' and '.'",
            findings,
        );
    }
    let level = match object.field("level").map(|field| (field.text(findings), field)) {
        Some((Some(text), field)) => match text.as_str() {
            "container" => Level::Container,
            "pod" => Level::Pod,
            _ => {
                field.expected("container or pod", findings);
                Level::Container
            }
        },
        _ => Level::Container,
    };
    let mut classes = BTreeMap::new();
    let list = object.field("classes");
    let items: Vec<At<'_>> = list.iter().flat_map(|list| list.items(findings)).collect();
    for item in items {
        if let Some((name, class)) = read_class(&item, findings)
            && classes.insert(name.clone(), class).is_some()
        {
            item.error(format!("class {name:?} is defined twice"), findings);
        }
    }
    if classes.is_empty() && list.is_none() {
        at.error("classes is missing", findings);
    }
    let default = object.field("default").and_then(|field| {
        let default = field.text(findings)?;
        if !classes.contains_key(&default) {
            field.error(format!("there is no class {default:?}"), findings);
        }
        Some(default)
    });
    let mutable = flag(&object, "mutable", findings);
    Some((name, Resource { level, mutable, default, classes }))
}

/// Returns true for a name with a domain, as Kubernetes has them.
fn is_qualified(name: &str) -> bool {
    let Some((domain, local)) = name.split_once('/') else { return false };
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label = |label: &str| {
        label.starts_with(plain)
            && label.ends_with(plain)
            && label.chars().all(|c| plain(c) || c == '-')
    };
    domain.len() <= 253 && domain.split('.').all(label) && is_local_name(local)
}

/// Returns true for a name of up to 63 characters, as labels and class names are.
fn is_local_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric();
    name.len() <= 63
        && name.starts_with(plain)
        && name.ends_with(plain)
        && name.chars().all(|c| plain(c) || matches!(c, '-' | '_' | '.'))
}

fn read_class(at: &At<'_>, findings: &mut Findings) -> Option<(String, Class)> {
    let object = at.object(findings)?;
    object.refuse_unknown(&["name", "capacity", "rlimits", "memory", "scheduling"], findings);
    let Some(name_at) = object.field("name") else {
        at.error("name is missing", findings);
        return None;
    };
    let name = name_at.text(findings)?;
    if !is_local_name(&name) {
        name_at.expected("a name of up to 63 letters, digits, '-', '_' and '.'", findings);
    }
    let limit = object.field("capacity").and_then(|field| capacity(&field, findings));
    let effects = ["rlimits", "memory", "scheduling"].map(|name| object.field(name));
    let effect = match &effects {
        [Some(field), None, None] => Effect::Rlimits(rlimits(field, findings)),
        [None, Some(field), None] => Effect::Memory(memory(field, findings)?),
        [None, None, Some(field)] => Effect::Scheduling(scheduling(field, findings)?),
        _ => {
            at.error("give one of rlimits, memory and scheduling", findings);
            return None;
        }
    };
    Some((name, Class { capacity: limit.unwrap_or(Capacity::UNLIMITED), effect }))
}

fn rlimits(at: &At<'_>, findings: &mut Findings) -> Vec<Rlimit> {
    let mut limits: Vec<Rlimit> = Vec::new();
    for item in at.items(findings) {
        let Some(limit) = rlimit(&item, findings) else { continue };
        if limits.iter().any(|other| other.kind == limit.kind) {
            item.error(format!("{} is given twice", limit.kind), findings);
        }
        limits.push(limit);
    }
    limits
}

fn rlimit(at: &At<'_>, findings: &mut Findings) -> Option<Rlimit> {
    let object = at.object(findings)?;
    object.refuse_unknown(&["type", "soft", "hard"], findings);
    let Some(kind_at) = object.field("type") else {
        at.error("type is missing; an example is RLIMIT_NOFILE", findings);
        return None;
    };
    let kind = kind_at.text(findings)?;
    let Some(kind) = RLIMIT_TYPES.iter().find(|known| **known == kind) else {
        kind_at.expected(format!("one of {}", RLIMIT_TYPES.join(", ")), findings);
        return None;
    };
    let mut value = |name: &str| {
        let Some(field) = object.field(name) else {
            at.error(format!("{name} is missing"), findings);
            return None;
        };
        if object.at.node.get_text(name) == Some("unlimited") {
            return Some(Limit::UNLIMITED);
        }
        let number = field.integer(0, i64::MAX, findings)?;
        u64::try_from(number).ok().map(Limit)
    };
    let (soft, hard) = (value("soft")?, value("hard")?);
    if soft > hard {
        at.error(format!("the soft limit {} is above the hard limit {}", soft.0, hard.0), findings);
    }
    Some(Rlimit { kind, soft, hard })
}

fn memory(at: &At<'_>, findings: &mut Findings) -> Option<Memory> {
    let object = at.object(findings)?;
    object.refuse_unknown(&["min", "low", "high", "swapMax", "oomGroup", "oomScoreAdj"], findings);
    let mut bytes = |name: &str| {
        let field = object.field(name)?;
        let value = field.quantity(findings)?.checked_value();
        match value.and_then(|value| u64::try_from(value).ok()) {
            Some(value) => Some(Bytes(value)),
            None => {
                field.expected("an amount of memory such as 512Mi, 0 or more", findings);
                None
            }
        }
    };
    let (min, low, high, swap_max) = (bytes("min"), bytes("low"), bytes("high"), bytes("swapMax"));
    for (name, protected) in [("min", min), ("low", low)] {
        if let (Some(protected), Some(high)) = (protected, high)
            && protected > high
        {
            let text = format!("{name} is {} bytes, above high, which is {}", protected.0, high.0);
            at.error(text, findings);
        }
    }
    let oom_group = object.field("oomGroup").and_then(|field| field.boolean(findings));
    let oom_score_adj =
        object.field("oomScoreAdj").and_then(|field| field.integer(-1000, 1000, findings));
    Some(Memory { min, low, high, swap_max, oom_group, oom_score_adj })
}

fn scheduling(at: &At<'_>, findings: &mut Findings) -> Option<Scheduling> {
    let object = at.object(findings)?;
    object.refuse_unknown(&["policy", "nice", "priority", "ioPriority"], findings);
    let nice = object.field("nice").and_then(|field| field.integer(-20, 19, findings));
    let nice = nice.and_then(|nice| i8::try_from(nice).ok()).map(Nice);
    let priority = object.field("priority").and_then(|field| field.integer(1, 99, findings));
    let priority = priority.and_then(|priority| u8::try_from(priority).ok()).map(RealTimePriority);
    let name = object.field("policy").and_then(|field| field.text(findings));
    let policy = match (name.as_deref(), nice, priority) {
        (None, None, None) => None,
        (None | Some("SCHED_OTHER"), nice, None) => {
            Some(Policy::Other { nice: nice.unwrap_or_default() })
        }
        (Some("SCHED_BATCH"), nice, None) => Some(Policy::Batch { nice: nice.unwrap_or_default() }),
        (Some("SCHED_IDLE"), None, None) => Some(Policy::Idle),
        (Some("SCHED_FIFO"), None, Some(priority)) => Some(Policy::Fifo { priority }),
        (Some("SCHED_RR"), None, Some(priority)) => Some(Policy::RoundRobin { priority }),
        _ => {
            at.error(
                "the policies are SCHED_OTHER and SCHED_BATCH with an optional nice, SCHED_IDLE, \
                 and SCHED_FIFO and SCHED_RR with a priority",
                findings,
            );
            None
        }
    };
    let io_priority = object.field("ioPriority").and_then(|field| io_priority(&field, findings));
    Some(Scheduling { policy, io_priority })
}

fn io_priority(at: &At<'_>, findings: &mut Findings) -> Option<IoPriority> {
    let object = at.object(findings)?;
    object.refuse_unknown(&["class", "level"], findings);
    let class = object.field("class").and_then(|field| field.text(findings));
    let level = object.field("level").and_then(|field| field.integer(0, 7, findings));
    let level = level.and_then(|level| u8::try_from(level).ok());
    match (class.as_deref(), level) {
        (Some("realtime"), Some(level)) => Some(IoPriority::RealTime(level)),
        (Some("best-effort"), Some(level)) => Some(IoPriority::BestEffort(level)),
        (Some("idle"), None) => Some(IoPriority::Idle),
        _ => {
            let expected = "class realtime or best-effort with a level from 0 to 7, or class idle";
            findings.errors.push(at.problem(Problem::Other(format!("give {expected}"))));
            None
        }
    }
}
