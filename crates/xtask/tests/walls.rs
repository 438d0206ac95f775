//! The walls between crates, and what may pass through them. A failure here is a question to the
//! author of the change: is the new edge meant? If so, change the table below and ARCHITECTURE.md in
//! the same commit and give the reason.
//!
//! Looks at manifests (through `cargo metadata`) and at source text; compiles nothing. What the text
//! search cannot see is written in `xtask::source`.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "clippy.toml allows them in tests, not helpers"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use xtask::files::{files, read, report, root, shown};
use xtask::{licence, source};

/// The kind of a crate. A pure one has no tokio, no clock, no file system, no logging.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Pure,
    /// Touches the world, but not by code of one operating system.
    Portable,
    /// Holds code of one operating system, in twin modules.
    Os,
}
use Kind::{Os, Portable, Pure};

/// Crate, one line, what of the workspace it may use. Arrows point down only.
const WALLS: &[(&str, Kind, &str, &[&str])] = &[
    (
        "objects",
        Pure,
        "Kubernetes objects as we serve them: kinds, quantities, defaulting, validation, patch, selectors.",
        &[],
    ),
    (
        "classes",
        Pure,
        "Definitions of QoS classes, and what they become on one machine.",
        &["objects"],
    ),
    (
        "placement",
        Pure,
        "Which CPUs, memory nodes and classes a pod gets on one machine, and why.",
        &["objects", "classes"],
    ),
    (
        "scheduling",
        Pure,
        "Which node: filter, score, preempt over a snapshot.",
        &["objects", "placement"],
    ),
    (
        "planner",
        Pure,
        "Offline what-if: machine + pods in, report and picture out.",
        &["objects", "placement", "scheduling"],
    ),
    (
        "store",
        Portable,
        "Revisioned keys with watch on an embedded engine. Knows bytes, not Kubernetes.",
        &[],
    ),
    (
        "cri",
        Os,
        "CRI messages with our extension, client, server, unix-socket and named-pipe transport.",
        &[],
    ),
    (
        "host",
        Os,
        "This machine: topology discovery, cgroups, resctrl, job objects, processes. All OS code.",
        &["placement", "classes"],
    ),
    (
        "https",
        Portable,
        "HTTPS both ways: listening, dialling, certificates of our own, tunnels after an upgrade. Knows no Kubernetes.",
        &[],
    ),
    (
        "metrics",
        Pure,
        "Prometheus metrics: a registry, families as values, the text and protobuf formats.",
        &[],
    ),
    (
        "apiserver",
        Portable,
        "HTTP, TLS, authentication, admission, REST and watch over `store`.",
        &["objects", "store", "https", "metrics"],
    ),
    (
        "client",
        Portable,
        "The Kubernetes API from a client's side: requests over any transport, and informers.",
        &["objects", "https"],
    ),
    (
        "controllers",
        Portable,
        "Loops that speak only the API: scheduler, daemon sets, quota, garbage collection.",
        &["objects", "scheduling", "client", "metrics"],
    ),
    (
        "runtime",
        Os,
        "CRI endpoints of our own: the QoS-class layer over any CRI runtime, the host-process runtime, the OCI-runtime wrapper.",
        &["cri", "host", "placement", "classes"],
    ),
    (
        "lifecycle",
        Pure,
        "The life of a pod on its node, as decisions: admission, next actions, status, eviction.",
        &["objects", "placement"],
    ),
    (
        "agent",
        Portable,
        "The node agent: pod workers, ledger, volumes, probes, status.",
        &[
            "objects",
            "classes",
            "placement",
            "lifecycle",
            "host",
            "cri",
            "https",
            "client",
            "metrics",
        ],
    ),
    (
        "berth",
        Portable,
        "The binary: CLI, configuration, wiring. Decides nothing.",
        &[
            "objects",
            "classes",
            "placement",
            "scheduling",
            "planner",
            "store",
            "cri",
            "host",
            "https",
            "metrics",
            "apiserver",
            "client",
            "controllers",
            "runtime",
            "lifecycle",
            "agent",
        ],
    ),
    (
        "conformance",
        Portable,
        "Compares Berth with recordings of upstream. A program of its own, for a checkout; not shipped.",
        &[
            "objects",
            "classes",
            "placement",
            "scheduling",
            "planner",
            "store",
            "cri",
            "host",
            "https",
            "metrics",
            "apiserver",
            "client",
            "controllers",
            "lifecycle",
            "agent",
            "berth",
            RIG,
        ],
    ),
    (
        RIG,
        Portable,
        "A private containerd for tests, or a whole emulated machine: started, restarted, killed, and cleaned up after.",
        &[],
    ),
    (
        "xtask",
        Portable,
        "Checks of the repository itself, and its generator of types.",
        &["objects"],
    ),
];

