//! Names: expansion of references, host names, DNS, cgroups.

use objects::QosClass;

use super::*;

fn check_expand(input: &str, expected: &str) {
    let values = BTreeMap::from([("A", "1"), ("B", "$(A)"), ("EMPTY", "")]);
    let expanded = expansion::expand_text(input, |name| {
        values.get(std::str::from_utf8(name).unwrap()).map(|value| value.as_bytes())
    });
    assert_eq!(expanded, expected, "{input}");
}

#[test]
fn references_are_replaced_once_and_unknown_ones_stay() {
    for (input, expected) in [
        ("", ""),
        ("x", "x"),
        ("$(A)", "1"),
        ("a$(A)b$(A)c", "a1b1c"),
        // Expanded text is not expanded again.
        ("$(B)", "$(A)"),
        ("<$(EMPTY)>", "<>"),
        ("$(NOPE)", "$(NOPE)"),
        ("$()", "$()"),
        // An escaped dollar starts no reference.
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$A", "$A"),
        ("$(A", "$(A"),
        ("$(A$(A)", "$(A$(A)"),
        ("$(A)(B)", "1(B)"),
        ("$-$(A)", "$-1"),
        ("end$", "end$"),
        ("end$$", "end$"),
        ("$", "$"),
        ("${A}", "${A}"),
        ("$é$(A)", "$é1"),
        ("--- $(A) $(ls)", "--- 1 $(ls)"),
    ] {
        check_expand(input, expected);
    }
}

#[test]
fn a_sub_path_needs_every_variable() {
    let mount = |path: &str, expr: &str| lifecycle::spec::VolumeMount {
        sub_path: path.to_owned(),
        sub_path_expr: expr.to_owned(),
        ..Default::default()
    };
    let lookup = |name: &[u8]| match name {
        b"A" => Some(b"1".as_slice()),
        b"EMPTY" => Some(b"".as_slice()),
        _ => None,
    };
    assert_eq!(expansion::sub_path(&mount("x/$(A)", ""), lookup), Ok("x/$(A)".to_owned()));
    assert_eq!(expansion::sub_path(&mount("", "x/$(A)"), lookup), Ok("x/1".to_owned()));
    let error = expansion::sub_path(&mount("", "$(Z)$(EMPTY)$(Z)"), lookup).unwrap_err();
    assert_eq!(error.to_string(), "missing value for EMPTY, Z");
}

#[test]
fn host_name_is_the_pods_name_unless_set() {
    let long = "a".repeat(70);
    let dashes = format!("{}---tail", "a".repeat(61));
    let fqdn_63 = "h".repeat(63);
    type Case<'a> = (Value, &'a str, Result<&'a str, &'a str>);
    let cases: &[Case<'_>] = &[
        (json!({}), "pod-1", Ok("pod-1")),
        (json!({}), &long, Ok(&long[..63])),
        (json!({}), &dashes, Ok(&dashes[..61])),
        (json!({}), "pod.with.dots", Ok("pod.with.dots")),
        (json!({"hostname": "web"}), "pod-1", Ok("web")),
        (
            json!({"hostname": "We"}),
            "pod-1",
            Err("pod Hostname \"We\" is not a valid DNS label: a lowercase RFC 1123 label must "),
        ),
        (json!({"subdomain": "svc"}), "pod-1", Ok("pod-1")),
        (
            json!({"subdomain": "a.b"}),
            "pod-1",
            Err("pod Subdomain \"a.b\" is not a valid DNS label: must not contain dots"),
        ),
        (
            json!({"hostname": "web", "subdomain": "svc", "setHostnameAsFQDN": true}),
            "pod-1",
            Ok("web.svc.lives.svc.cluster.local"),
        ),
        // Without a subdomain there is no domain to add.
        (json!({"hostname": "web", "setHostnameAsFQDN": true}), "pod-1", Ok("web")),
        (
            json!({"hostname": fqdn_63, "subdomain": "svc", "setHostnameAsFQDN": true}),
            "pod-1",
            Err("failed to construct FQDN from pod hostname and cluster domain, FQDN "),
        ),
        (
            json!({"hostname": "web", "subdomain": "svc", "hostnameOverride": "other.example.org"}),
            "pod-1",
            Ok("other.example.org"),
        ),
        (
            json!({"hostnameOverride": "No Good"}),
            "pod-1",
            Err("pod HostnameOverride \"No Good\" is not a valid DNS subdomain: "),
        ),
    ];
    for (spec, name, expected) in cases {
        let mut pod = pod(spec.clone());
        pod.metadata.name = (*name).to_owned();
        match (World::new().sandbox(&pod), expected) {
            (Ok(config), Ok(expected)) => assert_eq!(config.hostname, *expected, "{spec}"),
            (Err(error), Err(start)) => {
                let text = error.to_string();
                assert!(text.starts_with(start), "{text}");
            }
            (other, _) => panic!("{spec} {name}: {other:?}, not {expected:?}"),
        }
    }
    let too_long = pod(json!({"hostname": fqdn_63, "subdomain": "svc", "setHostnameAsFQDN": true}));
    let text = World::new().sandbox(&too_long).unwrap_err().to_string();
    let end = "is too long (64 characters is the max, 91 characters requested)";
    assert!(text.ends_with(end), "{text}");
    // A pod with host networking has the host's name.
    let host = pod(json!({"hostname": "web", "hostNetwork": true}));
    assert_eq!(World::new().sandbox(&host).unwrap().hostname, "");
}

