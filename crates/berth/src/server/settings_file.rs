//! The settings of `berth server` from a YAML file, under the names of the flags.

use std::fs;
use std::path::Path;

use controllers::Selection;
use objects::yaml::{self, Node, Value};

use super::Settings;

const FIELDS: &[&str] = &[
    "allow-privileged",
    "audit-log-path",
    "bind-address",
    "controllers",
    "disable-admission-plugins",
    "enable-admission-plugins",
    "feature-gates",
    "https-listen-port",
    "service-cluster-ip-range",
    "tls-san",
];

pub(super) fn read(settings: &mut Settings, file: &Path) -> Result<(), Vec<String>> {
    let shown = file.display();
    let text = fs::read_to_string(file).map_err(|error| vec![format!("{shown}: {error}")])?;
    let (documents, errors) = yaml::parse(&text);
    if !errors.is_empty() {
        return Err(errors.iter().map(|error| format!("{shown}: {error}")).collect());
    }
    let Some(top) = documents.first() else { return Ok(()) };
    let Value::Map(entries) = &top.value else {
        return Err(vec![format!("{shown}: {}: a map of settings is expected", top.mark)]);
    };
    let mut problems = Vec::new();
    for entry in entries {
        if let Err(problem) = set(settings, &entry.key, &entry.value) {
            problems.push(format!("{shown}: {}: {}: {problem}", entry.mark, entry.key));
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

fn set(settings: &mut Settings, name: &str, value: &Node) -> Result<(), String> {
    let text = match &value.value {
        Value::Scalar(scalar) => scalar.text.clone(),
        Value::List(_) | Value::Map(_) => String::new(),
    };
    let expected = |what: &str| format!("{} is not {what}", value.describe());
    match name {
        "bind-address" => {
            let address = text.parse().map_err(|_| expected("an address such as 127.0.0.1"))?;
            settings.address.set_ip(address);
        }
        "https-listen-port" => {
            settings
                .address
                .set_port(text.parse().map_err(|_| expected("a port from 0 to 65535"))?);
        }
        "allow-privileged" => {
            settings.allow_privileged = text.parse().map_err(|_| expected("true or false"))?;
        }
        "controllers" => {
            let list = list(value, &text);
            settings.controllers.enabled = Selection::parse(list.iter().map(String::as_str))
                .map_err(|error| error.to_string())?;
        }
        "disable-admission-plugins" => {
            let off = list(value, &text);
            settings.plugins.choose(&[], &off).map_err(|error| error.to_string())?;
        }
        "enable-admission-plugins" => {
            let on = list(value, &text);
            settings.plugins.choose(&on, &[]).map_err(|error| error.to_string())?;
        }
        "service-cluster-ip-range" => settings.service_range = text,
        "audit-log-path" => settings.audit_log = Some(text.into()),
        "tls-san" => settings.names.extend(list(value, &text)),
        "feature-gates" => {
            let text = match &value.value {
                Value::Map(entries) => {
                    let each = entries.iter().map(|entry| match &entry.value.value {
                        Value::Scalar(scalar) => format!("{}={}", entry.key, scalar.text),
                        Value::List(_) | Value::Map(_) => entry.key.clone(),
                    });
                    each.collect::<Vec<_>>().join(",")
                }
                _ => text,
            };
            settings.gates = settings.gates.clone().with(&text).map_err(|errors| {
                errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
            })?;
        }
        _ => return Err(format!("unknown setting; there are {}", FIELDS.join(", "))),
    }
    Ok(())
}

/// Returns a YAML list, or the items of a comma-separated text.
fn list(value: &Node, text: &str) -> Vec<String> {
    match &value.value {
        Value::List(items) => {
            let scalars = items.iter().filter_map(|item| match &item.value {
                Value::Scalar(scalar) => Some(scalar.text.clone()),
                Value::List(_) | Value::Map(_) => None,
            });
            scalars.collect()
        }
        _ => text.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use apiserver::Plugin;
    use controllers::Controller;

    fn read_text(text: &str) -> Result<Settings, Vec<String>> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("server.yaml");
        fs::write(&file, text).unwrap();
        let mut settings = Settings::new(dir.path().to_owned());
        read(&mut settings, &file).map(|()| settings)
    }

    #[test]
    fn settings_are_read_and_errors_are_located() {
        let settings = read_text(
            "https-listen-port: 7443\nbind-address: 0.0.0.0\nallow-privileged: false\n\
             feature-gates: {QOSResources: false}\ntls-san: [a.example, 10.1.1.1]\n\
             controllers: '*,-scheduler'\ndisable-admission-plugins: [ServiceAccount]\n",
        )
        .unwrap();
        assert_eq!(settings.address.to_string(), "0.0.0.0:7443");
        assert!(!settings.allow_privileged && !settings.gates.enabled(objects::Gate::QosResources));
        assert_eq!(settings.names, ["a.example", "10.1.1.1"]);
        assert!(!settings.controllers.enabled.has(Controller::Scheduler));
        assert!(settings.controllers.enabled.has(Controller::Job));
        assert!(!settings.plugins.has(Plugin::ServiceAccount));
        let problems = read_text(
            "https-listen-port: lots\nport: 1\ncontrollers: x\nenable-admission-plugins: y\n",
        )
        .unwrap_err();
        assert!(problems[0].contains("line 1") && problems[0].contains("a port from 0 to 65535"));
        assert!(problems[1].contains("port: unknown setting; there are allow-privileged"));
        assert!(problems[2].contains("\"x\" is not in the list of known controllers"));
        assert!(problems[3].contains("plugin \"y\" is unknown; there are NamespaceLifecycle, "));
    }
}
