//! Recorded exchanges with kube-apiserver, replayed with our API server in this process.
//!
//! Every scenario gets its own server on an empty store, with the objects that it names. Each step
//! counts as one vector. A placeholder of the recorder (`<uid-1>`, `<rv-2>`, `<time>`) is bound to
//! our server's value where it first appears, and must have the same value from then on; requests
//! are sent with the bound values. [`deliberate`] lists deliberate differences.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use apiserver::{
    Api, Body, Caller, Options, Query, Reply, Request as ApiRequest, StaticToken, User,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::{Map, Value};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{Difference, Outcome, Verdict, recorded_plugins};

mod compare;
mod deliberate;
mod placeholder;

use compare::Comparison;
use placeholder::Bindings;

/// Scenarios replayed concurrently. They mostly wait for watches to end.
const AT_A_TIME: usize = 24;

/// Replays all scenarios of a file.
pub(super) fn run(lines: Vec<Value>) -> Result<Vec<Outcome>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_time().build()?;
    runtime.block_on(async {
        let permits = Arc::new(Semaphore::new(AT_A_TIME));
        let mut playing = Vec::new();
        for line in lines {
            let permits = Arc::clone(&permits);
            playing.push(tokio::spawn(async move {
                let _permit = permits.acquire_owned().await;
                scenario(&line).await
            }));
        }
        let mut outcomes = Vec::new();
        for scenario in playing {
            outcomes.extend(scenario.await.context("a scenario panicked")?);
        }
        Ok(outcomes)
    })
}

/// One scenario on its own server.
struct ScenarioRunner {
    api: Api,
    bindings: Bindings,
    /// True if the recording has `managedFields`.
    managed_fields: bool,
    any_order: bool,
    unstable: Vec<String>,
    id: String,
    /// An unserved object that an earlier step wrote; later steps may depend on it.
    missing: Option<String>,
    outcomes: Vec<Outcome>,
}

async fn scenario(line: &Value) -> Vec<Outcome> {
    let id = line["id"].as_str().unwrap_or_default().to_owned();
    match play(line, &id).await {
        Ok(outcomes) => outcomes,
        Err(error) => vec![Outcome {
            kind: kind_of(&id),
            id,
            verdict: Verdict::Failed,
            quirk: None,
            differences: vec![Difference {
                what: "the scenario".into(),
                expected: "to be replayed".into(),
                got: format!("{error:#}"),
            }],
        }],
    }
}

fn kind_of(id: &str) -> String {
    format!("exchanges/{}", id.split('/').next().unwrap_or_default())
}

async fn play(line: &Value, id: &str) -> Result<Vec<Outcome>> {
    if line.get("needs").is_some() {
        return Ok(vec![Outcome {
            kind: kind_of(id),
            id: id.to_owned(),
            verdict: Verdict::NotServed,
            quirk: Some("needs a request that no client can send".to_owned()),
            differences: Vec::new(),
        }]);
    }
    let dir = tempfile::tempdir()?;
    let store = store::Store::open(&dir.path().join("store"), store::Options::default())?;
    let options = Options {
        allow_privileged: line["server"] != "allow-privileged-false",
        // The address of the recorded server.
        advertised: "127.0.0.1:21003".to_owned(),
        plugins: match line.get("objects") {
            // Recorded with all plugins, and with accounts among the objects.
            Some(_) => apiserver::Plugins::default(),
            None => recorded_plugins(),
        },
        tokens: [("alice", &["dev", "ops"][..]), ("bob", &["dev"][..])].map(static_token).into(),
        ..Options::default()
    };
    let api = Api::new(store, options)
        .await
        .map_err(|refusal| anyhow::anyhow!("the server does not start: {}", refusal.message))?;
    let mut runner = ScenarioRunner {
        api,
        bindings: Bindings::default(),
        managed_fields: line["managed_fields"] == true,
        any_order: line.get("any_order").is_some_and(|value| value != false),
        unstable: texts(&line["unstable"]),
        id: id.to_owned(),
        missing: None,
        outcomes: Vec::new(),
    };
    if let Some(name) = line["namespace"]["name"].as_str() {
        runner.make_namespace(name, &line["namespace"]["labels"]).await?;
    }
    for object in line["objects"].as_array().into_iter().flatten() {
        runner.prepare(object, &line["uids"]).await?;
    }
    let steps = line["steps"].as_array().map(Vec::as_slice).unwrap_or_default();
    for (index, step) in steps.iter().enumerate() {
        runner.step(step, &format!("steps[{index}]")).await?;
    }
    Ok(runner.outcomes)
}

