//! A `berth server` process with a limit on its memory: [`Server`]. [`limited`] is any command of
//! `berth` with that limit, and [`await_line`] waits for the start of a process.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::kind::{NAMESPACES, SERVICE_ACCOUNTS};
use client::{Client, Kubeconfig, Remote, Timeouts};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use https::certificates::Pair;
use https::{Clock, DialError, Dialer};
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// The limit on the server's private memory (RLIMIT_DATA). An idle server needs a tenth of it.
pub(crate) const MEMORY: u64 = 1 << 30;

const TIMEOUT: Duration = Duration::from_secs(30);

/// The credentials of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Who<'a> {
    /// The client certificate of the administrator's kubeconfig.
    Admin,
    /// A bearer token.
    Token(&'a str),
    /// No credentials.
    Stranger,
}

/// A response with its whole body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Opens connections to a server.
#[derive(Debug, Clone)]
pub(crate) struct Endpoint {
    dialer: Dialer,
    config: Kubeconfig,
}

impl Endpoint {
    fn of(config: Kubeconfig, protocol: &str, clock: Clock) -> Endpoint {
        let pair = config.identity.as_ref().map(|(certificate, key)| Pair {
            certificate: certificate.text().unwrap(),
            key: key.text().unwrap(),
        });
        let authority = config.authority.text().unwrap();
        let dialer = Dialer::new_at(&authority, pair.as_ref(), &[protocol], TIMEOUT, clock);
        Endpoint { dialer: dialer.unwrap(), config }
    }

    pub(crate) async fn connect(&self) -> Result<TlsStream<TcpStream>, DialError> {
        let address = &self.config.address;
        self.dialer.connect(&address.host, address.port, &self.config.server_name).await
    }

    /// Returns the base URL of the server.
    pub(crate) fn base(&self) -> String {
        format!("https://{}", self.config.address.authority())
    }
}

/// The settings of a server process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Launch<'a> {
    pub(crate) arguments: &'a [&'a str],
    pub(crate) environment: Vec<(&'a str, PathBuf)>,
    /// The limit on open files, which the process cannot raise; the machine's limit if `None`.
    pub(crate) open_files: Option<u32>,
    /// The clock for checks of the server's certificates.
    pub(crate) clock: Clock,
}

impl Launch<'_> {
    fn start(&self, data_dir: &Path) -> Result<(Child, Log), Exit> {
        let mut command = limited(self.open_files);
        command.args(["server", "--https-listen-port", "0", "--data-dir"]).arg(data_dir);
        command.args(self.arguments);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        await_line(command, "is ready")
    }
}

/// The standard error of a process so far. The test prints it as well.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log(Arc<Mutex<String>>);

impl Log {
    pub(crate) fn text(&self) -> String {
        self.0.lock().unwrap().clone()
    }
}

/// The end of a process that was expected to run.
#[derive(Debug)]
pub(crate) struct Exit {
    pub(crate) code: Option<i32>,
    pub(crate) log: String,
}

/// Returns a command of the binary under test with limits on memory and open files.
pub(crate) fn limited(open_files: Option<u32>) -> Command {
    let open_files = open_files.map_or_else(|| "$(ulimit -Hn)".to_owned(), |n| n.to_string());
    let script = format!("ulimit -d {}; ulimit -n {open_files}; exec \"$0\" \"$@\"", MEMORY / 1024);
    let mut command = Command::new("sh");
    command.args(["-c", &script]).arg(rig::berth_binary(env!("CARGO_BIN_EXE_berth")));
    command.env_remove("BERTH_DATA_DIR").env_remove("KUBECONFIG");
    command
}