fn dns(node_env: &NodeEnvironment, spec: Value) -> (String, String, String, Vec<DnsNotice>) {
    let (config, notices) = dns::config(&pod(spec), node_env);
    (config.servers.join(" "), config.searches.join(" "), config.options.join(" "), notices)
}

#[test]
fn dns_follows_the_policy() {
    let mut node_env = node_env();
    node_env.dns.resolv_conf = Some(
        "# search no.example\nsearch old.example\nnameserver 192.0.2.53\nnameserver\n\
         \tsearch corp.example. . cluster.local\noptions ndots:2 rotate ndots:3\n"
            .to_owned(),
    );
    let host = ("192.0.2.53", "corp.example cluster.local", "ndots:3 rotate");
    let cluster = (
        "10.0.0.10",
        "lives.svc.cluster.local svc.cluster.local cluster.local corp.example",
        "ndots:5",
    );
    for (spec, expected) in [
        (json!({}), cluster),
        (json!({"dnsPolicy": "ClusterFirst", "hostNetwork": true}), host),
        (json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true}), cluster),
        (json!({"dnsPolicy": "Default"}), host),
        (json!({"dnsPolicy": "None"}), ("", "", "")),
        (
            json!({"dnsPolicy": "None", "dnsConfig": {
                "nameservers": ["192.0.2.1", "192.0.2.1"], "searches": ["a", "b", "a"],
                "options": [{"name": "x"}, {"name": "y", "value": "1"}, {"name": "z", "value": ""}],
            }}),
            ("192.0.2.1", "a b", "x y:1 z"),
        ),
        (
            json!({"dnsPolicy": "Default", "dnsConfig": {
                "nameservers": ["192.0.2.53", "192.0.2.1"], "options": [{"name": "ndots", "value": "1"}],
            }}),
            ("192.0.2.53 192.0.2.1", "corp.example cluster.local", "ndots:1 rotate"),
        ),
    ] {
        let (servers, searches, options, notices) = dns(&node_env, spec.clone());
        let found = (servers.as_str(), searches.as_str(), options.as_str());
        assert_eq!((found, notices), (expected, Vec::new()), "{spec}");
    }

    node_env.dns.cluster_servers.clear();
    let (servers, _, _, notices) = dns(&node_env, json!({}));
    assert_eq!(servers, "192.0.2.53");
    assert_eq!(notices[0].reason(), "MissingClusterDNS");
    assert_eq!(
        notices[0].to_string(),
        "pod: \"p_lives(u-1)\". kubelet does not have ClusterDNS IP configured and cannot create \
         Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy."
    );

    node_env.dns.resolv_conf = None;
    node_env.ips = vec!["192.0.2.7".to_owned(), "2001:db8::7".to_owned()];
    let (servers, searches, ..) = dns(&node_env, json!({"dnsPolicy": "Default"}));
    assert_eq!((servers.as_str(), searches.as_str()), ("127.0.0.1 ::1", "."));
}

