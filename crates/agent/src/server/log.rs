//! `containerLogs`: the log of a container, once or followed.

use std::path::PathBuf;

use client::clock::{Clock as _, SystemClock};
use cri::v1;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use https::{Answer, Body};
use objects::timestamp::Timestamp;
use tokio::sync::mpsc;

use super::{Refusal, Server, ServerRequest, TEXT, find_container};
use crate::runtime::logs::reader::{self, Options, Reader};

/// Number of pieces of a log that are read ahead of the client.
const AHEAD: usize = 4;

impl Server {
    pub(super) async fn logs(
        &self,
        request: &ServerRequest,
        namespace: &str,
        pod_name: &str,
        name: &str,
    ) -> Result<Answer, Refusal> {
        let options = options(request, SystemClock.now())?;
        let missing =
            || Refusal::new(StatusCode::NOT_FOUND, format!("pod {pod_name:?} does not exist"));
        let pod = self.backend.pod(namespace, pod_name).ok_or_else(missing)?;
        let id =
            find_container::logged(&pod, pod_name, name, flag(request, "previous")?)?.to_owned();
        let status = self.container(&id).await.map_err(|error| Refusal::of_runtime(&error))?;
        let path = PathBuf::from(status.log_path);
        let opening = tokio::task::spawn_blocking(move || Reader::open(&path, options)).await;
        let failed = |text: String| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, text);
        let reader = opening.map_err(|error| failed(error.to_string()))?;
        let reader = reader.map_err(|error| failed(error.to_string()))?;
        let (sender, chunks) = mpsc::channel(AHEAD);
        // The existing log is sent to its end; following ends with the server.
        let lasts = options.follow;
        let server = self.clone();
        tokio::spawn(async move {
            let runs = || server.runs(&id);
            tokio::select! {
                // After the headers are sent, a read error can only end the response.
                _ = reader::follow(reader, runs, sender) => {}
                () = server.stopping(), if lasts => {}
            }
        });
        let mut response = Response::new(Body::Stream(chunks));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT));
        Ok(Answer::from(response).for_slow_reader())
    }

    async fn container(&self, id: &str) -> Result<v1::ContainerStatus, cri::Error> {
        let request = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        Ok(self.runtime.call(request).await?.status.unwrap_or_default())
    }

    /// Returns when the server is stopped.
    async fn stopping(&self) {
        let Some(mut stop) = self.stop.clone() else { return std::future::pending().await };
        // If the sender is gone, the server stops.
        let _ = stop.wait_for(|stopping| *stopping).await;
    }

    /// Returns true if a container still runs, or if the runtime does not answer.
    async fn runs(&self, id: &str) -> bool {
        match self.container(id).await {
            Ok(status) => status.state() == v1::ContainerState::ContainerRunning,
            Err(error) => !error.is_not_found(),
        }
    }
}

/// Parses the options in the query.
fn options(request: &ServerRequest, now: Timestamp) -> Result<Options, Refusal> {
    let since = match (request.parameter("sinceTime"), number(request, "sinceSeconds")?) {
        ("", None) => None,
        ("", Some(seconds)) => {
            let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
            Some(now.plus_seconds(seconds.saturating_neg()))
        }
        (text, None) => {
            Some(Timestamp::parse(text).map_err(|error| invalid("sinceTime", text, error))?)
        }
        (_, Some(_)) => {
            let text = "at most one of `sinceTime` or `sinceSeconds` may be specified";
            return Err(Refusal::bad(text));
        }
    };
    Ok(Options {
        follow: flag(request, "follow")?,
        tail: number(request, "tailLines")?,
        since,
        timestamps: flag(request, "timestamps")?,
        limit: number(request, "limitBytes")?,
    })
}

fn invalid(name: &str, value: &str, wanted: impl std::fmt::Display) -> Refusal {
    Refusal::bad(format!("{name}: Invalid value: {value:?}: {wanted}"))
}

fn number(request: &ServerRequest, name: &str) -> Result<Option<u64>, Refusal> {
    match request.parameter(name) {
        "" => Ok(None),
        text => match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(invalid(name, text, "must be a whole number, 0 or more")),
        },
    }
}

fn flag(request: &ServerRequest, name: &str) -> Result<bool, Refusal> {
    match request.parameter(name) {
        "" | "0" | "false" => Ok(false),
        "1" | "true" => Ok(true),
        text => Err(invalid(name, text, "must be true or false")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderMap, Method};

    fn request(query: &str) -> ServerRequest {
        let (method, headers) = (Method::GET, HeaderMap::new());
        ServerRequest {
            method,
            headers,
            path: String::new(),
            query: super::super::parameters(query),
        }
    }

    #[test]
    fn options_are_read_as_the_api_server_writes_them() {
        let now = Timestamp::new(1000, 0);
        let read = options(
            &request("follow=true&tailLines=5&sinceSeconds=60&timestamps=true&limitBytes=9"),
            now,
        );
        let expected = Options {
            follow: true,
            tail: Some(5),
            since: Some(Timestamp::new(940, 0)),
            timestamps: true,
            limit: Some(9),
        };
        assert_eq!(read, Ok(expected));
        let read =
            options(&request("sinceTime=1970-01-01T00%3A00%3A05Z&follow=false"), now).unwrap();
        assert_eq!(read, Options { since: Some(Timestamp::new(5, 0)), ..Options::default() });
    }

    #[test]
    fn options_that_cannot_be_are_refused_by_name() {
        for (query, text) in [
            ("tailLines=x", "tailLines: Invalid value: \"x\": must be a whole number"),
            ("tailLines=-1", "tailLines"),
            ("limitBytes=99999999999999999999", "limitBytes"),
            ("follow=maybe", "follow: Invalid value: \"maybe\": must be true or false"),
            ("sinceTime=yesterday", "sinceTime: Invalid value"),
            ("sinceTime=1970-01-01T00:00:05Z&sinceSeconds=1", "at most one of"),
        ] {
            let refusal = options(&request(query), Timestamp::new(0, 0)).unwrap_err();
            assert_eq!(refusal.status, StatusCode::BAD_REQUEST);
            assert!(refusal.text.contains(text), "{}", refusal.text);
        }
    }
}