/// The crate that tests of any crate may use. Of product code only `conformance` may use it.
const RIG: &str = "rig";

/// Packages that a pure crate must not depend on directly: runtimes, clocks, logging, the operating system,
/// chance. (Benches and tests may.)
const IMPURE_PACKAGES: &[&str] = &[
    "async-std",
    "axum",
    "chrono",
    "crossbeam-channel",
    "dirs",
    "env_logger",
    "fastrand",
    "fern",
    "fs-err",
    "futures",
    "getrandom",
    "hyper",
    "hyper-util",
    "jiff",
    "kube",
    "libc",
    "log",
    "memmap2",
    "mio",
    "nix",
    "notify",
    "once_cell",
    "rand",
    "reqwest",
    "rustix",
    "signal-hook",
    "slog",
    "smol",
    "socket2",
    "sysinfo",
    "tempfile",
    "time",
    "tokio",
    "tokio-util",
    "tonic",
    "tower",
    "tracing",
    "tracing-subscriber",
    "ureq",
    "uuid",
    "walkdir",
    "winapi",
    "windows",
    "windows-sys",
];

/// Paths that pure source must not name. `std::time::Duration` and addresses are values and allowed.
const IMPURE_PATHS: &[&str] = &[
    "std::*",
    "std::env",
    "std::fs",
    "std::io::stderr",
    "std::io::stdin",
    "std::io::stdout",
    "std::net::*",
    "std::net::Shutdown",
    "std::net::TcpListener",
    "std::net::TcpStream",
    "std::net::ToSocketAddrs",
    "std::net::UdpSocket",
    "std::os",
    "std::process",
    "std::thread::sleep",
];
const CLOCKS: &[&str] = &["Instant", "SystemTime"];
const PRINTING: &[&str] = &["dbg", "eprint", "eprintln", "print", "println"];

/// Pure modules of a crate that is not pure, with the reason why they are there.
const PURE_MODULES: &[(&str, &str)] = &[
    ("crates/agent/src/runtime/lower", "written in the messages of `cri`"),
    ("crates/agent/src/pods/resize", "written in the limits of `host` and the messages of `cri`"),
    ("crates/agent/src/volumes/contents", "written in the inputs of `lower`"),
    ("crates/agent/src/volumes/references", "used by `contents`"),
];
/// Crates whose names a pure module must not use, in addition to [`IMPURE_PATHS`].
const IMPURE_CRATES: &[&str] = &["tokio", "tracing", "client", "https"];

/// Crates that read the machine only through `host`.
const THROUGH_HOST: &[&str] =
    &["agent", "apiserver", "client", "controllers", "https", "lifecycle", "store"];
/// Paths of one operating system, as they begin in source.
const OS_PATHS: &[&str] = &["\"/proc", "\"/sys"];
/// Files that name such paths and do not read them, and why.
const OS_PATH_EXCEPTIONS: &[(&str, &str)] =
    &[("crates/agent/src/runtime/lower/security.rs", "paths inside containers")];

/// Files outside the OS crates that may ask which operating system they are compiled for, and why.
const OS_CFG_EXCEPTIONS: &[(&str, &str)] = &[];

#[test]
#[cfg_attr(windows, ignore = "not on wine: there is no cargo to ask")]
fn crates_use_only_what_the_table_lets_them() {
    let mut broken = Vec::new();
    for package in workspace_packages() {
        let name = text(&package["name"]);
        let Some((_, kind, _, may_use)) = WALLS.iter().find(|(known, ..)| *known == name) else {
            broken.push(format!("{name}: not in the table; which wall does it stand behind?"));
            continue;
        };
        for dependency in list(&package["dependencies"]) {
            let on = text(&dependency["name"]);
            let dev = dependency["kind"] == "dev";
            let ours = WALLS.iter().any(|(known, ..)| *known == on);
            let for_tests = on == RIG && dev;
            if ours && !for_tests && !may_use.contains(&on) {
                broken.push(format!("{name} uses {on}: may use only {may_use:?}"));
            }
            if *kind == Pure && !dev && IMPURE_PACKAGES.contains(&on) {
                broken.push(format!("{name} is pure and depends on {on}"));
            }
            if *kind != Os && !dependency["target"].is_null() {
                broken
                    .push(format!("{name} depends on {on} for one platform only: that is OS code"));
            }
        }
    }
    report(&broken);
}

/// Returns the source files of a crate with blanked code, without tests.
fn product_code(name: &str) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let mut tests = Vec::new();
    for path in rust_files(&root().join("crates").join(name).join("src")) {
        let (code, modules) = source::without_tests(&source::blank(&read(&path)));
        let directory = children_of(&path);
        tests.extend(modules.into_iter().map(|module| directory.join(module)));
        files.push((path, code));
    }
    // A test module in a file of its own may do what a test may do.
    files.retain(|(path, _)| !tests.iter().any(|test| path.with_extension("").starts_with(test)));
    files
}