fn texts(list: &Value) -> Vec<String> {
    let items = list.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The response of our server.
struct CapturedResponse {
    status: u16,
    content_type: String,
    warnings: Vec<String>,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl ScenarioRunner {
    async fn make_namespace(&mut self, name: &str, labels: &Value) -> Result<()> {
        let object = serde_json::json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": name, "labels": labels},
        });
        let request = serde_json::json!({
            "method": "POST", "path": "/api/v1/namespaces", "body": object,
        });
        let reply = self.api.handle(self.call(&request)?).await;
        let response = collect(reply, None).await;
        // The namespace may exist in every cluster.
        if response.status != 201 && response.status != 409 {
            bail!("namespace {name}: {}", String::from_utf8_lossy(&response.body));
        }
        Ok(())
    }

    /// Creates an object that the steps of a line need, and binds its uid. `uids` are placeholders
    /// by kind and name.
    async fn prepare(&mut self, object: &Value, uids: &Value) -> Result<()> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        let Some(resource) = objects::catalog::of_kind(&version, &kind) else {
            self.missing = Some(kind);
            return Ok(());
        };
        let (name, namespace) =
            (text(&object["metadata"]["name"]), text(&object["metadata"]["namespace"]));
        let root = if resource.group.is_empty() { "/api" } else { "/apis" };
        let within = match namespace.as_str() {
            "" => String::new(),
            namespace => format!("/namespaces/{namespace}"),
        };
        let path = format!("{root}/{version}{within}/{}", resource.plural);
        let post = serde_json::json!({"method": "POST", "path": path, "body": object});
        let created = collect(self.api.handle(self.call(&post)?).await, None).await;
        if created.status == 409 {
            return Ok(());
        }
        let mut response: Value = serde_json::from_slice(&created.body)?;
        if created.status != 201 {
            bail!("{kind} {name} cannot be created: {response}");
        }
        if let Some(placeholder) = uids[format!("{kind} {name}")].as_str() {
            self.bindings.set(placeholder, &text(&response["metadata"]["uid"]));
        }
        if object["status"].is_object() {
            response["status"] = object["status"].clone();
            let put = serde_json::json!({
                "method": "PUT", "path": format!("{path}/{name}/status"), "body": response,
            });
            let written = collect(self.api.handle(self.call(&put)?).await, None).await;
            if written.status != 200 {
                let body = String::from_utf8_lossy(&written.body);
                bail!("the status of {kind} {name} cannot be written: {body}");
            }
        }
        Ok(())
    }

    async fn step(&mut self, step: &Value, place: &str) -> Result<()> {
        let request = &step["request"];
        if request.get("as").is_some() {
            // Uids of no prepared object were invented by the recorder.
            self.bindings.invent_uids(&request["body"].to_string());
        }
        let name = step["name"].as_str().unwrap_or_default();
        let id = format!("{} {place} {name}", self.id).trim_end().to_owned();
        let unplayable = if request.get("body_desc").is_some() {
            Some("the body is only described".to_owned())
        } else {
            deliberate::not_served(request, &step["response"])
        };
        if let Some(why) = unplayable {
            if request["method"] != "GET" {
                self.missing = Some(why.clone());
            }
            self.outcomes.push(Outcome {
                kind: kind_of(&self.id),
                id,
                verdict: Verdict::NotServed,
                quirk: Some(why),
                differences: Vec::new(),
            });
            return Ok(());
        }
        let mut call = self.call(request)?;
        let during = step["during"].as_array().map(Vec::as_slice).unwrap_or_default();
        if !during.is_empty() {
            // Concurrent steps may take longer here than in the recording, so this watch is ended
            // by its reader and not by a timeout.
            let kept = call.query.pairs().filter(|(name, _)| *name != "timeoutSeconds");
            let kept: Vec<_> = kept.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
            call.query = Query::of(kept);
        }
        let reply = self.api.handle(call).await;
        for (index, inner) in during.iter().enumerate() {
            Box::pin(self.step(inner, &format!("{place}.during[{index}]"))).await?;
        }
        let events = step["response"]["events"].as_array().filter(|_| !during.is_empty());
        let response = collect(reply, events.map(Vec::as_slice)).await;
        self.judge(step, &response, place, id);
        Ok(())
    }

    /// Builds the request with bound values.
    fn call(&self, request: &Value) -> Result<apiserver::Request> {
        let text = |key: &str| self.bindings.fill(request[key].as_str().unwrap_or_default());
        let method = Method::from_bytes(text("method").as_bytes())?;
        let query = match &request["query"] {
            Value::Object(pairs) => pairs.iter().map(|(k, v)| (k.clone(), query_text(v))).collect(),
            Value::Array(pairs) => {
                pairs.iter().map(|pair| (query_text(&pair[0]), query_text(&pair[1]))).collect()
            }
            _ => Vec::new(),
        };
        let query = query.into_iter().map(|(k, v)| (k, self.bindings.fill(&v)));
        let body = match (request.get("body"), request["body_text"].as_str()) {
            (_, Some(text)) => self.bindings.fill(text),
            (Some(body), None) => as_recorded(&self.bindings.fill_value(body)),
            (None, None) => String::new(),
        };
        let mut headers = HeaderMap::new();
        headers.insert("accept", HeaderValue::from_static("application/json"));
        headers.insert("user-agent", HeaderValue::from_static("golden/1.0"));
        if !body.is_empty() {
            headers.insert("content-type", HeaderValue::from_static("application/json"));
        }
        for (name, value) in request["headers"].as_object().into_iter().flatten() {
            let name = HeaderName::from_bytes(name.to_ascii_lowercase().as_bytes())?;
            match value.as_str() {
                Some(value) => {
                    headers.insert(name, HeaderValue::from_str(&self.bindings.fill(value))?);
                }
                None => {
                    headers.remove(name);
                }
            }
        }
        impersonate(&request["as"], &mut headers)?;
        Ok(ApiRequest {
            method,
            path: text("path"),
            query: Query::of(query),
            headers,
            body: body.into(),
            caller: caller(request["user"].as_str()),
            source: None,
        })
    }

    fn judge(&mut self, step: &Value, response: &CapturedResponse, place: &str, id: String) {
        let expected = &step["response"];
        let mut comparison = Comparison {
            bindings: &mut self.bindings,
            unstable: &self.unstable,
            any_order: self.any_order,
            managed_fields: self.managed_fields,
            differences: Vec::new(),
        };
        comparison.response(expected, response, place);
        let differences = comparison.differences;
        let reason = (!differences.is_empty())
            .then(|| deliberate::reason(&self.id, &step["request"], expected, response.status))
            .flatten();
        let verdict = match (&reason, differences.is_empty(), &self.missing) {
            (_, true, _) => Verdict::Passed,
            (Some(_), false, _) => Verdict::DeliberatelyDifferent,
            (None, false, Some(_)) => Verdict::NotServed,
            (None, false, None) => Verdict::Failed,
        };
        let kind = kind_of(&self.id);
        let quirk = match verdict {
            Verdict::NotServed => self.missing.clone(),
            _ => reason.map(str::to_owned),
        };
        self.outcomes.push(Outcome { kind, id, verdict, quirk, differences });
    }
}