/// Starts a process and waits until a line of its standard output contains `text`.
pub(crate) fn await_line(mut command: Command, text: &str) -> Result<(Child, Log), Exit> {
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let log = Log::default();
    let (errors, copy) = (BufReader::new(process.stderr.take().unwrap()), log.clone());
    let errors = std::thread::spawn(move || {
        for line in errors.lines().map_while(Result::ok) {
            eprintln!("{line}");
            *copy.0.lock().unwrap() += &(line + "\n");
        }
    });
    let mut output = BufReader::new(process.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains(text) {
        line.clear();
        if output.read_line(&mut line).unwrap() == 0 {
            let code = process.wait().unwrap().code();
            errors.join().unwrap();
            return Err(Exit { code, log: log.text() });
        }
    }
    // Drain the pipe, so that later output does not block the process.
    std::thread::spawn(move || output.read_to_end(&mut Vec::new()));
    Ok((process, log))
}

/// Runs until dropped.
#[derive(Debug)]
pub(crate) struct Server {
    dir: TempDir,
    process: Child,
    log: Log,
    clock: Clock,
}

impl Server {
    /// Starts a server on a free port and waits until it is ready.
    pub(crate) fn start() -> Server {
        Server::start_with(&[])
    }

    /// Starts a server with more arguments.
    pub(crate) fn start_with(arguments: &[&str]) -> Server {
        Server::launch(&Launch { arguments, ..Launch::default() })
    }

    pub(crate) fn launch(launch: &Launch<'_>) -> Server {
        let dir = tempfile::tempdir().unwrap();
        let (process, log) = launch.start(&dir.path().join("data")).unwrap();
        Server { dir, process, log, clock: launch.clock.clone() }
    }

    /// Kills the server with SIGKILL, and starts another on the same data directory.
    pub(crate) fn restart(&mut self, arguments: &[&str]) {
        self.kill();
        self.try_start(arguments).unwrap();
    }

    /// Kills the server with SIGKILL.
    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        self.process.wait().unwrap();
    }

    /// Starts a killed server again, which may refuse its data directory.
    pub(crate) fn try_start(&mut self, arguments: &[&str]) -> Result<(), Exit> {
        let launch = Launch { arguments, ..Launch::default() };
        (self.process, self.log) = launch.start(&self.data_dir())?;
        Ok(())
    }

    /// Returns the standard error of the process.
    pub(crate) fn log(&self) -> String {
        self.log.text()
    }

    pub(crate) fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn kubeconfig(&self) -> Kubeconfig {
        Kubeconfig::read(&self.data_dir().join("kubeconfig")).unwrap()
    }

    /// Returns a client with the rights of an administrator.
    pub(crate) fn admin(&self) -> Client {
        let remote = Remote::new(self.kubeconfig(), "berth-test", Timeouts::default()).unwrap();
        Client::new(Arc::new(remote), "test")
    }

    /// Returns a service account token, as a pod has it.
    pub(crate) async fn token(&self, namespace: &str, account: &str) -> String {
        let ask = json!({
            "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {}
        });
        let admin = self.admin();
        let object = json!({
            "kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": account}
        });
        // The controller may have made it before.
        let _ = admin.create(SERVICE_ACCOUNTS, namespace, &object).await;
        let answer = admin
            .create_subresource_returning(SERVICE_ACCOUNTS, namespace, account, "token", &ask)
            .await;
        answer.unwrap()["status"]["token"].as_str().unwrap().to_owned()
    }

    /// Returns an endpoint whose TLS connections offer `protocol` (`h2` or `http/1.1`).
    pub(crate) fn endpoint(&self, who: Who<'_>, protocol: &str) -> Endpoint {
        let mut config = self.kubeconfig();
        config.identity = config.identity.filter(|_| matches!(who, Who::Admin));
        Endpoint::of(config, protocol, self.clock.clone())
    }

    /// Returns an endpoint with the rights of a viewer.
    pub(crate) fn viewer_endpoint(&self) -> Endpoint {
        let path = self.data_dir().join("viewer.kubeconfig");
        Endpoint::of(Kubeconfig::read(&path).unwrap(), "h2", self.clock.clone())
    }

    /// Opens a TLS connection that offers `protocol` (`h2` or `http/1.1`).
    pub(crate) async fn connect(&self, who: Who<'_>, protocol: &str) -> TlsStream<TcpStream> {
        self.endpoint(who, protocol).connect().await.unwrap()
    }

    /// Sends one request over a new HTTP/2 connection.
    pub(crate) async fn ask(
        &self,
        who: Who<'_>,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let stream = TokioIo::new(self.connect(who, "h2").await);
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream);
        let (mut sender, connection) = handshake.await.unwrap();
        let driver = tokio::spawn(connection);
        let uri = format!("https://{}{path}", self.kubeconfig().address.authority());
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, value.as_bytes());
        }
        if let Who::Token(token) = who {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Full::new(body.into())).unwrap();
        let response = tokio::time::timeout(TIMEOUT, sender.send_request(request));
        let (parts, body) = response.await.unwrap().unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        driver.abort();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    /// Asserts that the process still runs and responds to its administrator.
    pub(crate) async fn assert_alive(&self) {
        let stat = fs::read_to_string(self.proc("stat")).unwrap();
        assert!(!stat.contains(") Z "), "the server has ended");
        let admin = self.admin();
        let answer = admin.get::<Value>(NAMESPACES, "", "default");
        tokio::time::timeout(TIMEOUT, answer).await.unwrap().unwrap();
    }

    /// Returns the peak resident memory in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        self.memory("VmHWM:")
    }

    /// Returns the current resident memory in bytes.
    pub(crate) fn resident_memory(&self) -> u64 {
        self.memory("VmRSS:")
    }

    fn memory(&self, field: &str) -> u64 {
        let status = fs::read_to_string(self.proc("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    fn proc(&self, file: &str) -> PathBuf {
        Path::new("/proc").join(self.process.id().to_string()).join(file)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have exited, which the test reports.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
