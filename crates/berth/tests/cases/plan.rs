//! The commands of `examples/README.md`, with their recorded outputs. `BERTH_BLESS=1` records new
//! ones.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn berth(arguments: &str) -> Output {
    let arguments = arguments.split_whitespace();
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
    command.args(arguments).current_dir(root()).env("NO_COLOR", "1").output().unwrap()
}

/// The file with the output, and the command line.
const COMMANDS: [(&str, &str); 12] = [
    (
        "datacenter",
        "plan -f examples/pods/datacenter.yaml --machine examples/machines/epyc-2s-nps4.yaml \
         --config examples/kubelet/datacenter.yaml",
    ),
    (
        "datacenter-explained",
        "plan -f examples/pods/datacenter.yaml --machine examples/machines/epyc-2s-nps4.yaml \
         --config examples/kubelet/datacenter.yaml --explain",
    ),
    ("edge", "plan -f examples/pods/edge.yaml --machine examples/machines/edge.yaml"),
    ("edge-yaml", "plan -f examples/pods/edge.yaml --machine examples/machines/edge.yaml -o yaml"),
    (
        "windows",
        "plan -f examples/pods/windows.yaml --machine examples/machines/windows-2-groups.yaml \
         --config examples/kubelet/windows.yaml",
    ),
    (
        "windows-wide",
        "plan -f examples/pods/windows-wide.yaml --machine \
         examples/machines/windows-2-groups.yaml --config examples/kubelet/windows.yaml",
    ),
    (
        "inference",
        "plan -f examples/pods/inference.yaml --machine examples/machines/gb200.yaml --config \
         examples/kubelet/inference.yaml --resource nvidia.com/gpu=4",
    ),
    (
        "too-much",
        "plan -f examples/pods/too-much.yaml --machine examples/machines/epyc-2s-nps4.yaml \
         --config examples/kubelet/datacenter.yaml",
    ),
    (
        "how-many",
        "plan -f examples/pods/shop.yaml --machine examples/machines/intel-2s-snc2.yaml \
         --how-many",
    ),
    (
        "spread",
        "plan -f examples/pods/edge.yaml --machines 12x examples/machines/edge.yaml --strategy \
         spread",
    ),
    (
        "config-show",
        "config show examples/kubelet/windows.yaml --machine \
         examples/machines/windows-2-groups.yaml",
    ),
    (
        "config-generate",
        "config generate --machine examples/machines/epyc-2s-nps4.yaml --topology-manager \
         single-numa-node --option full-pcpus-only --reserved-cpus 4 --reserved-memory 8Gi",
    ),
];