/// Adds the headers to impersonate the recorded acting user.
fn impersonate(acting: &Value, headers: &mut HeaderMap) -> Result<()> {
    let mut add = |name: String, value: &Value| -> Result<()> {
        let name = HeaderName::from_bytes(name.to_ascii_lowercase().as_bytes())?;
        headers.append(name, HeaderValue::from_str(value.as_str().unwrap_or_default())?);
        Ok(())
    };
    for (field, name) in [("user", "Impersonate-User"), ("uid", "Impersonate-Uid")] {
        if acting[field].is_string() {
            add(name.to_owned(), &acting[field])?;
        }
    }
    for group in acting["groups"].as_array().into_iter().flatten() {
        add("Impersonate-Group".to_owned(), group)?;
    }
    for (key, values) in acting["extra"].as_object().into_iter().flatten() {
        for value in values.as_array().into_iter().flatten() {
            add(format!("Impersonate-Extra-{key}"), value)?;
        }
    }
    Ok(())
}

/// Renders JSON with blanks after commas and colons, as the recorder sent it and as responses quote
/// it.
fn as_recorded(value: &Value) -> String {
    let list =
        |parts: Vec<String>, open: char, close: char| format!("{open}{}{close}", parts.join(", "));
    match value {
        Value::Array(items) => list(items.iter().map(as_recorded).collect(), '[', ']'),
        Value::Object(fields) => {
            let each = fields.iter().map(|(name, value)| {
                format!("{}: {}", Value::from(name.as_str()), as_recorded(value))
            });
            list(each.collect(), '{', '}')
        }
        scalar => scalar.to_string(),
    }
}

