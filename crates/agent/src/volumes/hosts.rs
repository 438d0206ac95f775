//! The hosts file of a pod: [`of_pod`] and [`of_host`], as upstream writes them.
//!
//! Pure; [`super::Volumes::write_hosts_file`] writes it.

use crate::runtime::lower::hostname::Name;
use lifecycle::spec::HostAlias;

const HEAD: &str = "# Kubernetes-managed hosts file.\n";
const HEAD_OF_HOST: &str = "# Kubernetes-managed hosts file (host network).\n";
const LOCAL: &str = "127.0.0.1\tlocalhost\n\
                     ::1\tlocalhost ip6-localhost ip6-loopback\n\
                     fe00::0\tip6-localnet\n\
                     fe00::0\tip6-mcastprefix\n\
                     fe00::1\tip6-allnodes\n\
                     fe00::2\tip6-allrouters\n";

/// Renders the file of a pod with its own network namespace.
#[must_use]
pub fn of_pod(pod_ips: &[String], name: &Name, aliases: &[HostAlias]) -> String {
    let mut text = format!("{HEAD}{LOCAL}");
    for ip in pod_ips {
        let Name { host, domain } = name;
        match domain.as_str() {
            "" => text.push_str(&format!("{ip}\t{host}\n")),
            domain => text.push_str(&format!("{ip}\t{host}.{domain}\t{host}\n")),
        }
    }
    text + &of_aliases(aliases)
}

/// Renders the file of a pod with host networking: the node's own file and the pod's aliases.
#[must_use]
pub fn of_host(hosts_file: &str, aliases: &[HostAlias]) -> String {
    format!("{HEAD_OF_HOST}{hosts_file}{}", of_aliases(aliases))
}

fn of_aliases(aliases: &[HostAlias]) -> String {
    if aliases.is_empty() {
        return String::new();
    }
    let lines: String =
        aliases.iter().map(|of| format!("{}\t{}\n", of.ip, of.hostnames.join("\t"))).collect();
    format!("\n# Entries added by HostAliases.\n{lines}")
}