#[test]
fn pure_modules_touch_nothing_but_their_arguments() {
    let mut broken = Vec::new();
    for (module, _) in PURE_MODULES {
        let module = root().join(module);
        let mut files = product_code("agent");
        files.retain(|(path, _)| path.with_extension("").starts_with(&module));
        if files.is_empty() {
            broken.push(format!("{}: no such module", shown(&module)));
        }
        for (path, code) in files {
            let mut found = impurities(&code);
            for name in IMPURE_CRATES {
                let named = source::words(&code, name).into_iter();
                let used = named.filter(|at| code[at + name.len()..].starts_with("::"));
                found.extend(used.map(|at| (at, (*name).to_owned())));
            }
            broken.extend(found.into_iter().map(|(at, what)| {
                format!("{}:{}: {what} in a pure module", shown(&path), source::line(&code, at))
            }));
        }
    }
    report(&broken);
}

#[test]
fn only_host_reads_paths_of_one_operating_system() {
    let mut broken = Vec::new();
    for name in THROUGH_HOST {
        for (path, _) in product_code(name) {
            if OS_PATH_EXCEPTIONS.iter().any(|(file, _)| root().join(file) == path) {
                continue;
            }
            let text = read(&path);
            // A test module in the same file is at its end.
            let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            for (number, line) in product.lines().enumerate() {
                let is_comment = line.trim_start().starts_with("//");
                if !is_comment && OS_PATHS.iter().any(|start| line.contains(start)) {
                    let line = number + 1;
                    broken.push(format!("{}:{line}: reads the machine without host", shown(&path)));
                }
            }
        }
    }
    report(&broken);
}

#[test]
fn pure_crates_touch_nothing_but_their_arguments() {
    let mut broken = Vec::new();
    for (name, ..) in WALLS.iter().filter(|(_, kind, ..)| *kind == Pure) {
        for (path, code) in product_code(name) {
            broken.extend(impurities(&code).into_iter().map(|(at, what)| {
                format!("{}:{}: {what} in a pure crate", shown(&path), source::line(&code, at))
            }));
        }
    }
    report(&broken);
}

/// Finds names of the outside world in blanked source, with their offsets.
fn impurities(code: &str) -> Vec<(usize, String)> {
    let mut found = source::std_paths(code);
    found.retain(|(_, path)| {
        IMPURE_PATHS.iter().any(|outer| {
            let rest = path.strip_prefix(outer);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        })
    });
    for clock in CLOCKS {
        found.extend(source::words(code, clock).into_iter().map(|at| (at, (*clock).into())));
    }
    for name in PRINTING {
        found.extend(source::macros(code, name).into_iter().map(|at| (at, format!("{name}!"))));
    }
    found
}

#[test]
fn names_of_the_outside_world_are_found_in_source() {
    let check = |code: &str, expected: &[&str]| {
        let found: Vec<_> = impurities(code).into_iter().map(|(_, what)| what).collect();
        assert_eq!(found, expected, "{code:?}");
    };
    check("use std::{collections::BTreeMap, fs::File};", &["std::fs::File"]);
    check("use std::time::{Duration, Instant};", &["Instant"]);
    check("let now = time::SystemTime::now();", &["SystemTime"]);
    check("println!(); writeln!(out);", &["println!"]);
    check("use std::time::Duration; use std::io::Write; env!(x); crate::fs::x();", &[]);
}

/// Every caller of the brain asks in the same words: a `Demand` written by hand could ask for what no pod
/// means.
#[test]
fn demands_are_made_of_pods_only() {
    let demand = read(&root().join("crates/placement/src/demand.rs"));
    let mut broken = Vec::new();
    for name in ["Demand", "ContainerDemand"] {
        if !demand.contains(&format!("#[non_exhaustive]\npub struct {name} {{")) {
            broken.push(format!("placement::demand::{name} is not #[non_exhaustive]"));
        }
    }
    for path in rust_files(&root().join("crates")) {
        if shown(&path).starts_with("crates/placement/src") {
            continue;
        }
        let code = source::blank(&read(&path));
        for at in source::words(&code, "Demand")
            .into_iter()
            .chain(source::words(&code, "ContainerDemand"))
        {
            let after = code[at..].trim_start_matches(char::is_alphanumeric).trim_start();
            let before = code[..at].trim_end().trim_end_matches('&').trim_end();
            let is_literal = after.starts_with('{') && !before.ends_with("->");
            if is_literal {
                let line = source::line(&code, at);
                broken.push(format!("{}:{line}: a demand is made by Demand::new", shown(&path)));
            }
        }
    }
    report(&broken);
}