fn query_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the token of one of the recorder's users.
fn static_token((name, groups): (&str, &[&str])) -> StaticToken {
    let groups = groups.iter().copied().chain(["system:authenticated"]).map(str::to_owned);
    let user = User {
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        groups: groups.collect(),
        ..User::default()
    };
    StaticToken { token: format!("{name}-token"), user }
}

/// Returns one of the recorder's users.
fn caller(name: Option<&str>) -> Caller {
    match name {
        None | Some("admin") => Caller::Known(User::member("admin", "system:masters")),
        Some("none") => Caller::Anonymous,
        Some("bad") => Caller::InvalidCredentials,
        Some(other) => Caller::Known(User::member(other, "recorded")),
    }
}

/// Time to wait for a surplus event of a watch.
const SURPLUS: Duration = Duration::from_millis(300);

/// Time to wait for a missing event of a watch.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Reads a whole reply; a stream until it ends or until `events` of a watch have come.
async fn collect(reply: Reply, events: Option<&[Value]>) -> CapturedResponse {
    let response = reply.into_response();
    let (parts, body) = response.into_parts();
    let header = |name: &str| {
        parts.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned()
    };
    let warnings = parts.headers.get_all("warning").iter();
    let warnings = warnings.filter_map(|v| v.to_str().ok()).map(str::to_owned).collect();
    let content_type = header("content-type");
    let mut bytes = Vec::new();
    match body {
        Body::Whole(whole) => bytes.extend_from_slice(&whole),
        Body::Stream(mut chunks) => {
            let wanted = events.map(|events| events.iter().filter(|e| compare::counts(e)).count());
            loop {
                let next = match wanted {
                    None => chunks.recv().await,
                    Some(wanted) => {
                        let wait = if events_in(&bytes) < wanted { TIMEOUT } else { SURPLUS };
                        timeout(wait, chunks.recv()).await.unwrap_or_default()
                    }
                };
                let Some(chunk) = next else { break };
                bytes.extend_from_slice(&chunk);
            }
        }
    }
    CapturedResponse {
        status: parts.status.as_u16(),
        content_type,
        warnings,
        headers: parts.headers,
        body: bytes,
    }
}

/// Counts the compared events of a watch in these lines.
fn events_in(lines: &[u8]) -> usize {
    let lines = lines.split(|byte| *byte == b'\n');
    let events = lines.filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    events.filter(compare::counts).count()
}

/// Returns the names in a reduced response, in order.
pub(super) fn item_names(list: &Value) -> Vec<Value> {
    let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().map(|item| item["metadata"]["name"].clone()).collect()
}

type Bound = HashMap<String, String>;
type Object = Map<String, Value>;
