//! Requests to the Pod Resources API: [`PodResourcesMetrics`].

use metrics::{Counter, Registry};

/// The only served version.
const VERSION: [&str; 1] = ["v1"];

/// The methods of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodResourcesCall {
    List,
    Get,
    Allocatable,
}

#[derive(Debug, Clone)]
pub struct PodResourcesMetrics {
    total: Counter,
    /// For lists, single pods and allocatable resources: the number of requests and of errors.
    list: [Counter; 2],
    get: [Counter; 2],
    allocatable: [Counter; 2],
}

impl PodResourcesMetrics {
    pub(super) fn new(registry: &Registry) -> PodResourcesMetrics {
        let counter = |name, help| registry.counter(name, help, &["server_api_version"]);
        PodResourcesMetrics {
            total: counter(
                "kubelet_pod_resources_endpoint_requests_total",
                "[ALPHA] Cumulative number of requests to the PodResource endpoint. Broken down by \
                 server api version.",
            ),
            list: [
                counter(
                    "kubelet_pod_resources_endpoint_requests_list",
                    "[ALPHA] Number of requests to the PodResource List endpoint. Broken down by \
                     server api version.",
                ),
                counter(
                    "kubelet_pod_resources_endpoint_errors_list",
                    "[ALPHA] Number of requests to the PodResource List endpoint which returned error. \
                     Broken down by server api version.",
                ),
            ],
            get: [
                counter(
                    "kubelet_pod_resources_endpoint_requests_get",
                    "[ALPHA] Number of requests to the PodResource Get endpoint. Broken down by server \
                     api version.",
                ),
                counter(
                    "kubelet_pod_resources_endpoint_errors_get",
                    "[ALPHA] Number of requests to the PodResource Get endpoint which returned error. \
                     Broken down by server api version.",
                ),
            ],
            allocatable: [
                counter(
                    "kubelet_pod_resources_endpoint_requests_get_allocatable",
                    "[ALPHA] Number of requests to the PodResource GetAllocatableResources endpoint. \
                     Broken down by server api version.",
                ),
                counter(
                    "kubelet_pod_resources_endpoint_errors_get_allocatable",
                    "[ALPHA] Number of requests to the PodResource GetAllocatableResources endpoint \
                     which returned error. Broken down by server api version.",
                ),
            ],
        }
    }

    /// Counts a request.
    pub fn observe(&self, call: PodResourcesCall, failed: bool) {
        let [requests, errors] = match call {
            PodResourcesCall::List => &self.list,
            PodResourcesCall::Get => &self.get,
            PodResourcesCall::Allocatable => &self.allocatable,
        };
        self.total.increment(&VERSION);
        requests.increment(&VERSION);
        if failed {
            errors.increment(&VERSION);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_counted_by_what_is_asked() {
        let registry = Registry::default();
        let questions = PodResourcesMetrics::new(&registry);
        questions.observe(PodResourcesCall::List, false);
        questions.observe(PodResourcesCall::Get, true);
        let text = registry.render();
        for (name, count) in [("requests_total", 2), ("requests_list", 1), ("errors_get", 1)] {
            let line = format!(
                "kubelet_pod_resources_endpoint_{name}{{server_api_version=\"v1\"}} {count}"
            );
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
        assert!(!text.contains("errors_list{"), "{text}");
    }
}