#[test]
fn examples_print_their_recorded_output() {
    for (name, arguments) in COMMANDS {
        let output = berth(arguments);
        let text = String::from_utf8(output.stdout).unwrap();
        let code = output.status.code().unwrap();
        let found = format!("$ berth {arguments}\n{text}exit code {code}\n");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/expected/{name}.txt"));
        if std::env::var_os("BERTH_BLESS").is_some() {
            std::fs::write(&path, &found).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(found, expected, "{name}: set BERTH_BLESS=1 to write the new outcome down");
    }
}

#[test]
fn pictures_are_self_contained_and_show_every_container() {
    let datacenter = COMMANDS[0].1;
    let svg = String::from_utf8(berth(&format!("{datacenter} -o svg")).stdout).unwrap();
    assert!(svg.contains("<svg") && svg.contains("orders-db-2"), "{svg:.200}");
    let too_much = COMMANDS.iter().find(|(name, _)| *name == "too-much").unwrap().1;
    let html = String::from_utf8(berth(&format!("{too_much} -o html")).stdout).unwrap();
    assert!(html.contains("trader-7") && html.contains("whole cores"), "{html:.200}");
    assert!(!html.contains("http://") || html.contains("www.w3.org"), "{html:.200}");
    let fleet = "plan -f examples/pods/edge.yaml --machines 12x examples/machines/edge.yaml";
    let html = String::from_utf8(berth(&format!("{fleet} -o html")).stdout).unwrap();
    assert!(html.contains("edge-2 … edge-12 (11 identical)"), "{html:.200}");
    let refused = berth(&format!("{fleet} -o svg"));
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn every_command_of_the_examples_readme_is_tested() {
    let readme = std::fs::read_to_string(root().join("examples/README.md")).unwrap();
    let joined = readme.replace("\\\n", " ");
    let commands: Vec<String> = joined
        .lines()
        .filter_map(|line| line.trim().strip_prefix("berth "))
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert!(!commands.is_empty());
    for command in commands {
        let tested = COMMANDS.iter().any(|(_, arguments)| *arguments == command);
        assert!(tested, "not in COMMANDS: {command}");
    }
}

#[test]
fn shipped_configurations_are_valid() {
    let check = |config: &str, machine: &str| {
        let output = berth(&format!(
            "config check examples/kubelet/{config}.yaml --machine examples/machines/{machine}.yaml"
        ));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    check("datacenter", "epyc-2s-nps4");
    check("windows", "windows-2-groups");
    check("inference", "gb200");
    check("node", "edge");
}

#[test]
fn invalid_input_is_located_and_exits_with_code_2() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let write = |name: &str, text: &str| -> String {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let check = |arguments: &str, part: &str| {
        let output = berth(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments}: {error}");
        assert!(error.contains(part), "{arguments}: {error}");
    };
    let pod = write(
        "misspelt.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  container: []\n",
    );
    check(
        &format!("plan -f {pod} --machine 4c"),
        "misspelt.yaml: line 5, column 3: spec.container: unknown field \"container\"; did you mean \"containers\"?",
    );
    let config = write(
        "kubelet.yaml",
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
         cpuManagerPolicy: static\n",
    );
    check(
        &format!("config check {config} --machine 4c"),
        "kubelet.yaml: line 3, column 19: cpuManagerPolicy: [cpumanager] the static policy requires",
    );
    let garbage = write("garbage", &"\u{1}garbage ".repeat(120_000));
    check(&format!("plan -f {garbage} --machine 4c"), "error: ");
    check(&format!("plan -f examples/pods/edge.yaml --machine {garbage}"), "error: ");
    check(&format!("config check {garbage} --machine 4c"), "error: ");
    check("plan -f examples/pods/edge.yaml --machine nowhere.yaml", "there is no such file");
    check("plan -f examples/pods/edge.yaml --machine 4-cores", "write for example");
    check("plan -f nowhere.yaml", "nowhere.yaml: ");
    check("plan -f examples/pods/edge.yaml --machines 0x 4c", "from 1 to");
    check("plan -f examples/pods/edge.yaml --machines many", "write a count and a machine");
    check("config generate --machine 4c --reserved-cpus 9-3", "--reserved-cpus");
    check("config generate --machine 4c --reserved-memory lots", "like 4Gi");
    check("plan", "required");
}

#[test]
fn completions_have_every_command_and_flag() {
    let help = |command: &str| {
        let output = berth(&format!("{command} --help"));
        assert!(output.status.success(), "{command}");
        String::from_utf8(output.stdout).unwrap()
    };
    let all = help("");
    let listed = all.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands: Vec<&str> = listed
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    for command in ["plan", "up", "agent", "server", "completions"] {
        assert!(commands.contains(&command), "{command} is not in {commands:?}");
    }
    let mut flags: Vec<String> = Vec::new();
    for command in commands.iter().filter(|command| **command != "help") {
        let text = help(command);
        // Examples have flags of other programs.
        let text = text.split("Examples:").next().unwrap_or_default();
        let words = text.split(|c: char| c.is_whitespace() || c == ',' || c == '[');
        let long = words.filter_map(|word| word.strip_prefix("--"));
        flags.extend(long.filter(|flag| !flag.is_empty()).map(str::to_owned));
    }
    flags.retain(|flag| flag.chars().all(|c| c.is_ascii_lowercase() || c == '-'));
    assert!(flags.iter().any(|flag| flag == "how-many"), "{flags:?}");
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let output = berth(&format!("completions {shell}"));
        let script = String::from_utf8(output.stdout).unwrap();
        let words: std::collections::BTreeSet<&str> = script
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '-')
            .map(|word| word.trim_start_matches('-'))
            .collect();
        for name in commands.iter().copied().chain(flags.iter().map(String::as_str)) {
            assert!(words.contains(name), "{shell} lacks {name}");
        }
    }
}

#[test]
fn picture_in_the_readme_is_current() {
    let drawn = berth(
        "plan -f examples/pods/datacenter.yaml --machine examples/machines/epyc-2s-nps4.yaml \
         --config examples/kubelet/datacenter.yaml -o svg",
    );
    assert!(drawn.status.success(), "{}", String::from_utf8_lossy(&drawn.stderr));
    let path = root().join("docs/images/plan.svg");
    if std::env::var_os("BERTH_BLESS").is_some() {
        std::fs::write(&path, &drawn.stdout).unwrap();
    }
    // Git may have changed line endings.
    let kept = String::from_utf8(std::fs::read(&path).unwrap()).unwrap().replace("\r\n", "\n");
    assert_eq!(String::from_utf8_lossy(&drawn.stdout).replace("\r\n", "\n"), kept);
}
