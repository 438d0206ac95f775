//! Number and duration of requests, in upstream's metrics: [`ServerMetrics`].

use std::time::Instant;

use http::Method;

use metrics::{Counter, Gauge, Histogram, Registry};

const LABELS: &[&str] = &["long_running", "method", "path", "server_type"];

/// Upper bounds in seconds: Prometheus' defaults, as upstream.
const BOUNDS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// First path segments with a series of their own. Every other path is `other`, so that clients cannot
/// create series.
const PATHS: &[&str] = &[
    "attach",
    "configz",
    "containerLogs",
    "exec",
    "healthz",
    "metrics",
    "pods",
    "portForward",
    "run",
    "runningpods",
    "stats",
];

#[derive(Debug, Clone)]
pub(super) struct ServerMetrics {
    total: Counter,
    under_way: Gauge,
    seconds: Histogram,
}

impl ServerMetrics {
    pub(super) fn new(registry: &Registry) -> ServerMetrics {
        let total = registry.counter(
            "kubelet_http_requests_total",
            "[ALPHA] Number of the http requests received since the server started",
            LABELS,
        );
        let under_way = registry.gauge(
            "kubelet_http_inflight_requests",
            "[ALPHA] Number of the inflight http requests",
            LABELS,
        );
        let seconds = registry.histogram(
            "kubelet_http_requests_duration_seconds",
            "[ALPHA] Duration in seconds to serve http requests",
            LABELS,
            BOUNDS,
        );
        ServerMetrics { total, under_way, seconds }
    }

    /// Counts a request as in flight until the returned value is dropped.
    pub(super) fn begin(&self, method: &Method, path: &str) -> RequestInFlight {
        let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
        let first = PATHS.iter().find(|known| **known == first).copied().unwrap_or("other");
        let lasts = matches!(first, "attach" | "exec" | "portForward");
        let method = match *method {
            Method::GET => "GET",
            Method::HEAD => "HEAD",
            Method::POST => "POST",
            _ => "other",
        };
        let labels = [if lasts { "true" } else { "false" }, method, first, "readwrite"];
        self.total.increment(&labels);
        self.under_way.add(&labels, 1.0);
        RequestInFlight { measured: self.clone(), labels, began: Instant::now() }
    }
}

/// Dropped when the response is complete or the client is gone.
pub(super) struct RequestInFlight {
    measured: ServerMetrics,
    labels: [&'static str; 4],
    began: Instant,
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        self.measured.under_way.add(&self.labels, -1.0);
        self.measured.seconds.observe(&self.labels, self.began.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_the_first_word_of_their_path() {
        let registry = Registry::default();
        let measured = ServerMetrics::new(&registry);
        drop(measured.begin(&Method::POST, "/exec/a/p/c"));
        drop(measured.begin(&Method::GET, "/metrics/cadvisor"));
        drop(measured.begin(&Method::GET, "/whatever/there/is"));
        let _asked = measured.begin(&Method::DELETE, "/pods/");
        let text = registry.render();
        let series = |name: &str, long: bool, method: &str, path: &str, value: u32| {
            let line = format!(
                "{name}{{long_running=\"{long}\",method=\"{method}\",path=\"{path}\",server_type=\"readwrite\"}} {value}"
            );
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        };
        let total = "kubelet_http_requests_total";
        series(total, true, "POST", "exec", 1);
        series(total, false, "GET", "metrics", 1);
        series(total, false, "GET", "other", 1);
        series("kubelet_http_requests_duration_seconds_count", true, "POST", "exec", 1);
        series("kubelet_http_inflight_requests", true, "POST", "exec", 0);
        series("kubelet_http_inflight_requests", false, "other", "pods", 1);
    }
}