#[test]
fn dns_is_truncated_to_the_limits_of_resolvers() {
    let node_env = node_env();
    let none = |servers: &[&str], searches: &[String]| {
        let config = json!({"nameservers": servers, "searches": searches});
        json!({"dnsPolicy": "None", "dnsConfig": config})
    };
    let (servers, _, _, notices) = dns(&node_env, none(&["1", "2", "3", "4"], &[]));
    assert_eq!(servers, "1 2 3");
    assert_eq!(notices[0].reason(), "DNSConfigForming");
    assert_eq!(
        notices[0].to_string(),
        "Nameserver limits were exceeded, some nameservers have been omitted, the applied \
         nameserver line is: 1 2 3"
    );

    let searches = |of: &[String]| {
        let (_, searches, _, notices) = dns(&node_env, none(&[], of));
        (searches, notices.len())
    };
    let numbered = |count: usize| (0..count).map(|n| format!("d{n}")).collect::<Vec<_>>();
    assert_eq!(searches(&numbered(32)), (numbered(32).join(" "), 0));
    assert_eq!(searches(&numbered(33)), (numbered(32).join(" "), 1));
    // The longest valid domain, and a longer one.
    let long = |letter: &str, length| letter.repeat(length);
    assert_eq!(searches(&[long("a", 253)]), (long("a", 253), 0));
    assert_eq!(searches(&[long("a", 254), "b".to_owned()]), ("b".to_owned(), 1));
    // 8 * 253 letters and 7 spaces leave room for 16 letters and their space.
    let mut many: Vec<String> = ('a'..='h').map(|c| long(&c.to_string(), 253)).collect();
    many.push("x".repeat(16));
    assert_eq!(searches(&many), (many.join(" "), 0));
    many[8].push('x');
    assert_eq!(searches(&many), (many[..8].join(" "), 1));
}

#[test]
fn cgroup_names_depend_on_the_driver() {
    let uid = "0a-1b";
    for (driver, root, class, expected) in [
        (CgroupDriver::Cgroupfs, "/", QosClass::Guaranteed, "/kubepods/pod0a-1b"),
        (CgroupDriver::Cgroupfs, "", QosClass::Burstable, "/kubepods/burstable/pod0a-1b"),
        (
            CgroupDriver::Cgroupfs,
            "/x/y/",
            QosClass::BestEffort,
            "/x/y/kubepods/besteffort/pod0a-1b",
        ),
        (
            CgroupDriver::Systemd,
            "/",
            QosClass::Guaranteed,
            "/kubepods.slice/kubepods-pod0a_1b.slice",
        ),
        (
            CgroupDriver::Systemd,
            "/",
            QosClass::Burstable,
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a_1b.slice",
        ),
        (
            CgroupDriver::Systemd,
            "/my-root",
            QosClass::Guaranteed,
            "/my_root.slice/my_root-kubepods.slice/my_root-kubepods-pod0a_1b.slice",
        ),
    ] {
        let cgroups = Cgroups { driver, root: root.to_owned(), ..node_env().cgroups };
        assert_eq!(cgroup::parent(&cgroups, class, uid), expected);
        let (above, last) = expected.rsplit_once('/').unwrap();
        assert_eq!(cgroup::of_class(&cgroups, class), above);
        assert_eq!(cgroup::uid(driver, last).as_deref(), Some(uid));
        assert!(above.starts_with(&cgroup::of_all_pods(&cgroups)), "{above}");
    }
}

#[test]
fn other_cgroups_have_no_uid() {
    for (driver, name) in [
        (CgroupDriver::Cgroupfs, "burstable"),
        (CgroupDriver::Cgroupfs, "pod"),
        (CgroupDriver::Cgroupfs, ""),
        (CgroupDriver::Systemd, "kubepods-burstable.slice"),
        (CgroupDriver::Systemd, "pod1"),
        (CgroupDriver::Systemd, "cri-containerd-1.scope"),
    ] {
        assert_eq!(cgroup::uid(driver, name), None, "{name}");
    }
}
