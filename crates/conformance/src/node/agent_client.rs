//! Requests to the agent's server as a cluster administrator: [`AgentClient`].
//!
//! The address comes from the Node object, which may still be that of a previous agent: failed
//! requests are retried for up to a minute.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use client::Client;
use client::kind::NODES;
use http::header::CONTENT_TYPE;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use https::Dialer;
use https::certificates::{self, Pair};
use serde_json::Value;

use super::testbed::{NODE, TIMEOUT};

/// Timeout of one connection attempt.
const CONNECT: Duration = Duration::from_secs(5);

/// The agent's response.
#[derive(Clone, Debug, Default)]
pub(super) struct AgentResponse {
    pub(super) status: u16,
    pub(super) content_type: String,
    pub(super) body: String,
}

#[derive(Debug)]
pub(super) struct AgentClient {
    pair: Pair,
    authority: PathBuf,
}

impl AgentClient {
    /// Creates a client with its own authority, whose certificate is written to `directory`.
    pub(super) fn new(directory: &Path) -> Result<AgentClient> {
        let authority = certificates::authority("conformance")?;
        let pair = certificates::client(&authority, "conformance", "system:masters")?;
        let file = directory.join("clients.crt");
        std::fs::write(&file, &authority.certificate)
            .with_context(|| format!("cannot write {}", file.display()))?;
        Ok(AgentClient { pair, authority: file })
    }

    /// Returns the authority that the agent must trust.
    pub(super) fn authority(&self) -> PathBuf {
        self.authority.clone()
    }

    /// Sends a request to the agent with the state directory `root`.
    pub(super) async fn ask(
        &self,
        api: &Client,
        root: &Path,
        method: Method,
        path: &str,
    ) -> Result<AgentResponse> {
        let mut why = None;
        let asking = async {
            loop {
                match self.once(api, root, &method, path).await {
                    Ok(told) => return told,
                    Err(error) => why = Some(error),
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        match tokio::time::timeout(TIMEOUT, asking).await {
            Ok(told) => Ok(told),
            Err(_) => Err(why.unwrap_or_else(|| anyhow!("no response")))
                .with_context(|| format!("the agent does not respond to {path}")),
        }
    }

    async fn once(
        &self,
        api: &Client,
        root: &Path,
        method: &Method,
        path: &str,
    ) -> Result<AgentResponse> {
        let node: Value = api.get(NODES, "", NODE).await?;
        let port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64();
        let port =
            port.and_then(|port| u16::try_from(port).ok()).context("the Node has no port")?;
        let trusted = std::fs::read_to_string(root.join("pki").join("kubelet.crt"))?;
        let dialer = Dialer::new(&trusted, Some(&self.pair), &["http/1.1"], CONNECT)?;
        let stream = dialer.connect("127.0.0.1", port, NODE).await?;
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", NODE)
            .body(Full::default())?;
        let answer = https::exchange(stream, request).await?;
        let status = answer.status().as_u16();
        let media = answer.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let content_type = media.unwrap_or_default().to_owned();
        let body = answer.into_body().collect().await?.to_bytes();
        Ok(AgentResponse {
            status,
            content_type,
            body: String::from_utf8_lossy(&body).into_owned(),
        })
    }
}
