//! Configurations of a node with a mistake: `config check`, `up` and `agent` refuse each of them
//! with the same error, and an address is obeyed.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use http::{Request, StatusCode};
use http_body_util::Full;
use https::Dialer;
use hyper::body::Bytes;

use crate::server::{await_line, limited};

const TIMEOUT: Duration = Duration::from_secs(30);

/// Fields with a mistake, and the field that the error names. Upstream's kubelet refuses each.
const MISTAKES: &[(&str, &str)] = &[
    ("address: here", "address: "),
    ("address: 10.0.0.300", "address: "),
    ("port: 70000", "port: "),
    ("port: -1", "port: "),
    ("healthzPort: 99999", "healthzPort: "),
    ("readOnlyPort: -7", "readOnlyPort: "),
    ("maxPods: -4", "maxPods: "),
    ("podsPerCore: -1", "podsPerCore: "),
    ("fileCheckFrequency: 20", "fileCheckFrequency: "),
    ("nodeStatusUpdateFrequency: soon", "nodeStatusUpdateFrequency: "),
    ("nodeLeaseDurationSeconds: 0.5", "nodeLeaseDurationSeconds: "),
    ("containerLogMaxSize: 10MB", "containerLogMaxSize: "),
    ("containerLogMaxFiles: 1", "containerLogMaxFiles: "),
    ("imageGCHighThresholdPercent: 101", "imageGCHighThresholdPercent: "),
    (
        "imageGCHighThresholdPercent: 50\nimageGCLowThresholdPercent: 60",
        "imageGCLowThresholdPercent: ",
    ),
    ("evictionHard: {memory.available: -5%}", "evictionHard"),
    ("evictionHard: {memory.available: plenty}", "evictionHard"),
    ("evictionSoft: {memory.available: 5%}", "evictionSoft"),
    ("systemReserved: {memory: -1Gi}", "systemReserved"),
    ("reservedSystemCPUs: 9-3", "reservedSystemCPUs"),
    ("cpuManagerPolicyOptions: {full-pcpus-only: 'true'}", "cpuManagerPolicyOptions: "),
    ("cpuCFSQuotaPeriod: 50ms", "cpuCFSQuotaPeriod"),
    ("registerWithTaints: [{key: 'a b', effect: NoSchedule}]", "registerWithTaints"),
    ("containerRuntimeEndpoint: 'tcp://x'", "containerRuntimeEndpoint: "),
    ("topologyManagerScope: galaxy", "topologyManagerScope: "),
    ("featureGates: {AllAlpha: maybe}", "featureGates"),
    ("logging: {format: xml}", "logging.format: "),
    ("logging: {flushFrequency: -1s}", "logging.flushFrequency: "),
    ("logging: {verbosity: -2}", "logging.verbosity: "),
    ("tracing: {samplingRatePerMillion: -1}", "tracing.samplingRatePerMillion: "),
    ("tracing: {endpoint: 'nowhere:port:x'}", "tracing.endpoint: "),
];

fn configuration(directory: &Path, fields: &str) -> String {
    let file = directory.join("kubelet.yaml");
    let text = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{fields}\n"
    );
    fs::write(&file, text).unwrap();
    file.display().to_string()
}

/// Runs a command that has to be refused, and returns its standard error.
fn refused(arguments: &[&str], fields: &str) -> String {
    let mut command = limited(None);
    command.args(arguments).env("NO_COLOR", "1");
    let exit = match await_line(command, "kubectl --kubeconfig") {
        Ok((mut process, _)) => {
            process.kill().unwrap();
            process.wait().unwrap();
            panic!("{arguments:?} starts with {fields}");
        }
        Err(exit) => exit,
    };
    assert_eq!(exit.code, Some(2), "{arguments:?} {fields}: {}", exit.log);
    exit.log
}

#[test]
fn mistakes_are_refused_by_every_command_with_their_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (data, root, kubeconfig) = (path("data"), path("root"), path("kubeconfig"));
    for (fields, field) in MISTAKES {
        let file = configuration(dir.path(), fields);
        let check = ["config", "check", &file];
        let up = ["up", "--data-dir", &data, "--config", &file, "--https-listen-port", "0"];
        let agent = ["agent", "--kubeconfig", &kubeconfig, "--root-dir", &root, "--config", &file];
        for arguments in [&check[..], &up, &agent] {
            let error = refused(arguments, fields);
            for part in [&file, "line ", field] {
                assert!(error.contains(part), "{arguments:?} {fields}: {part:?} is not in {error}");
            }
        }
        assert!(!dir.path().join("data/store").exists(), "{fields}: a cluster was started");
    }
}

#[test]
fn host_name_with_invalid_characters_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data").display().to_string();
    let arguments =
        ["up", "--data-dir", &data, "--https-listen-port", "0", "--hostname-override", "My Host"];
    let error = refused(&arguments, "");
    assert!(error.contains("--hostname-override: \"My Host\""), "{error}");
}

/// A `berth up` without a runtime.
struct Up(Child);

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_listens_on_the_configured_address_only() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    // Any address of this network is the machine's own.
    let (wanted, other) = ("127.83.5.2", "127.83.5.3");
    let free = std::net::TcpListener::bind((wanted, 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let file = configuration(dir.path(), &format!("address: {wanted}\nport: {port}"));
    let mut command = limited(None);
    command.args(["up", "--https-listen-port", "0", "--hostname-override", "node-1"]);
    command.args(["--container-runtime-endpoint", "unix:///nowhere/containerd.sock"]);
    command.args(["--config", &file, "--data-dir"]).arg(&data);
    let _up = Up(await_line(command, "kubectl --kubeconfig").unwrap().0);
    let elsewhere = SocketAddr::new(other.parse().unwrap(), port);
    let error = TcpStream::connect_timeout(&elsewhere, TIMEOUT).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{error}");
    let config = client::Kubeconfig::read(&data.join("kubeconfig")).unwrap();
    let authority = config.authority.text().unwrap();
    let dialer = Dialer::new(&authority, None, &["http/1.1"], TIMEOUT).unwrap();
    let stream = dialer.connect(wanted, port, wanted).await.unwrap();
    let request = Request::get("/pods").header("host", wanted).body(Full::<Bytes>::default());
    let response = https::exchange(stream, request.unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
}
