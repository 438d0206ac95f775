//! The gRPC health check, `grpc.health.v1.Health/Check`, with upstream's texts for outcomes.

use std::time::Duration;

use http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

use super::execute::ProbeOutcome;
use crate::runtime::fetch::{VERSION, messages};

/// The pause between two attempts to connect: a starting server is waited for until the timeout.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    status: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

impl ServingStatus {
    fn name(self) -> &'static str {
        match self {
            ServingStatus::Unknown => "UNKNOWN",
            ServingStatus::Serving => "SERVING",
            ServingStatus::NotServing => "NOT_SERVING",
            ServingStatus::ServiceUnknown => "SERVICE_UNKNOWN",
        }
    }
}

pub(super) async fn check_health(
    host: &str,
    port: u16,
    service: &str,
    timeout: Duration,
) -> ProbeOutcome {
    let address = messages::join(host, port);
    let within = objects::go::duration(timeout);
    let end = tokio::time::Instant::now() + timeout;
    let channel = match tokio::time::timeout_at(end, connect(&address)).await {
        Ok(Ok(channel)) => channel,
        Ok(Err(error)) => {
            return ProbeOutcome::Failure(format!(
                "error: failed to connect service at \"{address}\": {error}"
            ));
        }
        Err(_) => return unconnected(&address, &within),
    };
    let response = match tokio::time::timeout_at(end, check(channel, service)).await {
        Ok(Ok(response)) => response,
        Ok(Err(status)) if is_of_connection(&status) => {
            // The server speaks another protocol. Upstream connects only after an HTTP/2 answer, and retries
            // until the timeout.
            tokio::time::sleep_until(end).await;
            return unconnected(&address, &within);
        }
        Ok(Err(status)) => {
            return ProbeOutcome::Failure(match status.code() {
                Code::Unimplemented => format!(
                    "error: this server does not implement the grpc health protocol \
                     (grpc.health.v1.Health): {}",
                    status.message()
                ),
                Code::DeadlineExceeded => late(&within),
                code => format!(
                    "error: health rpc probe failed: rpc error: code = {code:?} desc = {}",
                    status.message()
                ),
            });
        }
        Err(_) => return ProbeOutcome::Failure(late(&within)),
    };
    match ServingStatus::try_from(response.status) {
        Ok(ServingStatus::Serving) => ProbeOutcome::Success,
        Ok(other) => ProbeOutcome::Failure(format!(
            "service unhealthy (responded with \"{}\")",
            other.name()
        )),
        Err(_) => ProbeOutcome::Failure(format!(
            "service unhealthy (responded with \"{}\")",
            response.status
        )),
    }
}

fn unconnected(address: &str, within: &str) -> ProbeOutcome {
    ProbeOutcome::Failure(format!(
        "timeout: failed to connect service \"{address}\" within {within}: context deadline exceeded"
    ))
}

/// Returns true if an error is from the client library and not from the server.
fn is_of_connection(status: &tonic::Status) -> bool {
    std::error::Error::source(status).is_some()
}

fn late(within: &str) -> String {
    format!("timeout: health rpc did not complete within {within}")
}

async fn connect(address: &str) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
    let endpoint = endpoint.user_agent(format!("kube-probe/{VERSION}"))?;
    loop {
        match endpoint.connect().await {
            Ok(channel) => return Ok(channel),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn check(channel: Channel, service: &str) -> Result<HealthCheckResponse, tonic::Status> {
    let mut grpc = tonic::client::Grpc::new(channel);
    let unready = |error| tonic::Status::unavailable(format!("{error}"));
    grpc.ready().await.map_err(|error: tonic::transport::Error| unready(error))?;
    let request = Request::new(HealthCheckRequest { service: service.to_owned() });
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    Ok(grpc.unary(request, path, codec).await?.into_inner())
}