#[test]
fn code_of_one_operating_system_stays_in_its_crates() {
    let at_home: Vec<_> = WALLS
        .iter()
        .filter(|(_, kind, ..)| *kind == Os)
        .map(|(name, ..)| root().join("crates").join(name).join("src"))
        .collect();
    let mut broken = Vec::new();
    for path in rust_files(&root().join("crates")) {
        if at_home.iter().any(|home| path.starts_with(home))
            || OS_CFG_EXCEPTIONS.iter().any(|(file, _)| root().join(file) == path)
        {
            continue;
        }
        let code = source::blank(&read(&path));
        for (span, predicate) in source::cfgs(&code) {
            // The reason of a test that wine cannot run starts with this; see CONTRIBUTING.md.
            let skipped_on_wine = predicate.starts_with("windows, ignore =");
            let asks = ["windows", "unix", "target_os", "target_family"]
                .iter()
                .any(|word| !source::words(predicate, word).is_empty());
            if asks && !skipped_on_wine {
                let line = source::line(&code, span.start);
                broken.push(format!(
                    "{}:{line}: cfg({predicate}) outside the OS crates",
                    shown(&path)
                ));
            }
        }
    }
    report(&broken);
}

#[test]
#[cfg_attr(windows, ignore = "not on wine: there is no cargo to ask")]
fn every_dependency_has_a_licence_we_may_ship() {
    let deny = read(&root().join("deny.toml"));
    let allowed: BTreeSet<&str> = deny
        .lines()
        .skip_while(|line| *line != "allow = [")
        .skip(1)
        .take_while(|line| *line != "]")
        .map(|line| line.trim().trim_end_matches(',').trim_matches('"'))
        .collect();
    assert!(allowed.contains("Apache-2.0"), "deny.toml: no list of licences found: {allowed:?}");

    // With every feature, as a test may need one, and for the platforms that deny.toml asks about.
    let targets =
        deny.lines().find_map(|line| line.strip_prefix("targets = [")).unwrap_or_default();
    let targets: Vec<&str> = targets.trim_end_matches(']').split(',').collect();
    assert!(!targets.is_empty(), "deny.toml: no list of targets found");
    let mut broken = BTreeSet::new();
    for target in targets {
        let target = target.trim().trim_matches('"');
        let metadata = metadata(&["--all-features", "--filter-platform", target]);
        for package in list(&metadata["packages"]) {
            let expression = package["license"].as_str().unwrap_or_default();
            if !licence::satisfied(expression, |licence| allowed.contains(licence)) {
                let (name, version) = (text(&package["name"]), text(&package["version"]));
                broken.insert(format!(
                    "{name} {version}: {} is not satisfied by deny.toml",
                    package["license"]
                ));
            }
        }
    }
    let broken: Vec<String> = broken.into_iter().collect();
    report(&broken);
}

/// The code map marks crates that do not exist yet.
#[test]
fn the_code_map_marks_crates_that_do_not_exist() {
    let map = read(&root().join("ARCHITECTURE.md"));
    let mut broken = Vec::new();
    for (name, ..) in WALLS {
        let exists = root().join("crates").join(name).join("Cargo.toml").exists();
        let Some(row) = map.lines().find(|line| line.starts_with(&format!("| `{name}`"))) else {
            broken.push(format!("ARCHITECTURE.md: no row for {name}"));
            continue;
        };
        if exists == row.contains("*to come*") {
            let is = if exists { "exists" } else { "does not exist yet" };
            broken.push(format!("ARCHITECTURE.md: {name} {is}; mend its *to come*"));
        }
    }
    report(&broken);
}

/// The directory where the out-of-line modules of a source file live.
fn children_of(path: &Path) -> PathBuf {
    match path.file_name().and_then(|name| name.to_str()) {
        Some("lib.rs" | "main.rs" | "mod.rs") => path.parent().unwrap().to_owned(),
        _ => path.with_extension(""),
    }
}

fn rust_files(directory: &Path) -> Vec<PathBuf> {
    files(directory, "rs")
}

fn workspace_packages() -> Vec<Value> {
    list(&metadata(&["--no-deps"])["packages"]).to_vec()
}

/// Returns the graph of the lock file from `cargo metadata`, for all platforms by default.
///
/// Not `--offline`: a build downloads only what its own platform needs, so on a fresh clone the
/// packages of the other ones are still missing. Once they are downloaded, the network is not used.
fn metadata(arguments: &[&str]) -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--locked"])
        .args(arguments)
        .current_dir(root())
        .output()
        .expect("cargo can be started");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo metadata failed:\n{errors}");
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
