//! The program of the guest tests: applies classes of a JSON file to resctrl.
//!
//! ```text
//!   resctrl hardware            prints the controls of the machine and anomalies
//!   resctrl apply FILE          applies the groups, prints what differed and what still differs
//!   resctrl drift FILE          prints what differs
//!   resctrl figures             prints the counters of all monitoring groups
//!   resctrl alternate FILE FILE applies two files in turns, slowly, until it is killed
//! ```

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use classes::schemata::Schemata;
use host::cgroups::Cgroups;
use host::resctrl::{
    ControlGroup, Desired, Drift, GroupName, MonitorName, Resctrl, Workload, repair,
};
use serde_json::{Value, json};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(output) => {
            println!("{output}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            let mut text = error.to_string();
            let mut source = error.source();
            while let Some(cause) = source {
                text += &format!(": {cause}");
                source = cause.source();
            }
            println!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<Value, Box<dyn Error>> {
    let resctrl = Resctrl::observe()?;
    let cgroups = Cgroups::observe()?;
    match arguments {
        ["hardware"] => {
            let (hardware, anomalies) = resctrl.hardware()?;
            let anomalies: Vec<String> = anomalies.iter().map(ToString::to_string).collect();
            Ok(json!({"hardware": hardware, "anomalies": anomalies}))
        }
        ["apply", file] => {
            let applied = resctrl.apply(&cgroups, &desired(file)?)?;
            let unmonitored: Vec<&String> = applied.unmonitored.values().collect();
            let (found, left) = (texts(&applied.found), texts(&applied.left));
            Ok(json!({"found": found, "left": left, "unmonitored": unmonitored}))
        }
        ["drift", file] => Ok(json!(texts(&resctrl.drift(&cgroups, &desired(file)?)?))),
        ["figures"] => {
            let monitors = resctrl.monitors()?.into_iter();
            let monitors = monitors.map(|((group, monitor), figures)| {
                json!({
                    "group": group.to_string(),
                    "pod": monitor.pod(),
                    "container": monitor.container(),
                    "figures": figures,
                })
            });
            Ok(monitors.collect())
        }
        ["alternate", first, second] => {
            let states = [desired(first)?, desired(second)?];
            loop {
                for state in &states {
                    // RMIDs of removed groups are free again after a second.
                    if let Err(error) = slowly(&resctrl, &cgroups, state) {
                        println!("{error}");
                    }
                }
            }
        }
        _ => Err(format!("unknown arguments: {arguments:?}").into()),
    }
}

/// Applies step by step, with pauses in which the process can be killed.
fn slowly(resctrl: &Resctrl, cgroups: &Cgroups, desired: &Desired) -> Result<(), Box<dyn Error>> {
    let drift = resctrl.drift(cgroups, desired)?;
    for step in repair(&resctrl.groups()?, &drift)? {
        resctrl.take(cgroups, &step)?;
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn texts(drift: &[Drift]) -> Vec<String> {
    drift.iter().map(ToString::to_string).collect()
}

/// Reads `{"root": SCHEMATA, "classes": {NAME: SCHEMATA}, "workloads": [{"cgroup": PATH, "class":
/// NAME, "container": NAME}]}`; root and container are optional.
fn desired(file: &str) -> Result<Desired, Box<dyn Error>> {
    let file: Value = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let root = file["root"].as_str().map(Schemata::parse).transpose()?;
    let mut desired = Desired { root, ..Desired::default() };
    for (class, schemata) in file["classes"].as_object().into_iter().flatten() {
        let schemata = Schemata::parse(&text(schemata))?;
        desired.classes.insert(GroupName::of_class(class)?, schemata);
    }
    for workload in file["workloads"].as_array().into_iter().flatten() {
        let cgroup = text(&workload["cgroup"]);
        let group = ControlGroup::of_class(&text(&workload["class"]))?;
        let container = workload["container"].as_str();
        let monitor = container.map(|name| MonitorName::of_container("pod", name)).transpose()?;
        desired.workloads.push(Workload { cgroup, group, monitor });
    }
    Ok(desired)
}
