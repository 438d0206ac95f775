//! The DNS configuration of a pod: [`config`].
//!
//! Computed from the pod's policy, the cluster's DNS and the text of the host's `resolv.conf`, and truncated
//! to the limits of resolvers. Truncations and replacements are returned as [`DnsNotice`]s; the caller
//! reports them.

use std::fmt;
use std::net::IpAddr;

use cri::v1;

use super::input::NodeEnvironment;
use lifecycle::spec::{DnsConfig, DnsPolicy, Pod};

/// The largest number of servers of a resolver.
const MAX_SERVERS: usize = 3;
/// The largest number of search domains, and the longest search line.
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_LINE: usize = 2048;
/// The longest domain: older resolvers abort on longer ones.
const MAX_DOMAIN: usize = 253;
/// The options for the cluster's DNS, so that `name.namespace.svc` is searched first.
const CLUSTER_OPTIONS: &[&str] = &["ndots:5"];

/// A notice about a pod's DNS for its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DnsNotice {
    /// The cluster's DNS is requested but not configured; the host's is used. Names the pod.
    NoClusterDns { pod: String },
    /// Servers were omitted; these are used.
    Servers(Vec<String>),
    /// Search domains were omitted; these are used.
    Searches(Vec<String>),
}

impl DnsNotice {
    /// Returns the reason of the Event.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            DnsNotice::NoClusterDns { .. } => "MissingClusterDNS",
            DnsNotice::Servers(_) | DnsNotice::Searches(_) => "DNSConfigForming",
        }
    }
}

/// Formats the message of the Event.
impl fmt::Display for DnsNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DnsNotice::NoClusterDns { pod } => write!(
                f,
                "pod: {pod:?}. kubelet does not have ClusterDNS IP configured and cannot create \
                 Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy."
            ),
            DnsNotice::Servers(applied) => write!(
                f,
                "Nameserver limits were exceeded, some nameservers have been omitted, the applied \
                 nameserver line is: {}",
                applied.join(" ")
            ),
            DnsNotice::Searches(applied) => write!(
                f,
                "Search Line limits were exceeded, some search paths have been omitted, the \
                 applied search line is: {}",
                applied.join(" ")
            ),
        }
    }
}

/// Returns the DNS configuration of a pod.
#[must_use]
pub fn config(pod: &Pod, node_env: &NodeEnvironment) -> (v1::DnsConfig, Vec<DnsNotice>) {
    let mut notices = Vec::new();
    let mut config = match (pod.spec.dns_policy, pod.spec.host_network) {
        (DnsPolicy::None, _) => v1::DnsConfig::default(),
        (DnsPolicy::Default, _) | (DnsPolicy::ClusterFirst, true) => of_host(node_env),
        (DnsPolicy::ClusterFirst, false) | (DnsPolicy::ClusterFirstWithHostNet, _) => {
            if node_env.dns.cluster_servers.is_empty() {
                notices.push(DnsNotice::NoClusterDns { pod: super::security::describe(pod) });
                of_host(node_env)
            } else {
                of_cluster(pod, node_env)
            }
        }
    };
    if let Some(own) = &pod.spec.dns_config {
        add(&mut config, own);
    }
    cut(&mut config, &mut notices);
    (config, notices)
}

fn of_host(node_env: &NodeEnvironment) -> v1::DnsConfig {
    match &node_env.dns.resolv_conf {
        Some(text) => parse_resolv_conf(text),
        // An unreachable server: without a server, a runtime would use the host's.
        None => {
            let is_v6 = |ip: &String| ip.parse().is_ok_and(|ip: IpAddr| ip.is_ipv6());
            let loopback = |ip| if is_v6(ip) { "::1" } else { "127.0.0.1" }.to_owned();
            let mut servers: Vec<String> = node_env.ips.iter().map(loopback).collect();
            if servers.is_empty() {
                servers.push("127.0.0.1".to_owned());
            }
            v1::DnsConfig { servers, searches: vec![".".to_owned()], options: Vec::new() }
        }
    }
}

fn of_cluster(pod: &Pod, node_env: &NodeEnvironment) -> v1::DnsConfig {
    let domain = &node_env.dns.cluster_domain;
    let mut searches = Vec::new();
    if !domain.is_empty() {
        let namespace = &pod.metadata.namespace;
        searches.push(format!("{namespace}.svc.{domain}"));
        searches.push(format!("svc.{domain}"));
        searches.push(domain.clone());
    }
    let host = node_env.dns.resolv_conf.as_deref().map(parse_resolv_conf).unwrap_or_default();
    searches.extend(host.searches);
    v1::DnsConfig {
        servers: node_env.dns.cluster_servers.clone(),
        searches: without_repeats(searches),
        options: CLUSTER_OPTIONS.iter().map(|&option| option.to_owned()).collect(),
    }
}

/// Parses a `resolv.conf`. The last search line counts, and the last value of a repeated option.
#[must_use]
pub fn parse_resolv_conf(text: &str) -> v1::DnsConfig {
    let mut config = v1::DnsConfig::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => config.servers.extend(words.next().map(str::to_owned)),
            Some("search") => {
                // A final dot makes no difference.
                let domains = words.filter(|domain| *domain != ".");
                config.searches = domains
                    .map(|domain| domain.strip_suffix('.').unwrap_or(domain).to_owned())
                    .collect();
            }
            Some("options") => {
                for option in words {
                    set_option(&mut config.options, option.to_owned());
                }
            }
            _ => {}
        }
    }
    config
}

fn add(config: &mut v1::DnsConfig, own: &DnsConfig) {
    config.servers.extend(own.nameservers.iter().cloned());
    config.servers = without_repeats(std::mem::take(&mut config.servers));
    config.searches.extend(own.searches.iter().cloned());
    config.searches = without_repeats(std::mem::take(&mut config.searches));
    for option in &own.options {
        let text = match option.value.as_deref() {
            None | Some("") => option.name.clone(),
            Some(value) => format!("{}:{value}", option.name),
        };
        set_option(&mut config.options, text);
    }
}

/// Replaces the option of the same name, or adds it.
fn set_option(options: &mut Vec<String>, option: String) {
    let name = |option: &str| option.split(':').next().unwrap_or_default().to_owned();
    let wanted = name(&option);
    match options.iter_mut().find(|known| name(known) == wanted) {
        Some(known) => *known = option,
        None => options.push(option),
    }
}

fn without_repeats(list: Vec<String>) -> Vec<String> {
    let mut once: Vec<String> = Vec::with_capacity(list.len());
    for text in list {
        if !once.contains(&text) {
            once.push(text);
        }
    }
    once
}

fn cut(config: &mut v1::DnsConfig, notices: &mut Vec<DnsNotice>) {
    if config.servers.len() > MAX_SERVERS {
        config.servers.truncate(MAX_SERVERS);
        notices.push(DnsNotice::Servers(config.servers.clone()));
    }
    let wanted = config.searches.len();
    config.searches.truncate(MAX_SEARCHES);
    config.searches.retain(|domain| domain.len() <= MAX_DOMAIN);
    // Take as many from the start as fit on the line, separated by spaces.
    let mut length = 0;
    let fitting = config.searches.iter().enumerate().take_while(|(index, domain)| {
        length += domain.len() + usize::from(*index > 0);
        length <= MAX_SEARCH_LINE
    });
    let fitting = fitting.count();
    config.searches.truncate(fitting);
    if config.searches.len() < wanted {
        notices.push(DnsNotice::Searches(config.searches.clone()));
    }
}
